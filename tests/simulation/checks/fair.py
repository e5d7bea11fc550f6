"""The order of a fair lock's waiters: the places that nodes must keep, and who must be granted the lock."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import hiredis

from redsync._core.holds import HoldState
from redsync._core.quorum import quorum_of
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.store import Hash, SortedSet
from redsync.testing.simulator.trace_events import Executed, Faulted, Sent, Stepped
from tests.simulation.checks.base import OwnChecker, Trial, describe, loses_memory, who
from tests.simulation.checks.kept import kept_at
from tests.simulation.checks.rounds import STAYS, claims, owner_in

_ACQUIRE, _RELEASE = "fair_lock_acquire", "lock_release"
_FOREIGN = 0


def asked_ticket(script: str, keys: Sequence[bytes], args: Sequence[Any]) -> int | None:
    """Return the ticket with which a command asks for a fair lock, 0 if it has none yet; None if it does not ask."""
    return args[5] if script == _ACQUIRE and len(keys) > 1 else None


def _parts(claim: Any) -> tuple[bytes, int]:
    owner, _, number = claim.rpartition(b":")
    return owner, int(number)


class Place:
    """One owner's place in the queue of one node.

    Attributes:
        node: The node's index.
        owner: The owner, as queues name it.
        ticket: Its ticket.
        channel: The channel of its client's wake-ups.
        number: The number of the claim that last took or renewed it.
        until_ms: Its end by the node's clock, unless it is renewed.
        over: True once it has ended.
    """

    def __init__(self, node: int, owner: bytes, ticket: int, channel: bytes) -> None:
        self.node: Final = node
        self.owner: Final = owner
        self.ticket: Final = ticket
        self.channel: Final = channel
        self.number = 0
        self.until_ms = 0
        self.over = False

    @property
    def rank(self) -> tuple[int, bytes]:
        """The order of waiters: by ticket, and by name where tickets are equal."""
        return self.ticket, self.owner


class Queues:
    """The owners that must be in the queues of fair locks, judged by executed commands.

    It must get every `Executed` and `Faulted`, in order.

    A node that executes an acquire request with a ticket has to keep the owner's *place*, whatever it answers, until

    * the owner leaves (it releases its last hold, or gives up),
    * the owner was silent for the time that it had asked its place to be kept, by the node's clock, whichever way that
      jumps: a clock that jumps ahead ends places, one that jumps back lengthens them,
    * a release, or an owner that gives up, finds the place while no connection of its client is subscribed at the node,
    * the node loses its memory,
    * the node refuses to write while the attempt is rolled back.

    A late ask need not get a place for as long as the node has one of a later claim of the owner, even an expired one.
    A renewed place stays the same object. One with another ticket is another place.
    """

    def __init__(self, sim: Trial) -> None:
        self._sim: Final = sim
        self._places: Final[dict[tuple[int, bytes], dict[bytes, Place]]] = {}
        self._names: Final[dict[bytes, bytes]] = {}
        self._numbers: Final[dict[tuple[int, bytes, bytes], int]] = {}

    def places(self, node: int, key: bytes) -> list[Place]:
        """Return the places that a node must keep for a lock, without those that end at this very instant."""
        kept = self._places.get((node, key), {})
        now_ms = math.floor(self._sim.nodes[node].clock.now() * 1000) + 1
        for place in [place for place in kept.values() if place.until_ms <= now_ms]:
            self._end(kept, place)
        return list(kept.values())

    def by_owner(self, key: bytes) -> dict[bytes, list[Place]]:
        """Return the places at all nodes for a lock."""
        found: dict[bytes, list[Place]] = {}
        for node in range(len(self._sim.nodes)):
            for place in self.places(node, key):
                found.setdefault(place.owner, []).append(place)
        return found

    def ticket(self, node: int, key: bytes, owner: bytes) -> int | None:
        """Return the ticket that a node keeps for an owner, even if it no longer must; None if it keeps none."""
        known = key in self._names
        score = kept_at(self._sim.nodes[node], self._names[key], SortedSet).get(owner) if known else None
        return None if score is None else int(score)

    def note(self, executed: Executed) -> None:
        """Record what a node has executed."""
        node, script, keys, args = executed.node, executed.script, executed.keys, executed.args
        ticket = asked_ticket(script, keys, args)
        if ticket is None and script != _RELEASE:
            return
        if isinstance(executed.reply, hiredis.ReplyError) and not str(executed.reply).startswith("FORGETFUL"):
            # It was not executed. But a node that answers FORGETFUL has still taken the place.
            return
        self.places(node, keys[0])
        self._names[keys[0]] = keys[1]
        kept = self._places.setdefault((node, keys[0]), {})
        if ticket and args[4] and executed.reply != _FOREIGN:
            self._keep(kept, executed)
        if script == _RELEASE:
            leaves, (owner, number) = args[1] == 0, _parts(args[0])
            for place in list(kept.values()):
                left = place.owner == owner and place.number <= number and (leaves or self._is_unwritten(executed))
                if left or not self._sim.nodes[node].listeners(place.channel):
                    self._end(kept, place)

    def _is_unwritten(self, executed: Executed) -> bool:
        """Return whether a rollback ended a place because the node, which refuses to write, could not change it."""
        return executed.args[1] == STAYS and self._sim.nodes[executed.node].store.refusal is not None

    def _keep(self, kept: dict[bytes, Place], executed: Executed) -> None:
        node = executed.node
        args: tuple[Any, ...] = executed.args
        (owner, number), (keep_ms, ticket, channel, _ask_id) = _parts(args[0]), args[4:]
        whose = node, executed.keys[0], owner
        has_no_place = isinstance(executed.reply, list) and len(executed.reply) == _WITHOUT_PLACE
        if (owner in kept and kept[owner].number > number) or (has_no_place and self._numbers.get(whose, 0) > number):
            # A late command of an earlier attempt.
            return
        self._numbers[whose] = number
        place = kept.get(owner)
        if place is None or place.ticket != ticket:
            if place is not None:
                self._end(kept, place)
            place = kept[owner] = Place(node, owner, ticket, channel)
        place.number = number
        place.until_ms = math.floor(self._sim.nodes[node].clock.now() * 1000) + keep_ms

    def forget(self, faulted: Faulted) -> None:
        """Record nodes that lose their memory."""
        if loses_memory(faulted):
            name = who(faulted)
            for (node, _), kept in self._places.items():
                if self._sim.nodes[node].name == name:
                    for place in list(kept.values()):
                        self._end(kept, place)

    @staticmethod
    def _end(kept: dict[bytes, Place], place: Place) -> None:
        place.over = True
        del kept[place.owner]


_NEW = 1

_WITHOUT_PLACE = 3
"""The number of elements in the answer to an asker that has no place."""


class Turns(OwnChecker):
    """Turns: each node grants a fair lock only to the head of its queue, and all nodes order their queues alike.

    Whenever a node makes a new claim on a fair lock, because a client asks or because the node hands the lock over, no
    other owner whose place it has to keep (see `Queues`) comes first: none has a lower ticket than the new holder, or
    an equal ticket and the lesser name. An owner without a place comes last.

    It holds at every instant, whatever the faults. `Fairness` rests on it, and so does the agreement of nodes: if nodes
    ordered equal tickets differently, several waiters could each get a minority, time and again.
    """

    name = "turns"
    watches = (Executed, Faulted)

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._queues: Final = Queues(sim)
        self._holders: Final[dict[tuple[int, bytes], bytes | None]] = {}

    def see(self, event: Executed | Faulted) -> str | None:
        """Look at the owner to which a node grants the lock."""
        if isinstance(event, Faulted):
            self._queues.forget(event)
            if event.kind == "node restart older":
                # The owner that held the lock at the time of that data has it again.
                for node, key in self._holders:
                    if self.sim.nodes[node].name == who(event):
                        self._holders[node, key] = self._holder(node, key)
            return None
        self._queues.note(event)
        for key in self._keys(event):
            if text := self._look_at(event, key):
                return text
        return None

    @staticmethod
    def _keys(executed: Executed) -> list[bytes]:
        if executed.script == _RELEASE:
            return [executed.keys[0]]
        return [claim.key for claim in claims(executed.script, executed.keys, executed.args)]

    def _look_at(self, executed: Executed, key: bytes) -> str | None:
        node = executed.node
        before = self._holders.get((node, key))
        holder = self._holders[node, key] = self._holder(node, key)
        if executed.script == _RELEASE:
            new = holder != before or (executed.reply == _NEW and not self._stays(executed))
        else:
            new = executed.reply == _NEW and asked_ticket(executed.script, executed.keys, executed.args) is not None
        return self._judge(node, key, holder) if new and holder is not None else None

    @staticmethod
    def _stays(executed: Executed) -> bool:
        """Return whether the command released one acquisition of several."""
        return executed.args[1] not in (0, STAYS)

    def _holder(self, node: int, key: bytes) -> bytes | None:
        return next(iter(kept_at(self.sim.nodes[node], key, Hash)), None)

    def _has_kept(self, node: int, key: bytes, owner: bytes, first: Place) -> bool:
        """Return whether an owner comes first whose place the node kept although it was free to drop it."""
        ticket = self._queues.ticket(node, key, owner)
        return ticket is not None and (ticket, owner) < first.rank

    def _judge(self, node: int, key: bytes, claim: bytes) -> str | None:
        owner = owner_in(claim)
        places = self._queues.places(node, key)
        # An owner that asks without a ticket may still have a place from an earlier, cancelled attempt.
        ours = [place for place in places if place.owner == owner]
        first = min(places, key=lambda place: place.rank, default=None)
        if first is None or first in ours or (not ours and self._has_kept(node, key, owner, first)):
            return None
        ticket = f"with ticket {ours[0].ticket}" if ours else "without a ticket"
        return (
            f"{self.sim.nodes[node].name} granted {describe(key, claim)} {ticket}, "
            f"when it was the turn of {first.owner.decode()} with ticket {first.ticket}"
        )


class _Attempt(NamedTuple):
    """One owner's attempt to acquire a lock.

    Attributes:
        key: The lock.
        owner: The requesting owner.
        began: The instant of its first command, and the command.
        seniors: By owner, the places of owners that had finished queueing by then.
    """

    key: bytes
    owner: bytes
    began: str
    seniors: dict[bytes, list[Place]]


class Fairness(OwnChecker):
    """Fairness: first come, first served. An owner that finished queueing before another asked is served before it.

    For each owner X that waits for a fair lock, and each Y that wins it:

    * X *had finished queueing* when a quorum of nodes had executed an acquire request of X with its ticket;
    * Y's attempt *began* when Y sent its first acquire request;
    * if X had finished before Y's attempt began, and each node of one and the same quorum has had to keep X's place
      from then until now without a break (see `Queues`), then Y must not win.

    It must hold at every instant, whatever the faults, and needs no correct clock. Y draws its ticket after its attempt
    began, from a quorum of nodes. That quorum shares a node with X's, where X's place shows X's ticket, so Y's ticket
    is higher. And no node of X's quorum grants to Y while X's place there comes first. So only the end of a place is an
    excuse: X was silent for 3 s by a node's clock; a node lost its memory; a node had no connection to X's client when
    it had to wake X. Y may overtake X once fewer than a quorum of X's places are left.

    Not seen: owners that have not finished queueing; that an owner is served at all, which `liveness` judges; owners of
    which a node executed a command late, over an abandoned connection.
    """

    name = "fairness"
    watches = (Sent, Executed, Stepped, Faulted)

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._queues: Final = Queues(sim)
        self._quorum: Final = quorum_of(len(sim.nodes))
        self._attempts: Final[dict[tuple[bytes, bytes], _Attempt]] = {}
        self._held: Final[dict[Machine, list[HoldState]]] = {}
        self._strays: Final[dict[bytes, None]] = {}

    def see(self, event: Sent | Executed | Stepped | Faulted) -> str | None:
        """Record requests, and look at winners."""
        match event:
            case Sent():
                self._note_sent(event)
            case Executed():
                self._queues.note(event)
                if event.stray:
                    for claim in claims(event.script, event.keys, event.args):
                        self._strays[claim.owner] = None
            case Stepped():
                return next(filter(None, map(self._look_at, self._winners(event.machine))), None)
            case Faulted():
                self._queues.forget(event)
        return None

    def _note_sent(self, sent: Sent) -> None:
        if sent.script not in (_ACQUIRE, _RELEASE):
            return
        key, claim = sent.keys[0], sent.args[0]
        assert isinstance(claim, bytes), "a claim is text"
        owner = owner_in(claim)
        if asked_ticket(sent.script, sent.keys, sent.args) is not None:
            if (key, owner) not in self._attempts:
                self._attempts[key, owner] = self._begin(key, owner, f"#{sent.number} at {sent.at:.6f}")
        elif sent.script == _RELEASE and sent.args[1] == 0:
            self._attempts.pop((key, owner), None)

    def _begin(self, key: bytes, owner: bytes, began: str) -> _Attempt:
        queued = self._queues.by_owner(key)
        # On a node where it has a place from an earlier attempt it may go first.
        known = [place.node for place in queued.pop(owner, ())]
        seniors = {senior: [place for place in places if place.node not in known] for senior, places in queued.items()}
        return _Attempt(key, owner, began, {who: at for who, at in seniors.items() if len(at) >= self._quorum})

    def _winners(self, machine: Machine) -> Iterator[_Attempt]:
        """Return the attempts that have won since the last look, by a round of votes or by a hand-over."""
        before = self._held.get(machine, ())
        now = list(machine.holds())
        self._held[machine] = now
        for state in now:
            attempt = self._attempts.get((state.keys.lock, state.owner.wire))
            if attempt is not None and not any(state is held for held in before):
                yield attempt

    def _look_at(self, attempt: _Attempt) -> str | None:
        if attempt.owner in self._strays:
            return None
        # This also ends expired places.
        self._queues.by_owner(attempt.key)
        for senior, places in attempt.seniors.items():
            kept = [place for place in places if not place.over]
            if len(kept) >= self._quorum:
                where = ", ".join(self.sim.nodes[place.node].name for place in kept)
                return (
                    f"{describe(attempt.key, attempt.owner)}, which first asked with {attempt.began}, when "
                    f"{senior.decode()} had queued with ticket {kept[0].ticket} on {where}, and still does"
                )
        return None
