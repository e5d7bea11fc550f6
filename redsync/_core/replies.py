"""Replies: bounds on the cost of a node's bytes, checked before they are parsed.

hiredis allocates all elements of an array as soon as it has read their number. The twelve bytes `*2147483647` cost 17
GB, and seconds in which no thread of the process runs: one broken node would stop all threads. So this module looks at
the headers before hiredis gets them. Invariants:

* the arrays under way have room for at most `MOST_ELEMENTS` elements that have not come, not counting arrays that
  announce fewer than a thousand: hiredis nests at most 1,024 of these, before 3.5 as many as fit into `MOST_BYTES`;
* a line has at most `MOST_IN_LINE` bytes, because the reader searches an unfinished line again with each piece.

Small pieces, and those without a large number after a header's first byte, pass at once. The reader walks the others
from header to header: pieces with such a number (which may be part of a name), and pieces that begin or end within an
element. A walk begins between two elements, so it never takes a payload for a header.

This module does not check how many bytes may come without any complete reply (`MOST_BYTES`), or for how long: the code
that receives the replies does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import hiredis

__all__ = [
    "LINES",
    "MOST_BYTES",
    "MOST_ELEMENTS",
    "MOST_IN_LINE",
    "NOTHING",
    "BoundedReader",
    "ReplyReader",
    "next_reply",
]

MOST_BYTES: Final = 8 << 20
"""The longest reply in bytes. Ten thousand permits, all with their holders, take less than half of it."""

MOST_ELEMENTS: Final = 1_000_000

MOST_IN_LINE: Final = 1 << 16

NOTHING: Final = object()
"""Our readers return it when no reply is complete."""

_MOST_PIECES: Final = 256
_are_numbers: Final = re.compile(rb"(?::(?:0|[1-9]\d{0,17})\r\n)+").fullmatch


class _Lines(dict[bytes, "tuple[int, ...] | None"]):
    """The latest short pieces that need no parser, each with its replies; a look-up adds the piece.

    Nodes mostly say the same, and then these replies are the same objects, so a tally judges only the first. A piece of
    more than two numbers answers many rounds and seldom comes again, but mostly repeats one number.
    """

    __slots__ = ()

    def __missing__(self, piece: bytes) -> tuple[int, ...] | None:
        line = piece[: piece.find(b"\n") + 1]
        count = len(piece) // len(line) if line else 0
        if count > 2 and line * count == piece:
            return number * count if (number := self[line]) is not None else None
        if _are_numbers(piece) is None:
            return None
        digits = piece[1:-2].split(b"\r\n:")
        if len(digits) > 2:
            return tuple(map(int, digits))
        numbers: tuple[int, ...] = (int(digits[0]),)
        if len(digits) == 2:
            end = len(digits[0]) + 3
            numbers = (*(self[piece[:end]] or ()), *(self[piece[end:]] or ()))
        if len(self) >= _MOST_PIECES:
            self.clear()
        self[piece] = numbers
        return numbers


LINES: Final = _Lines()
"""The replies in most pieces, where no reply is under way: numbers only; None for all other pieces.

A release and a grant of a lock are answered by a digit, a permit by a small number, and a fenced lock by its token.
"""

_SIMPLE: Final = bytes.maketrans(b"~>%|123456789", b"****000000000")
_LARGE: Final = b"*0000"
"""The beginning of a header with a large number, after a translation by `_SIMPLE`."""

_LINE_FEED: Final = ord("\n")

_PAYLOAD, _ARRAY, _MAP = frozenset(b"$=!"), frozenset(b"*~>"), frozenset(b"%|")


class ReplyReader:
    """hiredis, behind the bounds.

    Attributes:
        feed: Takes received bytes, at least one. Raises `hiredis.ProtocolError` if they exceed the bounds.
        gets: Returns the next complete reply of the bytes fed, NOTHING if there is none.
        has_more: Returns whether bytes are left behind the reply that `gets` has just returned.
    """

    __slots__ = ("feed", "gets", "has_more")

    def __init__(self, reader: hiredis.Reader | None = None) -> None:
        """Read with that reader of hiredis, or a new one."""
        reader = reader or hiredis.Reader(notEnoughData=NOTHING)
        self.feed: Final = _feed_of(reader)
        self.gets: Final = reader.gets
        # Right after a complete reply this is exact. Within a reply it is not: all bytes may have been consumed.
        self.has_more: Final = reader.has_data


def _feed_of(reader: hiredis.Reader) -> Callable[[bytes], object]:
    # A closure is faster than attributes, and this runs for each piece.
    walk, feed, has_data = _Walk(), reader.feed, reader.has_data
    walking = False
    last = b""

    def look(data: bytes) -> None:
        nonlocal walking, last
        if not walking and has_data():
            # The reader did not walk the piece before. That piece began between two elements, else it would have.
            walk.go_on(last)
        last = b""
        walk.go_on(data)
        walking = not walk.is_between

    def feed_bounded(data: bytes) -> None:
        nonlocal last
        # After a piece that ends with a header's first byte, the reader claims to have no data left.
        if (
            walking
            or data[-1] != _LINE_FEED
            or has_data()
            or (len(data) > 6 and data.translate(_SIMPLE).find(_LARGE) >= 0)
        ):
            look(data)
        else:
            last = data
        feed(data)

    return feed_bounded


class _Walk:
    """The position of the walk in the received bytes."""

    __slots__ = ("_head", "_missing", "_payload")

    def __init__(self) -> None:
        self._payload = 0  # Bytes that are still to come of an element's payload.
        self._missing = 0  # Elements that are still to come.
        self._head = b""  # The beginning of an unfinished header.

    @property
    def is_between(self) -> bool:
        """True if the walk is between two replies."""
        return not (self._payload or self._missing or self._head)

    def go_on(self, data: bytes) -> None:
        """Walk on over `data`."""
        data, place = self._head + data, 0
        self._head = b""
        while place < len(data):
            if self._payload:
                step = min(self._payload, len(data) - place)
                self._payload -= step
                place += step
                continue
            end = data.find(b"\r\n", place)
            if (len(data) if end < 0 else end) - place > MOST_IN_LINE:
                raise hiredis.ProtocolError(f"sent a line of more than {MOST_IN_LINE} bytes")
            if end < 0:
                self._head = data[place:]
                return
            self._take_header(data[place], data[place + 1 : end])
            place = end + 2

    def _take_header(self, kind: int, text: bytes) -> None:
        self._missing = max(self._missing - 1, 0)
        try:
            if kind in _PAYLOAD:
                self._payload = max(int(text) + 2, 0) if text != b"-1" else 0
            elif kind in _ARRAY:
                self._missing += max(int(text), 0)
            elif kind in _MAP:
                self._missing += 2 * max(int(text), 0)
        except ValueError:
            raise hiredis.ProtocolError(f"sent {text!r:.40} where a number belongs") from None
        if self._missing > MOST_ELEMENTS:
            raise hiredis.ProtocolError(f"announced {self._missing} elements, more than {MOST_ELEMENTS}")


def next_reply(gets: Callable[[], Any]) -> Any:
    """Return the result of a reader's `gets`.

    Raises:
        hiredis.ProtocolError: The bytes are no reply. hiredis itself raises a TypeError for a map with a list as a key.
    """
    try:
        return gets()
    except TypeError as error:
        raise hiredis.ProtocolError(f"sent a malformed reply: {error}") from None


class BoundedReader:
    """A reader for redis-py, behind all bounds."""

    __slots__ = ("_nothing", "_reader", "_replies", "_size")

    def __init__(self, reader: hiredis.Reader) -> None:
        """Read with `reader`, which must be new."""
        # A new reader has no reply, so it returns its value for "none".
        self._nothing: Final = reader.gets()
        self._reader: Final = reader
        self._replies: Final = ReplyReader(reader)
        self._size = 0

    def feed(self, data: bytes | bytearray, begin: int = 0, length: int | None = None) -> None:
        """Take received bytes.

        Raises:
            hiredis.ProtocolError: They exceed the bounds.
        """
        piece = bytes(data[begin:] if length is None else data[begin : begin + length])
        self._size += len(piece)
        if self._size > MOST_BYTES:
            raise hiredis.ProtocolError(f"sent a reply of more than {MOST_BYTES} bytes")
        self._replies.feed(piece)

    def gets(self, *should_decode: bool) -> Any:
        """Return the next complete reply of the bytes fed, or the reader's value for "none".

        Raises:
            hiredis.ProtocolError: The bytes are no reply.
        """
        reply = next_reply(partial(self._reader.gets, *should_decode))
        if reply is not self._nothing:
            self._size = 0
        return reply

    def has_data(self) -> bool:
        """Return whether bytes of an incomplete reply have come."""
        return self._reader.has_data()
