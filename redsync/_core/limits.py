"""Limits: the number of slots of a semaphore or rate limiter, as programs state it and as nodes keep it.

A limit has a version, and the highest one is in force. Programs start with version 0. A resize makes a version from the
time at which it happens, by the nodes' clocks, and from the number of permits. So

* two resizes at the same time have different versions, unless they want the same number;
* a resize exceeds every earlier version, even one that only an old object remembers, and no node;
* a version that lies far ahead of the clock is *void*: no resize has made it. Resizes must exceed every other version,
  so without this rule a broken node with an absurd one would make them impossible.

Each node judges by its own clock which versions are void, and ignores these. A client has no clock to judge by. It
adopts the limit of any node, because that node may be the only one left that knows it, and asks under that limit. If
the nodes that refuse it as void leave no quorum, the client goes back to the last *proven* limit, under which a quorum
has granted something.
"""

from __future__ import annotations

from collections import deque

from redsync.exceptions import ConfigurationError

__all__ = ["MAX_PERMITS", "Limit", "is_void", "next_version"]

MAX_PERMITS = 10_000
"""The largest limit: scripts search a bit map of that many bits for free slots."""

_NUMBERS = 1 << 14
"""A version is hundredths of a second since 1970, times this, plus the permits. So it fits 53 bits until 2144."""

_MOST_RELEASED = 64
"""How many released slots a client remembers, for as many acquires at a time; the oldest is dropped first."""

_AHEAD = 366 * 86_400 * 100
"""Hundredths of a second by which a version may be ahead of a clock: roughly correct clocks differ by less."""


def next_version(known: int, permits: int, now_ms: int) -> int:
    """Return the version of a resize to `permits`; `known`: the highest version before."""
    return max(known // _NUMBERS + 1, now_ms // 10) * _NUMBERS + permits


def is_void(version: int, now_ms: int) -> bool:
    """Return whether no resize can have made that version by the instant `now_ms`."""
    return version // _NUMBERS > now_ms // 10 + _AHEAD


class Limit:
    """The number of slots, as far as this client knows.

    Attributes:
        version: Orders the limits: 0 for the one that programs state; each change has a higher one.
        permits: The number of slots.
        per_us: A rate limiter's window in whole microseconds; 0 for a semaphore. So nodes can distinguish them.
        lowered: True if permits with slots beyond the limit may still exist, as far as this client knows; see
            `shrinking`.
        scarce: True if nodes chose different slots when this client last asked for a rate limiter's. These run out on
            each node at another instant, so if few are free the client needs to know which.
        released: Slots that this client released, the latest last. Its next acquires start from these: most
            likely all nodes have these slots free.
    """

    __slots__ = ("_proven", "_void", "lowered", "per_us", "permits", "released", "scarce", "version")

    def __init__(self, permits: int, per_us: int = 0) -> None:
        self.version = 0
        self.permits = permits
        self.per_us = per_us
        self.lowered = self.scarce = False
        self.released: deque[int] = deque(maxlen=_MOST_RELEASED)
        self._proven = 0, permits
        self._void = -1

    @property
    def noun(self) -> str:
        return "rate limiter" if self.per_us else "semaphore"

    @property
    def window(self) -> tuple[int, ...]:
        """The arguments of scripts after version and permits."""
        return (self.per_us,) if self.per_us else ()

    @property
    def text(self) -> bytes:
        """The limit as nodes keep it."""
        return b" ".join(b"%d" % number for number in (self.version, self.permits, *self.window))

    def __str__(self) -> str:
        return f"{self.permits} per {self.per_us / 1e6:g} s" if self.per_us else f"{self.permits} permits"

    @classmethod
    def read(cls, text: bytes) -> Limit:
        """Return the limit that a node keeps.

        Raises:
            ValueError: The text is not a limit.
        """
        version, permits, *per_us = map(int, text.split(b" "))
        if version < 0 or not 1 <= permits <= MAX_PERMITS:
            raise ValueError(f"{text!r:.80} is not a limit")
        limit = cls(permits, *per_us)
        limit.version = version
        return limit

    def differs(self, name: str | bytes, theirs: Limit) -> ConfigurationError:
        """Return the error to raise if nodes keep another limit under that name."""
        remedy = "choose another name for one of them"
        if theirs.per_us == self.per_us == 0:
            remedy = f"use one number in all programs, or resize({self.permits})"
        elif theirs.per_us and self.per_us:
            remedy = "use one rate and one window in all programs, and another name for another rate"
        what = str(theirs) if bool(theirs.per_us) == bool(self.per_us) else f"a {theirs.noun}"
        return ConfigurationError(
            f"{self.noun} {name!r} has {what} on its nodes, not {self if self.per_us else self.permits}: {remedy}"
        )

    def learn(self, version: int, permits: int) -> bool:
        """Adopt a limit if it is newer; return whether it was."""
        if version <= self.version or version == self._void:
            return False
        self.version, self.permits, self.lowered = version, permits, True
        return True

    def prove(self, version: int) -> None:
        """Record that a quorum of nodes has granted something under that version."""
        if version == self.version:
            self._proven = self.version, self.permits

    def forget(self) -> None:
        """Go back to the last proven limit, because nodes refuse this one as void."""
        self._void = self.version
        self.version, self.permits = self._proven
        self.lowered = self.version > 0
