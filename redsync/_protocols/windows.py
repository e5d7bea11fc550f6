"""Windows: how permits that only run out make an exact rate limit.

A rate limiter of R per window is R slots, as a semaphore of R permits, but permits are never given back: a slot is
free again when its time on the nodes is up. The promise is about *successes*, and a success counts at the instant at
which the acquire returns. A node takes the slot a little earlier, between request and reply. If it kept the slot for
just the window, the next success with that slot could come earlier than a window after this one. So:

* nodes keep a slot for `per + allowance`, and for as much longer as their clocks may run fast, and for a millisecond
  more, since they count whole ones;
* the allowance has two parts. A success counts only if its round was over within the first one after the sending
  began; the other one is for the way from there to the caller. A round that took longer is no success yet: the client
  asks for the same slots again, for longer.

Let a success return at A, and its ask be sent at S: A <= S + allowance. On each node of its quorum the slot is taken
after S, and kept until after S + allowance + per by the client's clock. The next success with that slot needs a quorum,
so it needs one of these nodes, and returns after that: more than `per` after A. In any window of `per` each slot has
one success at most, and there are R slots. The proof compares one client's A and S with one node's times, so only these
two clocks matter.

The allowance costs throughput: what remains is 1 / (1 + allowance / per) of the rate. So its first part follows the
mean duration of rounds. The second part is at least as long, for where rounds are slow the way to the caller is slow
too; and it is never less than 5 ms, for which an interpreter may leave another thread running between our last look at
the clock and the caller's next line. Nothing can be seen of that delay, so this part can't follow it. Each ask carries
its own allowance, so clients need not agree on it.
"""

from __future__ import annotations

import math

from redsync._core.timing import MAX_LEASE, Timing
from redsync._protocols.places import PLACE_KEPT

__all__ = ["Window", "check_guard", "check_window"]

_LEAST_USEFUL_SHARE, _LEAST_USEFUL = 0.001, 0.001
"""The shortest time within which a success counts, as a share of the window and in seconds, whichever is more."""

_LEAST_WAY_SHARE, _LEAST_WAY = 0.005, 0.005
"""The shortest time allowed for the way to the caller, likewise."""

_AT_FIRST = 0.025
"""Within how many seconds a success counts before any round was measured."""

_ROOM = 2.0
"""A success counts within this many times the mean duration of rounds; after a round that took longer, its own."""

_RECENT = 0.125
"""The part that the latest round has in that mean."""

_RESOLUTION = 0.001
"""Seconds by which nodes may keep a slot too short: they count whole milliseconds."""

_LEAST_PAUSE = 0.05
"""The lower bound in seconds of the longest sleep near the front, for short windows."""

_LONGEST_PLACE = 86.0
"""Seconds for which nodes keep a place in line at the longest: so a waiter of hours looks about every 40 s."""


def check_window(per: float) -> float:
    """Return the length of a window in seconds.

    Raises:
        ValueError: It is not a positive, finite number, or is longer than a year.
    """
    if not _is_finite(per) or per <= 0:
        raise ValueError(f"a window is a positive number of seconds, not {per!r}")
    if per > MAX_LEASE:
        raise ValueError(f"a window of {per:g} s is longer than a year: windows are given in seconds")
    return float(per)


def check_guard(restart_guard: float | None) -> float:
    """Return the longest guard in seconds; None stands for no limit.

    Raises:
        ValueError: It is negative or not a number.
    """
    if restart_guard is None:
        return math.inf
    if not _is_finite(restart_guard) or restart_guard < 0:
        raise ValueError(f"restart_guard is a number of seconds from 0 on, or None; not {restart_guard!r}")
    return float(restart_guard)


def _is_finite(number: float) -> bool:
    try:
        return not isinstance(number, bool) and math.isfinite(number)
    except (OverflowError, TypeError):  # An integer beyond all floats, or no number at all.
        return False


class Window:
    """How long the permits of one rate limiter last; shared by all users of one limiter object.

    Attributes:
        per: The window in seconds.
        guard: Seconds for which a node must have remembered everything to grant.
        round_timeout: How long a round may wait for a node, in seconds.
        place_kept: Seconds for which nodes keep a place in line.
    """

    def __init__(self, per: float, timing: Timing, restart_guard: float = math.inf) -> None:
        """Begin; `restart_guard`: the longest guard in seconds, even if the window would need a longer one."""
        self.per = per
        self._timing = timing
        self.round_timeout = timing.node_timeout
        self._longest = 2 * timing.node_timeout
        self._least = min(max(per * _LEAST_USEFUL_SHARE, _LEAST_USEFUL), self._longest)
        self._least_way = min(max(per * _LEAST_WAY_SHARE, _LEAST_WAY), self._longest)
        self._mean = 0.0
        # Windows may be longer than the lease that the client's guard suits. A guard of 0 stays 0, as the user chose
        # it.
        longest = max(timing.restart_guard, self._lease(self._longest)) if timing.restart_guard else 0.0
        self.guard = min(longest, restart_guard)
        self.place_kept = min(max(PLACE_KEPT, per / 7), _LONGEST_PLACE)

    def terms(self, slowest: float = 0.0) -> tuple[float, float]:
        """Return for how many seconds nodes shall keep the slots of an ask, and within how many a success counts.

        Args:
            slowest: How many seconds a round of the same acquire took that was won too late to count.
        """
        expected = max(_ROOM * self._mean if self._mean else _AT_FIRST, _ROOM * slowest)
        useful = min(max(self._least, expected), self._longest)
        return self._lease(useful), useful

    def _lease(self, useful: float) -> float:
        exact = self.per + useful + max(useful, self._least_way)
        return exact * (1 + self._timing.drift_factor) + _RESOLUTION

    def note(self, took: float) -> None:
        """Record how many seconds a won round took, whether it counted or not."""
        self._mean += (took - self._mean) * (_RECENT if self._mean else 1.0)

    def retry_after(self, left: float) -> float:
        """Return how many seconds pass on this clock, at most, while nodes count `left` seconds on theirs."""
        return left * (1 + self._timing.drift_factor)

    def longest_pause(self, random: float, ahead: float = 0.0) -> float:
        """Return for how many seconds to sleep at most before looking again; often enough to keep the place.

        Waiters before us, whose slots fill `ahead` windows, may leave the line: then our turn comes sooner than nodes
        told us. That matters near the front, so waiters farther back look less often.
        """
        longest = self.place_kept / 2
        if ahead:
            longest = min(longest, max(self.per / 4, _LEAST_PAUSE) * (1 + ahead))
        return longest * (0.8 + 0.2 * random)
