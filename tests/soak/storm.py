"""Carries out the troubles of `outages` on the network and on nodes."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from redsync.testing import LocalNodes
from redsync.testing.harness.crew import Crew
from redsync.testing.harness.journal import Journal
from redsync.testing.harness.nemesis import Nemesis
from redsync.testing.servers import ask
from tests.soak.namespaces import Network

CONFIG = {
    "protected-mode": "no",
    "busy-reply-threshold": "50",
    "enable-debug-command": "yes",
    "stop-writes-on-bgsave-error": "yes",
    "save": "3600 1000000000",  # never, but a failing save matters only where one is configured
    "loading-process-events-interval-bytes": "1024",
}
"""The settings of nodes that can be made to answer errors."""

_SPIN = "while true do end"
_FILLERS = 40


class Storm(Nemesis):
    """A nemesis with a router."""

    def __init__(self, nodes: LocalNodes, network: Network, crew: Crew, journal: Journal):
        super().__init__(nodes, crew, journal=journal)
        self._network = network
        self._saved: dict[int, bytes] = {}
        self._running: list[socket.socket] = []

    def close(self):
        """End the connections that made nodes busy."""
        for connection in self._running:
            connection.close()

    @contextlib.contextmanager
    def _node(self, node: int) -> Iterator[redis.Redis]:
        with redis.Redis(port=self._nodes.ports[node], socket_timeout=30.0) as client:
            yield client

    # The network.

    def _cut(self, client: int, node: int):
        self._network.cut(client, node)

    def _cut_requests(self, client: int, node: int):
        self._network.cut(client, node, back=False)

    def _cut_replies(self, client: int, node: int):
        self._network.cut(client, node, there=False)

    def _mend(self, client: int, node: int):
        self._network.mend(client, node)

    # Errors.

    def _begin(self, node: int, *words: str):
        """Send a command, and do not wait for its reply."""
        connection = socket.create_connection(("127.0.0.1", self._nodes.ports[node]), 10.0)
        parts = (b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words)
        connection.sendall(b"*%d\r\n%b" % (len(words), b"".join(parts)))
        self._running.append(connection)

    def _busy(self, node: int):
        self._begin(node, "EVAL", _SPIN, "0")

    def _idle(self, node: int):
        reply = ask(self._nodes.ports[node], "SCRIPT KILL", timeout=30.0)
        assert reply.startswith(b"+OK"), f"SCRIPT KILL was answered by {reply!r}"

    def _load(self, node: int, seconds: float):
        with self._node(node) as client:
            client.mset({f"soak:filler:{i}": "x" * 4096 for i in range(_FILLERS)})
            client.pexpire("soak:filler:0", 1)
            for i in range(_FILLERS):
                client.pexpire(f"soak:filler:{i}", round(1000 * (seconds + 2.0)))
            client.config_set("rdbcompression", "no")
            client.config_set("key-load-delay", round(1_000_000 * seconds / _FILLERS))
        self._begin(node, "DEBUG", "RELOAD")

    def _dump(self, client: redis.Redis) -> Path:
        return Path(client.config_get("dir")["dir"]) / "dump.rdb"

    def _save_until(self, client: redis.Redis, status: str):
        deadline = time.monotonic() + 30.0
        while client.info("persistence")["rdb_last_bgsave_status"] != status:
            assert time.monotonic() < deadline, f"the background save is not {status}"
            with contextlib.suppress(redis.ResponseError):  # one is under way
                client.bgsave()
            time.sleep(0.02)

    def _misconfigure(self, node: int):
        with self._node(node) as client:
            dump = self._dump(client)
            dump.unlink(missing_ok=True)
            dump.mkdir()  # the file can't have that name then
            self._save_until(client, "err")

    def _configure(self, node: int):
        with self._node(node) as client:
            self._dump(client).rmdir()
            self._save_until(client, "ok")

    def _fill_memory(self, node: int):
        with self._node(node) as client:
            client.config_set("maxmemory", 1)

    def _free_memory(self, node: int):
        with self._node(node) as client:
            client.config_set("maxmemory", 0)

    def _demote(self, node: int):
        with self._node(node) as client:
            client.replicaof("127.0.0.1", "1")  # where no server is

    def _promote(self, node: int):
        with self._node(node) as client:
            client.replicaof("NO", "ONE")

    # Older data.

    def _save(self, node: int):
        with self._node(node) as client:
            client.save()
            self._saved[node] = self._dump(client).read_bytes()

    def _restart_older(self, node: int):
        self._nodes.restart(node, data=self._saved.pop(node))
