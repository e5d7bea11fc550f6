"""Limits: how many slots a semaphore or a rate limiter has, as programs say and as nodes write it down."""

from __future__ import annotations

from redsync.exceptions import ConfigurationError

__all__ = ["Limit"]


class Limit:
    """How many slots there are, as far as this client knows.

    Attributes:
        version: Orders the limits: 0 for the one that programs bring along; each change has a higher one.
        permits: How many slots.
        per_us: Of a rate limiter its window, whole microseconds; 0 of a semaphore. So nodes tell one from the other.
    """

    __slots__ = ("per_us", "permits", "version")

    def __init__(self, permits: int, per_us: int = 0) -> None:
        self.version = 0
        self.permits = permits
        self.per_us = per_us

    @property
    def noun(self) -> str:
        return "rate limiter" if self.per_us else "semaphore"

    @property
    def window(self) -> tuple[int, ...]:
        """What scripts are told besides version and permits."""
        return (self.per_us,) if self.per_us else ()

    def __str__(self) -> str:
        return f"{self.permits} per {self.per_us / 1e6:g} s" if self.per_us else f"{self.permits} permits"

    @classmethod
    def read(cls, text: bytes) -> Limit:
        """Return the limit that a node has written down.

        Raises:
            ValueError: It is none.
        """
        version, permits, *per_us = map(int, text.split(b" "))
        limit = cls(permits, *per_us)
        limit.version = version
        return limit

    def differs(self, name: str | bytes, theirs: Limit) -> ConfigurationError:
        """Return the error for nodes that keep another limit under that name."""
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
        """Take over a limit that is newer; return whether it is."""
        if version <= self.version:
            return False
        self.version, self.permits = version, permits
        return True
