"""The data of one virtual node: the values that it keeps and replies with, how it parses numbers, and when keys end.

Everything is bytes, as on the wire. Numbers are parsed as strictly as in Redis: no spaces, no sign `+`, no leading
zeros, 64 bits.

The clock is an argument, so a simulation decides the node's time, and nodes may disagree. Keys expire in whole
milliseconds, lazily: a key that is due is removed when a command looks for it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Final, TypeAlias, TypeVar

__all__ = [
    "NEVER",
    "WRITING",
    "CommandError",
    "Entry",
    "Hash",
    "Reply",
    "SortedSet",
    "Status",
    "Store",
    "Value",
    "WriteRefusal",
    "copy_of",
    "format_score",
    "parse_integer",
    "parse_score",
]

NEVER = 1 << 63
"""The expiry of a key without one: later than any instant that fits in 64 bits."""


class CommandError(Exception):
    """The node refuses a command: str() is the text of the error reply, with its code."""


class WrongTypeError(CommandError):
    """The key holds a value of the wrong type for the command."""

    def __init__(self) -> None:
        super().__init__("WRONGTYPE Operation against a key holding the wrong kind of value")


class Status(bytes):
    """A status reply: Lua sees a table with the field `ok`, a client sees bytes."""

    __slots__ = ()


class Hash(dict[bytes, bytes]):
    """Fields in the order in which they were added."""


class SortedSet(dict[bytes, float]):
    """Members with their scores, sorted on each query: the sets of synchronizers are small."""

    def ranked(self) -> list[tuple[bytes, float]]:
        """Return the members with their scores, by score and then by member."""
        return sorted(self.items(), key=lambda item: (item[1], item[0]))


Value: TypeAlias = bytes | Hash | SortedSet
Reply: TypeAlias = int | bytes | list[bytes] | list[bytes | None] | list[bytes | list[bytes]] | None


class Entry:
    """A key's value, and the last ms of the node's clock at which the key still exists.

    Attributes:
        value: The value; replaced, or changed in place.
        expires: That instant.
        era: The number of the latest copy of the store before the entry was made; copies share older entries.
    """

    __slots__ = ("era", "expires", "value")

    def __init__(self, value: Value, expires: int = NEVER, era: int = 0) -> None:
        self.value = value
        self.expires = expires
        self.era = era


def copy_of(value: Value) -> Value:
    """Return a copy that can be changed without changing the value."""
    return value if isinstance(value, bytes) else value.__class__(value)  # type: ignore[arg-type]  # of its own class


def parse_integer(word: bytes, problem: str = "ERR value is not an integer or out of range") -> int:
    """Return a signed 64-bit integer.

    Raises:
        CommandError: With the text `problem`.
    """
    try:
        number = int(word)
    except ValueError:
        raise CommandError(problem) from None
    if b"%d" % number != word or not -NEVER <= number < NEVER:
        raise CommandError(problem)
    return number


def parse_score(word: bytes, problem: str = "ERR value is not a valid float") -> float:
    """Return a floating-point number, infinity included.

    Raises:
        CommandError: With the text `problem`.
    """
    try:
        number = float(word)
    except ValueError:
        raise CommandError(problem) from None
    # Python's float() accepts more than strtod().
    if math.isnan(number) or word != word.strip() or b"_" in word:
        raise CommandError(problem)
    return number


def format_score(score: float) -> bytes:
    """Return the shortest text that reads back as the same number, in the node's notation."""
    if abs(score) < 1 << 52 and score == int(score):
        return b"%d" % int(score)
    if math.isinf(score):
        return b"inf" if score > 0 else b"-inf"
    number = Decimal(repr(float(score))).normalize()
    _, digits, power = number.as_tuple()
    assert isinstance(power, int), "neither infinite nor NaN"
    magnitude = power + len(digits) - 1
    if 0 <= power < 8 or (power < 0 and (power > -7 or abs(magnitude) < 4)):
        return format(number, "f").encode()
    fraction = "".join(map(str, digits[1:]))
    return f"{'-' * (score < 0)}{digits[0]}{'.' * bool(fraction)}{fraction}e{magnitude:+d}".encode()


V = TypeVar("V", bytes, Hash, SortedSet)

_GROWING = frozenset(b"set setnx incr incrby setbit hset hincrby zadd".split())
"""Commands that nodes refuse when they are out of memory."""

WRITING = _GROWING | frozenset(b"del pexpire expire pexpireat hdel zrem zremrangebyscore flushall flushdb".split())
"""Commands that nodes refuse when they can't write."""


class WriteRefusal:
    """The reason why a node refuses writes: it can't save its data, it is a replica, or it is out of memory.

    A node out of memory still executes commands that need no memory, and all that a script does after its first write.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._oom = text.startswith("OOM")
        self._written = False

    def begin(self) -> None:
        """Let a script or a single command begin."""
        self._written = False

    def look_at(self, name: bytes) -> None:
        """Check that a command may be executed.

        Raises:
            CommandError: It may not.
        """
        name = name.lower()
        if name in WRITING:
            if not self._oom or (name in _GROWING and not self._written):
                raise CommandError(self._text)
            self._written = True


_eras: Final = itertools.count()
"""Numbers that no two stores share, so that one may load the state of another."""


class Store:
    """The keyspace of one node.

    No time passes between two calls of `read_clock`, so a script sees one instant throughout, as on a real node.

    Args:
        clock: The node's time, in seconds since the epoch.
        publish: Called with channel and message of each PUBLISH; returns the number of subscribers that got it.

    Attributes:
        run_id: The identity of the process.
        now_us: The instant that commands see, in microseconds.
        now_ms: The same in whole milliseconds.
        refusal: The reason why it refuses writes; None if it executes them.
    """

    def __init__(self, clock: Callable[[], float], publish: Callable[[bytes, bytes], int] = lambda *_: 0) -> None:
        self._clock = clock
        self._entries: dict[bytes, Entry] = {}
        self._era = next(_eras)
        self.publish = publish
        self.refusal: WriteRefusal | None = None
        self.run_id = b""
        self.read_clock()

    def read_clock(self) -> None:
        """Set the node's present to the time on its clock."""
        self.now_us = round(self._clock() * 1_000_000)
        self.now_ms = self.now_us // 1000

    def peek(self, key: bytes) -> tuple[Value, int | None] | None:
        """Return a key's value, and for how many more ms it lasts (None: forever), without removing anything."""
        found = self.look(key)
        if found is None:
            return None
        entry, now_ms = found
        return entry.value, None if entry.expires == NEVER else entry.expires - now_ms

    def look(self, key: bytes) -> tuple[Entry, int] | None:
        """Return a key's entry, and the node's present time in ms; None if the key does not exist."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        now_ms = round(self._clock() * 1_000_000) // 1000
        return None if entry.expires < now_ms else (entry, now_ms)

    def flush(self) -> None:
        """Forget everything, as after FLUSHALL or a restart without data."""
        self._entries.clear()

    def copy(self) -> dict[bytes, Entry]:
        """Return the present state for `load`; an entry is copied only when it is looked up again."""
        self._era = next(_eras)
        return dict(self._entries)

    def load(self, entries: dict[bytes, Entry]) -> None:
        """Restore the state of a copy, of this store or another; keys that came due meanwhile expire."""
        self._era = next(_eras)
        self._entries = dict(entries)

    # For the commands.

    def find(self, key: bytes) -> Entry | None:
        """Return a key's entry; None if it does not exist or has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires < self.now_ms:
            del self._entries[key]
            return None
        if entry.era != self._era:
            entry = self._entries[key] = Entry(copy_of(entry.value), entry.expires, self._era)
        return entry

    def find_value(self, key: bytes, kind: type[V]) -> V | None:
        """Return a key's value, to be changed in place; None if the key does not exist.

        Raises:
            WrongTypeError: The value is of another kind.
        """
        entry = self.find(key)
        if entry is None:
            return None
        if type(entry.value) is not kind:
            raise WrongTypeError
        return entry.value

    def put(self, key: bytes, value: Value, expires: int = NEVER) -> None:
        """Replace a key's value and its expiry."""
        self._entries[key] = Entry(value, expires, self._era)

    def remove(self, key: bytes) -> bool:
        """Forget a key; return whether it existed."""
        if self.find(key) is None:
            return False
        del self._entries[key]
        return True
