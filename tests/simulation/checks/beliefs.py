"""Beliefs of owners: at most one holds, by the right count and token, and learns of each loss."""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from redsync._core.holds import HoldState
from redsync._core.observing import HoldLost
from redsync._core.permits import PermitState
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.runner import SimulatedRunner
from redsync.testing.simulator.trace_events import Decided, Executed, Faulted, Sent, Stepped, Told
from tests.simulation.checks.base import OwnChecker, Trial, describe, whose
from tests.simulation.checks.kept import kept_claims
from tests.simulation.checks.rounds import REENTRANT, Claim, Outcome, Rounds, claims, code_of, parse
from tests.simulation.trial_runner import TrialRunner

_Thing: TypeAlias = tuple[bytes, int | None]


class Exclusion(OwnChecker):
    """Exclusion: at no instant do two owners believe that they hold the same key, or the same slot of a semaphore.

    Only live machines count. Several owners may read at once.

    Each owner's belief is judged by its machine's own clock, and beliefs are compared in true time. They change only
    when a protocol makes a step or a clock jumps, and the checker looks after each of these.
    """

    name = "exclusion"
    watches = (Stepped,)
    rests_on_clocks = True

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._believers: dict[_Thing, dict[HoldState, Machine]] = {}

    def see(self, event: Stepped) -> str | None:
        """Look at all holds that the owners on the machine believe in."""
        machine = event.machine
        things = ((state, slot) for state in machine.holds() for slot in _slots(state) or (None,))
        looks = (self._look_at((state.keys.lock, slot), machine, state) for state, slot in things)
        return next(filter(None, looks), None)

    def _look_at(self, thing: _Thing, machine: Machine, state: HoldState) -> str | None:
        known = self._believers.setdefault(thing, {})
        if state in known or not state.valid(machine.clock.now()):
            return None
        for other, where in list(known.items()):
            if not self._believes(thing[1], where, other):
                del known[other]
            elif _exclude(state, other):
                return self._describe(thing, (where, other), (machine, state))
        known[state] = machine
        return None

    @staticmethod
    def _believes(slot: int | None, machine: Machine, state: HoldState) -> bool:
        has = slot is None or slot in _slots(state)
        return has and not machine.crashed and state.valid(machine.clock.now())

    def _describe(self, thing: _Thing, *believers: tuple[Machine, HoldState]) -> str:
        who = " and ".join(
            f"{state.owner} on {machine.name} (until {machine.clock.instant(state.valid_until):.6f})"
            for machine, state in believers
        )
        key, slot = thing
        what = f"slot {slot} of " if slot is not None else ""
        return f"at {self.sim.now:.6f} {what}{key.decode(errors='replace')!r} is held by {who}"


def _slots(state: HoldState) -> tuple[int, ...]:
    """Return the slots that a permit has."""
    return state.slots[: state.count] if isinstance(state, PermitState) else ()


def _exclude(one: HoldState, other: HoldState) -> bool:
    """Return whether two holds must not be believed at once: a writer may read too, and several owners may read."""
    modes = one.kind.mode, other.kind.mode
    return not (all(modes) and (modes == (b"r:", b"r:") or one.owner is other.owner))


_WRITE: Final = b"w:"


class Reentrancy(OwnChecker):
    """Re-entrancy: an owner that holds a lock gets it again, as long as its hold may be believed.

    * Counts are set: a node that gets a count, and has or makes the claim, keeps exactly that count. So when all
      commands of an owner have arrived, each node keeps the count of the owner's last command.
    * A re-entry counts only while the hold is valid: it never wins back what was lost meanwhile.
    * A node that has the claim never refuses it to its owner, no matter which owners wait; nor does it refuse the read
      lock to its writer.

    It holds at every instant, for locks; a mutex is not re-entrant.

    Not seen: that the counts in commands are those of the program's acquisitions; the tests of protocols see that.
    """

    name = "re-entrancy"
    watches = (Executed, Stepped)

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._counts: Final[dict[HoldState, int]] = {}

    def see(self, event: Executed | Stepped) -> str | None:
        """Look at the counts."""
        if isinstance(event, Executed):
            return self._see_executed(event)
        found = [text for runner in self.runners(event.machine) for text in self._look_at(runner)]
        return found[0] if found else None

    def _see_executed(self, executed: Executed) -> str | None:
        noun, verb = parse(executed.script)
        if noun not in REENTRANT:
            return None
        for i, claim in enumerate(claims(executed.script, executed.keys, executed.args)):
            code = code_of(executed.reply, verb, i)
            # 1 and 2: it made the claim, or had it already.
            complaint = None
            if claim.holds and code in (1, 2):
                complaint = self._look_at_count(executed, claim)
            elif verb == "acquire" and isinstance(code, list):
                complaint = self._look_at_refusal(executed, claim)
            if complaint is not None:
                return complaint
        return None

    def _look_at_count(self, executed: Executed, claim: Claim) -> str | None:
        node = self.sim.nodes[executed.node]
        kept = next((kept for kept in kept_claims(node, claim.key) if kept[:2] == claim.whose[1:]), None)
        if kept is not None and kept.holds == claim.holds:
            return None
        if not executed.script.endswith("_acquire") and kept is not None and node.store.refusal is not None:
            # A node that can't write keeps the old count until the next one is set.
            return None
        return (
            f"{node.name} got count {claim.holds} by {executed.script} for {describe(*claim.whose)}, "
            f"but keeps {'nothing' if kept is None else kept.holds}"
        )

    def _look_at_refusal(self, executed: Executed, claim: Claim) -> str | None:
        node = self.sim.nodes[executed.node]
        for kept in kept_claims(node, claim.key):
            # A reader must not write, but a writer may read.
            if kept[:2] == claim.whose[1:] or (kept.owner == claim.owner and kept.mode == _WRITE):
                return f"{node.name} refused {describe(*claim.whose)}, which has it there already"
        return None

    def _look_at(self, runner: TrialRunner) -> Iterator[str]:
        for state in runner.session.holds:
            before = self._counts.get(state)
            self._counts[state] = state.count
            if before is not None and state.count > before and not state.valid(runner.machine.clock.now()):
                yield f"{describe(*whose(state))} was re-entered after its end"


_ROUNDING = 0.001_01
"""Leases travel in whole milliseconds, rounded up."""


class Renewal(OwnChecker):
    """Renewals never resurrect: released or lost claims stay so, and lapsed ones are not won back.

    * A client sends renewals only for claims whose holds are live at that instant: not released, not lost. As each
      connection keeps the order, no command sent after the end of a hold creates its claim on any node. The renewal of
      a permit names only slots that have not been returned.
    * A hold is extended only by a renewal in which a quorum of nodes said that they *had* the claim; nodes that it
      repaired do not count. The hold is believed at most for the lease that the renewal asked for, less the allowance
      for drift, counted from the instant before it was sent.

    Both hold at every instant, whatever the faults.

    Not seen: a driver that sends one renewal twice. `LeakedClaims` judges the leftovers of an old renewal that arrives
    over an abandoned connection.
    """

    name = "renewal"
    watches = (Sent, Decided, Stepped)

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._rounds: Final = Rounds()
        self._fresh: Final[list[Outcome]] = []
        self._believed: Final[dict[HoldState, float]] = {}

    def see(self, event: Sent | Decided | Stepped) -> str | None:
        """Look at renewed claims, and at holds that are believed longer."""
        if isinstance(event, Sent):
            return self._see_sent(event)
        if isinstance(event, Decided):
            self._fresh.extend(self._rounds.decide(event))
            return None
        complaint = None
        for runner in self.runners(event.machine):
            complaint = complaint or next(self._look_at(runner), None)
        self._fresh.clear()
        return complaint

    def _see_sent(self, sent: Sent) -> str | None:
        if not sent.script.endswith("_renew"):
            return None
        runner = self.runner(sent.client)
        self._rounds.ask(sent, runner.machine.clock.now())
        for claim in claims(sent.script, sent.keys, sent.args):
            state = self.hold(runner, *claim.whose)
            what = f"#{sent.number} of {sent.client} renews {describe(*claim.whose)}"
            if state is None or not state.live or not state.count or state.lost is not None:
                return f"{what}, which was released or lost"
            if claim.slots and claim.slots != state.rest:
                return f"{what} with slots {claim.slots.decode()}, and has {state.rest.decode()}"
        return None

    def _look_at(self, runner: TrialRunner) -> Iterator[str]:
        for state in runner.session.holds:
            believed = self._believed.get(state)
            if believed != state.valid_until:
                self._believed[state] = state.valid_until
                if believed is not None and not self._is_founded(runner, state):
                    yield (
                        f"{describe(*whose(state))} was extended by "
                        f"{state.valid_until - believed:.6f} s, without a quorum of nodes that had it"
                    )

    def _is_founded(self, runner: TrialRunner, state: HoldState) -> bool:
        session = runner.session
        return any(
            outcome.claim.whose == whose(state)
            and outcome.existing >= session.quorum
            and state.valid_until <= session.timing.valid_until(outcome.sent_at, outcome.claim.lease) + _ROUNDING
            for outcome in self._fresh
        )


_PUNCTUAL = 0.000_01
"""Seconds that rounding may add."""


class LossTold(OwnChecker):
    """Loss reported in time: an owner learns once that its hold ended without a release, by the instant of the end.

    For each hold of a running machine:

    * when `valid_until` comes, or a quorum becomes impossible before that, the client reports `HoldLost` (log,
      `on_lost`, the cancelled body, listeners): by `valid_until` on the machine's clock, or when the watchdog is back
      from the round of votes that it is waiting for at that instant, however much the client holds;
    * on a machine that was paused, or whose clock jumped, at that instant: in the very instant in which it continues;
    * never twice, and never for a released hold, unless its last release finds the loss;
    * its loss is never revoked: the hold is never valid again.

    The bound is the timeout of that round, and no time beyond: a simulated machine needs none to act.

    Not seen: how a callback or a cancelled body reacts; a hold that is acquired and ends within one step; programs on
    crashed machines, which can't learn anything.
    """

    name = "loss"
    watches = (Stepped, Told, Faulted)
    every = 0.05  # for idle machines

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._told: Final[dict[HoldState, None]] = {}
        self._went_on: Final[dict[Machine, float]] = {}

    def see(self, event: Stepped | Told | Faulted) -> str | None:
        """Look at reported and unreported losses."""
        if isinstance(event, Told):
            return self._see_told(event)
        if isinstance(event, Faulted):
            if event.kind in {"machine resume", "machine jump"}:
                for machine in self.sim.machines:
                    if event.text.startswith(f"{machine.name} "):
                        self._went_on[machine] = event.at
            return None
        return next(self._look_at(event.machine), None)

    def look(self) -> Iterable[str]:
        """Look for unnoticed losses."""
        for machine in self.sim.machines:
            if not (machine.crashed or machine.paused):
                yield from self._look_at(machine)

    def _see_told(self, event: Told) -> str | None:
        lost = event.event
        if not isinstance(lost, HoldLost):
            return None
        state, hold = lost.state, _hold(lost.state)
        twice, self._told[state] = state in self._told, None
        if twice:
            return f"{hold}: its loss was reported twice"
        if not state.live:
            return None if "its release" in lost.reason else f"{hold}: reported lost after its release"
        late = self.sim.now - self._deadline(event.runner, state)
        return f"{hold}: its loss was reported {late:.6f} s too late" if late > 0 else None

    def _look_at(self, machine: Machine) -> Iterator[str]:
        now = machine.clock.now()
        for runner in self.runners(machine):
            for state in runner.session.holds:
                if state in self._told:
                    if state.lost is None or state.valid(now):
                        yield f"{_hold(state)}: valid again after its loss was reported"
                elif state.lost is not None:
                    yield f"{_hold(state)}: lost, and not reported"
                elif state.live and self.sim.now > self._deadline(runner, state):
                    yield f"{_hold(state)}: ended at {machine.clock.instant(state.valid_until):.6f}, and not reported"

    def _deadline(self, runner: SimulatedRunner, state: HoldState) -> float:
        """Return the true instant by which the end of a hold must have been reported."""
        machine, timing = runner.machine, runner.session.timing
        ended = max(machine.clock.instant(state.valid_until), self._went_on.get(machine, 0.0))
        return ended + timing.round_timeout(max(timing.lease, state.lease)) + _PUNCTUAL


def _hold(state: HoldState) -> str:
    return describe(*whose(state))


class Tokens(OwnChecker):
    """Tokens: the fencing token of each hold is higher than those of all earlier holds of that key.

    A hold counts from the step in which its protocol records it: its owner does not know of it before that, and steps
    come one after the other, whatever clocks say. It keeps its token, however often it is re-entered and renewed.

    A node that forgot its token begins with its clock, or above the highest token that the asking client knows. If its
    clock is behind an issued token, nothing is promised for that key any more.
    """

    name = "tokens"
    watches = (Executed, Faulted, Stepped)

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._latest: dict[bytes, tuple[int, HoldState]] = {}
        self._seen: dict[HoldState, int | None] = {}
        self._behind: set[bytes] = set()
        self._forgotten: set[tuple[int, bytes]] = set()
        self._kept: set[tuple[int, bytes]] = set()

    def see(self, event: Executed | Faulted | Stepped) -> str | None:
        """Look at a node that starts over, and at new holds on a machine."""
        if isinstance(event, Faulted):
            self._note_losses()
            return None
        if isinstance(event, Executed):
            if event.script == "fenced_lock_acquire":
                self._note_beginning(event)
            return None
        holds = event.machine.holds()
        looks = (self._look_again(state) if state in self._seen else self._look_at(state) for state in holds)
        return next(filter(None, looks), None)

    def _note_losses(self) -> None:
        lost = {kept for kept in self._kept if self.sim.nodes[kept[0]].store.peek(kept[1]) is None}
        self._kept -= lost
        self._forgotten |= lost

    def _note_beginning(self, executed: Executed) -> None:
        if isinstance(executed.reply, int) and abs(executed.reply) > 2:
            place, lock = (executed.node, executed.keys[-1]), executed.keys[0]
            latest = self._latest.get(lock)
            if place in self._forgotten and latest and self.sim.nodes[executed.node].store.now_us <= latest[0]:
                self._behind.add(lock)
            self._forgotten.discard(place)
            self._kept.add(place)

    def _look_at(self, state: HoldState) -> str | None:
        key, token = state.keys.lock, state.fencing_token
        self._seen[state] = token
        if token is None:
            return None
        highest, by = self._latest.get(key, (0, state))
        if token <= highest and key not in self._behind:
            who, before = (describe(key, each.claim) for each in (state, by))
            return f"{who} has token {token}, and {before} had {highest} earlier"
        self._latest[key] = max(token, highest), state
        return None

    def _look_again(self, state: HoldState) -> str | None:
        before, self._seen[state] = self._seen[state], state.fencing_token
        if before == state.fencing_token:
            return None
        return f"{describe(state.keys.lock, state.claim)} had token {before}, and now has {state.fencing_token}"
