"""Answers: nodes' replies to an acquire, each read once, on arrival. Grants are true, refusals false."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "EXISTING",
    "FOREIGN",
    "NEW",
    "Forced",
    "Refusal",
    "read_by_arrival",
    "read_by_ticket",
    "read_forced",
]

NEW, EXISTING = 1, 2
"""Grants of a lock: the node keeps the claim from now on, or kept it already."""


class Refusal(NamedTuple):
    """One node's refusal of a lock.

    Attributes:
        left_ms: Milliseconds for which the node keeps the holder's claim; -1 if that is unlimited or unknown.
        holder: That claim, or the claim of the waiter whose turn it is; "readers" or "writers" for many.
        ticket: The asker's ticket, or the highest ticket of the queue if it has none; 0 in a queue by arrival.
        ahead: The number of waiters before the asker; -1 if it has no place.
    """

    left_ms: int
    holder: bytes
    ticket: int = 0
    ahead: int = -1

    def __bool__(self) -> bool:
        return False


FOREIGN = Refusal(-1, b"")
"""The key holds a value of another type. That counts as one more owner, because it also keeps the lock away."""


_CODES: dict[int, int | Refusal] = {NEW: NEW, EXISTING: EXISTING, 0: FOREIGN}

_BY_ARRIVAL = [int, bytes], [int, bytes, int]
_BY_TICKET = [int, bytes, int], [int, bytes, int, int]


def read_by_arrival(reply: Any) -> int | Refusal:
    """Read a reply to an acquire whose waiters are served by arrival, or to a re-entry.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is int and reply in _CODES:
        return _CODES[reply]
    left_ms, holder, *ahead = _words(reply, _BY_ARRIVAL)
    return Refusal(left_ms, holder, 0, *ahead)


def read_by_ticket(reply: Any) -> int | Refusal:
    """Read a reply to an acquire whose waiters are served by ticket.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is int and reply in _CODES:
        return _CODES[reply]
    return Refusal(*_words(reply, _BY_TICKET))


def _words(reply: Any, shapes: tuple[list[type], list[type]]) -> list[Any]:
    if reply.__class__ is not list or [word.__class__ for word in reply] not in shapes:
        raise ValueError("the reply to an acquire is an integer, or the remaining time in ms and the holder")
    words: list[Any] = reply
    return words


class Forced(NamedTuple):
    """One node's forced release; `had`: whether it kept such a claim."""

    had: bool


def read_forced(reply: Any) -> Forced | Refusal:
    """Read a reply to a forced release.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is not int or reply not in (1, 0, -1):
        raise ValueError("the reply to a forced release is 1, 0 or -1")
    return FOREIGN if reply == -1 else Forced(reply == 1)
