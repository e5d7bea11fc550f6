"""The common base of the clients of both flavours: settings, identity, pickling."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypedDict, TypeVar, Unpack

from redsync._core.effects import Steps
from redsync._core.keys import LockKeys, encode_name, encode_prefix
from redsync._core.observing import Event, Observer, is_function
from redsync._core.quorum import Tally
from redsync._core.text import split_urls
from redsync._core.timing import MAX_LEASE, Timing, finite
from redsync._drivers.environment import REAL, Environment
from redsync._drivers.nodes import NodeStatus, make_nodes
from redsync._protocols import surveys
from redsync._protocols.watchdog import shutdown, watchdog
from redsync.exceptions import ConfigurationError

if TYPE_CHECKING:
    from redsync._drivers.aio import AioRunner
    from redsync._drivers.threads import ThreadRunner

__all__ = ["AnyClient", "ClientOptions", "Nodes"]

_LONGEST_RENEWED = 3600.0
"""The longest lease of a client, in seconds: what a crash leaves behind stays held for as long."""

DriverT = TypeVar("DriverT", "ThreadRunner", "AioRunner")

_shared: weakref.WeakValueDictionary[tuple[Any, ...], AnyClient[Any]] = weakref.WeakValueDictionary()
"""A client for each set of options, for unpickled objects; of two that are made at once, either will do."""

_unpickled: dict[tuple[Any, ...], AnyClient[Any]] = {}
"""Clients made for unpickled objects, kept as long as the process lives: a pool worker unpickles lock after lock, and
must not connect for each."""


class _GivenClient(Protocol):
    """A client of redis-py or valkey-py."""

    @property
    def connection_pool(self) -> Any: ...


Nodes: TypeAlias = str | _GivenClient | Iterable[str | _GivenClient]
"""The nodes as a caller gives them: a URL or a client, or several."""


class ClientOptions(TypedDict, total=False):
    """The options of clients, see `Client`; `max_connections` is only for threads."""

    prefix: str
    lease: float
    node_timeout: float
    drift_factor: float
    restart_guard: float | None
    outage_timeout: float | None
    max_connections: int
    listeners: Sequence[Callable[[Event], object]]


class AnyClient(Generic[DriverT]):
    """The common base of the clients of both flavours: settings, identity, pickling."""

    _REDIS: ClassVar[type[Any]]
    _RUNNER: Callable[..., DriverT]
    _ENVIRONMENT: ClassVar[Environment] = REAL
    # The options of one flavour only.
    _more: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        nodes: Nodes,
        *,
        prefix: str = "redsync:",
        lease: float = 30.0,
        node_timeout: float = 0.25,
        drift_factor: float = 0.01,
        restart_guard: float | None = None,
        outage_timeout: float | None = None,
        listeners: Sequence[Callable[[Event], object]] = (),
    ) -> None:
        made = make_nodes(nodes, self._REDIS)
        if restart_guard is None:
            # A single plain node that loses its memory loses all claims with it. Behind a locator, another server may
            # replace it while clients have valid claims that this server lacks.
            restart_guard = lease if len(made) > 1 or made[0].locator is not None else 0.0
        timing = timing_of(lease, node_timeout, drift_factor, restart_guard, outage_timeout)
        listeners = _check_listeners(listeners)
        self._prefix = encode_prefix(prefix)
        self._options: dict[str, Any] = {
            "prefix": prefix,
            "lease": timing.lease,
            "node_timeout": timing.node_timeout,
            "drift_factor": timing.drift_factor,
            "restart_guard": timing.restart_guard,
            "outage_timeout": timing.outage_timeout,
            **self._more,
        }
        self._urls = tuple(dict.fromkeys(node.url for node in made))
        self._runner: DriverT = self._RUNNER(
            nodes=made,
            timing=timing,
            listeners=listeners,
            watchdog=watchdog,
            shutdown=shutdown,
            environment=self._ENVIRONMENT,
            **self._more,
        )
        # Dropped without close(): the maintenance closes it, because a finalizer may interrupt anything.
        self._finalizer: weakref.finalize[..., Any] = weakref.finalize(self, self._runner.abandon)
        self._finalizer.atexit = False
        # Python swallows a finalizer that is interrupted, so the maintenance looks too.
        self._runner.client = weakref.ref(self)
        for listener in listeners:
            if isinstance(listener, Observer):
                listener.attach(self)
        sharing = _shared.get(self._identity())
        if sharing is None or not sharing.runner.usable:
            _shared[self._identity()] = self

    @classmethod
    def from_env(cls, nodes: Nodes | None = None, **options: Unpack[ClientOptions]) -> Self:
        """Return a client made from `REDSYNC_URLS` (comma-separated), `_PREFIX`, `_LEASE` and `_RESTART_GUARD`.

        Args:
            nodes: The nodes; by default those of the environment.
            **options: As for the class; they override the environment.

        Raises:
            ConfigurationError: There are no URLs, or a number is invalid.
        """
        if nodes is None and not (nodes := split_urls(os.environ.get("REDSYNC_URLS", ""))):
            raise ConfigurationError("REDSYNC_URLS is not set: set it to the nodes' URLs, separated by commas")
        settings: dict[str, Any] = {**options}
        if "REDSYNC_PREFIX" in os.environ:
            settings.setdefault("prefix", os.environ["REDSYNC_PREFIX"])
        for option in ("lease", "restart_guard"):
            text = os.environ.get(f"REDSYNC_{option.upper()}")
            if not text or option in settings:
                continue
            try:
                settings[option] = float(text)
            except ValueError:
                message = f"REDSYNC_{option.upper()} must be a number of seconds, not {text!r}"
                raise ConfigurationError(message) from None
        return cls(nodes, **settings)

    @property
    def id(self) -> str:
        """The client's UUID; a forked child has another."""
        return self._runner.client_id

    @property
    def quorum(self) -> int:
        """How many nodes must grant a claim."""
        return self._runner.session.quorum

    @property
    def prefix(self) -> bytes:
        """The start of every key's name."""
        return self._prefix

    @property
    def runner(self) -> DriverT:
        """The runner of the protocols; not for applications."""
        return self._runner

    def nodes(self) -> list[NodeStatus]:
        """Return each node's state as this client sees it; asks no node."""
        return self._runner.statuses()

    def _survey(self, name: str | bytes) -> Steps[Tally]:
        keys = LockKeys.of(self._prefix, encode_name(name))
        # A new owner, see `Exclusive._held_steps`.
        return surveys.survey(self._runner.session, keys, self._runner.new_owner())

    def _survey_all(self, pattern: str | bytes, limit: int) -> Steps[dict[str | bytes, Tally]]:
        runner = self._runner
        return surveys.survey_all(runner.session, self._prefix, pattern, limit, runner.new_owner())

    def _break(self, name: str | bytes, owner: str) -> Steps[bool]:
        runner = self._runner
        return surveys.break_hold(runner.session, self._prefix, name, owner, runner.new_owner())

    def __reduce__(self) -> tuple[Any, ...]:
        for number, node in enumerate(self._runner.nodes, 1):
            if node.url is None:
                raise TypeError(
                    f"a client is pickled as the URLs of its nodes, but node {number}, {node.address}, was given as a "
                    f"redis-py client: give its URL instead"
                )
        return _client_of, (type(self), self._urls, self._options)

    def __deepcopy__(self, _memo: object = None) -> Self:
        # A copy of a lock has the same client, whose connections can't be copied.
        return self

    __copy__ = __deepcopy__

    def _identity(self) -> tuple[Any, ...]:
        return type(self), self._urls, tuple(self._options.items())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {len(self._runner.nodes)} nodes>"


def _client_of(kind: type[AnyClient[Any]], urls: tuple[str, ...], options: dict[str, Any]) -> AnyClient[Any]:
    """Return this process's client for those nodes and options, whose connections all unpickled objects share."""
    identity = kind, urls, tuple(options.items())
    client = _shared.get(identity)
    if client is None or not client.runner.usable:
        client = _unpickled[identity] = kind(list(urls), **options)
    return client


def timing_of(
    lease: float, node_timeout: float, drift_factor: float, restart_guard: float, outage_timeout: float | None
) -> Timing:
    """Return the time settings, as floats.

    Raises:
        ConfigurationError: One is invalid, or two contradict each other.
    """
    drift, patience, guard = finite(drift_factor), finite(node_timeout), finite(restart_guard)
    if drift is None or not 0 <= drift < 1:
        raise ConfigurationError(f"drift_factor must be at least 0 and less than 1, not {drift_factor!r}")
    if patience is None or not 0 < patience <= MAX_LEASE:
        raise ConfigurationError(
            f"node_timeout must be a positive number of seconds, at most a year, not {node_timeout!r}"
        )
    try:
        seconds = Timing(0.0, patience, drift).check_lease(lease)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if guard is None or not 0 <= guard <= MAX_LEASE:
        raise ConfigurationError(f"restart_guard must be a number of seconds, from 0 to a year, not {restart_guard!r}")
    if seconds > _LONGEST_RENEWED:
        raise ConfigurationError(
            f"a lease of {seconds:g} s is longer than an hour: the unit is seconds, and the client renews it for as "
            f"long as needed. Give one lock a longer lease that is not renewed: get_lock(name, lease=...)"
        )
    if 0 < guard < seconds:
        raise ConfigurationError(
            f"restart_guard={guard:g} is shorter than the lease of {seconds:g} s: a node that lost its memory would "
            f"grant again what others still hold. Omit it, or give at least the lease; 0 turns the guard off"
        )
    outage = seconds if outage_timeout is None else math.inf if outage_timeout == math.inf else finite(outage_timeout)
    if outage is None or outage < 0:
        raise ConfigurationError(
            f"outage_timeout must be a number of seconds from 0 on, or None, not {outage_timeout!r}"
        )
    return Timing(seconds, patience, drift, guard, outage)


def _check_listeners(listeners: Sequence[Callable[[Event], object]]) -> tuple[Callable[[Event], object], ...]:
    """Return the listeners.

    Raises:
        ConfigurationError: They are not a list of functions.
    """
    if isinstance(listeners, Iterable):
        listeners = tuple(listeners)
        if all(is_function(listener) and not isinstance(listener, type) for listener in listeners):
            return listeners
    what = "functions that take an event, none of them `async def`, a generator or a class"
    raise ConfigurationError(f"listeners must be a list of {what}, not {listeners!r}")
