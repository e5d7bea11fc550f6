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

import socket
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

__all__ = ["receiver", "sender"]

_SIZE: Final = 16384
"""The most bytes received at once: as many as a TLS record has, so none of it stays hidden from polls."""

_FLAGS: Final = getattr(socket, "MSG_DONTWAIT", 0)
_SEND_FLAGS: Final = _FLAGS | getattr(socket, "MSG_NOSIGNAL", 0)


try:
    import ctypes

    _LIBRARY: Any = ctypes.PyDLL(None)
    # No `argtypes`: they would convert each argument by one more call, which doubles the price. Without them ints are C
    # ints, and bytes are pointers.
    _LIBRARY.send.restype = _LIBRARY.recv.restype = ctypes.c_ssize_t
    _size: Callable[[int], object] = lru_cache(maxsize=1024)(ctypes.c_size_t)
except (ImportError, OSError, AttributeError, TypeError):  # Windows has no such functions.
    _LIBRARY = None


def sender(sock: Any) -> Callable[[bytes], int]:
    """Return a function that sends bytes over a non-blocking socket and returns how many the system took.

    It raises the OSErrors of `socket.send`. It must not be called once the socket is closed.
    """
    plain: Callable[[bytes], int] = sock.send
    if _LIBRARY is None or isinstance(sock, ssl.SSLSocket):
        return plain
    function, size, descriptor = _LIBRARY.send, _size, sock.fileno()

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
    buffer = ctypes.create_string_buffer(_SIZE)
    address, most, received = ctypes.c_void_p(ctypes.addressof(buffer)), _size(_SIZE), memoryview(buffer)

    def receive() -> bytes:
        size = function(descriptor, address, most, _FLAGS)
        return received[:size].tobytes() if size >= 0 else plain(_SIZE)

    return receive
