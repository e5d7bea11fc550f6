"""The keys and channels of synchronizers.

A lock named `x` lives at `prefix + x`. Its side keys carry that key in braces, as Redisson's do, whose channel name we
share; a key that has a brace stands behind a colon instead. The queue of `{x}` is spelled differently from that of `x`:
two names never share a key, unless one of them is a side key itself, as `redsync_queue:{x}` with an empty prefix.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, Self, TypeAlias

from redsync.exceptions import ConfigurationError

__all__ = [
    "MAX_NAME",
    "HoldKey",
    "LatchKeys",
    "LockKeys",
    "client_key",
    "encode_name",
    "is_client_key",
    "voter_tag",
    "wake_channel",
]

MAX_NAME = 512

HoldKey: TypeAlias = bytes | tuple[bytes, bytes]
"""A lock's key, or a pair of key and mode. No name, whatever its bytes, makes a key equal to a pair."""

_RECORD: Final = re.compile(rb"redsync:client:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_TAG: Final = re.compile(rb"\{rs\d+\}")
"""The tag before all keys of a cluster's voter, by which scripts recognize such a node; see `clusters`."""


def encode_name(name: str | bytes) -> bytes:
    """Return a synchronizer's name as bytes.

    Raises:
        TypeError: It is neither str nor bytes.
        ValueError: It is empty, or longer than 512 bytes as UTF-8.
    """
    if isinstance(name, str):
        raw = name.encode("utf-8", "surrogatepass")
    elif isinstance(name, bytes):
        raw = name
    else:
        raise TypeError(f"a name is str or bytes, not {type(name).__name__}")
    if not 1 <= len(raw) <= MAX_NAME:
        raise ValueError(f"a name has 1 to {MAX_NAME} bytes, this one has {len(raw)}")
    return raw


def encode_prefix(prefix: str) -> bytes:
    """Return the prefix of all keys as bytes.

    Raises:
        ConfigurationError: It is not a str, is longer than 512 bytes, or begins like the keys of a cluster's voter.
    """
    refusal = ConfigurationError(f"a prefix is a str of at most {MAX_NAME} bytes, not {prefix!r:.80}")
    if not isinstance(prefix, str):
        raise refusal
    try:
        raw = prefix.encode()
    except UnicodeEncodeError:
        raise refusal from None
    if len(raw) > MAX_NAME:
        raise refusal
    if tag := voter_tag(raw):
        raise ConfigurationError(f"a prefix can't begin with {tag.decode()}: that marks the keys of a cluster's voter")
    return raw


def voter_tag(key: bytes) -> bytes | None:
    """Return the tag with which a key begins if it is that of a cluster's voter; None for any other key."""
    tag = _TAG.match(key)
    return tag and tag[0]


@lru_cache(maxsize=16)
def wake_channel(client_id: str) -> bytes:
    """Return the channel over which nodes wake the waiters of one client."""
    return f"redsync:wake:{client_id}".encode()


def client_key(client_id: str) -> bytes:
    """Return the key of a client's record on the nodes."""
    return f"redsync:client:{client_id}".encode()


def is_client_key(key: bytes) -> bool:
    """Return whether a client may keep its record at that key."""
    return _RECORD.fullmatch(key) is not None


class LockKeys:
    """The keys of one lock.

    Attributes:
        lock: Hash claim -> hold count, which expires as a whole; Redisson's RLock layout. Other kinds keep their
            claims there.
        queue: Sorted set of waiting owners by arrival, node time in ms.
        places: Hash waiting owner -> "expiry number ask-id guard channel": when its place ends, and how nodes hand the
            lock over and wake it.
        channel: Redisson's channel for releases of this lock.
        token: The node's latest fencing token.
        foreign_token: Where Redisson's fenced lock of that name keeps its token.
        all: The keys in the order in which the lock's scripts take them.
        held: The keys that a renewal takes, in its order.
        hold: The key of a hold in its owner's table: the lock's key, after its mode if the lock has several.
    """

    __slots__ = ("all", "channel", "foreign_token", "held", "hold", "lock", "places", "queue", "token")

    def __init__(self, prefix: bytes, name: bytes, mode: bytes = b"") -> None:
        lock = prefix + name
        if is_client_key(lock):
            raise ValueError(f"prefix and name can't make {lock.decode()!r}: that is the key of a client's record")
        if tag := voter_tag(lock):
            raise ValueError(
                f"prefix and name can't begin with {tag.decode()}: that marks the keys of a cluster's voter"
            )
        tagged = b"{" in lock
        ours = b":" + lock if tagged else b"{" + lock + b"}"
        self.lock: Final = lock
        self.queue: Final = b"redsync_queue:" + ours
        self.places: Final = b"redsync_places:" + ours
        self.channel: Final = b"redisson_lock__channel:" + (lock if tagged else ours)
        self.token: Final = b"redsync_token:" + ours
        self.foreign_token: Final = b"redisson_lock_token:" + (lock if tagged else ours)
        self.all: tuple[bytes, ...] = lock, self.queue, self.places
        self.held: tuple[bytes, ...] = (lock,)
        self.hold: Final[HoldKey] = (lock, mode) if mode else lock

    @property
    def everything(self) -> tuple[bytes, ...]:
        """The keys of everything that may have this name, as `name_inspect` takes them."""
        ours = self.queue.removeprefix(b"redsync_queue:")
        sides = b"slots", b"limit", b"token", b"latch", b"latch_waiters"
        return *self.all[:3], *(b"redsync_%b:%b" % (side, ours) for side in sides)

    @classmethod
    @lru_cache(maxsize=1024, typed=True)  # many programs make a new lock object for each acquire
    def of(cls, prefix: bytes, name: str | bytes, mode: bytes = b"") -> Self:
        """Return the keys of the lock with that name; `mode` distinguishes holds that one owner may have at once.

        A name that may be neither str nor bytes, and so perhaps not hashable, goes through `encode_name` first.

        Raises:
            ValueError: The name is invalid, begins like the keys of a cluster's voter, or is that of a client's record.
        """
        return cls(prefix, encode_name(name), mode)


class LatchKeys(NamedTuple):
    """The keys of one count-down latch; a lock may have the same name.

    Attributes:
        latch: Hash: generation, size, and the total that each client has counted down.
        waiters: Sorted set of waiters, "channel owner:number", by when their places end, node time in ms.
        setting: The fenced lock under which clients set or delete the latch.
        all: The keys in the order in which the latch's scripts take them.
    """

    latch: bytes
    waiters: bytes
    setting: LockKeys
    all: tuple[bytes, bytes, bytes]

    @classmethod
    def of(cls, prefix: bytes, name: bytes) -> LatchKeys:
        """Return the keys of the latch with that name.

        Raises:
            ValueError: As for `LockKeys.of`.
        """
        lock, *_, latch, waiters = LockKeys.of(prefix, name).everything
        # Not `of`: with prefix and braces, these may be more bytes than a name has.
        setting = LockKeys(b"redsync_latch_setting:", latch.removeprefix(b"redsync_latch:"))
        return cls(latch, waiters, setting, (latch, waiters, lock))
