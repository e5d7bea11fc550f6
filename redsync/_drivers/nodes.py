"""Nodes: how to reach them, what they said of themselves, and whether they may vote.

redis-py makes and authenticates the connections, so that all its options work: URLs, TLS, unix sockets, ACL, credential
providers, Sentinel. We take the pool's connection class and arguments, never a connection of the pool, and replace what
would hurt a quorum client: no retries, explicit timeouts, RESP3, no maintenance notifications. After the handshake the
socket is ours.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

import hiredis
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from redsync._core.events import NodeChanged
from redsync._core.memory import BIRTH_KEY, Birth
from redsync._core.scripts import Script
from redsync.exceptions import ConfigurationError

__all__ = [
    "NOTHING",
    "Channel",
    "Node",
    "NodeInfo",
    "NodeStatus",
    "Talk",
    "describe_error",
    "greet",
    "load_scripts",
    "make_nodes",
    "pack",
    "reply_error",
    "subscribe",
]

_FORGETFUL = re.compile(r"FORGETFUL (-1|[0-9]{1,15})")
"""What a node says that does not remember for as long as a claim needs: for how long it does, ms; -1: it can't tell."""

T = TypeVar("T")

Talk: TypeAlias = Generator[list[bytes], list[Any], T]
"""A conversation with a node, whoever carries it: yields commands, gets their replies (errors as values), returns T."""

NOTHING: Final = object()
"""What our readers give when no reply is complete."""

_DROPPED = ("maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler", "parser_class")


def pack(*parts: bytes | str) -> bytes:
    """Return a command in RESP.

    Never give hiredis numbers: for those it calls back into Python, where a signal's handler may raise, and then it
    crashes the process (hiredis 3.5.0).
    """
    packed: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # the stub says a tuple of one
    return packed


class NodeInfo(NamedTuple):
    """What a node said of itself when it was connected.

    Attributes:
        run_id: Identity of the server's process, None if it does not tell (fakeredis).
        version: For people, such as "valkey 9.1.2".
        uptime: Seconds since its start, None if it does not tell.
        pushes: Whether it wakes waiters by messages; else they poll.
        birth: Its birth record, None if it has none, or if nobody asked.
    """

    run_id: str | None
    version: str
    uptime: float | None
    pushes: bool
    birth: Birth | None = None


class NodeStatus(NamedTuple):
    """The state of one node as this client sees it.

    Attributes:
        address: `host:port`, or a path for a unix socket.
        state: "up"; "down": no connection; "suspect": owes replies for longer than `node_timeout`; "quarantined":
            restarted a moment ago, takes part in renewals but in no new grant.
        version: The server and its version, None while it was never reached.
        uptime: Seconds since the server started, None if unknown.
        last_error: The last trouble with it, None if there was none.
    """

    address: str
    state: str
    version: str | None
    uptime: float | None
    last_error: str | None


class Node:
    """One configured node.

    Written by the thread that connects it and by lanes that lose it; every attribute is replaced as a whole, so
    readers need no lock.

    Attributes:
        index: Its place in the client's list, and its bit in bit sets of nodes.
        address: `host:port` or a path.
        url: A URL that names it to another process; None if it can't be reached from there.
        info: What it said at the last connect.
        connected_at: When that was, seconds on the client's clock.
        connected: Whether its lanes are connected.
        excuse: Why it is not connected.
        started_at: When its server started, seconds on the client's clock; minus infinity if it does not tell.
        birth: Its birth record as last heard, None if it has none.
        remembers_since: Since when it has remembered all claims; infinity while it has no birth record. A new claim
            needs one that has remembered for as long as its guard.
        last_error: The last trouble, for people.
        tried: Whether a connect has succeeded or failed yet; before, there is nothing to tell.
    """

    def __init__(self, index: int, pool: Any, address: str, url: str | None) -> None:
        self.index: Final = index
        self.bit: Final = 1 << index
        self.address: Final = address
        self.url: Final = url
        self._pool: Final = pool
        self.info: NodeInfo | None = None
        self.connected = False
        self.connected_at = 0.0
        self.excuse = "not connected yet"
        self.started_at = -math.inf
        self.birth: Birth | None = None
        self.remembers_since = -math.inf
        self.last_error: str | None = None
        self.tried = False
        self._told = "up"

    @property
    def home(self) -> str:
        """Where its keys are: its address and the number of the database."""
        return f"{self.address}/{self._pool.connection_kwargs.get('db') or 0}"

    def forget(self) -> None:
        """Begin anew, as the child of a fork does."""
        self.connected = self.tried = False
        self.excuse = "not connected yet"

    def make_connection(self, timeout: float) -> Any:
        """Return a connection of redis-py's, with all of its options, that is not connected yet.

        Args:
            timeout: For connecting, and for each answer until then, in seconds.
        """
        kwargs = {key: value for key, value in self._pool.connection_kwargs.items() if key not in _DROPPED}
        kwargs.update(
            protocol=3,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            health_check_interval=0,
            decode_responses=False,
        )
        if "maint_notifications_config" in kwargs:
            kwargs["maint_notifications_config"] = _NO_MAINTENANCE
        return self._pool.connection_class(**kwargs)

    def open(self, timeout: float) -> Channel:
        """Connect and authenticate; blocks for at most some `timeout`s.

        Raises:
            OSError, RedisError: It could not be reached, or refused us.
        """
        connection = self.make_connection(timeout)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return Channel(connection)

    def meet(self, info: NodeInfo, now: float) -> None:
        """Take note of who the node says it is, and of how long it has remembered everything."""
        self.info, self.connected_at = info, now
        if info.uptime is not None:
            # Both instants that a node subtracts are whole seconds: its uptime may be one too high, never too low.
            self.started_at = now - max(info.uptime - 1.0, 0.0)
        self.remember(info.birth, now)

    def remember(self, birth: Birth | None, now: float) -> None:
        """Take note of the node's birth record."""
        self.birth = birth
        newborn_at = now - birth.age if birth is not None and birth.newborn else -math.inf
        self.remembers_since = math.inf if birth is None else max(self.started_at, newborn_at)

    def note_forgetful(self, text: str, guard: float, now: float) -> str | None:
        """Take note of an error reply; return what it means if the node forgets too much, None for all others."""
        forgetful = _FORGETFUL.fullmatch(text)
        if forgetful is None:
            return None
        age = int(forgetful[1]) / 1000
        self.remember(None if age < 0 else Birth(True, age), now)
        since = "it can't tell since when it remembers" if age < 0 else f"it remembers the last {age:.1f} s"
        return self.unfit(now, guard) or f"restarted or emptied, may have forgotten what it is asked for: {since}"

    def unfit(self, now: float, guard: float) -> str | None:
        """Return why the node takes no part in new grants with that guard at that instant, None if it does."""
        left = self.remembers_since + guard - now
        if not guard or left <= 0:
            return None
        when = "as soon as its peers were heard" if left == math.inf else f"in {left:.1f} s"
        return (
            f"restarted or emptied, may have forgotten claims that are still believed: takes part in new grants again "
            f"{when} (Client(restart_guard=...) sets for how long)"
        )

    def status(self, now: float, suspect: bool, guard: float) -> NodeStatus:
        """Return the node's state at that instant."""
        info = self.info
        uptime = None if info is None or info.uptime is None else info.uptime + now - self.connected_at
        state = self._state(now, suspect, guard)
        return NodeStatus(
            self.address,
            state,
            None if info is None else info.version,
            uptime if self.connected else None,
            self.last_error,
        )

    def change(self, now: float, suspect: bool, guard: float) -> NodeChanged | None:
        """Return the change of state since the last call, None if there was none."""
        state = self._state(now, suspect, guard)
        if state == self._told or not self.tried or (state == "quarantined" and self.remembers_since == math.inf):
            # What it means that a node has no birth record is not known before its peers were heard.
            return None
        self._told = state
        reason = {
            "up": "",
            "down": self.excuse,
            "suspect": self.last_error or "",
            "quarantined": self.unfit(now, guard) or "",
        }[state]
        return NodeChanged(self.address, state, reason)

    def _state(self, now: float, suspect: bool, guard: float) -> str:
        if not self.connected:
            return "down"
        if suspect:
            return "suspect"
        return "quarantined" if self.unfit(now, guard) else "up"


class Channel:
    """A fresh connection to a node, still blocking: for the first words, then it hands its socket over."""

    def __init__(self, connection: Any) -> None:
        self.connection: Final = connection
        sock = connection._sock
        self.sock: Final[socket.socket | None] = sock if isinstance(sock, socket.socket) else None
        self.reader: Final = hiredis.Reader(notEnoughData=NOTHING)

    @property
    def raw(self) -> bool:
        """Whether there is a real socket; fakeredis has none and is called instead."""
        return self.sock is not None

    def ask(self, *commands: bytes) -> list[Any]:
        """Send commands in one write and return their replies; errors are returned as values, pushes dropped."""
        if self.sock is None:
            return [self.call(command) for command in commands]
        self.sock.sendall(b"".join(commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self.reader.gets()
            if reply is NOTHING:
                data = self.sock.recv(65536)
                if not data:
                    raise ConnectionError("closed the connection during the handshake")
                self.reader.feed(data)
            elif not isinstance(reply, hiredis.PushNotification):
                replies.append(reply)
        return replies

    def call(self, command: bytes) -> Any:
        """Send one command through redis-py and return its reply, or its error as a value."""
        self.connection.send_packed_command([command], check_health=False)
        try:
            return self.connection.read_response()
        except RedisError as error:
            if not self.connection.is_connected:
                raise
            return reply_error(error)

    def talk(self, talk: Talk[T]) -> T:
        """Have a conversation; its errors come out."""
        replies: list[Any] = []
        while True:
            try:
                commands = talk.send(replies) if replies else next(talk)
            except StopIteration as stop:
                result: T = stop.value
                return result
            replies = self.ask(*commands)

    def close(self) -> None:
        """Close it without a word."""
        self.connection.disconnect()


def greet(*, raw: bool, guarded: bool = False) -> Talk[NodeInfo]:
    """Ask a node who it is, and, if memory is guarded, for its birth record.

    Args:
        raw: There is a real connection; fakeredis tells nothing of itself.
        guarded: Memory is guarded.
    """
    birth = None
    if guarded:
        record, (seconds, microseconds) = yield from _ask("the birth record", pack("GET", BIRTH_KEY), pack("TIME"))
        birth = Birth.read(record, int(seconds) + int(microseconds) / 1e6)
    if not raw:
        return NodeInfo(None, "fakeredis", None, pushes=False, birth=birth)
    (reply,) = yield from _ask("INFO", pack("INFO", "server"))
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    server = fields.get("server_name", "redis")
    version = fields.get(f"{server}_version") or fields.get("redis_version", "?")
    if "uptime_in_seconds" not in fields:
        raise ConnectionError(f"does not tell its uptime: it is no Redis or Valkey ({text!r:.60})")
    uptime = float(fields["uptime_in_seconds"])
    return NodeInfo(fields.get("run_id"), f"{server} {version}", uptime, pushes=True, birth=birth)


def load_scripts() -> Talk[None]:
    """Give a node all scripts before their first use; one that refuses them gets them when they are needed."""
    yield [pack("SCRIPT", "LOAD", script.source) for script in Script.shipped()]


def subscribe(channel: bytes, *, raw: bool) -> Talk[bool]:
    """Ask for the messages of a channel on this very connection; False if the node can't or does not allow it."""
    if not raw:
        return False
    # In RESP3 a granted SUBSCRIBE is answered by a push and not counted; an error would be the first reply.
    (reply,) = yield [pack("SUBSCRIBE", channel) + pack("PING")]
    if reply in (b"PONG", "PONG"):
        return True
    if not isinstance(reply, hiredis.ReplyError):
        raise ConnectionError(f"answers SUBSCRIBE by {reply!r:.80}: it does not speak RESP3")
    yield [b""]  # The PING's reply follows the error.
    return False


def _ask(what: str, *commands: bytes) -> Talk[list[Any]]:
    replies = yield list(commands)
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise ConnectionError(f"{what} was refused: {reply}")
    return replies


def reply_error(error: RedisError) -> hiredis.ReplyError:
    """Return what the node said as a value, with the error code that redis-py cut off the text."""
    code = {"NoScriptError": "NOSCRIPT", "ReadOnlyError": "READONLY", "BusyLoadingError": "LOADING"}
    name = code.get(type(error).__name__, "")
    text = str(error)
    return hiredis.ReplyError(f"{name} {text}" if name and not text.startswith(name) else text)


def _no_maintenance() -> Any:
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:
        return None
    return MaintNotificationsConfig(enabled=False)


_NO_MAINTENANCE = _no_maintenance()


def make_nodes(nodes: Sequence[Any], client_class: type[Any]) -> list[Node]:
    """Return the nodes that a caller named by URLs or by redis-py clients.

    Raises:
        ConfigurationError: None at all, the same one twice, or something that is neither.
    """
    if isinstance(nodes, (str, bytes)) or not nodes:
        raise ConfigurationError("a client needs a list of at least one node: URLs or redis.Redis instances")
    made = [_make_node(index, node, client_class) for index, node in enumerate(nodes)]
    addresses = [node.address for node in made]
    twice = {address for address in addresses if addresses.count(address) > 1}
    if twice:
        raise ConfigurationError(f"{min(twice)} is listed more than once: every node must be another server")
    return made


def _make_node(index: int, node: Any, client_class: type[Any]) -> Node:
    if isinstance(node, str):
        try:
            pool: Any = client_class.from_url(node).connection_pool
        except ValueError:
            # Neither the URL nor what is wrong with it is told: it may have a password.
            raise ConfigurationError(f"node {index + 1} is no URL such as redis://:password@host:6379/0") from None
    elif isinstance(node, client_class):
        pool = node.connection_pool
    else:
        raise ConfigurationError(
            f"a node is a URL or a {client_class.__module__.split('.')[0]}.{client_class.__name__}, not {node!r}"
        )
    kwargs = pool.connection_kwargs
    address = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
    return Node(index, pool, address, node if isinstance(node, str) else _url_of(pool))


_TCP = redis.Connection, redis.asyncio.Connection
_TLS = redis.SSLConnection, redis.asyncio.SSLConnection
_POOLS = redis.ConnectionPool, redis.asyncio.ConnectionPool


def _url_of(pool: Any) -> str | None:
    """Return a URL for a pool that was made without one; None if no URL can say how to connect."""
    kwargs = pool.connection_kwargs
    if kwargs.get("credential_provider") is not None or not issubclass(pool.connection_class, _TCP):
        return None
    if "fakeredis" in pool.connection_class.__module__ or type(pool) not in _POOLS:
        return None
    user, password = kwargs.get("username") or "", kwargs.get("password")
    login = f"{quote(user)}:{quote(password)}@" if password else ""
    scheme = "rediss" if issubclass(pool.connection_class, _TLS) else "redis"
    return f"{scheme}://{login}{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}/{kwargs.get('db', 0)}"


def describe_error(error: BaseException) -> str:
    """Return an error as one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:200]
