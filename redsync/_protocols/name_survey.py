"""Looking at names of any kind, node by node: the names and their holders, and commands that remove one claim.

Unlike `lock_survey`, this is for people: no quorum decides anything here; callers ask and show each node by itself. So
this module has no protocols, but the commands for such questions, and readers for the replies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from redsync._core.effects import Command
from redsync._core.keys import MAX_NAME, LatchKeys, is_client_key, voter_tag
from redsync._core.presence import Claim, ClientRecord
from redsync._core.scripts import Script
from redsync._core.slots import SlotKeys

__all__ = [
    "LatchLook",
    "NameLook",
    "Waiter",
    "break_commands",
    "key_patterns",
    "keys_of_name",
    "look_command",
    "name_of_key",
]

INSPECT: Final = Script.load("name_inspect")

_RELEASES: Final = {
    "lock": ("lock_release",),
    "fenced lock": ("lock_release",),
    "mutex": ("mutex_release",),
    "read-write lock": ("read_lock_release", "write_lock_release"),
    "semaphore": ("semaphore_release",),
    "rate limiter": ("semaphore_release",),
}
_BY_THREAD: Final = (b"lock", b"fenced lock", b"read-write lock")
"""The kinds whose owner is a thread or task, not an object."""

_SIDE_KEY: Final = re.compile(rb"redsync_(?:queue|limit|latch):(?:\{(?P<braced>.*)\}|:(?P<tagged>.*))", re.DOTALL)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _seconds(ms: int) -> float | None:
    return ms / 1000 if ms >= 0 else None


@dataclass(frozen=True, slots=True)
class Waiter:
    """A waiter, as one node knows it.

    Attributes:
        owner: The waiting owner.
        client: The record of its client; None if unknown.
    """

    owner: str
    client: ClientRecord | None


@dataclass(frozen=True, slots=True)
class LatchLook:
    """One node's knowledge of a latch.

    Attributes:
        size: The count to which the latch was set.
        left: The remaining count, as far as this node knows.
        remaining: Seconds until the node forgets the latch.
        waiting: The number of waiters for the latch.
    """

    size: int
    left: int
    remaining: float | None
    waiting: int


@dataclass(frozen=True, slots=True)
class NameLook:
    """All that one node keeps under a name.

    Attributes:
        kind: "lock", "fenced lock", "mutex", "read-write lock", "semaphore", "rate limiter", "none", or the type of a
            foreign value.
        claims: The holders' claims, at most as many as requested.
        held: The number of claims.
        waiters: The waiters, longest wait first, at most as many as requested.
        waiting: The number of waiters.
        permits: The number of permits; 0 for kinds without permits.
        window: A rate limiter's window in seconds; 0.0 for other kinds.
        latch: The latch of that name; None if there is none.
    """

    kind: str
    claims: tuple[Claim, ...]
    held: int
    waiters: tuple[Waiter, ...]
    waiting: int
    permits: int
    window: float
    latch: LatchLook | None

    @classmethod
    def read(cls, reply: Any) -> NameLook:
        """Return the content of a reply of `name_inspect`.

        Raises:
            ValueError: The script never replies so.
        """
        try:
            kind, claims, held, waiters, waiting, permits, window_us, latch = reply
            numbers = held, waiting, permits, window_us, *latch
            if {type(number) for number in numbers} != {int} or len(latch) not in (0, 4):
                raise ValueError("not a number")
            return cls(
                kind.decode(),
                tuple(Claim.read(claim, by_thread=kind in _BY_THREAD) for claim in claims),
                held,
                tuple(
                    Waiter(_text(owner), ClientRecord.unpack(record) if record else None) for owner, record in waiters
                ),
                waiting,
                permits,
                window_us / 1e6,
                LatchLook(latch[0], latch[1], _seconds(latch[2]), latch[3]) if latch else None,
            )
        except (TypeError, ValueError, KeyError, AttributeError):
            raise ValueError(f"{reply!r:.80}") from None

    @property
    def all_waiting(self) -> int:
        """The number of waiters, including those for the latch."""
        return self.waiting + (self.latch.waiting if self.latch else 0)

    @property
    def is_empty(self) -> bool:
        """True if the node keeps nothing under that name."""
        return self.kind == "none" and not self.waiting and self.latch is None


def look_command(prefix: bytes, name: bytes, most: int = 100) -> Command:
    """Return the command that asks what a node keeps under a name; `NameLook.read` reads the reply.

    The node lists at most `most` holders, and as many waiters.
    """
    keys, latch = SlotKeys.of(prefix, name), LatchKeys.of(prefix, name)
    everything = (keys.lock, keys.queue, keys.places, keys.slots, keys.limit, keys.token, latch.latch, latch.waiters)
    return Command(INSPECT, everything, (most,))


def break_commands(prefix: bytes, name: bytes, kind: str, claim: bytes) -> list[Command]:
    """Return the commands that remove a claim, as if its owner had released it.

    A node replies 1 to the command that removed the claim. Other claims stay, and the next waiter gets its turn.
    There are no commands for a kind that has no holders.
    """
    keys = SlotKeys.of(prefix, name)
    if kind in ("semaphore", "rate limiter"):
        return [Command(Script.load("semaphore_release"), keys.all, (claim, 0, b""))]
    taken = keys.lock, keys.queue, keys.places
    return [Command(Script.load(script), taken, (claim, 0, keys.channel)) for script in _RELEASES.get(kind, ())]


def key_patterns(prefix: bytes, pattern: bytes) -> list[bytes]:
    """Return patterns of all keys that show a name which matches `pattern`; `name_of_key` reads the keys."""
    full = re.sub(rb"([\\*?\[\]^])", rb"\\\1", prefix) + pattern
    return [full, b"redsync_*:{%s}" % full, b"redsync_*::%s" % full]


def keys_of_name(prefix: bytes, name: bytes) -> tuple[bytes, ...]:
    """Return the keys by which `key_patterns` finds a name, the lock's own key first."""
    keys = SlotKeys.of(prefix, name)
    return keys.lock, keys.limit, LatchKeys.of(prefix, name).latch, keys.queue


def name_of_key(prefix: bytes, key: bytes) -> bytes | None:
    """Return the name that a key shows; None if it does not belong to a synchronizer, or accompanies another key."""
    if is_client_key(key):
        return None
    side = _SIDE_KEY.fullmatch(key)
    full = (side["braced"] or side["tagged"] or b"") if side else key
    name = full.removeprefix(prefix)
    if not full.startswith(prefix) or full.startswith(b"redsync_") or voter_tag(full):
        return None
    return name if 1 <= len(name) <= MAX_NAME else None
