"""The floor: a minimal majority lock, written by hand by an expert in Redis and Python.

It has one connection per node and thread, commands packed in advance, one write per node, one epoll for all, hiredis
for the replies, and returns at the third positive answer. It has no renewal, fencing, reconnecting, re-entry or waiting
for a held lock: nothing that costs time and that a lock does not need on a good day. It does survive one dead node,
which it skips, and one hung node, to which it stops sending.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from typing import Any, Self

import hiredis

ACQUIRE = b"""
if redis.call('exists', KEYS[1]) == 0 then
  redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
  redis.call('pexpire', KEYS[1], ARGV[3])
  return 1
end
return 0
"""

RELEASE = b"""
if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then return redis.call('del', KEYS[1]) end
return 0
"""

CLAIM_MANY = b"""
for _, key in ipairs(KEYS) do
  redis.call('hset', key, ARGV[1], '1')
  redis.call('pexpire', key, ARGV[2])
end
return #KEYS
"""

RENEW_MANY = b"""
local renewed = 0
for _, key in ipairs(KEYS) do
  if redis.call('hexists', key, ARGV[1]) == 1 then
    redis.call('pexpire', key, ARGV[2])
    renewed = renewed + 1
  end
end
return renewed
"""

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # hiredis annotates it for one word only

_OWED_LIMIT = 8
"""Replies that a node may owe; beyond that it hangs, and gets no more commands."""

_GONE = 1 << 60
"""Replies that a node with a closed connection "owes", so that the same comparison excludes it."""

_TIMEOUT = 5.0


class BareNode:
    """One connection.

    Attributes:
        owed: The number of outstanding replies.
        asked: True if this node got the latest command.
    """

    __slots__ = ("asked", "feed", "fileno", "gets", "owed", "recv", "send", "sock")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fileno = self.sock.fileno()
        reader = hiredis.Reader()
        self.feed, self.gets = reader.feed, reader.gets
        self.send, self.recv = self.sock.send, self.sock.recv
        self.owed = 0
        self.asked = False

    def call(self, *words: bytes | int) -> Any:
        """Send one command and wait for its reply; call this before the socket becomes non-blocking."""
        self.sock.sendall(pack(words))
        while (reply := self.gets()) is False:
            data = self.recv(65536)
            if not data:
                raise ConnectionError("a node closed the connection")
            self.feed(data)
        if isinstance(reply, hiredis.HiredisError):
            raise reply
        return reply


class BareQuorum:
    """Non-blocking connections to all nodes, and rounds over them, for one thread."""

    def __init__(self, ports: Sequence[int], scripts: Sequence[bytes]) -> None:
        """Connect and load the scripts; their hashes are in `shas`."""
        self.nodes = [BareNode(port) for port in ports]
        self.majority = len(ports) // 2 + 1
        self._poller = select.epoll()
        self._by_fd = {node.fileno: node for node in self.nodes}
        self.shas: list[bytes] = []
        for node in self.nodes:
            self.shas = [node.call(b"SCRIPT", b"LOAD", script) for script in scripts]
            node.sock.setblocking(False)
            self._poller.register(node.fileno, select.EPOLLIN)

    def round(self, data: bytes, wanted: int) -> bool:
        """Send a command to all nodes; return whether a majority gives the wanted answer, once that is certain."""
        open_votes = 0
        for node in self.nodes:
            if node.owed < _OWED_LIMIT:
                try:
                    node.send(data)
                except OSError:
                    self._drop(node)
                    continue
                node.owed += 1
                node.asked = True
                open_votes += 1
            else:
                node.asked = False
        majority, by_fd, poll = self.majority, self._by_fd, self._poller.poll
        granted = 0
        while granted < majority:
            if granted + open_votes < majority:
                return False
            ready = poll(_TIMEOUT)
            if not ready:
                return False
            for fd, _ in ready:
                node = by_fd[fd]
                try:
                    chunk = node.recv(65536)
                except OSError:
                    chunk = b""
                if not chunk:
                    open_votes -= node.asked
                    self._drop(node)
                    continue
                node.feed(chunk)
                gets = node.gets
                while (reply := gets()) is not False:
                    node.owed -= 1
                    # Replies come in order, so only the last one owed belongs to this round; the others are late.
                    if not node.owed and node.asked:
                        open_votes -= 1
                        granted += reply == wanted
        return True

    def drain(self) -> None:
        """Read all owed replies: every node has then executed the command before the next step."""
        while any(0 < node.owed < _OWED_LIMIT for node in self.nodes):
            for fd, _ in self._poller.poll(_TIMEOUT):
                node = self._by_fd[fd]
                node.feed(node.recv(65536))
                while node.gets() is not False:
                    node.owed -= 1

    def _drop(self, node: BareNode) -> None:
        if node.owed < _GONE:
            self._poller.unregister(node.fileno)
            node.sock.close()
        node.owed = _GONE
        node.asked = False

    def close(self) -> None:
        """Close the connections."""
        for node in self.nodes:
            node.sock.close()
        self._poller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class BareLock(BareQuorum):
    """The floor of acquire and release: one lock, one owner, one thread."""

    def __init__(self, ports: Sequence[int], name: str, lease_ms: int = 30_000) -> None:
        super().__init__(ports, (ACQUIRE, RELEASE))
        key, owner = f"floor:{{{name}}}".encode(), f"owner-of-{name}".encode()
        acquire, release = self.shas
        self._acquire = pack((b"EVALSHA", acquire, 1, key, owner, 1, lease_ms))
        self._release = pack((b"EVALSHA", release, 1, key, owner))

    def acquire(self) -> bool:
        """Acquire the lock on a majority of nodes."""
        return self.round(self._acquire, 1)

    def release(self) -> None:
        """Release the lock."""
        if not self.round(self._release, 1):
            raise RuntimeError("the bare lock was not held on a majority of nodes")


class BareRenewals(BareQuorum):
    """The floor of the watchdog: `count` claims, renewed by the fewest possible commands, all packed in advance."""

    BATCH = 200

    def __init__(self, ports: Sequence[int], count: int, lease_ms: int) -> None:
        super().__init__(ports, (CLAIM_MANY, RENEW_MANY))
        claim, renew = self.shas
        keys = [f"floor:{{held:{i}}}".encode() for i in range(count)]
        batches = [keys[i : i + self.BATCH] for i in range(0, count, self.BATCH)]
        self._commands = []
        for batch in batches:
            tail = (len(batch), *batch, b"owner-of-many", lease_ms)
            self._run(pack((b"EVALSHA", claim, *tail)), len(batch))
            self._commands.append((pack((b"EVALSHA", renew, *tail)), len(batch)))

    @property
    def commands(self) -> int:
        """The number of commands that each node gets in one `renew`."""
        return len(self._commands)

    def renew(self) -> None:
        """Renew all claims once."""
        for data, size in self._commands:
            self._run(data, size)

    def _run(self, data: bytes, size: int) -> None:
        if not self.round(data, size):
            raise RuntimeError("the bare claims were lost on a majority of nodes")
        # A batch is large: never put two of them into a socket, because `send` must accept each whole.
        self.drain()
