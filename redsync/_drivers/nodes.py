"""Nodes: how to reach them, what they said of themselves, and whether they may vote.

redis-py makes and authenticates the connections, so that all its options work: URLs, TLS, unix sockets, ACL, credential
providers, Sentinel. We take the pool's connection class and arguments, never a connection of the pool, and replace what
would hurt a quorum client: no retries, explicit timeouts, RESP3, no maintenance notifications. After the handshake the
driver takes over the socket.
"""

from __future__ import annotations

import logging
import math
import re
import time
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import redis.connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from redsync._core.events import NodeChanged
from redsync._core.memory import BLANK, JOINING, NEWBORN, Birth
from redsync._core.text import one_line
from redsync._drivers.channels import Channel
from redsync._drivers.dialects import PLAIN, Dialect
from redsync._drivers.handshakes import TIMEOUTS, parser_for
from redsync._drivers.interruptions import INTERRUPTED

if TYPE_CHECKING:
    from redsync._drivers.locators import Location, Locator

__all__ = [
    "Node",
    "NodeInfo",
    "NodeStatus",
    "describe_error",
    "new_connection",
]

log = logging.getLogger("redsync.node")

_FORGETFUL = re.compile(r"FORGETFUL (-1|[0-9]{1,15})")
"""A node's answer if it remembers for less time than a claim needs: for how many ms, or -1 if it can't tell."""

_CONFIRMED: Final = 2 / 3
"""Within which part of the quarantine witnesses must have been asked; the rest is for drift, and for the vote."""

_DROPPED = (
    *("maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler", "parser_class"),
    *("driver_info", "lib_name", "lib_version"),
)

_UNINTRODUCED = (
    {"driver_info": None} if "driver_info" in signature(redis.connection.AbstractConnection.__init__).parameters else {}
)
"""Keeps a connection from working out its own description, which takes longer than everything else."""


class _Once(Retry):
    """No retries. Connections copy their retry policy, which would take as long as making them: this returns itself."""

    def __deepcopy__(self, _memo: object) -> _Once:
        return self


class NodeInfo(NamedTuple):
    """What a node said of itself when it was connected.

    Attributes:
        run_id: Identity of the server's process, None if it does not tell (fakeredis).
        version: The server and its version for people, such as "valkey 9.1.2".
        uptime: Seconds since its start, None if it does not tell.
        pushes: Whether it wakes waiters by messages; else they poll.
        birth: Its birth record, None if it has none that was written under this process.
        process: What birth records call the server's process.
    """

    run_id: str | None
    version: str
    uptime: float | None
    pushes: bool
    birth: Birth | None = None
    process: bytes = b"-"


class NodeStatus(NamedTuple):
    """The state of one node as this client sees it.

    Attributes:
        address: `host:port`, or a path for a unix socket.
        state: "up"; "down": no connection; "suspect": owes replies for longer than `node_timeout`; "quarantined":
            restarted a moment ago, takes part in renewals but in no new grant.
        version: The server and its version, None while it was never reached.
        uptime: Seconds since the server started, None if unknown.
        last_error: The last trouble with it, None if there was none.
        server: Where its server is now, `host:port`, for a node that Sentinels stand for; None for others, and while
            that is not known.
        epoch: The number of the Sentinels' decision that made this server the master.
        quarantine_left: Seconds until it takes part in new grants again after a restart; infinity while that is not
            known, 0.0 if it is in no quarantine.
        pending: How many releases and rollbacks it has yet to execute, because it is out of reach or in trouble.
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

    The thread that connects it and a transport that loses it write to it. Every attribute is replaced as a whole, so
    readers need no lock.

    Attributes:
        index: Its place in the client's list, and its bit in bit sets of nodes.
        address: `host:port` or a path.
        url: A URL that names it to another process; None if no URL can say how to connect.
        unsaid: What no URL can say; empty if a URL can say everything.
        locator: Says where its server is; None for a node with an address of its own.
        location: Where that was when it was connected last; None for a node without a locator.
        dialect: How commands are spelled for it.
        info: What it said at the last connect.
        connected_at: When that was, in seconds on the client's clock.
        connected: Whether the client's transport is connected to it.
        excuse: Why it is not connected.
        started_at: When its server started, in seconds on the client's clock; minus infinity if it does not tell.
        birth: Its latest known birth record, None if it has none.
        remembers_since: Since when it has remembered all claims; infinity while its birth record does not tell. A new
            claim needs nodes that have remembered for at least the claim's guard.
        last_error: The last trouble, for people.
        tried: Whether a connect has succeeded or failed yet; before that there is no state to report.
        former: The connections that were given up, each by the server's process and its number there. The next
            connection begins by ending them.
    """

    def __init__(
        self,
        index: int,
        pool: Any,
        address: str,
        url: str | None,
        *,
        unsaid: str = "",
        locator: Locator | None = None,
        dialect: Dialect = PLAIN,
    ) -> None:
        self.index: Final = index
        self.bit: Final = 1 << index
        self.address: Final = address
        self.url: Final = url
        self.unsaid: Final = unsaid
        self._pool: Final = pool
        self.locator: Final = locator
        self.location: Location | None = None
        self.dialect: Final = dialect
        self.info: NodeInfo | None = None
        self.connected = False
        self.connected_at = 0.0
        self.excuse = "not connected yet"
        self.started_at = -math.inf
        self.birth: Birth | None = None
        self.remembers_since = -math.inf
        self.last_error: str | None = None
        self.tried = False
        self.former: tuple[tuple[str, int], ...] = ()
        self._told = "up"

    @property
    def home(self) -> str:
        """The place of its keys: its address and the number of the database."""
        place = self.address if self.locator is None else self.locator.home
        return f"{place}/{self._pool.connection_kwargs.get('db') or 0}"

    @property
    def server(self) -> str | None:
        """Its process and database, whatever its URL says; None while it is not connected, or does not tell."""
        if not self.connected or self.info is None or self.info.run_id is None:
            return None
        return f"{self.info.run_id}/{self._pool.connection_kwargs.get('db') or 0}"

    def forget(self) -> None:
        """Begin anew, as the child of a fork does."""
        self.connected = self.tried = False
        self.excuse = "not connected yet"

    def make_connection(self, timeout: float) -> Any:
        """Return a new connection of redis-py's, with all of its options, that is not connected yet.

        Args:
            timeout: Seconds for connecting, and for each answer until then.
        """
        place = {} if self.location is None else {"host": self.location.host, "port": self.location.port}
        return new_connection(self._pool, timeout, **place)

    @property
    def is_lent(self) -> bool:
        """Whether a cluster lends it: two of them may come to one server."""
        return self.dialect is not PLAIN

    def try_options(self) -> None:
        """Make a connection of each sort without connecting it.

        Raises:
            TypeError, ValueError: redis-py does not know an option. Else it would say so at each try, and to nobody.
        """
        for pool in (self._pool, *(witness.pool for witness in (self.locator.witnesses if self.locator else ()))):
            new_connection(pool, 1.0)

    @property
    def needed(self) -> int:
        """How many replicas must acknowledge its votes; 0: none."""
        return 0 if self.locator is None else self.locator.needed

    def moved(self) -> str | None:
        """Return why its connection leads to a server that is its no longer; None if it does not."""
        if self.locator is None:
            return None
        present = self.locator.present
        if present is None or not self.connected or present == self.location:
            return None
        return f"its {self.locator.WITNESSES} name {present} as the master now, epoch {present.epoch}"

    def open(self, timeout: float) -> Channel:
        """Connect and authenticate. This and the channel's use block for at most some `timeout`s in all.

        Raises:
            OSError, RedisError: It could not be reached, or refused us.
        """
        until = time.monotonic() + TIMEOUTS * timeout
        connection = self.make_connection(timeout)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return Channel(connection, timeout, until)

    def meet(self, info: NodeInfo, now: float) -> None:
        """Record what the node says of itself, and for how long it has remembered everything."""
        self.info, self.connected_at = info, now
        if info.uptime is not None:
            # A node subtracts two instants in whole seconds: its uptime may be 1 s too high, never too low.
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
        """Record an error reply; return its meaning if the node forgets too much, None for all other errors."""
        forgetful = _FORGETFUL.fullmatch(text)
        if forgetful is None:
            return None
        age = int(forgetful[1]) / 1000
        if age >= 0:
            self.remember(Birth(NEWBORN, 0, b"", age), now)
        elif self.birth is None or self.birth.kind not in (BLANK, JOINING):
            # A node with a blank or joining record says so too, but that is known already.
            self.remember(None, now)
        since = "it can't tell since when it remembers" if age < 0 else f"it remembers the last {age:.1f} s"
        return self.unfit(now, guard) or f"restarted or emptied, may have forgotten what it is asked for: {since}"

    def unfit(self, now: float, guard: float) -> str | None:
        """Return why the node takes no part in new grants with that guard at that instant; None if it does."""
        left = self.remembers_since + guard - now
        if not guard or left <= 0:
            return self._unconfirmed(now, guard)
        when = "as soon as it and its peers were asked" if left == math.inf else f"in {left:.1f} s"
        return (
            f"restarted or emptied, may have forgotten claims that are still believed: takes part in new grants again "
            f"{when} (Client(restart_guard=...) sets for how long)"
        )

    def _unconfirmed(self, now: float, guard: float) -> str | None:
        """Return why its server may be its no longer, as far as the client knows; see `locators`."""
        if not (guard and self.needed) or self.locator is None or now - self.locator.confirmed_at <= guard * _CONFIRMED:
            return None
        why = f": {self.locator.excuse}" if self.locator.excuse else ""
        return (
            f"its {self.locator.WITNESSES} have not said lately that {self.location} is still the master{why}: takes "
            f"part in new grants again as soon as a majority of them does"
        )

    def status(self, now: float, suspect: bool, guard: float) -> NodeStatus:
        """Return the node's state at that instant."""
        info = self.info
        uptime = None if info is None or info.uptime is None else info.uptime + now - self.connected_at
        state = self._state(now, suspect, guard)
        version = None if info is None else info.version
        left = max(self.remembers_since + guard - now, 0.0) if guard and self.connected else 0.0
        status = NodeStatus(
            self.address,
            state,
            version,
            uptime if self.connected else None,
            self.last_error,
            quarantine_left=left,
        )
        at = self.location if self.connected else None
        return status if at is None else status._replace(server=str(at), epoch=at.epoch)

    def change(self, now: float, suspect: bool, guard: float) -> NodeChanged | None:
        """Return the change of state since the last call, None if there was none."""
        state = self._state(now, suspect, guard)
        if state == "down" and self.excuse in INTERRUPTED:
            return None  # A well node, which is being connected again.
        if state == self._told or not self.tried or (state == "quarantined" and self.remembers_since == math.inf):
            # The meaning of a missing birth record is not known before the node and its peers were asked.
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
        return "quarantined" if self.unfit(now, guard) is not None else "up"


def _no_maintenance() -> Any:
    try:
        from redis.maint_notifications import MaintNotificationsConfig
    except ImportError:
        return None
    return MaintNotificationsConfig(enabled=False)


_NO_MAINTENANCE = _no_maintenance()


def new_connection(pool: Any, timeout: float, **settings: Any) -> Any:
    """Return a new connection of redis-py's with the options of a pool, that is not connected yet.

    Args:
        pool: The pool, for its connection class and settings.
        timeout: Seconds for connecting, and for each answer until then.
        **settings: Take the place of the pool's.
    """
    kwargs = {key: value for key, value in pool.connection_kwargs.items() if key not in _DROPPED}
    kwargs.update(
        protocol=3,
        retry=_Once(NoBackoff(), 0),
        retry_on_error=[],
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        health_check_interval=0,
        decode_responses=False,
        parser_class=parser_for(pool.connection_class),
        **_UNINTRODUCED,
    )
    kwargs.update(settings)
    if "maint_notifications_config" in kwargs:
        kwargs["maint_notifications_config"] = _NO_MAINTENANCE
    connection = pool.connection_class(**kwargs)
    # Keep it from introducing itself as redis-py: that needs a permission whose name servers before 7.2 do not know.
    # Set attributes, because the argument's name differs between versions of redis-py.
    connection.driver_info = connection.lib_name = connection.lib_version = None
    return connection


def describe_error(error: BaseException) -> str:
    """Return an error as one short line."""
    return one_line(str(error)) or type(error).__name__
