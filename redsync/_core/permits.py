"""Slots of a semaphore or rate limiter: their keys, permits as holds of slots, nodes' grants, and limits.

**Limits.** The number of slots, as programs state it and as nodes keep it. A limit has a version, and the highest one
is in force. Programs start with version 0. A resize makes a version from the time at which it happens, by the nodes'
clocks, and from the number of permits. So

* two resizes at the same time have different versions, unless they want the same number;
* a resize exceeds every earlier version, even one that no node keeps any more, only an old object in some client.

Nodes and clients adopt each newer limit that they hear of: the node that told it may be the last one that keeps it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Self

from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys
from redsync._core.scripts import Command
from redsync.exceptions import ConfigurationError

__all__ = [
    "MAX_PERMITS",
    "Limit",
    "PermitState",
    "SlotGrant",
    "SlotKeys",
    "next_version",
    "read_slots",
    "write_slots",
]

MAX_PERMITS = 10_000
"""The largest limit: nodes tell a bit map of that many bits with each grant."""

_NUMBERS = 1 << 14
"""A version is hundredths of a second since 1970, times this, plus the permits. So it fits 53 bits until 2144."""

_MOST_RELEASED = 64
"""How many released slots a client remembers, for as many acquires at a time; the oldest is dropped first."""

_VERSIONS = 1 << 53
"""Versions lie below that: scripts count in doubles."""


def next_version(known: int, permits: int, now_ms: int) -> int:
    """Return the version of a resize to `permits`; `known`: the highest version before."""
    return max(known // _NUMBERS + 1, now_ms // 10) * _NUMBERS + permits


class Limit:
    """The number of slots, as far as this client knows.

    Attributes:
        version: Orders the limits: 0 for the one that programs state; each change has a higher one.
        permits: The number of slots.
        per_us: A rate limiter's window in whole microseconds; 0 for a semaphore. So nodes can distinguish them.
        released: Slots that this client released, the latest last. Its next acquires start from these: most
            likely all nodes have these slots free.
    """

    __slots__ = ("per_us", "permits", "released", "version")

    def __init__(self, permits: int, per_us: int = 0, *, version: int = 0) -> None:
        self.version = version
        self.permits = permits
        self.per_us = per_us
        self.released: deque[int] = deque(maxlen=_MOST_RELEASED)

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
        if not (0 <= version < _VERSIONS and 1 <= permits <= MAX_PERMITS):
            raise ValueError(f"{text!r:.80} is not a limit")
        return cls(permits, *per_us, version=version)

    def differs(self, name: str | bytes, theirs: Limit) -> ConfigurationError:
        """Return the error to raise if nodes keep another limit under that name."""
        remedy = "choose another name for one of them"
        if theirs.per_us == self.per_us:
            change = f"set_rate({self.permits}, per={self.per_us / 1e6:g})"
            remedy = f"use one number in all programs, or {change if self.per_us else f'resize({self.permits})'}"
        elif theirs.per_us and self.per_us:
            remedy = "use one window in all programs, and another name for another window"
        what = str(theirs) if bool(theirs.per_us) == bool(self.per_us) else f"a {theirs.noun}"
        return ConfigurationError(
            f"{self.noun} {name!r} has {what} on its nodes, not {self if self.per_us else self.permits}: {remedy}"
        )

    def learn(self, version: int, permits: int) -> None:
        """Adopt a limit if it is newer."""
        if version > self.version:
            self.version, self.permits = version, permits


class SlotKeys(LockKeys):
    """The keys of one semaphore: `lock` is a sorted set there, permit -> expiry, node time in ms.

    Attributes:
        slots: Hash permit -> "slot,slot": its slots.
        taken: Bit map of the slots that are taken.
        limit: "version permits": the number of slots, and the version that orders the changes.
    """

    __slots__ = ("limit", "slots", "taken")

    def __init__(self, prefix: bytes, name: bytes, mode: bytes = b"") -> None:
        super().__init__(prefix, name, mode)
        ours = self.queue.removeprefix(b"redsync_queue:")
        self.slots: Final = b"redsync_slots:" + ours
        self.taken: Final = b"redsync_taken:" + ours
        self.limit: Final = b"redsync_limit:" + ours
        self.all = (*self.all, self.slots, self.taken, self.limit)


def read_slots(text: bytes) -> tuple[int, ...]:
    """Return the slots that a node names.

    Raises:
        ValueError: The text is not a list of slots.
    """
    if text.isdigit() and b"%d" % (slot := int(text)) == text:
        return (slot,)
    slots = tuple(map(int, text.split(b",")))
    if write_slots(slots) != text or len(set(slots)) < len(slots) or min(slots) < 0:
        raise ValueError(f"{text!r:.80} is not a list of slots")
    return slots


def write_slots(slots: Iterable[int]) -> bytes:
    """Return slots as nodes keep them."""
    return b",".join(b"%d" % slot for slot in slots)


class SlotGrant(NamedTuple):
    """One node's grant of slots.

    Attributes:
        slots: The slots that it granted.
        taken: All slots that are taken on the node, these among them; bit n stands for slot n.
    """

    slots: tuple[int, ...]
    taken: int = 0


class PermitState(HoldState):
    """One permit: a hold of slots, of which the first `count` are not yet released.

    Attributes:
        slots: Its slots.
        limit: The client's view of its semaphore's limit.
        for_with: True if a `with` acquired it, even if that has not begun its body yet.
    """

    __slots__ = ("for_with", "limit", "slots")

    what = "permit"
    for_with: bool

    def grant(self, slots: tuple[int, ...], limit: Limit) -> None:
        """Record the slots that were won, and under which limit."""
        self.slots, self.limit = slots, limit

    def count_command(self) -> Command:
        if not self.count:
            self.limit.released.append(self.slots[0])
        return super().count_command()

    def learn(self, limit: bytes) -> None:
        if limit:  # empty if the node knows no newer one
            newer = Limit.read(limit)
            self.limit.learn(newer.version, newer.permits)

    @property
    def rest(self) -> bytes:
        """The slots that remain, as an argument of a release."""
        return write_slots(self.slots[: self.count])

    @classmethod
    def renewal_of(cls, holds: Sequence[Self], leases_ms: Sequence[int]) -> Command:
        # Many permits may belong to one semaphore: send its keys once, with the newest limit that any of them knows.
        numbers: dict[bytes, int] = {}
        newest: list[Limit] = []
        keys: list[bytes] = []
        args: list[bytes | int] = []
        for state, lease_ms in zip(holds, leases_ms, strict=True):
            number = numbers.setdefault(state.keys.lock, len(numbers) + 1)
            if number > len(newest):
                newest.append(state.limit)
                keys += state.keys.all
            newest[number - 1] = max(newest[number - 1], state.limit, key=attrgetter("version"))
            args += (number, state.claim, state.rest, lease_ms)
        return Command(holds[0].kind.renew, tuple(keys), (*args, *(limit.text for limit in newest)))
