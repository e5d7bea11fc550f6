"""What all checkers have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Checker"]


class Checker:
    """Watches one run for the breach of one promise.

    Attributes:
        name: What the promise is called; `Simulation.waive` takes it.
        watches: The classes of happenings that `see` is shown, right after they have happened.
        sim: The simulation.
    """

    name: ClassVar[str]
    watches: ClassVar[tuple[type[Any], ...]] = ()

    def __init__(self, sim: Simulation) -> None:
        self.sim: Final = sim

    def see(self, happening: Any) -> str | None:  # noqa: ARG002  (for those that watch)
        """Look at something that has just happened; return a complaint, or None."""
        return None

    def finish(self) -> Iterable[str]:
        """Look at how it ended; return complaints."""
        return ()
