"""Renewals never resurrect: released or lost claims stay so, and lapsed ones are not won back.

* A client sends renewals only for claims whose holds are live at that instant: not released, not lost. As each
  connection keeps the order, no command sent after the end of a hold creates its claim on any node. The renewal of a
  permit names only slots that have not been returned.
* A hold is extended only by a round, a renewal or a re-entry, in which a quorum of nodes said that they *had* the
  claim; nodes that the round healed do not count. The hold is believed at most for the lease that the round asked for,
  less the allowance for drift, counted from the instant before the round was sent.

Both hold at every instant, whatever the faults.

Not seen: a driver that sends one renewal twice. `zombies` judges the leftovers of an old renewal that arrives over an
abandoned connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from redsync._core.holds import HoldState
from redsync.testing.simulator.checks.checker import Checker, Simulation, describe, whose
from redsync.testing.simulator.checks.rounds import Outcome, Rounds, claims
from redsync.testing.simulator.happenings import Decided, Sent, Stepped

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["Renewal"]

_ROUNDING = 0.001_01
"""Leases travel in whole milliseconds, rounded up."""


class Renewal(Checker):
    """No renewal for a hold that has ended, and no belief without a quorum that had the claim."""

    name = "renewal"
    watches = (Sent, Decided, Stepped)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._rounds: Final = Rounds()
        self._fresh: Final[list[Outcome]] = []
        self._believed: Final[dict[HoldState, float]] = {}

    def see(self, happening: Sent | Decided | Stepped) -> str | None:
        """Look at renewed claims, and at holds that are believed longer."""
        if isinstance(happening, Sent):
            return self._see_sent(happening)
        if isinstance(happening, Decided):
            self._fresh.extend(self._rounds.decide(happening))
            return None
        complaint = None
        for runner in happening.machine.runners:
            complaint = complaint or next(self._look_at(runner), None)
        self._fresh.clear()
        return complaint

    def _see_sent(self, sent: Sent) -> str | None:
        if not sent.script.endswith(("_renew", "_acquire")):
            return None
        runner = self.runner(sent.client)
        self._rounds.ask(sent, runner.machine.clock.now())
        if sent.script.endswith("_renew"):
            for claim in claims(sent.script, sent.keys, sent.args):
                state = self.hold(runner, *claim.whose)
                what = f"#{sent.number} of {sent.client} renews {describe(*claim.whose)}"
                if state is None or not state.live or not state.count:
                    return f"{what}, which was released"
                if state.lost is not None:
                    return f"{what}, which is lost: {state.lost}"
                if claim.slots and claim.slots != state.rest:
                    return f"{what} with slots {claim.slots.decode()}, and has {state.rest.decode()}"
        return None

    def _look_at(self, runner: SimulatedRunner) -> Iterator[str]:
        for state in runner.session.holds:
            believed = self._believed.get(state)
            if believed != state.valid_until:
                self._believed[state] = state.valid_until
                if believed is not None and not self._is_founded(runner, state):
                    yield (
                        f"{describe(*whose(state))} was extended by "
                        f"{state.valid_until - believed:.6f} s, without a quorum of nodes that had it"
                    )

    def _is_founded(self, runner: SimulatedRunner, state: HoldState) -> bool:
        session = runner.session
        return any(
            outcome.claim.whose == whose(state)
            and outcome.existing >= session.quorum
            and state.valid_until <= session.timing.valid_until(outcome.sent_at, outcome.claim.lease) + _ROUNDING
            for outcome in self._fresh
        )
