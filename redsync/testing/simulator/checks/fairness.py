"""Fairness: first come, first served. An owner that finished queueing before another asked is served before it.

For each owner X that waits for a fair lock, and each Y that wins it:

* X *had finished queueing* when a quorum of nodes had executed an acquire request of X with its ticket;
* Y's attempt *began* when Y sent its first acquire request;
* if X had finished before Y's attempt began, and each node of one and the same quorum has had to keep X's place from
  then until now without a break (see `queues`), then Y must not win.

It must hold at every instant, whatever the faults, and needs no correct clock. Y draws its ticket after its attempt
began, from a quorum of nodes. That quorum shares a node with X's, where X's place shows X's ticket, so Y's ticket is
higher. And no node of X's quorum grants to Y while X's place there comes first. So only the end of a place is an
excuse: X was silent for 3 s by a node's clock; a node lost its memory; a node had no connection to X's client when it
had to wake X. Y may overtake X once fewer than a quorum of X's places are left.

Not seen: owners that have not finished queueing; that an owner is served at all, which `liveness` judges; owners of
which a node executed a command late, over an abandoned connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from redsync._core.quorum import quorum_of
from redsync.testing.simulator.checks.checker import Checker, Simulation, describe
from redsync.testing.simulator.checks.queues import Place, Queues, asked_ticket
from redsync.testing.simulator.checks.rounds import claims, owner_in, parse
from redsync.testing.simulator.happenings import Executed, Faulted, Sent, Stepped

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync.testing.simulator.machines import Machine

__all__ = ["Fairness"]


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


class Fairness(Checker):
    """No waiter is overtaken by a later one."""

    name = "fairness"
    watches = (Sent, Executed, Stepped, Faulted)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._queues: Final = Queues(sim)
        self._quorum: Final = quorum_of(len(sim.nodes))
        self._attempts: Final[dict[tuple[bytes, bytes], _Attempt]] = {}
        self._held: Final[dict[Machine, list[HoldState]]] = {}
        self._strays: Final[dict[bytes, None]] = {}

    def see(self, happening: Sent | Executed | Stepped | Faulted) -> str | None:
        """Record requests, and look at winners."""
        match happening:
            case Sent():
                self._note_sent(happening)
            case Executed():
                self._queues.note(happening)
                if happening.stray:
                    for claim in claims(happening.script, happening.keys, happening.args):
                        self._strays[claim.owner] = None
            case Stepped():
                return next(filter(None, map(self._look_at, self._winners(happening.machine))), None)
            case Faulted():
                self._queues.forget(happening)
        return None

    def _note_sent(self, sent: Sent) -> None:
        noun, verb = parse(sent.script)
        if noun != "fair_lock":
            return
        key, claim = sent.keys[0], sent.args[0]
        assert isinstance(claim, bytes), "a claim is text"
        owner = owner_in(claim)
        if asked_ticket(sent.script, sent.keys, sent.args) is not None:
            if (key, owner) not in self._attempts:
                self._attempts[key, owner] = self._begin(key, owner, f"#{sent.number} at {sent.at:.6f}")
        elif verb == "release" or (verb == "abandon" and sent.args[1]):
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
