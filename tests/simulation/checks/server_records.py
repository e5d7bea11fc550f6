"""Servers: they keep and grant only what they may, and each is one voter."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from redsync._drivers.links import AnyLink
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.store import SortedSet
from redsync.testing.simulator.trace_events import Decided, Executed, Faulted, Sent
from tests.simulation.checks.base import OwnChecker, Trial, describe, loses_memory, who
from tests.simulation.checks.kept import Kept, kept_at, kept_claims, kept_places, now_ms
from tests.simulation.checks.latch_knowledge import EXCHANGE
from tests.simulation.checks.rounds import MODES, PERMIT, READ_WRITE, STAYS, Rounds, claims, parse
from tests.simulation.trial_nodes import TrialNode
from tests.simulation.trial_runner import TrialRunner

_READ, _WRITE = MODES
_WITH_PLACE = 8
"""The smallest number of arguments of an acquire request that takes a place."""


def _takes_place(executed: Executed) -> bool:
    """Return whether an acquire takes a place in a queue, or renews it; a fair lock's needs a ticket for that."""
    if not executed.script.endswith("_acquire") or len(executed.args) < _WITH_PLACE:
        return False
    return executed.script != "fair_lock_acquire" or (int(executed.args[4]) > 0 and int(executed.args[5]) > 0)


def _may_remove(executed: Executed) -> bool:
    """Return whether a script removes what a stray of the same owner left: a renewal, or an ask alone, does not."""
    return not executed.script.endswith(("_renew", "_acquire")) or _takes_place(executed)


_SHIFT = 1 << 52
"""Subtracted from the arrivals of writers, so that they come before readers in the queue."""


_Rank: TypeAlias = tuple[float, int, bytes]

_FIRST: Final[_Rank] = (-math.inf, 0, b"")
_LAST: Final[_Rank] = (math.inf, 0, b"")


class _Place(NamedTuple):
    owner: bytes
    mode: bytes
    came: float

    @property
    def rank(self) -> _Rank:
        """The order of waiters: of two that arrived at the same instant, the writer comes first."""
        return self.came, int(self.mode == _READ), self.owner


class _Book(NamedTuple):
    """A node's record of one lock: the ends of claims, and the waiters."""

    claims: dict[tuple[bytes, bytes], float]
    places: frozenset[_Place]


class Admission(OwnChecker):
    """Admission: each node admits readers alongside readers and a writer alone, and no reader before a waiting writer.

    After every script about a read-write lock:

    * a node that keeps a writer's claim keeps no other owner's claim;
    * an owner with a new claim to read arrived before all writers that have a place in the queue there, or writes as
      well. Its arrival is the node's time at the request, less the time already waited. An owner that takes no place
      ranks last; one that had a writer's place there keeps that writer's rank. So readers can't starve a writer,
      however many there are;
    * a writer that got the lock by a hand-over arrived before all owners that have a place there and keep it. A writer
      that asks and finds the lock free may be quicker than the waiters, as with every lock that is not fair.

    It holds for each node separately, at every instant, until its clock jumps: a node whose clock is set back to before
    the end of an expired claim has that claim again, if no command has removed it. Two claims that exclude each other
    at one node break no promise to users yet: `Exclusion` reports holds that do. But that promise rests on this one,
    because two quorums share a node.

    Not seen: places that a node has lost, since the check reads the node's own records; claims that are new only to
    this node, because their owners renew them or re-enter.
    """

    name = "admission"
    watches = (Executed, Faulted)

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._books: Final[dict[tuple[int, bytes], _Book]] = {}
        self._queues: Final[dict[bytes, tuple[bytes, bytes]]] = {}
        self._jumped: Final[dict[str, None]] = {}

    def see(self, event: Executed | Faulted) -> str | None:
        """Look at the records after a script."""
        if isinstance(event, Faulted):
            if event.kind == "node jump":
                self._jumped[who(event)] = None
            elif loses_memory(event):
                for node, key in list(self._books):
                    if self.sim.nodes[node].name == who(event):
                        del self._books[node, key]
            return None
        noun, verb = parse(event.script)
        if noun != READ_WRITE:
            return None
        if verb != "renew" and len(event.keys) > 1:
            self._queues[event.keys[0]] = event.keys[1], event.keys[2]
        found = [text for key in event.keys[: None if verb == "renew" else 1] for text in self._turn(event, key)]
        return found[0] if found and self.sim.nodes[event.node].name not in self._jumped else None

    def _turn(self, executed: Executed, key: bytes) -> Iterator[str]:
        """Read the node's record of a lock, and compare it with the last reading."""
        node = executed.node
        before, after = self._books.get((node, key), _Book({}, frozenset())), self._read(node, key)
        self._books[node, key] = after
        writers = [owner for owner, mode in after.claims if mode == _WRITE]
        for other, mode in after.claims:
            if writers and other != writers[0]:
                yield self._describe(node, key, "keeps", (writers[0], _WRITE), "and also", (other, mode))
        if parse(executed.script)[1] == "renew" or len(executed.keys) == 1:
            return
        now, waited = now_ms(self.sim.nodes[node]), sorted(before.places & after.places)
        for owner, mode in after.claims:
            if before.claims.get((owner, mode), 0.0) <= now and (mode == _WRITE or owner not in writers):
                rank = self._rank(executed, before, owner, mode)
                for place in waited:
                    if place.owner != owner and place.rank < rank and (mode, place.mode) != (_READ, _READ):
                        yield self._describe(node, key, "admitted", (owner, mode), "before", place[:2])

    def _read(self, node: int, key: bytes) -> _Book:
        claims: dict[tuple[bytes, bytes], float] = {}
        for claim in kept_claims(self.sim.nodes[node], key):
            # An owner has a second claim if an ask of an earlier acquire arrives late; either may end first.
            of = claim.owner, claim.mode
            claims[of] = max(claims.get(of, 0.0), claim.until_ms)
        if key not in self._queues:
            return _Book(claims, frozenset())
        scores = kept_at(self.sim.nodes[node], self._queues[key][0], SortedSet)
        kept = kept_places(self.sim.nodes[node], *self._queues[key])
        waiting = {owner: scores[owner] for owner in kept if owner in scores}
        places = (
            _Place(owner, _READ, score) if score >= 0 else _Place(owner, _WRITE, score + _SHIFT)
            for owner, score in waiting.items()
        )
        return _Book(claims, frozenset(places))

    def _rank(self, executed: Executed, before: _Book, owner: bytes, mode: bytes) -> _Rank:
        """Return the rank with which an owner was admitted."""
        place = next((place for place in before.places if place.owner == owner), None)
        asks = parse(executed.script)[1] == "acquire" and claims(executed.script, executed.keys, executed.args)
        if not asks or asks[0].owner != owner:
            return _LAST if place is None else place.rank
        if mode == _WRITE:
            return _FIRST
        asked = _LAST
        if len(executed.args) >= _WITH_PLACE:
            came = now_ms(self.sim.nodes[executed.node]) - int(executed.args[5])
            asked = _Place(owner, _READ, came).rank
        # An owner that writes on other nodes has had its turn, and may still have its place here.
        return min(asked, place.rank) if place is not None and place.mode == _WRITE else asked

    def _describe(self, node: int, key: bytes, *words: str | tuple[bytes, bytes]) -> str:
        told = (
            word if isinstance(word, str) else f"{word[0].decode()} {'writing' if word[1] == _WRITE else 'reading'}"
            for word in words
        )
        return f"{self.sim.nodes[node].name} {' '.join(told)}: {key.decode(errors='replace')!r}"


_ASK_ID = 7
"""The index of the ask id: "<number>", or "<number>+<lease, ms>"."""

_ROUNDING = 1
"""Milliseconds: a key still exists in its last one, and a claim may begin within one."""


class Expiry(OwnChecker):
    """Expiry: each claim ends automatically; no node keeps one for longer than its own owner asked for, whatever others
    do.

    Whenever a node has executed a script about a lock, each claim that it keeps there ends no later than the latest of

    * the instants at which it executed an acquire request or a renewal of that owner, plus the requested lease,
    * the instants at which it executed that owner's request for a place in the queue, plus the time to keep the place:
      the lock may have been handed over for that long;
    * the instants at which it executed any script about the lock while it kept that place, plus the lease in the
      request's ask id, if it has one: it may have handed the lock over for that long.

    So the claim of a dead owner is gone one lease after its last command, even where others continue to renew theirs.
    It holds at every instant, by the node's own clock, whichever way that jumps. A semaphore's permits are claims like
    any other.

    Not seen: claims of owners unknown to this run.
    """

    name = "expiry"
    watches = (Executed,)

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._allowed: Final[dict[tuple[int, bytes, bytes, bytes], float]] = {}
        # The end of each place, and for how long its owner may be handed the lock, in ms.
        self._places: Final[dict[tuple[int, bytes, bytes, bytes], tuple[int, int]]] = {}

    def see(self, event: Executed) -> str | None:
        """Look at the claims on the keys of a script."""
        node, (noun, _) = event.node, parse(event.script)
        if not noun:
            return None
        now = now_ms(self.sim.nodes[node])
        keys: dict[bytes, None] = {}
        for claim in claims(event.script, event.keys, event.args):
            keys[claim.key] = None
            until_ms = now + claim.lease * 1000
            whose = node, *claim.whose
            if noun != PERMIT and _takes_place(event):
                place_until, ask_id = now + int(event.args[4]), event.args[_ASK_ID]
                assert isinstance(ask_id, bytes), "an ask id is text"
                until_ms = max(until_ms, place_until)
                self._places[whose] = place_until, int(ask_id.partition(b"+")[2] or 0)
            self._allowed[whose] = max(self._allowed.get(whose, 0), until_ms)
        for key in keys:
            if text := self._look_at(node, key, now):
                return text
        return None

    def _look_at(self, node: int, key: bytes, now: int) -> str | None:
        for kept in kept_claims(self.sim.nodes[node], key):
            whose = node, key, kept.id, kept.mode
            allowed = self._allowed.get(whose)
            if allowed is None:
                continue
            place_until, lease_ms = self._places.get(whose, (0, 0))
            if now <= place_until and allowed < now + lease_ms:
                self._allowed[whose] = allowed = now + lease_ms
            if kept.until_ms > allowed + _ROUNDING:
                what = f"{self.sim.nodes[node].name} keeps {describe(key, kept.id, kept.mode)}"
                return f"{what} for {kept.until_ms - allowed:g} ms longer than requested"
        return None


_QUIESCENCE = 0.3
"""Seconds for which a leftover must exist before it counts."""

_RETRY = 1.0
"""Seconds within which the client sends refused commands again."""

_PLACE = 3.0
"""Seconds for which a place is kept."""

_OF_LIMITER = 12
"""The number of arguments of a rate limiter's acquire request, one more than of a semaphore's."""

_PLACE_OF_LATCH: Final = {EXCHANGE: 1, "latch_leave": 0}
"""The index of the argument that is a place of a latch, or empty, by script."""

_UNDECIDED = 1.0
"""Seconds for which a round may be open: an interrupted one never ends."""


class LeakedClaims(OwnChecker):
    """No leaked claims: no node keeps a claim, or a place in a queue, of an owner that neither holds nor waits.

    Whenever a node has answered all that a live client has sent it over a connection that is still in use, and the
    client is not about to send refused commands again:

    * each claim there of one of the client's owners belongs to a hold that is not lost, to an acquire whose votes are
      still being counted, or to an acquire that waits and has a place there, so that the lock may have been handed over
      to it (a waiter for a read-write lock has lost its place by then);
    * each unexpired place in a queue there belongs to an acquire that is still waiting, or to a hold;
    * each unexpired place of a latch there belongs to a waiter of that latch;
    * each permit of a rate limiter there belongs to a success: to an acquire that was won and not rolled back.

    Commands on their way to a node, and commands that the client keeps for a node it can't reach, are not yet answered.
    So the only extra time is `_QUIESCENCE`, in which a client that has just begun to connect may hold its commands.
    `Expiry` judges what a crashed client leaves.

    One thing is excused: leftovers of commands that a node executed after the client had abandoned their connection, so
    perhaps later than their rollback. They expire.

    Not seen: slots that a node keeps for a permit beyond those that its hold or success has; nodes to which a client
    has no connection, or has pending commands; clients that are closed; nodes, and clients on machines, whose clock has
    jumped, and nodes that came back with older data, for as long as a claim or a place may last.
    """

    name = "leaked claims"
    watches = (Sent, Decided, Executed, Faulted)
    every = 0.1  # leftovers stay long

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._rounds: Final = Rounds()
        self._strays: Final[dict[tuple[int, bytes, bytes, bytes], int]] = {}
        self._names: Final[dict[bytes, tuple[bytes, bytes]]] = {}
        self._latches: Final[dict[bytes, bytes]] = {}
        self._limiters: Final[dict[bytes, None]] = {}
        self._spent: Final[dict[tuple[bytes, bytes], None]] = {}
        self._left: dict[str, float] = {}
        # The claims that nodes keep at the instant of a look.
        self._kept: Final[dict[tuple[TrialNode, bytes], list[Kept]]] = {}
        self._jumped: Final[dict[str, float]] = {}
        self._longest = 0.0
        self._disturbed = -math.inf

    def see(self, event: Sent | Decided | Executed | Faulted) -> None:
        """Record requests."""
        match event:
            case Sent():
                self._note_sent(event)
            case Decided():
                self._note_decided(event)
            case Executed():
                self._note_executed(event)
            case Faulted():
                if event.kind == "machine resume":
                    # That machine counts its votes late.
                    self._disturbed = event.at
                if event.kind in {"machine jump", "node jump", "node restart older"}:
                    self._jumped[who(event)] = event.at

    def look(self) -> Iterable[str]:
        """Look at all nodes."""
        hosts: list[Machine | TrialNode] = [*self.sim.machines, *self.sim.nodes]
        for host in hosts:
            if self.sim.fault_free.lag(host.clock):
                self._jumped[host.name] = self.sim.now
        self._kept.clear()
        before, self._left = self._left, {}
        for text in self._look_at_clients():
            since = self._left[text] = before.get(text, self.sim.now)
            if self.sim.now >= since + _QUIESCENCE:
                yield text

    def _look_at_clients(self) -> Iterator[str]:
        """Return leftovers, which may stay for a moment."""
        for machine in self.sim.machines:
            for runner in self.runners(machine):
                if not (machine.crashed or machine.paused or runner.closed or self._is_confused(machine.name)):
                    for line in runner.links.links if runner.links is not None else ():
                        if line is not None and not self._is_busy(runner, line) and not self._is_retrying(runner, line):
                            yield from self._look_at(runner, line)

    @staticmethod
    def _is_busy(runner: TrialRunner, line: AnyLink) -> bool:
        """Return whether the node has yet to answer, or to end a former connection."""
        ours = [links.links[line.index] for links in runner.link_sets]
        former = len(ours) > 1 and bool(line.node.former)
        return former or any(link is not None and bool(link.pending) for link in ours)

    @staticmethod
    def _is_retrying(runner: TrialRunner, line: AnyLink) -> bool:
        assert runner.links is not None, "it has that link"
        return 0.0 <= runner.links._shared.releases.due_at(line.index) - runner.now() < _RETRY

    def _note_sent(self, sent: Sent) -> None:
        if sent.script == EXCHANGE:
            self._latches[sent.keys[0]] = sent.keys[1]
        for claim in claims(sent.script, sent.keys, sent.args):
            self._longest = max(self._longest, claim.lease)
            if sent.script.endswith(("_acquire", "_write_back")):
                self._rounds.ask(sent, self.sim.now)
                if len(sent.args) == _OF_LIMITER:
                    self._limiters[claim.key] = None
            elif sent.script.endswith("_abandon"):
                self._spent.pop((claim.key, claim.id), None)
            if not sent.script.endswith("_renew") and any(b"_queue:" in each for each in sent.keys):
                self._names[sent.keys[0]] = sent.keys[1], sent.keys[2]
            else:
                self._names.setdefault(claim.key, (b"", b""))

    def _note_decided(self, decided: Decided) -> None:
        for outcome in self._rounds.decide(decided):
            if decided.verdict == "won" and outcome.claim.key in self._limiters:
                self._spent[outcome.claim.key, outcome.claim.id] = None

    def _note_executed(self, executed: Executed) -> None:
        if not (executed.stray or self._strays):
            return
        for key, whose, mode in _concerned(executed, self._names):
            place = executed.node, key, whose, mode
            if executed.stray:
                self._strays[place] = executed.number
            elif _may_remove(executed) and executed.number >= self._strays.get(place, 0):
                self._strays.pop(place, None)

    def _look_at(self, runner: TrialRunner, line: AnyLink) -> Iterator[str]:
        node, prefix = self.sim.nodes[line.node.index], f"{runner.client_id}:".encode()
        if self._is_confused(node.name):
            return
        for key, (queue, places) in self._names.items():
            waiting = kept_places(node, queue, places)
            for claim in self._claims(node, key):
                if claim.id.startswith(prefix) and (node.index, key, *claim[:2]) not in self._strays:
                    yield from self._look_at_claim(runner, node, key, claim, claim.owner in waiting)
            for owner in waiting:
                strays = ((node.index, key, owner, mode) in self._strays for mode in (b"", *MODES))
                if owner.startswith(prefix) and not any(strays):
                    yield from self._look_at_place(runner, node, key, owner)
        yield from self._look_at_latches(runner, node, prefix)

    def _claims(self, node: TrialNode, key: bytes) -> list[Kept]:
        found = self._kept.get((node, key))
        if found is None:
            found = self._kept[node, key] = kept_claims(node, key)
        return found

    def _look_at_claim(
        self, runner: TrialRunner, node: TrialNode, key: bytes, claim: Kept, has_place: bool
    ) -> Iterator[str]:
        state = self.hold(runner, key, claim.id, claim.mode)
        if state is not None and state.lost is None:
            return
        # A waiter that is handed a read-write lock loses its place.
        handed = runner.listens(claim.owner + b" " + key) and (has_place or claim.mode)
        spent = (key, claim.id) in self._spent
        if not handed and not spent and not self._may_be_won(runner, key, claim.id):
            yield f"{node.name} keeps an ownerless claim: {describe(key, claim.id, claim.mode)}"

    def _look_at_place(self, runner: TrialRunner, node: TrialNode, key: bytes, owner: bytes) -> Iterator[str]:
        holds = runner.session.holds
        if any(state.keys.lock == key and state.owner.wire == owner and state.lost is None for state in holds):
            return
        if not runner.listens(owner + b" " + key):
            yield f"{node.name} keeps a place in the queue without a waiter: {describe(key, owner)}"

    def _look_at_latches(self, runner: TrialRunner, node: TrialNode, prefix: bytes) -> Iterator[str]:
        for key, waiters in self._latches.items():
            for place, until_ms in kept_at(node, waiters, SortedSet).items():
                owner = place.rpartition(b" ")[2]
                is_ours = owner.startswith(prefix) and until_ms > node.clock.now() * 1000
                is_stray = (node.index, key, owner, b"") in self._strays
                if is_ours and not is_stray and not runner.listens(owner + b" " + key):
                    yield f"{node.name} keeps a latch place without a waiter: {describe(key, owner)}"

    def _is_confused(self, name: str) -> bool:
        """Return whether a node may keep what its client thinks is gone: a clock has jumped, or old data came back."""
        return self.sim.now < self._jumped.get(name, -math.inf) + self._longest + _PLACE

    def _may_be_won(self, runner: TrialRunner, key: bytes, claim: bytes) -> bool:
        since = self.sim.now - _UNDECIDED
        return self._disturbed > since or self._rounds.asks(runner.name, key, claim, since)


def _concerned(executed: Executed, names: Mapping[bytes, tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Return the claims or places that a command was about: each as a key, an owner or its claim, and a mode."""
    # A rollback by a waiter that stays leaves its place as it is; so does an ask without one.
    stays = executed.script.endswith(("_release", "_abandon")) and executed.args[1] == STAYS
    for claim in claims(executed.script, executed.keys, executed.args):
        yield claim.key, claim.id, claim.mode
        if not stays and names.get(claim.key, executed.keys)[0] in executed.keys:
            yield claim.key, claim.owner, claim.mode
    if executed.script in _PLACE_OF_LATCH and (place := executed.args[_PLACE_OF_LATCH[executed.script]]):
        assert isinstance(place, bytes), "it names a channel and an owner"
        yield executed.keys[0], place.rpartition(b" ")[2], b""
