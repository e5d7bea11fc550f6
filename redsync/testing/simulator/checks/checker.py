"""The base of all checkers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync.testing.simulator.happenings import Stepped
    from redsync.testing.simulator.runner import SimulatedRunner
    from redsync.testing.simulator.simulation import Simulation
else:
    Simulation = Any  # it imports the checkers, which need it only for type checkers

__all__ = ["Checker", "Simulation", "describe", "whose"]


class Checker:
    """Watches one run for the breach of one promise.

    Attributes:
        name: The name of the promise, as for `Simulation.waive`.
        watches: The classes of happenings that `see` gets, each at once.
        every: The seconds between two calls of `look` during the run; None for none.
        rests_on_clocks: True if the promise is void when a clock is wrong by more than clients allow for.
        sim: The simulation.
    """

    name: ClassVar[str]
    watches: ClassVar[tuple[type[Any], ...]] = ()
    every: ClassVar[float | None] = None
    rests_on_clocks: ClassVar[bool] = False

    def __init__(self, sim: Simulation) -> None:
        self.sim: Final = sim
        self._looked = 0.0

    def see(self, happening: Any) -> str | None:  # noqa: ARG002  (for those that watch)
        """Look at a happening; return a complaint, or None."""
        return None

    def look(self) -> Iterable[str]:
        """Look at the present state; return complaints."""
        return ()

    def finish(self) -> Iterable[str]:
        """Look at the end of the run; return complaints."""
        return self.look()

    def look_if_due(self, stepped: Stepped) -> str | None:
        """Look after a step if `every` seconds have passed; return a complaint, or None."""
        if self.every is None or stepped.at < self._looked + self.every:
            return None
        self._looked = stepped.at
        return next(iter(self.look()), None)

    # For checkers that look at clients.

    def runner(self, client: str) -> SimulatedRunner:
        """Return the driver of the client with that name."""
        return self.sim.runners[client]

    @property
    def silence(self) -> float:
        """Seconds within which a client replaces a silent connection: 10, by the slowest clock."""
        return 10.0 / min((machine.clock.rate for machine in self.sim.machines), default=1.0)

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
    """Return the identity of a hold, like `Claim.whose`: key, claim, mode."""
    return state.keys.lock, state.claim, state.kind.mode
