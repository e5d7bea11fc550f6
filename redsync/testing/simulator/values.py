"""The values that a virtual node keeps and replies with, and how it parses numbers.

Everything is bytes, as on the wire. Numbers are parsed as strictly as in Redis: no spaces, no sign `+`, no leading
zeros, 64 bits.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TypeAlias

__all__ = [
    "NEVER",
    "CommandError",
    "Entry",
    "Hash",
    "Reply",
    "SortedSet",
    "Status",
    "Value",
    "WrongTypeError",
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
Reply: TypeAlias = int | bytes | list[bytes] | list[bytes | None] | None


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
