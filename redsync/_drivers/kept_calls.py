"""Sends and receives that keep the GIL, for sockets that never block.

`socket.send` gives up the GIL around its system call. On loopback that call does the receiver's work too, long enough
for another thread to take the GIL, and in a process whose threads compute it comes back only after their switch
interval, 5 ms each. A round sends to every node and reads from most, so it would wait that long several times.
`ctypes.PyDLL` calls the same functions with the GIL kept, which is right for calls that never block. So a round gives
the GIL up once: where it waits for the nodes.

TLS keeps its own way, and so does a system without `ctypes` or such functions.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from errno import EINTR
from typing import Any, Final, NamedTuple

__all__ = ["receiver", "sender"]

_SIZE: Final = 16384
_FLAGS: Final = getattr(socket, "MSG_DONTWAIT", 0)
_SEND_FLAGS: Final = _FLAGS | getattr(socket, "MSG_NOSIGNAL", 0)


class _Library(NamedTuple):
    send: Callable[..., int]
    recv: Callable[..., int]
    errno: Callable[[], int]
    buffer: Callable[[int], Any]


def _load() -> _Library | None:
    if os.name != "posix":
        return None
    try:
        import ctypes

        library = ctypes.PyDLL(None, use_errno=True)
        send, recv = library.send, library.recv
    except (ImportError, OSError, AttributeError):
        return None
    send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    send.restype = recv.restype = ctypes.c_ssize_t
    return _Library(send, recv, ctypes.get_errno, ctypes.create_string_buffer)


_LIBRARY: Final = _load()


def sender(sock: Any) -> Callable[[bytes], int]:
    """Return a function that sends bytes over a non-blocking socket and returns how many the system took.

    It raises the OSErrors of `socket.send`, each with its `errno`. It must not be called once the socket is closed.
    """
    if _LIBRARY is None or isinstance(sock, ssl.SSLSocket):
        plain: Callable[[bytes], int] = sock.send
        return plain
    function, errno_of, descriptor = _LIBRARY.send, _LIBRARY.errno, sock.fileno()

    def send(data: bytes) -> int:
        while (sent := function(descriptor, data, len(data), _SEND_FLAGS)) < 0:
            _raise_unless_interrupted(errno_of())
        return sent

    return send


def receiver(sock: Any) -> Callable[[], bytes]:
    """Return a function that receives bytes from a non-blocking socket: none at the end of the connection.

    It raises the OSErrors of `socket.recv`, each with its `errno`. It must not be called once the socket is closed.
    """
    if _LIBRARY is None or isinstance(sock, ssl.SSLSocket):
        return lambda: sock.recv(_SIZE)
    function, errno_of, descriptor = _LIBRARY.recv, _LIBRARY.errno, sock.fileno()
    buffer = _LIBRARY.buffer(_SIZE)
    received = memoryview(buffer)

    def receive() -> bytes:
        while (size := function(descriptor, buffer, _SIZE, _FLAGS)) < 0:
            _raise_unless_interrupted(errno_of())
        return received[:size].tobytes()

    return receive


def _raise_unless_interrupted(number: int) -> None:
    if number != EINTR:
        raise OSError(number, os.strerror(number))
