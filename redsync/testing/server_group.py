"""The base of all groups of throwaway servers, which never outlive their owner.

A group owns server processes, a temporary directory, and a *reaper*: a shell that only reads the ids of the running
servers from a pipe. The servers end by the first of these:

- `close()`, or leaving the `with` block.
- The finalizer, when the object is collected or the interpreter exits.
- The reaper, when this process was killed: the kernel closes the pipe, the reaper kills the servers that it last read
  and removes the directory. Each line lists all ids, so none can be missed or counted twice.

The reaper must neither kill a foreign process nor leave a server running. So a server starts only when the reaper knows
it, and an id leaves the reaper's list after the SIGKILL, but before the process is reaped and the kernel may reuse its
id.

A fork must not hand the nodes to the child. In the child every finalizer finds that it is not the owner. The child
closes its copy of the pipe, or the reaper would wait for the child too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Self

from redsync.testing.servers import (
    SHELL,
    PortTakenError,
    ServerProcess,
    ServerStartError,
    find_server,
    free_ports,
    reserve,
    runnable,
)

__all__ = ["ServerGroup"]

_START_TIMEOUT = 10.0

# The last line is either "done" or the running servers as "-<process group> ...".
_REAPER = """
while read -r line; do last=$line; done
[ "$last" = done ] && exit
[ -z "$last" ] || kill -s KILL -- $last
PATH=/bin:/usr/bin
rm -rf -- "$1"
"""


class ServerGroup(ABC):
    """Server processes that live until `close()`, and never outlive the process that started them.

    A subclass says in `_launch_options` how each server starts, and in `_settle` how the servers become one group.

    Args:
        stages: The number of servers that start at a time; all servers of a stage answer before the next stage starts.
        server: Path or command of the server to run.

    Attributes:
        server: The server executable.
        version: The server and its version, such as "redis 7.0.15"; empty if it demands a password.
    """

    server: Path
    version: str

    def __init__(self, stages: Iterable[int], server: str | os.PathLike[str] | None) -> None:
        self.server = find_server(server)
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._servers: list[ServerProcess] = []
        # Keep other tests from starting their servers on the port of one that was killed.
        self._reserved: dict[int, socket.socket | None] = {}
        with contextlib.ExitStack() as stack:
            self._directory = Path(tempfile.mkdtemp(prefix="redsync-nodes-"))
            stack.callback(shutil.rmtree, self._directory)
            self._executable = runnable(self.server, self._directory)
            self._reaper = _Reaper(self._directory)
            stack.callback(self._reaper.dismiss)
            stack.callback(_give_up, self._reserved)
            stack.callback(_end_all, self._servers, self._reaper)
            self._start_all(stages)
            # Copies, as ports never change from here on, and connecting must not wait for a restart.
            self._ports = tuple(server.port for server in self._servers)
            self.version = self._servers[0].version
            try:
                self._settle()
            except RuntimeError as error:
                logs = "\n".join(server.log_tail() for server in self._servers)
                raise ServerStartError(f"{error}; the logs end with\n{logs}") from None
            self._finalizer = weakref.finalize(self, _close_in_owner, self._owner, stack.pop_all())
        _instances.add(self)

    def close(self) -> None:
        """End all servers and remove their directory; the second time, and in a child process, do nothing."""
        if os.getpid() == self._owner:
            with self._lock:
                self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def _launch_options(self, i: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the leading arguments and the settings of server `i`."""

    def _settle(self) -> None:  # noqa: B027  independent servers have nothing to settle
        """Make the running servers one group."""

    @contextlib.contextmanager
    def _control(self) -> Iterator[None]:
        # Check this first: in a forked child the lock may be held forever by a thread that exists only in the parent.
        if os.getpid() != self._owner:
            raise RuntimeError(f"these nodes belong to process {self._owner}: only that process controls them")
        with self._lock:
            if not self._finalizer.alive:
                raise RuntimeError("these nodes are closed: make new ones")
            yield

    def _running(self, i: int) -> ServerProcess:
        server = self._servers[i]
        if not server.is_alive():
            raise RuntimeError(f"node {i} is not running: restart it first")
        return server

    def _start_all(self, stages: Iterable[int]) -> None:
        ports = free_ports()
        for size in stages:
            first = len(self._servers)
            for i in range(first, first + size):
                self._launch(i, next(ports))
            for i in range(first, first + size):
                self._await_ready(i, ports)

    def _launch(self, i: int, port: int, data: bytes | None = None) -> None:
        if port not in self._reserved:
            self._reserved[port] = reserve(port)
        # A new directory, so that no server remembers its predecessor's files.
        directory = Path(tempfile.mkdtemp(prefix=f"{port}-", dir=self._directory))
        if data is not None:
            (directory / "dump.rdb").write_bytes(data)
        first, config = self._launch_options(i, directory)
        server = ServerProcess(self._executable, port, directory, config, first)
        self._servers[i : i + 1] = [server]  # replaces, or appends at the start
        self._reaper.watch(self._servers)
        server.go()

    def _relaunch(self, i: int, data: bytes | None = None) -> None:
        self._end(i)
        self._launch(i, self._ports[i], data)
        self._await_ready(i, repeat(self._ports[i]))

    def _await_ready(self, i: int, ports: Iterator[int]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                return self._servers[i].await_ready(deadline)
            except PortTakenError:
                self._end(i)
                if time.monotonic() > deadline:
                    raise
                self._launch(i, next(ports))

    def _end(self, i: int) -> None:
        server = self._servers[i]
        server.kill()
        self._reaper.watch([other for other in self._servers if other is not server])
        server.reap()

    def _disown(self) -> None:
        self._reaper.disown()
        _give_up(self._reserved)
        for server in self._servers:
            server.disown()


class _Reaper:
    """The shell that kills the servers when this process no longer can."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [SHELL, "-c", _REAPER, "redsync-reaper", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal must not end it before us
        )

    def watch(self, servers: Sequence[ServerProcess]) -> None:
        """Replace the list of servers to kill by those among `servers` that are running."""
        self._write(" ".join(f"-{server.pid}" for server in servers if server.is_alive()))

    def dismiss(self) -> None:
        """End the reaper; it kills no server."""
        self._process.communicate(b"done\n")

    def disown(self) -> None:
        """In a forked child, let go of the parent's reaper: close the inherited pipe, keep Popen quiet."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.returncode = 0

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())


def _end_all(servers: Sequence[ServerProcess], reaper: _Reaper) -> None:
    for server in servers:
        server.kill()
    reaper.watch(())
    for server in servers:
        server.reap()


def _give_up(reserved: dict[int, socket.socket | None]) -> None:
    for reservation in reserved.values():
        if reservation is not None:
            reservation.close()
    reserved.clear()


def _close_in_owner(owner: int, stack: contextlib.ExitStack) -> None:
    if os.getpid() == owner:
        stack.close()


def _disown_all() -> None:
    for group in list(_instances):
        group._disown()


_instances: weakref.WeakSet[ServerGroup] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_disown_all)
