"""Service: waiters get what is free once faults are over."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from redsync._core.quorum import quorum_of
from redsync.testing.simulator.trace_events import Decided, Did, Executed, Faulted, Sent
from tests.simulation.checks.base import OwnChecker, Trial
from tests.simulation.checks.fair import asked_ticket
from tests.simulation.checks.kept import kept_at, kept_places
from tests.simulation.checks.rounds import MODES, PERMIT, READ_WRITE, Claim, Rounds, claims, parse

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync.testing.simulator.machines import Machine

Whose: TypeAlias = tuple[bytes, bytes, bytes]
"""Key, owner, mode."""

_READ, _WRITE = MODES

_KEYS = 6
"""The number of keys of each semaphore in a command; the last one has the limit."""


class Vacancy:
    """Vacancy: tells the liveness checker whether a lock or permit is free for its waiters.

    It gets requests, releases and scripts; call `look` now and then.

    * A lock is free while no owner believes that it holds it.
    * A semaphore is free while it has enough unheld permits for its greediest waiter. With fewer, no waiter has to be
      served, because the first one may be the one that wants the most. A rate limiter is always free, because successes
      expire.
    * A read-write lock is free for a reader while no owner writes or waits to write. It is free for a writer while no
      owner writes, and all readers *overtook* it: they asked when the writer had a place on a quorum of nodes, it has
      had one ever since, and they did not write themselves. So a stream of readers does not keep the lock from being
      free.
    """

    def __init__(self, sim: Trial) -> None:
        self._sim: Final = sim
        self._quorum: Final = quorum_of(len(sim.nodes))
        self._limits: Final[dict[bytes, bytes]] = {}
        self._wants: Final[dict[bytes, int]] = {}
        self._queues: Final[dict[bytes, tuple[bytes, bytes]]] = {}
        self._asked_at: Final[dict[Whose, float]] = {}
        self._queued_at: Final[dict[Whose, float]] = {}

    def note_asked(self, claim: Claim, sent: Sent, checker: OwnChecker) -> None:
        """Record a request."""
        self._wants[claim.owner] = claim.holds
        if claim.mode and len(sent.keys) > 1:
            self._queues[claim.key] = sent.keys[1], sent.keys[2]
            holds = checker.runner(sent.client).session.holds
            writes = any(_whose(state) == (claim.key, claim.owner, _WRITE) for state in holds)
            # A writer does not queue to read.
            self._asked_at.setdefault((claim.key, claim.owner, claim.mode), -math.inf if writes else sent.at)

    def note_left(self, claim: Claim) -> None:
        """Record an owner that gives up, or releases."""
        self._asked_at.pop((claim.key, claim.owner, claim.mode), None)

    def note_executed(self, executed: Executed) -> None:
        """Record where nodes keep the limits of semaphores."""
        # A renewal has the keys of several semaphores.
        for i in range(0, len(executed.keys) if parse(executed.script)[0] == PERMIT else 0, _KEYS):
            self._limits[executed.keys[i]] = executed.keys[i + _KEYS - 1]

    def look(self, awaited: Iterable[Whose]) -> None:
        """Look at all nodes, while owners wait for these claims."""
        queued = [whose for whose in awaited if whose[2] == _WRITE and self._has_places(whose)]
        before = dict(self._queued_at)
        self._queued_at.clear()
        self._queued_at.update((whose, before.get(whose, self._sim.now)) for whose in queued)

    def _has_places(self, whose: Whose) -> bool:
        key, owner, _ = whose
        return key in self._queues and self._quorum <= sum(
            owner in kept_places(node, *self._queues[key]) for node in self._sim.nodes
        )

    def is_taken(self, key: bytes, mode: bytes, awaited: Iterable[Whose]) -> bool:
        """Return whether the key is not free for those that wait for it in that mode."""
        waiters = [(owner, mode) for awaited_key, owner, mode in awaited if awaited_key == key]
        if mode == _READ:
            writers = any(mode == _WRITE for _, mode in waiters)
            return writers or any(state.kind.mode == _WRITE for state in self._believed(key))
        if mode == _WRITE:
            since = min((at for whose, at in self._queued_at.items() if whose[0] == key), default=math.inf)
            return any(not self._overtook(state, since) for state in self._believed(key))
        believed, limit = sum(state.count for state in self._believed(key)), self._limit(key)
        if limit is None:
            return believed > 0
        return believed + max(self._wants[owner] for owner, _ in waiters) > limit

    def _limit(self, key: bytes) -> int | None:
        """Return the smallest limit that any node knows; None if the key is not a semaphore's, or no node knows one."""
        kept = [kept_at(node, self._limits[key], bytes).split() for node in self._sim.nodes if key in self._limits]
        # That of a rate limiter has a third word: its window.
        return min((int(words[1]) for words in kept if len(words) == 2), default=None)

    def _overtook(self, state: HoldState, since: float) -> bool:
        return state.kind.mode == _READ and self._asked_at.get(_whose(state), -math.inf) > since

    def _believed(self, key: bytes) -> Iterator[HoldState]:
        """Return the believed holds of that key."""
        for machine in self._sim.machines:
            for state in machine.holds() if not machine.crashed else ():
                if state.keys.lock == key and state.valid(machine.clock.now()):
                    yield state


def _whose(state: HoldState) -> Whose:
    return state.keys.lock, state.owner.wire, state.kind.mode


_PAUSE = 1.5
"""The longest time in seconds that a waiter without a place sleeps."""

_ROUND = 1.0
"""Seconds that a waiter may be late: a slow clock, and a round."""

_OVER = 0.5
"""Seconds by which a timeout may be exceeded: a last round of votes, there and back."""

_WITHOUT_PLACE = 4
"""The number of arguments of an acquire request that takes no place."""

_FOR: Final = {b"": "", _READ: " to read", _WRITE: " to write"}


class Liveness(OwnChecker):
    """Liveness: once faults are over, a waiter for a lock or a permit gets it, or learns that its time is up.

    Without faults (see `fault_free`), for each lock that an owner on a running machine waits for:

    * it is not free (see `Vacancy`) for longer than `bound`: within that time a waiter wins it. The bound begins with
      the longest requested lease, or the time for which nodes keep a place (dead waiters may head a queue) if that is
      longer: after it everything that faults left on nodes has expired, however many heads were dead. Two restart
      guards are added, because a client notices a node that forgot only when it asks it, and 5 s to connect and to look
      again. Where a fault may have left a connection silent, 10 s by the slowest clock are added, after which the
      client abandons it;
    * a waiter asks again while its place is kept, see `_poll`: no waiter relies on its wake-up;
    * where programs report what they do (`Machine.tell` with "asks", its `name`, `owner` and `timeout`, and with the
      outcome), the outcome comes at most `_OVER` after the timeout;
    * an owner that asks for a fair lock, a permit or a success has a place in the queue within the same bound, unless
      it has what it asks for by then.

    A rate limiter is always free, so it takes at most the bound from one success to the next. A writer is served within
    the bound after the readers that were reading when it queued, and the writers that came between, have stopped,
    however many readers come later.

    So with n waiters that hold the lock for h seconds each, the last one is served within bound + n * h: newcomers may
    barge, but each winner is one of the waiters, takes its turn and leaves. No bound is promised for a single waiter
    among endlessly many newcomers. But newcomers to a fair lock come after it (see `Fairness`): a waiter with n waiters
    before it is served when they have held the lock, and it has been free n times, each only for a moment, as no waiter
    is dead.

    Not seen: waiters for a lock that is held forever; waiters that wait beyond the end of the run.
    """

    name = "liveness"
    watches = (Sent, Decided, Executed, Did, Faulted)
    every = 0.1

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._rounds: Final = Rounds()
        self._availability: Final = Vacancy(sim)
        self._waiting: Final[dict[tuple[str, bytes, bytes], tuple[float, bytes]]] = {}
        self._free_since: Final[dict[tuple[bytes, bytes], float]] = {}
        self._due: Final[dict[tuple[str, str], tuple[Machine, float]]] = {}
        self._newcomers: Final[dict[tuple[str, bytes, bytes], tuple[float, float]]] = {}
        self._longest = self._kept = 0.0
        self._faulted = False

    @property
    def bound(self) -> float:
        """Seconds for which a lock may be free while a waiter waits for it."""
        machines = self.sim.machines
        guards = [runner.session.timing.restart_guard for machine in machines for runner in self.runners(machine)]
        guard = max(self._longest if any(guards) else 0.0, *guards, 0.0)
        silence = self.silence if self._faulted else 0.0
        return max(self._longest, self._kept) + 2 * guard + silence + 5.0

    def see(self, event: Sent | Decided | Executed | Did | Faulted) -> None:
        """Record requests and winners."""
        match event:
            case Sent():
                self._note_sent(event)
            case Decided():
                for outcome in self._rounds.decide(event):
                    if event.verdict == "won":
                        self._free_since.pop((outcome.claim.key, outcome.claim.mode), None)
                        self._newcomers.pop((event.client, outcome.claim.key, outcome.claim.owner), None)
            case Did():
                self._note_did(event)
            case Executed():
                self._availability.note_executed(event)
            case Faulted():
                self._faulted = True

    def look(self) -> Iterable[str]:
        """Look for waiters that are not served."""
        fault_free = self.sim.fault_free.lasted()
        yield from self._look_at_waiters(fault_free)
        yield from self._look_at_locks(fault_free)
        yield from self._look_at_newcomers(fault_free)
        for (_, who), (machine, due) in self._due.items():
            late = machine.clock.now() - due
            if not machine.crashed and min(fault_free, late) > _OVER:
                yield f"{who} on {machine.name} should have had an answer {late:.6f} s ago, and has none"

    def _note_sent(self, sent: Sent) -> None:
        verb = parse(sent.script)[1]
        if verb == "acquire":
            self._rounds.ask(sent, self.sim.now)
            for claim in claims(sent.script, sent.keys, sent.args):
                self._longest = max(self._longest, claim.lease)
                self._waiting[sent.client, claim.key, claim.owner] = sent.at, claim.mode
                self._availability.note_asked(claim, sent, self)
                self._note_ticket(sent, (sent.client, claim.key, claim.owner))
        elif sent.args[1:2] == ({"release": 0, "abandon": 1}.get(verb),):
            for claim in claims(sent.script, sent.keys, sent.args):
                self._availability.note_left(claim)

    def _note_ticket(self, sent: Sent, who: tuple[str, bytes, bytes]) -> None:
        noun = parse(sent.script)[0]
        ticket = sent.args[5] if noun == PERMIT else asked_ticket(sent.script, sent.keys, sent.args)
        kept_ms = sent.args[4] if ticket is not None or (noun == READ_WRITE and len(sent.args) > _WITHOUT_PLACE) else 0
        self._kept = max(self._kept, int(kept_ms) / 1000)
        if ticket:
            self._newcomers.pop(who, None)
        elif ticket is not None and kept_ms:
            since, last = self._newcomers.get(who, (sent.at, sent.at))
            # An owner that has not asked for that long had given up, and starts over.
            self._newcomers[who] = (since if sent.at <= last + self._poll else sent.at), sent.at

    @property
    def _poll(self) -> float:
        """Seconds within which a waiter asks again: half the longest time that a place is kept."""
        return max(self._kept / 2, _PAUSE) + _ROUND

    def _note_did(self, did: Did) -> None:
        about = did.about
        whose = did.machine.name, did.who
        if did.what == "asks" and about.get("timeout") is not None:
            self._due[whose] = did.machine, did.machine.clock.now() + float(about["timeout"])
        else:
            self._due.pop(whose, None)

    def _look_at_waiters(self, fault_free: float) -> Iterator[str]:
        for (client, key, owner), (asked_at, _) in list(self._waiting.items()):
            runner = self.runner(client)
            if runner.machine.crashed or not runner.listens(owner + b" " + key):
                del self._waiting[client, key, owner]
            elif min(fault_free, self.sim.now - asked_at) > self._poll:
                name = key.decode(errors="replace")
                yield f"{owner.decode()} waits for {name!r} and has not asked since {asked_at:.6f}"

    def _look_at_newcomers(self, fault_free: float) -> Iterator[str]:
        for (client, key, owner), (since, last) in self._newcomers.items():
            asked = min(fault_free, self.sim.now - since)
            if asked > self.bound and self.sim.now <= last + self._poll and not self.runner(client).machine.crashed:
                name = key.decode(errors="replace")
                yield f"{owner.decode()} has asked for {name!r} since {since:.6f}, and has no place in the queue"

    def _look_at_locks(self, fault_free: float) -> Iterator[str]:
        waiters: list[Whose] = [(key, owner, mode) for (_, key, owner), (_, mode) in self._waiting.items()]
        self._availability.look(waiters)
        awaited = {(key, mode): None for key, _, mode in waiters}
        for thing in list(self._free_since):
            if thing not in awaited or not fault_free or self._availability.is_taken(*thing, waiters):
                del self._free_since[thing]
        for key, mode in awaited:
            if fault_free and not self._availability.is_taken(key, mode, waiters):
                free = self.sim.now - self._free_since.setdefault((key, mode), self.sim.now)
                if free > self.bound:
                    name = f"{key.decode(errors='replace')!r}{_FOR[mode]}"
                    yield f"{name} has been free for {free:.3f} s, and no waiter gets it"
