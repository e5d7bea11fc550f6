"""Replies: hiredis reads them. The code that receives them bounds the bytes without a complete reply, and their time.

A node that lies about the size of a reply, to make its clients allocate memory, is beyond all promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hiredis

__all__ = ["MOST_BYTES", "NOTHING", "UNREADABLE", "new_reader", "next_reply"]

MOST_BYTES: Final = 8 << 20
"""The longest reply in bytes. Ten thousand permits, all with their holders, take less than half of it."""

NOTHING: Final = object()
"""A reader returns it when no reply is complete."""

UNREADABLE: Final = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""The errors of code that takes a reply apart and meets another shape: a node may answer anything."""


def new_reader() -> hiredis.Reader:
    """Return a reader of replies."""
    return hiredis.Reader(notEnoughData=NOTHING)


def next_reply(gets: Callable[[], Any]) -> Any:
    """Return the result of a reader's `gets`: the next complete reply, NOTHING if there is none.

    Raises:
        hiredis.ProtocolError: The bytes are no reply. hiredis itself raises a TypeError for a map with a list as a key.
    """
    try:
        return gets()
    except TypeError as error:
        if "unhashable" not in str(error):
            raise  # a signal handler's
        raise hiredis.ProtocolError("sent a reply with an unhashable key") from error
