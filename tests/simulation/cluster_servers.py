"""Servers of a cluster: they answer for the slots that they own, by what they know, and redirect for all others.

A master whose slot is moving to another answers for the keys that it still has, with `ASK` for keys that it does not
have, and with `TRYAGAIN` if it has some of several. A master that learns that it has lost a slot drops the rest of it.
Inside a script no key is checked again; a real server would end a script that uses a key that has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import hiredis

from redsync._core.scripts import Script
from redsync.testing.simulator.network import Connection
from redsync.testing.simulator.store import Value
from redsync.testing.simulator.virtual_nodes import Session
from tests.simulation.groups import GroupServer, ReplicatedSession
from tests.simulation.stores import adopt, snapshot

if TYPE_CHECKING:
    from redsync.testing.simulator.store import Entry, Store
    from tests.simulation.simulated_clusters import Shard, View

_SCRIPTS: Final = frozenset({b"EVAL", b"EVALSHA"})
_OF_NO_SLOT: Final = frozenset(
    b"AUTH HELLO RESET SELECT INFO CLIENT PING SCRIPT CLUSTER WAIT FLUSHALL FLUSHDB SUBSCRIBE UNSUBSCRIBE".split()
)


class ClusterSession(ReplicatedSession):
    """One connection to a server of a cluster: each command with keys is for one slot, and may be redirected.

    Messages use channels of a slot (`SSUBSCRIBE`), and the command that a vote writes for its replicas has a key.

    Attributes:
        place: The index of the node of the latest command with keys.
    """

    _FOLLOWING: ClassVar[frozenset[bytes]] = frozenset({b"SETNX", b"PEXPIRE", b"WAIT"})

    def __init__(self, node: ClusterServer, connection: Connection, number: int, *, ignored: bool = False) -> None:
        super().__init__(node, connection, number, ignored=ignored)
        self._cluster_server: Final = node
        self.place = 0

    def _refusal(self, words: list[bytes]) -> hiredis.ReplyError | None:
        name = words[0].upper()
        if name in _OF_NO_SLOT:
            return super()._refusal(words)
        keys = words[3 : 3 + int(words[2])] if name in _SCRIPTS else words[1:2]
        if not keys:
            return super()._refusal(words)
        place = self._cluster_server.place_of_key(keys[0])
        if place is None:
            return hiredis.ReplyError("CLUSTERDOWN no node here has the slot of that key")
        self.place = place
        refusal = super()._refusal(words)
        if refusal is None:
            refusal = self._cluster_server.redirection(place, () if name == b"SSUBSCRIBE" else keys)
        return refusal

    def _answer(self, name: bytes, words: list[bytes]) -> Any:
        match name:
            case b"CLUSTER" if words[1:] == [b"NODES"]:
                return self._cluster_server.describe_cluster()
            case b"SSUBSCRIBE":
                return self._subscribe(*words[1:], word=b"ssubscribe")
        return super()._answer(name, words)


class ClusterServer(GroupServer):
    """One server of a cluster.

    Attributes:
        group: Its shard.
        view: Its knowledge of the cluster.
        leaving: The nodes whose slots are moving to another master, and that master.
    """

    _SESSION: ClassVar[Any] = ClusterSession
    _MESSAGE = b"smessage"
    group: Shard  # type: ignore[misc]  # a server of a cluster is in no other group
    view: View

    def __init__(self, shard: Shard, suffix: str, scripts: Mapping[str, Script]) -> None:
        super().__init__(shard, suffix, scripts)
        self.leaving: Final[dict[int, ClusterServer]] = {}
        self._tags: Final = shard.cluster.tags
        self._lent: Final = [LentNode(self, place, tag) for place, tag in enumerate(self._tags)]

    # Slots.

    def place_of_key(self, key: bytes) -> int | None:
        """Return the node that has a key; None if no node has it."""
        return next((place for place, tag in enumerate(self._tags) if key.startswith(tag)), None)

    def has(self, place: int) -> bool:
        """Return whether it owns the slot of a node, as far as it knows."""
        return self.follows is None and self.view.owner(place) is self

    def redirection(self, place: int, keys: Sequence[bytes]) -> hiredis.ReplyError | None:
        """Return the error that it answers to a command on keys of a node's slot; None if it executes it."""
        slot = self.group.cluster.slots[place]
        if not self.has(place):
            return hiredis.ReplyError(f"MOVED {slot} {self.view.owner(place).name}:6379")
        target = self.leaving.get(place)
        if target is not None:
            self.store.read_clock()
            found = sum(self.store.find(key) is not None for key in keys)
            if not found and keys:
                return hiredis.ReplyError(f"ASK {slot} {target.name}:6379")
            if found < len(keys):
                return hiredis.ReplyError("TRYAGAIN Multiple keys request during rehashing of slot")
        return None

    def learn(self, view: View) -> None:
        """Learn decisions."""
        before, self.view = self.view, view
        for place, tag in enumerate(self._tags):
            if before.owner(place) is self is not view.owner(place):
                self.leaving.pop(place, None)
                if self.follows is None:
                    self._drop_slot(tag)

    def _drop_slot(self, tag: bytes) -> None:
        for key in self.keys_of(tag):
            self.store.remove(key)
        self.propagate()
        for channel in [channel for channel in self._channels if channel.startswith(tag)]:
            for session in list(self._channels[channel]):
                session.channels.pop(channel, None)
                self.unlisten(channel, session)
                session.push(b"sunsubscribe", channel, len(session.channels))

    def keys_of(self, tag: bytes) -> list[bytes]:
        """Return the keys that begin with a tag."""
        return [key for key in snapshot(self.store) if key.startswith(tag)]

    def take(self, key: bytes, entry: Entry, now_ms: int) -> None:
        """Take over a key of another server, whose clock showed that time, in ms."""
        adopt(self.store, key, entry, now_ms)
        self.propagate()

    def release_key(self, key: bytes) -> None:
        """Forget a key that another server has taken over."""
        self.store.remove(key)
        self.propagate()

    # For sessions.

    def place_of(self, session: Session) -> int:
        """Return the index of the node for which it executes the current command of a session."""
        assert isinstance(session, ClusterSession), "it makes no other"
        return session.place

    def as_node(self, place: int) -> Any:
        """Return the server as checkers see it where it serves the node with that index."""
        return self._lent[place]

    def describe(self) -> bytes:
        """Return the server's description of itself, as INFO does."""
        return super().describe() + b"# Server\r\nredis_mode:cluster\r\n"

    def describe_cluster(self) -> bytes:
        """Return its knowledge, as CLUSTER NODES does."""
        return self.view.describe(self.group.cluster.slots).encode()

    # Roles.

    def follow(self, master: GroupServer) -> None:
        """Become a replica; it no longer knows which slots are leaving."""
        self.leaving.clear()
        super().follow(master)

    def restart(self, *, forget: bool = False, lost: float = 0.0) -> None:
        """Come back after `crash` as another process; it no longer knows which slots are leaving."""
        if self.state in ("down", "dark"):
            self.leaving.clear()
        super().restart(forget=forget, lost=lost)


class LentNode:
    """A server as one of the nodes of its cluster: keys without the tag, and the index of the node.

    All else is the server's.

    Attributes:
        index: The node's index among the nodes.
        store: The server's data of the node.
    """

    def __init__(self, server: ClusterServer, place: int, tag: bytes) -> None:
        self._server: Final = server
        self._tag: Final = tag
        self.index: Final = place
        self.store: Final = _SlotOfStore(server.store, tag)

    def listeners(self, channel: bytes) -> int:
        """Return how many connections subscribe to a channel of the node."""
        return self._server.listeners(self._tag + channel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def __repr__(self) -> str:
        return f"<LentNode {self.index + 1} on {self._server.name}>"


class _SlotOfStore:
    def __init__(self, store: Store, tag: bytes) -> None:
        self._store: Final = store
        self._tag: Final = tag

    def peek(self, key: bytes) -> tuple[Value, int | None] | None:
        return self._store.peek(self._tag + key)

    def look(self, key: bytes) -> tuple[Entry, int] | None:
        return self._store.look(self._tag + key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
