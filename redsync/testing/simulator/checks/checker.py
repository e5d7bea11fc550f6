"""What all checkers have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync.testing.simulator.runner import SimulatedRunner
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Checker", "describe", "whose"]


class Checker:
    """Watches one run for the breach of one promise.

    Attributes:
        name: What the promise is called; `Simulation.waive` takes it.
        watches: The classes of happenings that `see` is shown, right after they have happened.
        rests_on_clocks: Whether the promise is void when a clock is wrong by more than clients allow for.
        sim: The simulation.
    """

    name: ClassVar[str]
    watches: ClassVar[tuple[type[Any], ...]] = ()
    rests_on_clocks: ClassVar[bool] = False

    def __init__(self, sim: Simulation) -> None:
        self.sim: Final = sim

    def see(self, happening: Any) -> str | None:  # noqa: ARG002  (for those that watch)
        """Look at something that has just happened; return a complaint, or None."""
        return None

    def finish(self) -> Iterable[str]:
        """Look at how it ended; return complaints."""
        return ()

    # For checkers that look at clients.

    def runner(self, client: str) -> SimulatedRunner:
        """Return the driver of the client with that name."""
        return self.sim.runners[client]

    @staticmethod
    def hold(runner: SimulatedRunner, key: bytes, claim: bytes, mode: bytes = b"") -> HoldState | None:
        """Return the hold that a claim is for, lost or not."""
        for state in runner.session.holds:
            if state.keys.lock == key and state.claim == claim and state.kind.mode == mode:
                return state
        return None


def describe(key: bytes, claim: bytes, mode: bytes = b"") -> str:
    """Return a text for a claim."""
    how = {b"r:": " to read", b"w:": " to write"}.get(mode, "")
    return f"{key.decode(errors='replace')!r} held{how} by {claim.decode(errors='replace')}"


def whose(state: HoldState) -> tuple[bytes, bytes, bytes]:
    """Return what distinguishes a hold from all others, like `Claim.whose`: key, claim, mode."""
    return state.keys.lock, state.claim, state.kind.mode
