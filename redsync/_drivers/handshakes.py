"""Handshakes: bounds on redis-py's reads while it connects and authenticates, the same as for all replies.

redis-py's own parsers allocate as much memory as a node announces, wait as long as a byte comes now and then, and take
any reply to HELLO for a map. These are the same parsers, with a bounded reader and a deadline.
"""

from __future__ import annotations

import time
from typing import Any

import hiredis
import redis.asyncio.connection
from redis._parsers import _AsyncHiredisParser, _HiredisParser
from redis.exceptions import InvalidResponse

from redsync._core.replies import BoundedReader
from redsync._core.text import outline

__all__ = ["TIMEOUTS", "AioParser", "Parser", "parser_for"]

TIMEOUTS = 2
"""The most timeouts that a connection may take before it is usable."""


class Parser(_HiredisParser):
    """A parser for blocking connections."""

    def on_connect(self, connection: Any, **kwargs: Any) -> None:
        """Begin to read."""
        super().on_connect(connection, **kwargs)  # type: ignore[no-untyped-call]  # untyped, like much of redis-py
        _bound(self, connection)
        self._until = time.monotonic() + TIMEOUTS * connection.socket_timeout

    def read_from_socket(self, *args: Any, **kwargs: Any) -> Any:
        """Read received bytes, unless the deadline has passed.

        Raises:
            TimeoutError: The deadline has passed.
        """
        if time.monotonic() > self._until:
            raise TimeoutError("did not finish the handshake in time")
        return super().read_from_socket(*args, **kwargs)  # type: ignore[no-untyped-call]


class AioParser(_AsyncHiredisParser):
    """A parser for connections of an event loop, where the whole connect has a timeout anyway."""

    def on_connect(self, connection: Any) -> None:
        """Begin to read."""
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        _bound(self, connection)


class _Reader(BoundedReader):
    """A reader that also requires the answer to HELLO to be a map or an error."""

    __slots__ = ("_greeted",)

    def __init__(self, reader: hiredis.Reader, *, greeted: bool) -> None:
        super().__init__(reader)
        self._greeted = greeted

    def gets(self, *should_decode: bool) -> Any:
        """Return the next complete reply of the bytes fed, or the reader's value for "none".

        Raises:
            InvalidResponse: The node does not speak RESP3.
        """
        reply = super().gets(*should_decode)
        if not self._greeted and reply is not self._nothing and not isinstance(reply, hiredis.PushNotification):
            self._greeted = True
            if not isinstance(reply, dict | Exception):
                raise InvalidResponse(f"answers HELLO with {outline(reply)}: it does not speak RESP3")
        return reply


def _bound(parser: Any, connection: Any) -> None:
    parser._reader = _Reader(parser._reader, greeted=connection.protocol != 3)


def parser_for(connection_class: type[Any]) -> type[Any]:
    """Return the parser for a redis-py connection class."""
    is_async = issubclass(connection_class, redis.asyncio.connection.AbstractConnection)
    return AioParser if is_async else Parser
