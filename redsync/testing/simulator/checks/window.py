"""The sliding window: no window of the limiter's length has more successes than its rate, over all machines.

A success counts at the instant of true time at which the acquire returned to its program, as programs report
(`Machine.tell` with "acquired", the limiter's `name`, `rate` and `per`, and `n`). Windows are closed: two successes
that are exactly `per` apart are in one. There is no tolerance for clocks, because nodes allow for clocks that are as
wrong as `drift_factor` says.

A success counts even if the machine crashed in the next instant, so that no program learned of it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.happenings import Did

__all__ = ["SlidingWindow"]


class SlidingWindow(Checker):
    """Never more successes in any window than the rate."""

    name = "sliding window"
    watches = (Did,)
    rests_on_clocks = True

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._successes: Final[dict[str, deque[tuple[float, int]]]] = {}

    def see(self, happening: Did) -> str | None:
        """Count the successes in the window that ends now."""
        about = happening.about
        if happening.what != "acquired" or "per" not in about:
            return None
        name, rate, per = about["name"], about["rate"], about["per"]
        successes = self._successes.setdefault(name, deque())
        successes.append((happening.at, about["n"]))
        while happening.at - successes[0][0] > per:
            successes.popleft()
        count = sum(n for _, n in successes)
        if count <= rate:
            return None
        when = ", ".join(f"{n} at {at:.6f}" for at, n in successes)
        return f"{count} successes of {name!r}, {when}, where there are {rate} in any {per:g} s"
