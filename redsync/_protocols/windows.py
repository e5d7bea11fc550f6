"""Windows: how permits that only run out make an exact rate limit.

A rate limiter of R per window is R slots, as a semaphore of R permits, but permits are never released: a slot is free
again when its time on the nodes is up. The promise is about *successes*, and a success counts at the instant at which
the acquire returns. A node takes the slot a little earlier, between request and reply. If it kept the slot for just the
window, the next success with that slot could come less than a window after this one. So:

* nodes keep a slot for `per + allowance`, plus as much as their clocks may run fast, plus 10 us, since they count whole
  microseconds;
* the allowance has three parts: for the round, for *telling* nodes of it, and for the way from there to the caller. A
  success counts only if the client saw its round end within the first part after sending began. A round that took
  longer is not a success yet: the client asks for the same slots again.

Let a success return at A, and its ask be sent at S: A <= S + allowance. On each node of its quorum the slot is taken
after S, and kept until after S + allowance + per by the client's clock. The next success with that slot needs a quorum,
so it needs one of these nodes, and returns after that: more than `per` after A. So in any window of `per` each slot has
at most one success, and there are R slots. The proof compares one client's A and S with one node's times, so only these
two clocks matter.

The allowance costs throughput: 1 / (1 + allowance / per) of the rate remains. Its first part is the longest time that a
round may take, and that is long. So the client *tells* all nodes of each success: from the instant at which they hear
of it they need to keep the slot only for `per`, the other two parts, and what clocks take. Such a message comes after
the round was over, at R. Then the client looks at the clock again: the round counts only if that is before R + the
second part. So A <= R + the other two parts, and the proof holds with R instead of S, however late the message comes. A
node that does not get it keeps the slot for all three parts from S on, and R is within the first. If telling took
longer, the claim is rolled back, and the client asks for the same slots at once, for longer, with a new claim: the
message could shorten the old one once more, if it came late.

To tell nodes is most of the way to the caller: it sends, and threads of a busy interpreter wait for each other then.
The client sees how long that takes, so the second part is twice the mean, or 0.5 ms if that is more; and after it was
too short, four times as much as before in the same acquire. In the mean a telling counts as no more than was allowed
for it, because a pause of the process is not what the next one will take. Then only the return of a few calls is left.
The third part allows 2.4 ms for these, because the system may run others just then; that delay cannot be observed. If
the clocks agree, the drift allowance covers it as well. Each ask carries its own allowance, so clients do not have to
agree on it. But a node that has forgotten its slots must stay out until those of any client have run out, so a round
has one longest duration for all clients, whatever their `node_timeout`.

*When there is room again* is at most `per`, the drift allowance and 5 ms from now. That is promised. What nodes need to
keep comes first, though, and may be longer: if telling took too long twice in one acquire, or usually does; if rounds
are slow, so that the message is still on its way; if the client was paused or killed before it; or if a node's clock is
slow. Then a caller may be refused after that time, and asks again.
"""

from __future__ import annotations

import math

from redsync._core.timing import MAX_LEASE, Timing, finite
from redsync._protocols.queue_policies import PLACE_KEPT

__all__ = ["Window", "check_guard", "check_window"]

_TELLING = 0.0005
"""The shortest time in seconds within which nodes must have been told, for a success to count."""

_WAY = 0.0024
"""The time in seconds allowed for the way to the caller, from the last look at the clock on."""

_ROOM_AGAIN = 0.005
"""Seconds after `per` and the drift allowance by which there is room again, unless others come."""

_LONGEST_ROUND = 1.0
"""The longest time in seconds that a round waits for a node, in any client; the parts of an allowance are at most twice
as long."""

_ROOM, _MORE = 2.0, 4.0
"""Nodes must have been told within this many times the mean, and this many times what was too short before."""

_RECENT = 0.125
"""The weight of the latest one in that mean."""

_RESOLUTION = 0.000_01
"""Seconds by which nodes may keep a slot too short: they count whole microseconds, and round sums."""

_LONGEST_PLACE = 86.0
"""Seconds for which nodes keep a place in the queue at most: so a waiter of hours looks about every 40 s."""


def check_window(per: float) -> float:
    """Return the length of a window in seconds.

    Raises:
        ValueError: It is not a positive, finite number, or is longer than a year.
    """
    seconds = finite(per)
    if seconds is None or seconds <= 0:
        raise ValueError(f"a window is a positive number of seconds, not {per!r}")
    if seconds > MAX_LEASE:
        raise ValueError(f"a window of {seconds:g} s is longer than a year: windows are given in seconds")
    return seconds


def check_guard(restart_guard: float | None) -> float:
    """Return the longest guard in seconds; None stands for no limit.

    Raises:
        ValueError: It is negative or not a number.
    """
    if restart_guard is None:
        return math.inf
    seconds = finite(restart_guard)
    if seconds is None or seconds < 0:
        raise ValueError(f"restart_guard is a number of seconds from 0 on, or None; not {restart_guard!r}")
    return seconds


class Window:
    """Computes how long the permits of one rate limiter last; shared by all users of one limiter object.

    Attributes:
        per: The window in seconds.
        guard: Seconds for which a node must have remembered everything to grant.
        round_timeout: The longest time that a round waits for a node, in seconds.
        place_kept: Seconds for which nodes keep a place in the queue.
        round_limit: The seconds after the beginning of a round within which it must be over, for a success to count.
    """

    def __init__(self, per: float, timing: Timing, restart_guard: float = math.inf) -> None:
        """Begin; `restart_guard`: the longest guard in seconds, even if the window would need a longer one."""
        self.per = per
        self._timing = timing
        self.round_timeout = min(timing.node_timeout, _LONGEST_ROUND)
        self.round_limit = 2 * self.round_timeout
        self._mean = 0.0
        # Windows may be longer than the lease for which the client's guard was made, and another client's allowance
        # longer than this one's. A guard of 0 stays 0, as the user chose it.
        longest = max(timing.restart_guard, self._lease(4 * _LONGEST_ROUND)) if timing.restart_guard else 0.0
        self.guard = min(longest, restart_guard)
        self.place_kept = min(max(PLACE_KEPT, per / 7), _LONGEST_PLACE)

    def telling(self, too_short: float = 0.0) -> float:
        """Return within how many seconds of the end of its round nodes must have been told, for a success to count.

        Args:
            too_short: The time allowed in the same acquire before, in seconds, if that was too short; else 0.0.
        """
        return min(max(_TELLING, _ROOM * self._mean, _MORE * too_short), self.round_limit)

    def asked(self, telling: float) -> float:
        """Return for how many seconds an ask lets nodes keep slots, from its arrival on."""
        return self._lease(self.round_limit + telling)

    def needed(self, telling: float) -> float:
        """Return for how many seconds nodes must keep them from the instant at which they hear of the success."""
        return self._lease(telling)

    def _lease(self, observed: float) -> float:
        return (self.per + observed + _WAY) * (1 + self._timing.drift_factor) + _RESOLUTION

    def note(self, took: float, telling: float) -> None:
        """Record how many seconds it took to tell nodes, where `telling` was allowed."""
        self._mean += (min(took, telling) - self._mean) * _RECENT

    def room_after(self, left: float) -> float:
        """Return in how many seconds on this clock there is room, at most; never more than a window and its allowances.

        `left`: the seconds until there is room, by the nodes' clocks; infinite if they can't tell.
        """
        drift = 1 + self._timing.drift_factor
        return min(left * drift, self.per * drift + _ROOM_AGAIN)
