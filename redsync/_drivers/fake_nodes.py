"""Fake nodes: fakeredis instances behind real sockets, so that links, polls and handshakes need no special case.

The connections of a fakeredis client have no socket: they execute commands in this process. Here each connection to
such a node is a socket pair. A thread reads commands at the far end, executes them on the instance and writes replies;
it ends with the connection.

* **All that was written is executed**, even if the writer closes its end at once: releases are sent last. Real servers
  do the same with what they have read.
* **Errors have their codes.** redis-py strips the codes that it knows from error texts. Of these codes fakeredis sends
  only NOSCRIPT, so it is put back here.
* **What an instance lacks is answered here.** INFO names the instance, but no start: its data are as old as the
  instance. Subscriptions are refused, so waiters poll.
* **A failing instance ends the connection**, after an error reply that says why. One with `server.connected = False`
  fails at the next command.
* **Only the thread executes commands**, never the caller that connects: a signal handler may connect while the code
  below it holds the lock of the instance.

The server of fakeredis, `TcpFakeServer`, would not do (2.26 to 2.41). It has its own data, and a test wants to inspect
those of its instance. It puts `ERR` before codes that redis-py does not know, and most versions close the connection
after any error.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import hiredis
from redis.connection import AbstractConnection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from redsync._core.replies import NOTHING
from redsync._drivers.handshake_connections import describe_error

__all__ = ["fake_socket"]

log = logging.getLogger("redsync.node")

_READ_SIZE = 65536

_ARGUMENTS: Final = (
    *("server", "host", "port", "path", "version", "server_type", "connected"),  # which data these are
    *("db", "username", "password", "lua_modules"),
)
"""The arguments that a new connection takes from the pool; the others concern replies and retries."""

_REFUSED: Final = frozenset({b"SUBSCRIBE", b"SSUBSCRIBE", b"PSUBSCRIBE"})


def fake_socket(pool: Any) -> socket.socket | None:
    """Return a new connection to the fakeredis instance of a redis-py connection pool; None for all other pools.

    It speaks RESP3, needs no authentication and is in the pool's database. This call never blocks, and asks nothing of
    the instance. The pool must outlive the connection.

    Raises:
        ConnectionError: The system has no thread left.
    """
    if not any(base.__module__.partition(".")[0] == "fakeredis" for base in pool.connection_class.__mro__):
        return None
    near, far = socket.socketpair()
    try:
        threading.Thread(target=_FarEnd(pool, far).serve, name=f"redsync-fake-{far.fileno()}", daemon=True).start()
    except RuntimeError as error:
        near.close()
        far.close()
        raise ConnectionError(f"no thread can serve the fakeredis instance: {error}") from error
    return near


class _FarEnd:
    """The instance's end of one connection, used by its thread."""

    def __init__(self, pool: Any, sock: socket.socket) -> None:
        self._pool: Final = pool
        self._sock: Final = sock
        self._connection: Any = None

    def serve(self) -> None:
        """Execute commands until one side ends the connection."""
        with self._sock as sock:
            try:
                for command in self._commands():
                    reply = self._answer(command)
                    with suppress(ConnectionError):  # The client is gone, but more of its commands may have arrived.
                        sock.sendall(reply)
            except Exception as error:
                # The client learns it from this reply.
                if not isinstance(error, RedisError):
                    log.warning("a fakeredis instance failed", exc_info=True)
                with suppress(ConnectionError):
                    sock.sendall(b"-ERR fakeredis failed: %b\r\n" % describe_error(error).encode())
            if self._connection is not None:
                self._connection.disconnect()

    def _commands(self) -> Iterator[list[bytes]]:
        reader = hiredis.Reader(notEnoughData=NOTHING)
        with suppress(ConnectionError):  # The client closed its end without reading all replies.
            while data := self._sock.recv(_READ_SIZE):
                reader.feed(data)
                while (command := reader.gets()) is not NOTHING:
                    yield command

    def _answer(self, command: list[bytes]) -> bytes:
        name = command[0].upper()
        if name == b"INFO":
            return _encoded(_description(self._pool))
        if name == b"HELLO":
            return b"%1\r\n$5\r\nproto\r\n:3\r\n"
        if name in _REFUSED:
            return b"-ERR a fakeredis instance sends no messages\r\n"
        if self._connection is None:
            self._connection = _new_connection(self._pool)
        self._connection.send_command(*command)
        try:
            return _encoded(self._connection.read_response())
        except ResponseError as error:
            return _encoded(error)


def _new_connection(pool: Any) -> Any:
    """Return a blocking connection to the same data, no matter whether the instance is one for asyncio."""
    connection_class = pool.connection_class
    if not issubclass(connection_class, AbstractConnection):
        import fakeredis  # noqa: PLC0415  (only its users have it, and have imported it)

        connection_class = fakeredis.FakeRedis().connection_pool.connection_class
    given = pool.connection_kwargs
    # The oldest versions know no RESP3, and RESP2 has fewer types.
    return connection_class(protocol=2, **{name: given[name] for name in _ARGUMENTS if name in given})


def _description(pool: Any) -> bytes:
    """Return the reply to INFO. Instances that share their data have the same `run_id`, like clients of a server."""
    import fakeredis  # noqa: PLC0415  (only its users have it, and have imported it)

    data = pool.connection_kwargs.get("server")
    lines = (
        "server_name:fakeredis",
        f"fakeredis_version:{fakeredis.__version__}",
        f"run_id:{id(pool if data is None else data):040x}",
        "redis_mode:standalone",
        "role:master",
    )
    return "\r\n".join(lines).encode()


def _encoded(reply: Any) -> bytes:
    """Return a reply in RESP."""
    match reply:
        case None:
            return b"_\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case list():
            return b"*%d\r\n%b" % (len(reply), b"".join(map(_encoded, reply)))
        case Exception():
            return b"-%b\r\n" % _with_code(reply).encode()
    raise TypeError(f"RESP2 has no replies of type {type(reply).__name__}")


def _with_code(error: Exception) -> str:
    text = describe_error(error)
    if isinstance(error, NoScriptError):
        return f"NOSCRIPT {text}"
    return text if text.partition(" ")[0].isupper() else f"ERR {text}"
