"""The permit bound: at no instant do live machines believe to have more permits of a semaphore than there are.

How many there are is the largest limit that has been possible at an instant since the oldest of the believed permits
was asked for (see `limits`): a shrink takes nothing away from those who have something, and a permit that was asked for
under a limit may be counted a little later. Without a resize that is the limit, exactly, at every instant and with
whatever faults; see `docs/semaphores.md`.

That no two believe in the same slot is `exclusion`.

Not seen: that after a shrink nobody gets a permit before enough have come back. Nodes see to it each for itself, so
while what is to come back is known to different ones it may be one too many, within the larger limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redsync._core.holds import HoldState
from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.checks.limits import Limits
from redsync.testing.simulator.checks.rounds import PERMIT, claims, parse
from redsync.testing.simulator.happenings import Executed, Faulted, Sent, Stepped

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["PermitBound"]


class PermitBound(Checker):
    """Never more permits than the limit."""

    name = "permit bound"
    watches = (Stepped, Sent, Executed, Faulted)
    rests_on_clocks = True

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._limits: Final = Limits(sim)
        self._asked: Final[dict[bytes, float]] = {}
        self._held: Final[dict[HoldState, tuple[Machine, float]]] = {}

    def see(self, happening: Stepped | Sent | Executed | Faulted) -> str | None:
        """Take note of who asks and of what nodes know, and count what is believed."""
        match happening:
            case Stepped():
                self._take_up(happening.machine)
                return self._count()
            case Sent() if parse(happening.script) == (PERMIT, "acquire"):
                for claim in claims(happening.script, happening.keys, happening.args):
                    self._asked[claim.owner] = happening.at
            case Executed():
                self._limits.note(happening)
            case Faulted():
                self._limits.look()
            case _:
                pass
        return None

    def _take_up(self, machine: Machine) -> None:
        for runner in machine.runners:
            for state in runner.session.holds:
                if state.slots and state not in self._held:
                    # Votes count that were asked for last.
                    self._held[state] = machine, self._asked[state.owner.wire]

    def _count(self) -> str | None:
        believed: dict[bytes, list[tuple[float, Machine, HoldState]]] = {}
        for state, (machine, asked_at) in list(self._held.items()):
            if state.lost is not None or not state.live or machine.crashed:
                del self._held[state]
            elif state.valid(machine.clock.now()):
                believed.setdefault(state.keys.lock, []).append((asked_at, machine, state))
        for key, permits in believed.items():
            count = sum(state.count for _, _, state in permits)
            limit = self._limits.largest(key, min(asked_at for asked_at, _, _ in permits))
            if count > limit:
                who = ", ".join(f"{state.count} by {state.owner} on {machine.name}" for _, machine, state in permits)
                what = f"{count} permits of {key.decode(errors='replace')!r} are held where there are {limit}"
                return f"at {self.sim.now:.6f} {what}: {who}"
        return None
