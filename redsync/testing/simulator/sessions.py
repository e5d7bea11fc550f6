"""Sessions: one connection as a virtual node sees it. It speaks RESP 2 and 3, as servers do.

A session executes received commands one by one, and sends all replies together. A push keeps its place among the
replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

import hiredis

from redsync.testing.simulator.network import Connection
from redsync.testing.simulator.store import COMMANDS
from redsync.testing.simulator.values import CommandError, Status

if TYPE_CHECKING:
    from redsync.testing.simulator.cluster_servers import ClusterServer
    from redsync.testing.simulator.nodes import VirtualNode
    from redsync.testing.simulator.replication import GroupServer

__all__ = ["NOTHING", "ClusterSession", "ReplicatedSession", "Session", "encode"]

NOTHING: Final = object()

_DURING: Final = {
    "BUSY": frozenset({b"AUTH", b"HELLO", b"RESET"}),
    "LOADING": frozenset({b"AUTH", b"HELLO", b"RESET", b"SELECT", b"INFO", b"CLIENT", b"SUBSCRIBE", b"UNSUBSCRIBE"}),
}
"""By error, the commands that nodes still execute while they answer that error to all others."""

_UNKEYED: Final = frozenset(
    {b"AUTH", b"HELLO", b"RESET", b"SELECT", b"INFO", b"CLIENT", b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"SCRIPT"}
)
"""Commands without keys, for which no other node could be responsible (MOVED, CLUSTERDOWN)."""

_NOT_KNOWN: Final = hiredis.ReplyError("NOSCRIPT No matching script. Please use EVAL.")


class Session:
    """One connection to a node.

    Attributes:
        connection: The connection.
        number: Its number on this node.
        channels: The channels that it subscribes to.
        executed: The number of commands that it has executed since the client began to use the connection.
        blocked: True while the latest command waits for its answer; later ones wait for it.
    """

    def __init__(self, node: VirtualNode, connection: Connection, number: int, *, ignored: bool = False) -> None:
        self._node: Final = node
        self._ignored: Final = ignored
        self.connection: Final = connection
        self.number: Final = number
        self.channels: Final[dict[bytes, None]] = {}
        self.executed = 0
        self.blocked = False
        reader = hiredis.Reader(notEnoughData=NOTHING)
        self._feed: Final = reader.feed
        self._gets: Final = reader.gets
        self._resp = 2
        self._out: list[bytes] | None = None

    def take(self, data: bytes) -> None:
        """Execute received commands."""
        if self._ignored:
            return
        self._feed(data)
        gets, connection = self._gets, self.connection
        self._out = out = []
        try:
            while (words := gets()) is not NOTHING:
                if words.__class__ is not list:
                    raise hiredis.ProtocolError("commands are arrays")
                reply = self._execute(words) if words else NOTHING
                if reply is not NOTHING:
                    out.append(encode(reply, self._resp))
                    if connection.requests is not None:
                        connection.served.append((words, reply))
                elif self.blocked:
                    break
        except hiredis.ProtocolError:
            self._node.end(self.connection)
            return
        finally:
            self._out = None
        if out:
            connection.back.send(b"".join(out))

    def push(self, *words: bytes | int) -> None:
        """Send a push; to a RESP 2 client, as an ordinary array."""
        data = b"".join((b">" if self._resp == 3 else b"*", b"%d\r\n" % len(words), *(encode(w, 3) for w in words)))
        if self._out is not None:
            self._out.append(data)
        else:
            self.connection.back.send(data, push=True)

    def _execute(self, words: list[bytes]) -> Any:
        name = words[0].upper()
        node = self._node
        log = self.connection.requests
        sent = None
        if log is not None:
            # The handshake is over: the client recorded each command before it sent it.
            self.executed += 1
            sent = log[self.executed - 1] if self.executed <= len(log) else None
        refusal = self._refusal(words)
        if refusal is not None:
            if name == b"EVALSHA":
                node.note_refused(self, sent, refusal)
            return refusal
        if name == b"EVALSHA":
            script = node.scripts.get(words[1].lower())
            return _NOT_KNOWN if script is None else node.execute(self, script, words, sent)
        if name == b"EVAL":
            return node.execute(self, node.load(words[1]), words, sent)
        return self._answer(name, words)

    def _refusal(self, words: list[bytes]) -> hiredis.ReplyError | None:
        """Return the error of a node in trouble; None if it executes the command."""
        trouble = self._node.trouble
        if trouble is None or words[0].upper() in _DURING.get(trouble.partition(" ")[0], _UNKEYED):
            return None
        return hiredis.ReplyError(trouble)

    def _answer(self, name: bytes, words: list[bytes]) -> Any:
        handler = _HANDLERS.get(name)
        try:
            if handler is not None:
                return handler(self, *words[1:])
            command, store = COMMANDS.get(name.lower()), self._node.store
            if command is None:
                return hiredis.ReplyError(f"ERR unknown command '{words[0].decode(errors='replace')}'")
            store.read_clock()
            return command(store, *words[1:])
        except CommandError as error:
            return hiredis.ReplyError(str(error))
        except TypeError:
            return hiredis.ReplyError(f"ERR wrong number of arguments for '{name.decode(errors='replace').lower()}'")

    # Commands that scripts do not call.

    def _hello(self, version: bytes = b"", *_options: bytes) -> Any:
        if version and version not in {b"2", b"3"}:
            return hiredis.ReplyError("NOPROTO unsupported protocol version")
        self._resp = int(version or self._resp)
        about: list[Any] = [b"server", b"redis", b"version", b"7.4.0", b"proto", self._resp, b"id", self.number]
        return dict(zip(about[::2], about[1::2], strict=True)) if self._resp == 3 else about

    def _client(self, verb: bytes, *words: bytes) -> Any:
        match verb.upper():
            case b"ID":
                return self.number
            case b"KILL" if words[0].upper() == b"ID":
                return self._node.end_session(int(words[1]))
            case b"SETNAME" | b"SETINFO":
                return Status(b"OK")
        return hiredis.ReplyError(f"ERR unknown subcommand '{verb.decode(errors='replace')}'")

    def _script(self, verb: bytes, *words: bytes) -> Any:
        node = self._node
        match verb.upper():
            case b"LOAD":
                return node.load(words[0]).sha
            case b"EXISTS":
                return [int(sha.lower() in node.scripts) for sha in words]
            case b"FLUSH":
                node.scripts.clear()
                return Status(b"OK")
        return hiredis.ReplyError(f"ERR unknown subcommand '{verb.decode(errors='replace')}'")

    def _subscribe(self, *channels: bytes, word: bytes = b"subscribe") -> Any:
        for channel in channels:
            self.channels[channel] = None
            self._node.listen(channel, self)
            self.push(word, channel, len(self.channels))
        return NOTHING

    def _unsubscribe(self, *channels: bytes) -> Any:
        for channel in channels or tuple(self.channels):
            self.channels.pop(channel, None)
            self._node.unlisten(channel, self)
            self.push(b"unsubscribe", channel, len(self.channels))
        return NOTHING

    def _flushall(self, *_options: bytes) -> Any:
        self._node.store.flush()
        return Status(b"OK")

    def _hgetall(self, key: bytes) -> Any:
        self._node.store.read_clock()
        words: Any = COMMANDS[b"hgetall"](self._node.store, key)
        return dict(zip(words[::2], words[1::2], strict=True)) if self._resp == 3 else words


_HANDLERS: Final[dict[bytes, Callable[..., Any]]] = {
    b"HELLO": Session._hello,
    b"AUTH": lambda *_: Status(b"OK"),
    b"SELECT": lambda *_: Status(b"OK"),
    b"CLIENT": Session._client,
    b"SCRIPT": Session._script,
    b"SUBSCRIBE": Session._subscribe,
    b"UNSUBSCRIBE": Session._unsubscribe,
    b"INFO": lambda session, *_: session._node.describe(),
    b"PING": lambda _, *words: words[0] if words else Status(b"PONG"),
    b"FLUSHALL": Session._flushall,
    b"FLUSHDB": Session._flushall,
    b"HGETALL": Session._hgetall,
}


def encode(reply: Any, resp: int) -> bytes:
    """Return a reply in that version of RESP."""
    kind = reply.__class__
    if kind is int:
        return b":%d\r\n" % reply
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if kind is list:
        return b"*%d\r\n" % len(reply) + b"".join([encode(item, resp) for item in reply])
    if reply is None:
        return b"_\r\n" if resp == 3 else b"$-1\r\n"
    if kind is Status:
        return b"+%b\r\n" % reply
    if kind is dict:
        return b"%%%d\r\n" % len(reply) + b"".join([encode(word, resp) for pair in reply.items() for word in pair])
    assert isinstance(reply, hiredis.ReplyError), "no other type of reply exists"
    return b"-%b\r\n" % str(reply).replace("\n", " ").encode()


class ReplicatedSession(Session):
    """One connection to a server of a group, which knows `PUBLISH` and `WAIT` as clients call them.

    Both follow the votes of a client, and are not commands in their own right: the connection does not record them.

    Attributes:
        wrote: The number of the latest change made over this connection; 0 if there was none.
    """

    _FOLLOWING: ClassVar[frozenset[bytes]] = frozenset({b"PUBLISH", b"WAIT"})

    def __init__(self, node: GroupServer, connection: Connection, number: int, *, ignored: bool = False) -> None:
        super().__init__(node, connection, number, ignored=ignored)
        self._server: Final = node
        self.wrote = 0

    def take(self, data: bytes) -> None:
        """Execute received commands, unless a `WAIT` is pending."""
        if self.blocked:
            self._feed(data)
        else:
            super().take(data)

    def unblock(self, count: int) -> None:
        """Answer `WAIT` with the number of replicas, and continue."""
        self.blocked = False
        self.connection.back.send(encode(count, self._resp))
        self.take(b"")

    def _execute(self, words: list[bytes]) -> Any:
        name = words[0].upper()
        if name not in self._FOLLOWING:
            reply = super()._execute(words)
            self._note_change()
            return reply
        reply = self._refusal(words)
        if reply is None:
            reply = self._wait(words) if name == b"WAIT" else self._answer(name, words)
            self._note_change()
        if reply is not NOTHING:
            assert self._out is not None, "it executes commands now"
            self._out.append(encode(reply, self._resp))
        return NOTHING

    def _note_change(self) -> None:
        if self._server.follows is None and self._server.propagate():
            self.wrote = self._server.offset

    def _wait(self, words: list[bytes]) -> Any:
        server = self._server
        if server.follows is not None:
            return hiredis.ReplyError("ERR WAIT cannot be used with replica instances.")
        needed, timeout_ms = map(int, words[1:])
        count = server.acknowledged(self.wrote)
        if count >= needed:
            return count
        self.blocked = True
        server.block(self, needed, timeout_ms / 1000)
        return NOTHING


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
