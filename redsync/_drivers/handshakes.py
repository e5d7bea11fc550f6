"""Handshakes: bounds on what redis-py reads while it connects and authenticates, the same as for all replies.

redis-py's own parsers allocate memory for whatever a node announces, and wait as long as a byte comes now and then.
These are the same parsers, with a bounded reader and a deadline.
"""

from __future__ import annotations

import time
from typing import Any

import redis.asyncio.connection
from redis._parsers import _AsyncHiredisParser, _HiredisParser

from redsync._core.replies import BoundedReader

__all__ = ["TIMEOUTS", "AioParser", "Parser", "parser_for"]

TIMEOUTS = 2
"""How many of its timeouts a connection may take until it can be used."""


class Parser(_HiredisParser):
    """For connections that block."""

    def on_connect(self, connection: Any, **kwargs: Any) -> None:
        """Begin to read."""
        super().on_connect(connection, **kwargs)  # type: ignore[no-untyped-call]  # nor are others of redis-py's
        _bound(self)
        self._until = time.monotonic() + TIMEOUTS * connection.socket_timeout

    def read_from_socket(self, *args: Any, **kwargs: Any) -> Any:
        """Read what has come, unless the deadline has passed.

        Raises:
            TimeoutError: The deadline has passed.
        """
        if time.monotonic() > self._until:
            raise TimeoutError("did not end the handshake in time")
        return super().read_from_socket(*args, **kwargs)  # type: ignore[no-untyped-call]


class AioParser(_AsyncHiredisParser):
    """For connections of an event loop, where the connect as a whole has a timeout anyway."""

    def on_connect(self, connection: Any) -> None:
        """Begin to read."""
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        _bound(self)


def _bound(parser: Any) -> None:
    parser._reader = BoundedReader(parser._reader)


def parser_for(connection_class: type[Any]) -> type[Any]:
    """Return the parser that fits a class of redis-py's connections."""
    is_async = issubclass(connection_class, redis.asyncio.connection.AbstractConnection)
    return AioParser if is_async else Parser
