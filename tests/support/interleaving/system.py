"""In-memory versions of the system objects that a transport uses: locks, a poller, a waker, sockets."""

import math

__all__ = ["ROOM", "Lock", "Poller", "Socket", "Waker"]

# Errors raised here are socket errors to `is_interruption`, which checks where an error comes from.
__name__ = "socket"

ROOM = 1 << 16
"""Bytes that a socket accepts before the other end reads them."""

READ, WRITE = 1, 4


class Lock:
    """`threading.Lock`.

    A signal comes during the wait for it, or after a call; none comes between `with` and its block.
    """

    def __init__(self, world):
        self._world = world
        self._taken = False

    def acquire(self, blocking=True, timeout=-1):
        taken = self._take(timeout)
        self._world.signal()
        return taken

    def _take(self, timeout=-1):
        world = self._world
        world.point("acquire")
        if self._taken and not world.block(self._is_free, world.now + timeout if timeout >= 0 else math.inf):
            return False
        self._taken = True
        return True

    def _is_free(self):
        return not self._taken

    def locked(self):
        return self._taken

    def release(self):
        assert self._taken, "released, but not locked"
        self._taken = False
        self._world.signal()

    def __enter__(self):
        return self._take()

    def __exit__(self, kind, *error):
        self._taken = False
        if kind is None:
            self._world.signal()


class Poller:
    """`select.epoll`."""

    def __init__(self, world, files):
        self._world = world
        self._files = files
        self._events = {}
        self.closed = False

    def register(self, fd, events):
        assert fd not in self._events
        self._events[fd] = events

    def modify(self, fd, events):
        if fd not in self._events:
            raise FileNotFoundError
        self._events[fd] = events

    def unregister(self, fd):
        del self._events[fd]

    def poll(self, timeout):
        world = self._world
        world.point("poll")
        world.signal()
        if timeout > 0:
            world.block(self._ready, world.now + timeout)
        ready = self._ready()
        world.signal()
        return ready

    def _ready(self):
        ready = []
        for fd, events in self._events.items():
            file = self._files[fd]
            found = (READ if events & READ and file.is_readable() else 0) | (
                WRITE if events & WRITE and file.is_writable() else 0
            )
            if found:
                ready.append((fd, found))
        return ready

    def close(self):
        self.closed = True


class Waker:
    """`redsync._drivers.wakers.Waker`."""

    def __init__(self, world, files):
        self._world = world
        self._woken = False
        self.fileno = len(files)
        files.append(self)

    def is_readable(self):
        return self._woken

    def is_writable(self):
        return True

    def wake(self):
        self._world.point("wake")
        self._world.signal()
        self._woken = True
        self._world.signal()

    def drain(self):
        self._world.point("drain")
        self._world.signal()
        self._woken = False
        self._world.signal()

    def close(self):
        self._woken = False


class Socket:
    """A non-blocking socket; `inbound` has the bytes from the other end, `outbound` those that it has not read.

    Attributes:
        gone: True if the other end has closed it, or it was lost: `reset`.
        shut: True if this end has closed it.
    """

    family = None

    def __init__(self, world, files, room=ROOM):
        self._world = world
        self._room = room
        self._fd = len(files)
        files.append(self)
        self.inbound, self.outbound = bytearray(), bytearray()
        self.gone = self.reset = self.shut = False

    def is_readable(self):
        return bool(self.inbound) or self.gone or self.shut

    def is_writable(self):
        return self.gone or self.shut or len(self.outbound) < self._room

    def send(self, data):
        self._world.point("send")
        self._world.signal()
        if self.gone or self.shut:
            raise BrokenPipeError("broken pipe")
        taken = data[: self._room - len(self.outbound)]
        if not taken:
            raise BlockingIOError
        self.outbound += taken
        self._world.signal()
        return len(taken)

    def recv(self, size):
        self._world.point("recv")
        self._world.signal()
        if self.reset:
            raise ConnectionResetError("reset by the node")
        if not (self.inbound or self.gone or self.shut):
            raise BlockingIOError
        data = bytes(self.inbound[:size])
        del self.inbound[:size]
        self._world.signal()
        return data

    def shutdown(self, how):
        if self.shut:
            raise OSError("not connected")
        self.shut = True
        self.inbound.clear()

    def fileno(self):
        # Once it is shut its link would replace it by another descriptor.
        return -1 if self.shut else self._fd

    def setblocking(self, flag):
        assert not flag

    def setsockopt(self, *option):
        """Do nothing: it has no options."""

    def close(self):
        self.shut = True
