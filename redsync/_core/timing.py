"""The arithmetic of leases: how long a claim may be trusted, and how long to wait before the next try.

All instants are seconds on the driver's clock, all durations seconds. A claim that was asked for at `sent_at` with a
lease is trusted until

    valid_until = sent_at + lease - (lease * drift_factor + DRIFT_MIN)

which is the Redlock page's "TTL - (T2 - T1) - CLOCK_DRIFT" as an instant. `sent_at` is read before the first byte
leaves, and each node starts its own TTL later. So the client always stops believing before a node forgets.
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

__all__ = ["MAX_LEASE", "Timing", "check_timeout", "finite", "milliseconds", "retry_delay", "whole"]

DRIFT_MIN = 0.002
"""Seconds added to the drift allowance for the nodes' expiry resolution and rounding, as in the Redis documentation."""

MAX_LEASE = 366 * 86400.0
"""The longest lease in seconds: a longer one is a mistake in units."""

_NODE_TIMEOUT_SHARE = 0.05
_SHORTEST_NODE_TIMEOUT = 0.01


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, rounded up: so a claim never ends on a node before its holder stops believing."""
    return math.ceil(seconds * 1000)


class Timing(NamedTuple):
    """A client's time settings, and the values derived from them.

    Attributes:
        lease: The default lease in seconds.
        node_timeout: The longest time, in seconds, that a round waits for a node while its verdict is open.
        drift_factor: The largest difference between the rates of the clocks of client and nodes.
        restart_guard: Seconds for which a node that lost its memory takes no part in new grants; 0.0 for no guard.
        outage_timeout: The longest time in seconds that a call waits while no quorum of nodes answers.
    """

    lease: float
    node_timeout: float = 0.25
    drift_factor: float = 0.01
    restart_guard: float = 0.0
    outage_timeout: float = math.inf

    def drift(self, lease: float) -> float:
        """Return the allowance in seconds for clocks that run at different rates during a lease."""
        return lease * self.drift_factor + DRIFT_MIN

    def valid_until(self, sent_at: float, lease: float) -> float:
        """Return the instant until which a claim asked for at `sent_at` may be trusted."""
        return sent_at + lease - self.drift(lease)

    def guard(self, lease: float) -> float:
        """Return for how many seconds a node must have remembered everything to grant a claim with that lease.

        Its holder may believe a forgotten claim for as long as its lease. An acquire with a longer lease than the
        client's assumes that others use such leases too. A guard of 0 stays 0, as the user chose it.
        """
        return max(self.restart_guard, lease) if self.restart_guard and lease > self.lease else self.restart_guard

    def round_timeout(self, lease: float) -> float:
        """Return how long a round about a claim with that lease may wait for a node, in seconds.

        A small part of the lease, so that waiting for a hung node can't use up the validity; but never so short that a
        healthy loopback round trip on a busy machine fails.
        """
        return min(self.node_timeout, max(lease * _NODE_TIMEOUT_SHARE, _SHORTEST_NODE_TIMEOUT))

    def check_lease(self, lease: float, called: str = "a lease") -> float:
        """Return `lease`, in seconds, if a claim can use it; messages call it by its argument's name, `called`.

        Raises:
            ValueError: It is not a positive, finite number (True and "3" are none); or it is no longer than its own
                drift allowance, or longer than `MAX_LEASE`.
        """
        seconds = finite(lease)
        if seconds is None or seconds <= 0:
            raise ValueError(f"{called} is a positive number of seconds, not {lease!r}")
        if seconds <= self.drift(seconds):
            raise ValueError(
                f"{called} of {seconds:g} s is used up by its drift allowance of {self.drift(seconds):g} s"
            )
        if seconds > MAX_LEASE:
            raise ValueError(f"{called} of {seconds:g} s is longer than a year: the unit is seconds")
        return seconds


def finite(number: object) -> float | None:
    """Return a caller's number as a float, or None if it is not a finite number: True and "3" are no numbers."""
    if isinstance(number, bool | str | bytes | bytearray):
        return None
    try:
        value = float(number)  # type: ignore[arg-type]  # Whatever is a number knows how: a Decimal, a Fraction.
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def whole(number: object, most: float = math.inf) -> int | None:
    """Return a caller's number as an integer, or None if it is not one from 1 to `most`: True and 3.0 are none."""
    try:
        value = 0 if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]  # as numpy's
    except TypeError:
        return None
    return value if 1 <= value <= most else None


def check_timeout(blocking: bool, timeout: float | None) -> float | None:
    """Return how long an acquire may wait, in seconds: 0.0 for one try, None for no limit.

    The contract is that of `threading.RLock.acquire`, except that None means the same as -1.

    Raises:
        ValueError: The timeout comes with a non-blocking call, is negative other than -1, or not finite.
        TypeError: It is not a number.
    """
    if timeout is None or timeout == -1:
        return None if blocking else 0.0
    if not blocking:
        raise ValueError("can't specify a timeout for a non-blocking call")
    wrong = f"timeout must be a number of seconds, or None or -1 to wait forever; not {timeout!r}"
    try:
        if not math.isfinite(timeout) or timeout < 0:
            raise ValueError(wrong)
    except TypeError:
        raise TypeError(wrong) from None
    except OverflowError:  # An integer beyond all floats.
        raise ValueError(wrong) from None
    return float(timeout)


def retry_delay(tries: int, random: float, *, shortest: float = 0.001, longest: float = 0.1) -> float:
    """Return how long to wait, in seconds, after that many tries that failed by chance.

    Random over a span that doubles with each try, which spreads contenders further apart each time.

    The span grows from `shortest`, after the first failure, to `longest`, in seconds; `random` is a number in [0, 1).
    """
    span = min(longest, shortest * 2.0 ** min(tries - 1, 30))
    return span * (0.25 + 0.75 * random)
