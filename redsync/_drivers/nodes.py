"""Nodes: as given by callers, how to reach them, their descriptions of themselves, and whether they may vote."""

from __future__ import annotations

# Python imports it at the first look-up of a host's name, which may be in a thread while another one forks.
import encodings.idna  # noqa: F401
import logging
import math
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import hiredis
import redis.asyncio.connection
import redis.connection
from redis.exceptions import RedisError

from redsync._core.clusters import slots_of
from redsync._core.memory import BLANK, FORGOT, JOINING, NEWBORN, Birth
from redsync._core.observing import NodeChanged
from redsync._core.text import one_line
from redsync._core.urls import NodeUrlError, ServersUrl, check_url, for_redis_py, require_different
from redsync._drivers.discovery import ClusterLocator, Location, Locator, SentinelLocator, Witness
from redsync._drivers.fake_nodes import fake_socket
from redsync._drivers.handshake_connections import HandshakeConnection, describe_error, open_blocking
from redsync._drivers.notifier import quietly
from redsync._drivers.redis_py import Settings, is_client, new_connection, settings_of
from redsync._drivers.requests import PLAIN, Codec
from redsync.exceptions import ConfigurationError

__all__ = ["INTERRUPTED", "ConnectionId", "Node", "NodeInfo", "NodeStatus", "make_nodes", "reason_of"]

log = logging.getLogger("redsync.node")

_OUTAGES: Final = OSError, RedisError, hiredis.HiredisError
"""Errors that a server or the network may cause, whatever it answers; others are errors of this process."""

INTERRUPTED: Final = "an exception interrupted its use"
"""Why the connection of a working node was discarded; it is connected again at once."""

_FORGETFUL = r"FORGETFUL (-1|[0-9]{1,15})"
"""A node's answer if it has remembered for less time than a claim needs: the time in ms, or -1 if it can't tell."""

_CONFIRMED: Final = 2 / 3
"""The part of the quarantine within which witnesses must have been asked as a vote counts; the rest is for drift."""


ConnectionId: TypeAlias = tuple[str, int]
"""Identifies a connection to a node: the server's process, and its number for the connection (CLIENT ID)."""


class NodeInfo(NamedTuple):
    """A node's description of itself at the connect.

    Attributes:
        run_id: The identity of the server's process, None if the node does not tell (fakeredis).
        version: The server and its version for people, such as "valkey 9.1.2".
        uptime: Seconds since its start, None if the node does not tell.
        birth: Its birth record, None if it has none from this process.
        process: The name of the server's process in birth records.
    """

    run_id: str | None
    version: str
    uptime: float | None
    birth: Birth | None = None
    process: bytes = b"-"


class NodeStatus(NamedTuple):
    """The state of one node as this client sees it.

    Attributes:
        address: `host:port`, or a path for a unix socket.
        state: "up"; "down": no connection; "suspect": owes replies for longer than `node_timeout`; "quarantined": takes
            part in renewals, but not in new grants: newly started or emptied, or not lately confirmed as the master.
        version: The server and its version, None until it is first reached.
        uptime: Seconds since the server started, None if unknown.
        last_error: The last error of the node, None if there was none.
        server: Where its server is now, `host:port`, for a node behind Sentinels or in a cluster; None for others, and
            while unknown.
        epoch: The number of the decision that made this server the master; None without `server`.
        quarantine_left: Seconds until it takes part in new grants again after a restart; infinity while unknown, 0.0 if
            nothing was restarted.
        pending: The number of releases and rollbacks that it has yet to get, because it is unreachable or refuses them.
    """

    address: str
    state: str
    version: str | None
    uptime: float | None
    last_error: str | None
    server: str | None = None
    epoch: int | None = None
    quarantine_left: float = 0.0
    pending: int = 0


class Node:
    """One configured node.

    The maintenance writes to it, and so do sets of links that lose theirs. Every attribute is replaced as a whole, or
    changed in one step, so no thread needs a lock.

    Attributes:
        index: Its position in the client's list, and its bit in bit sets of nodes.
        address: `host:port` or a path.
        url: The URL by which it was given; None if it was given as a redis-py client.
        locator: Finds its server; None for a node with a fixed address.
        location: Where its server was at the last connect; None for a node without a locator.
        codec: The encoding of commands for it.
        info: Its description of itself at the last connect.
        connected_at: The time of the last connect, in seconds on the client's clock.
        connected: True while the client's maintenance has a link to it.
        down_reason: Why it is not connected.
        started_at: The instant at which its server started, in seconds on the client's clock; minus infinity if it does
            not tell.
        birth: Its latest known birth record, None if it has none.
        remembers_since: Since when it has remembered all claims; infinity while its birth record is inconclusive. A new
            claim needs nodes that have remembered for at least the claim's guard.
        last_error: The last error, for people.
        tried: True once a connect has succeeded or failed.
        former: The discarded connections. The next connection begins by ending them.
        generation: The number of its server: it grows when the node has another server, or another process of it.
    """

    def __init__(
        self,
        index: int,
        pool: Any,
        address: str,
        url: str | None,
        *,
        locator: Locator | None = None,
        codec: Codec = PLAIN,
    ) -> None:
        self.index: Final = index
        self.bit: Final = 1 << index
        self.address: Final = address
        self.url: Final = url
        self._pool: Final = pool
        self.locator: Final = locator
        self.location: Location | None = None
        self.codec: Final = codec
        self.info: NodeInfo | None = None
        self.connected = False
        self.connected_at = 0.0
        self.down_reason = "not connected yet"
        self.started_at = -math.inf
        self.birth: Birth | None = None
        self.remembers_since = -math.inf
        self.last_error: str | None = None
        self.tried = False
        self.former: Final[set[ConnectionId]] = set()
        self.generation = 0
        self._reported = "up"

    @property
    def home(self) -> str:
        """The place of its keys: its address and the number of the database."""
        place = self.address if self.locator is None else self.locator.home
        return f"{place}/{self._pool.connection_kwargs.get('db') or 0}"

    def forget(self) -> None:
        """Start over, in the child of a fork."""
        self.connected = self.tried = False
        self.down_reason = "not connected yet"

    def make_connection(self, timeout: float) -> Any:
        """Return a new, unconnected redis-py connection with all its options.

        `timeout` is the time in seconds for connecting, and for each answer until then.
        """
        location = self.location
        place = {} if location is None else {"host": location.host, "port": location.port}
        return new_connection(self._pool, timeout, **place)

    def fake_socket(self) -> socket.socket | None:
        """Return a connection to the fakeredis instance that this node is; None for all other nodes."""
        return fake_socket(self._pool)

    @property
    def has_slot(self) -> bool:
        """True for a voter of a cluster: two of them may have the same server for a while."""
        return self.codec is not PLAIN

    def try_options(self) -> None:
        """Make one connection of each kind without connecting it.

        Raises:
            TypeError, ValueError, RedisError: redis-py does not know an option. Each connect would fail, unseen.
        """
        for pool in (self._pool, *(witness.pool for witness in (self.locator.witnesses if self.locator else ()))):
            new_connection(pool, 1.0)

    @property
    def needed(self) -> int:
        """The number of replicas that must acknowledge its votes."""
        return 0 if self.locator is None else self.locator.needed

    def moved(self) -> str | None:
        """Return why `location` is that of a former server; None if it is not, as far as the client knows."""
        if self.locator is None:
            return None
        present = self.locator.present
        if present is None or self.location is None or present == self.location:
            return None
        return f"its {self.locator.WITNESSES} name {present} as the master now, epoch {present.epoch}"

    def open(self, timeout: float) -> HandshakeConnection:
        """Connect and authenticate. This call and the connection's use block for at most a few `timeout`s in total.

        Raises:
            OSError, RedisError: The node was unreachable or refused the client.
        """
        if (fake := self.fake_socket()) is not None:
            return HandshakeConnection(fake, timeout)
        return open_blocking(self.make_connection(timeout), timeout)

    def meet(self, info: NodeInfo, now: float) -> None:
        """Record the node's description of itself, and since when it has remembered everything."""
        if self.info is not None and self.info.run_id != info.run_id:
            self.generation += 1
        self.info, self.connected_at = info, now
        if info.uptime is not None:
            # A node subtracts two instants in whole seconds, so its uptime may be 1 s too high, but never too low.
            self.started_at = now - max(info.uptime - 1.0, 0.0)
        self.remember(info.birth, now)

    def remember(self, birth: Birth | None, now: float) -> None:
        """Record the node's birth record."""
        self.birth = birth
        if birth is None or birth.kind in (BLANK, JOINING):
            self.remembers_since = math.inf
        else:
            self.remembers_since = max(self.started_at, now - birth.age if birth.kind == NEWBORN else -math.inf)

    def note_forgetful(self, text: str, guard: float, now: float) -> str | None:
        """Record an error reply; return its meaning if the node remembers too little, None for all other errors."""
        forgetful = re.fullmatch(_FORGETFUL, text)
        if forgetful is None:
            return None
        age = int(forgetful[1]) / 1000
        if age >= 0:
            self.remember(Birth(NEWBORN, 0, b"", age), now)
        elif self.birth is None or self.birth.kind not in (BLANK, JOINING):
            # A node with a blank or joining record reports this too, but that is already known.
            self.remember(None, now)
        since = "it can't tell since when it remembers" if age < 0 else f"it remembers the last {age:.1f} s"
        return self.ineligible_reason(now, guard) or f"{FORGOT} earlier claims: {since}"

    def ineligible_reason(self, now: float, guard: float) -> str | None:
        """Return why the node takes no part in new grants with a guard at an instant; None if it does."""
        left = self.remembers_since + guard - now
        if not guard or left <= 0:
            return self.unconfirmed(now, guard)
        when = "until all nodes were asked" if left == math.inf else f"for {left:.1f} s"
        return f"{FORGOT} claims: no new grants {when} (restart_guard)"

    def unconfirmed(self, now: float, guard: float) -> str | None:
        """Return why its server may no longer be the master, as far as the client knows; see `discovery`."""
        if not guard or self.locator is None:
            return None
        # First: news makes it recent, too.
        is_recent = now - self.locator.confirmed_at <= guard * _CONFIRMED
        if (moved := self.moved()) is not None:
            return moved
        if is_recent or not self.needed:
            return None
        why = f": {self.locator.unknown_reason}" if self.locator.unknown_reason else ""
        return (
            f"its {self.locator.WITNESSES} have not said lately that {self.location} is still the master{why}: takes "
            f"part in new grants again as soon as a majority of them does"
        )

    def status(self, now: float, suspect: bool, guard: float, pending: int = 0) -> NodeStatus:
        """Return the node's state at that instant; it has yet to get that many releases."""
        info, at = self.info, self.location if self.connected else None
        uptime = None if info is None or info.uptime is None else info.uptime + now - self.connected_at
        return NodeStatus(
            self.address,
            self._state(now, suspect, guard),
            None if info is None else info.version,
            uptime if self.connected else None,
            self.last_error,
            None if at is None else str(at),
            None if at is None else at.epoch,
            max(self.remembers_since + guard - now, 0.0) if guard and self.connected else 0.0,
            pending,
        )

    def change(self, now: float, suspect: bool, guard: float) -> NodeChanged | None:
        """Return the change of state since the last call, None if there was none."""
        state = self._state(now, suspect, guard)
        if state == "down" and self.down_reason == INTERRUPTED:
            return None  # The node works, and is being reconnected.
        if state == self._reported or (state == "quarantined" and self.remembers_since == math.inf):
            # The meaning of a missing birth record is unknown until the node and its peers were asked.
            return None
        self._reported = state
        reason = {
            "up": "",
            "down": self.down_reason,
            "suspect": self.last_error or "",
            "quarantined": self.ineligible_reason(now, guard) or "",
        }[state]
        return NodeChanged(self.address, state, reason)

    def _state(self, now: float, suspect: bool, guard: float) -> str:
        if not self.connected:
            return "down"
        if suspect:
            return "suspect"
        return "quarantined" if self.ineligible_reason(now, guard) is not None else "up"


def reason_of(error: BaseException, address: str, before: object) -> str:
    """Return why a connect failed, as one short line.

    An error of this process, such as a TypeError in the application's credential provider, is not an outage: it is
    logged with its traceback, unless the reason was the same `before`.
    """
    if isinstance(error, _OUTAGES):
        return describe_error(error)
    reason = one_line(f"{type(error).__name__}: {error}")
    if reason != before:
        with suppress(SystemExit):  # By the application's log handler: it would end a connect, which none would follow.
            quietly(
                log.error, "node %s can't be connected because of an error in this process", address, exc_info=error
            )
    return reason


# Nodes as given by callers: URLs, of a server, a Sentinel group or a cluster; or redis-py clients.

_LIKE: Final = ", or a list of these"


def make_nodes(nodes: Any, client_class: type[Any]) -> list[Node]:
    """Return the nodes that a caller gave as URLs, or as clients of redis-py or valkey-py: one, or a list.

    Errors never repeat the argument, because it may contain a password.

    Raises:
        ConfigurationError: There is no node, one is listed twice, or an argument is neither.
    """
    given = [nodes] if isinstance(nodes, str) or is_client(nodes, client_class) else nodes
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"nodes must be {_one(client_class)}{_LIKE}, not {_type_of(given)}")
    made: list[Node] = []
    for number, each in enumerate(given, 1):
        if not (isinstance(each, str) or is_client(each, client_class)):
            raise ConfigurationError(f"node {number} must be {_one(client_class)}, not {_type_of(each)}")
        try:
            more = _nodes_of(len(made), each, client_class)
            for node in more:
                node.try_options()
        except NodeUrlError as error:
            raise ConfigurationError(f"node {number} {error}") from None
        except (ValueError, TypeError, RedisError):
            # redis-py's message may show a part of the URL.
            raise ConfigurationError(f"node {number} has an option or a value that redis-py does not know") from None
        made += more
    if not made:
        raise ConfigurationError(f"a client needs at least one node: {_one(client_class)}{_LIKE}")
    addresses = [node.address for node in made]
    twice = {address for address in addresses if addresses.count(address) > 1}
    if twice:
        raise ConfigurationError(f"{min(twice)} is listed more than once: the nodes must be different servers")
    return made


def _one(client_class: type[Any]) -> str:
    return f"a URL string or a {client_class.__module__.removesuffix('.client')}.{client_class.__name__}"


def _type_of(thing: Any) -> str:
    kind = type(thing)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"a value of type {name}"


def _nodes_of(index: int, given: Any, client_class: type[Any]) -> list[Node]:
    """Return the nodes that one argument stands for; the first has that index.

    Raises:
        NodeUrlError: A URL is invalid.
        ValueError: redis-py does not know an option.
    """
    url = for_redis_py(given) if isinstance(given, str) else None
    if url is None:
        pool: Any = settings_of(given, client_class)
        if hasattr(pool, "sentinel_manager"):
            return [_group_of_pool(index, pool)]
    elif url.count("://") > 1:  # redis-py would use the first and ignore the rest
        raise NodeUrlError("is several URLs in one string: give a list with one URL for each node")
    elif (servers := ServersUrl.read(url)) is not None:
        return _nodes_behind(index, url, servers, client_class)
    else:
        check_url(url)
        pool = client_class.from_url(url).connection_pool
    return [Node(index, pool, pool.connection_kwargs.get("path") or _address(pool), url)]


def _address(pool: Any) -> str:
    settings = pool.connection_kwargs
    return f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def _nodes_behind(first: int, url: str, servers: ServersUrl, client_class: type[Any]) -> list[Node]:
    """Return the node that a Sentinel group stands for, or those of a cluster."""
    witnesses = [Witness(address, client_class.from_url(each).connection_pool) for address, each in servers.servers]
    pool, known = client_class.from_url(servers.node).connection_pool, witnesses[0].address
    if servers.service:
        locator = SentinelLocator(servers.service, witnesses, servers.replicas)
        return [Node(first, pool, f"{servers.service}@{known}", url, locator=locator)]
    nodes = []
    for number, slot in enumerate(slots_of(servers.nodes)):
        voter = ClusterLocator(slot, servers.nodes, witnesses, servers.replicas)
        name = f"{known}/{number + 1} of {servers.nodes}"
        nodes.append(Node(first + number, pool, name, url, locator=voter, codec=Codec(slot)))
    return nodes


def _group_of_pool(index: int, pool: Any) -> Node:
    """Return the node of a Sentinel group, for the pool of a client from redis-py's `Sentinel.master_for`."""
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    witnesses = [Witness(_address(each), each) for each in pools]
    require_different([witness.address for witness in witnesses])
    # A class whose connections go to the given host, without asking Sentinels themselves.
    module: Any = redis.connection
    if issubclass(pool.connection_class, redis.asyncio.connection.AbstractConnection):
        module = redis.asyncio.connection
    kind = module.SSLConnection if issubclass(pool.connection_class, module.SSLConnection) else module.Connection
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    locator = SentinelLocator(pool.service_name, witnesses, 0)
    address = f"{pool.service_name}@{witnesses[0].address}"
    return Node(index, Settings(kind, kwargs), address, None, locator=locator)
