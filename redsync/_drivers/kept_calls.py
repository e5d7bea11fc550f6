"""Sends and receives that keep the GIL, for sockets that never block.

`socket.send` gives up the GIL around its system call. On loopback that call does the receiver's work too, long enough
for another thread to take the GIL, and in a process whose threads compute it comes back only after their switch
interval, 5 ms each. A round sends to every node and reads from most, so it would wait that long several times.
`ctypes.PyDLL` calls the same functions with the GIL kept, which is right for calls that never block. So a round gives
the GIL up once: where it waits for the nodes.

A call that fails is made again by the socket, which raises the error: asking `ctypes` for `errno` would double the
price of each call. TLS keeps its own way, and so does a system without `ctypes` or such functions.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

__all__ = ["receiver", "sender"]

_SIZE: Final = 16384
"""The most bytes received at once: as many as a TLS record has, so none of it stays hidden from polls."""

_FLAGS: Final = getattr(socket, "MSG_DONTWAIT", 0)
_SEND_FLAGS: Final = _FLAGS | getattr(socket, "MSG_NOSIGNAL", 0)


class _Library(NamedTuple):
    """The functions, which take numbers as C ints, bytes as pointers, and everything else as made by `size`, `address`.

    Their `argtypes` are not set: they would convert each argument by one more call, which doubles the price.
    """

    send: Callable[[int, bytes, object, int], int]
    recv: Callable[[int, object, object, int], int]
    size: Callable[[int], object]
    buffer: Callable[[int], Any]
    address: Callable[[Any], object]


def _load() -> _Library | None:
    if os.name != "posix":
        return None
    try:
        import ctypes  # noqa: PLC0415  (some systems lack it; this runs at import)

        library = ctypes.PyDLL(None)
        send, recv = library.send, library.recv
    except (ImportError, OSError, AttributeError):
        return None
    send.restype = recv.restype = ctypes.c_ssize_t
    size = lru_cache(maxsize=1024)(ctypes.c_size_t)
    return _Library(
        send, recv, size, ctypes.create_string_buffer, lambda buffer: ctypes.c_void_p(ctypes.addressof(buffer))
    )


_LIBRARY: Final = _load()


def sender(sock: Any) -> Callable[[bytes], int]:
    """Return a function that sends bytes over a non-blocking socket and returns how many the system took.

    It raises the OSErrors of `socket.send`. It must not be called once the socket is closed.
    """
    plain: Callable[[bytes], int] = sock.send
    if _LIBRARY is None or isinstance(sock, ssl.SSLSocket):
        return plain
    function, size, descriptor = _LIBRARY.send, _LIBRARY.size, sock.fileno()

    def send(data: bytes) -> int:
        sent = function(descriptor, data, size(len(data)), _SEND_FLAGS)
        return sent if sent >= 0 else plain(data)

    return send


def receiver(sock: Any) -> Callable[[], bytes]:
    """Return a function that receives bytes from a non-blocking socket: none at the end of the connection.

    It raises the OSErrors of `socket.recv`. It must not be called once the socket is closed.
    """
    plain: Callable[[int], bytes] = sock.recv
    if _LIBRARY is None or isinstance(sock, ssl.SSLSocket):
        return lambda: plain(_SIZE)
    function, descriptor = _LIBRARY.recv, sock.fileno()
    buffer = _LIBRARY.buffer(_SIZE)
    address, most, received = _LIBRARY.address(buffer), _LIBRARY.size(_SIZE), memoryview(buffer)

    def receive() -> bytes:
        size = function(descriptor, address, most, _FLAGS)
        return received[:size].tobytes() if size >= 0 else plain(_SIZE)

    return receive
