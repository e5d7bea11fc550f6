"""Windows: how permits that only run out make an exact rate limit.

A rate limiter of R per window is R slots, as a semaphore of R permits, but permits are never given back: a slot is
free again when its time on the nodes is up. The promise is about *successes*, and a success counts at the instant at
which the acquire returns. A node takes the slot a little earlier, between request and reply. If it kept the slot for
just the window, the next success with that slot could come earlier than a window after this one. So:

* nodes keep a slot for `per + allowance`, and for as much longer as their clocks may run fast;
* a success counts only if its round was over within half of the allowance after the sending began; the other half is
  for the way from there to the caller. A round that took longer is no success yet: the client asks for the same slots
  again, for longer.

Let a success return at A, and its ask be sent at S: A <= S + allowance. On each node of its quorum the slot is taken
after S, and kept until after S + allowance + per by the client's clock. The next success with that slot needs a quorum,
so it needs one of these nodes, and returns after that: more than `per` after A. In any window of `per` each slot has
one success at most, and there are R slots. The proof compares one client's A and S with one node's times, so only these
two clocks matter.

The allowance follows the duration of rounds, for it costs throughput: what remains is 1 / (1 + allowance / per) of the
rate. Each ask carries its own allowance, so clients need not agree on it.
"""

from __future__ import annotations

import math

from redsync._core.timing import MAX_LEASE, Timing
from redsync._protocols.places import PLACE_KEPT

__all__ = ["Window", "check_guard", "check_window"]

_LEAST_SHARE, _LEAST = 0.01, 0.01
"""The smallest allowance, as a share of the window and in seconds, whichever is more."""

_AT_FIRST = 0.05
"""The allowance in seconds before any round was measured."""

_ROOM = 4.0
"""The allowance is at least this many times the latest round's duration: half of it is twice that duration."""

_EASE = 0.8
"""The part of the allowance that remains after each success, down to the smallest one."""

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
        self._longest = 4 * timing.node_timeout
        self._least = min(max(per * _LEAST_SHARE, _LEAST), self._longest)
        self._allowance = max(self._least, min(_AT_FIRST, self._longest))
        # Windows may be longer than the lease that the client's guard suits. A guard of 0 stays 0, as the user chose
        # it.
        longest = max(timing.restart_guard, self._lease(self._longest)) if timing.restart_guard else 0.0
        self.guard = min(longest, restart_guard)
        self.place_kept = min(max(PLACE_KEPT, per / 7), _LONGEST_PLACE)

    def terms(self) -> tuple[float, float]:
        """Return for how many seconds nodes shall keep the slots of an ask, and within how many a success counts."""
        return self._lease(self._allowance), self._allowance / 2

    def _lease(self, allowance: float) -> float:
        exact = self.per + allowance
        return exact + self._timing.drift(exact)

    def note(self, took: float, *, late: bool) -> None:
        """Record how many seconds a won round took; `late`: too many to count."""
        wanted = max(self._least, _ROOM * took)
        self._allowance = min(max(wanted, self._allowance * (2 if late else _EASE)), self._longest)

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
