"""Service: waiters get what is free once faults are over."""

from collections.abc import Iterable, Iterator
from typing import Final

from redsync._core.memory import FIRST_USE
from redsync._drivers.handshake_connections import TIMEOUTS
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.trace_events import Decided, Did, Faulted, Sent
from tests.simulation.checks.base import OwnChecker, Trial
from tests.simulation.checks.fair import asked_ticket
from tests.simulation.checks.rounds import PERMIT, READ_WRITE, Rounds, claims, parse

_PAUSE = 1.5
"""The longest time in seconds that a waiter without a place sleeps."""

_ROUND = 1.0
"""Seconds that a waiter may be late: a slow clock, and a round."""

_OVER = 0.5
"""Seconds by which a timeout may be exceeded: a last round of votes, there and back."""

_WITHOUT_PLACE = 4
"""The number of arguments of an acquire request that takes no place."""


class Liveness(OwnChecker):
    """Liveness: once faults are over, a waiter for a lock or a permit gets it, or learns that its time is up.

    Without faults (see `fault_free`), for each lock that an owner on a running machine waits for:

    * it is not free for longer than `bound`: within that time a waiter wins it. It is free while nobody believes in
      any hold of it, and no waiter asks for more than one permit. The bound begins with the longest requested lease, or
      the time for which nodes keep a place (dead waiters may head a queue) if that is longer: after it everything that
      faults left on nodes has expired, however many heads were dead. Two restart guards are added, because a client
      notices a node that forgot only when it asks it, and 5 s to connect and to look again. Where a fault may have left
      a connection silent, 10 s by the slowest clock are added, after which the client abandons it;
    * a waiter asks again while its place is kept, see `_poll`: no waiter relies on its wake-up;
    * where programs report what they do (`Machine.tell` with "asks", its `name` and `timeout`, and with the
      outcome), the outcome comes at most `_OVER` after the timeout, or after `_ROUND` if that is 0. In a new client a
      call without time also waits for the first connections;
    * an owner that asks for a fair lock, a permit or a success has a place in the queue within the same bound, unless
      it has what it asks for by then.

    A rate limiter is always free, so it takes at most the bound from one success to the next.

    So with n waiters that hold the lock for h seconds each, the last one is served within bound + n * h: newcomers may
    barge, but each winner is one of the waiters, takes its turn and leaves. No bound is promised for a single waiter
    among endlessly many newcomers. But newcomers to a fair lock come after it (see `Fairness`): a waiter with n waiters
    before it is served when they have held the lock, and it has been free n times, each only for a moment, as no waiter
    is dead.

    Not seen: waiters for a lock that is held forever, or for a semaphore while others have some of its permits; writers
    that wait for readers, see `Admission`; waiters that wait beyond the end of the run.
    """

    name = "liveness"
    watches = (Sent, Decided, Did, Faulted)
    every = 0.1

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._rounds: Final = Rounds()
        # The instant of the latest request of each waiter, and how much it asks for.
        self._waiting: Final[dict[tuple[str, bytes, bytes], tuple[float, int]]] = {}
        self._free_since: Final[dict[bytes, float]] = {}
        self._latest: Final[dict[tuple[str, bytes], bytes]] = {}
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

    def see(self, event: Sent | Decided | Did | Faulted) -> None:
        """Record requests and winners."""
        match event:
            case Sent():
                self._note_sent(event)
            case Decided():
                for outcome in self._rounds.decide(event):
                    if event.verdict == "won":
                        self._free_since.pop(outcome.claim.key, None)
                        self._newcomers.pop((event.client, outcome.claim.key, outcome.claim.owner), None)
            case Did():
                self._note_did(event)
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
        if parse(sent.script)[1] == "acquire":
            self._rounds.ask(sent, self.sim.now)
            for claim in claims(sent.script, sent.keys, sent.args):
                self._longest = max(self._longest, claim.lease)
                # An owner waits for one thing at a time, under several rates for one window after the other.
                if (before := self._latest.get((sent.client, claim.owner))) not in (None, claim.key):
                    self._waiting.pop((sent.client, before, claim.owner), None)
                self._latest[sent.client, claim.owner] = claim.key
                self._waiting[sent.client, claim.key, claim.owner] = sent.at, claim.holds
                self._note_ticket(sent, (sent.client, claim.key, claim.owner))

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
            longest = float(about["timeout"]) or _ROUND + self._first_use(did.machine)
            self._due[whose] = did.machine, did.machine.clock.now() + longest
        else:
            self._due.pop(whose, None)

    def _first_use(self, machine: Machine) -> float:
        """Return for how many seconds the clients on a machine may yet wait for their first connections."""
        new = [runner.timing.node_timeout for runner in self.runners(machine) if not runner.life.ready]
        return max((TIMEOUTS * max(4 * each, 1.0) + FIRST_USE + each for each in new), default=0.0)

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
        held = self._held()
        greedy = {key for (_, key, _), (_, wanted) in self._waiting.items() if wanted > 1}
        free = {key for _, key, _ in self._waiting if fault_free and key not in held | greedy}
        for key in list(self._free_since):
            if key not in free:
                del self._free_since[key]
        for key in sorted(free):
            lasted = self.sim.now - self._free_since.setdefault(key, self.sim.now)
            if lasted > self.bound:
                yield f"{key.decode(errors='replace')!r} has been free for {lasted:.3f} s, and no waiter gets it"

    def _held(self) -> set[bytes]:
        """Return the keys that some owner believes it holds."""
        return {
            state.keys.lock
            for machine in self.sim.machines
            for state in (machine.holds() if not machine.crashed else ())
            if state.valid(machine.clock.now())
        }
