"""The common base of both flavours of a driver: the client as facades see it, and its lives, one for each process.

Every use looks up the life of the process in which it runs. So the child of a fork finds none and begins one, whatever
happened to it before: it holds nothing, and never writes to its parent's connections.
"""

from __future__ import annotations

import itertools
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from redsync._core.client_records import digests_of
from redsync._core.effects import Steps
from redsync._core.holds import HoldTable, Owner
from redsync._core.keys import client_key
from redsync._core.memory import Processes
from redsync._core.observing import Event
from redsync._core.session import Session
from redsync._core.timing import Timing
from redsync._drivers.any_maintenance import AnyMaintenance
from redsync._drivers.environment import Environment
from redsync._drivers.link_sets import Shared
from redsync._drivers.nodes import Node, NodeStatus
from redsync._drivers.notifier import Notifier
from redsync.exceptions import ClientClosedError

__all__ = ["AnyLife", "AnyRunner", "all_runners"]

_serials = itertools.count(1)


class AnyLife(Shared):
    """A client in one process, and what its sets of links share.

    Attributes:
        runner: Its runner.
        client_id: The UUID under which this process's holds are kept.
        session: The state that the client's synchronizers share.
        on_event: Reports an event that the maintenance notices.
        maintenance: Keeps it alive; None before its first use.
    """

    on_event: Callable[[Event], None]

    def __init__(self, runner: AnyRunner[Any]) -> None:
        environment = runner.environment
        super().__init__(runner.nodes, runner.clock, runner.timing)
        self.runner: Any = runner
        self.client_id: Final = environment.new_id()
        client = environment.describe()
        epoch = client.since - environment.clock()  # At once: the two instants are to be the same.
        client = client._replace(nodes=digests_of(runner.homes))
        self.session: Final = Session(
            len(runner.homes),
            runner.timing,
            HoldTable(self.alarm),
            environment.random,
            record_key=client_key(self.client_id),
            processes=Processes(),
            observed=bool(runner.notifier.subscriptions),
            client=client,
            epoch=epoch,
        )
        self.maintenance: AnyMaintenance[Any] | None = None

    def wake(self) -> None:
        if self.maintenance is not None:
            self.maintenance.wake()

    @abstractmethod
    def alarm(self) -> None:
        """Make the watchdog look; callable in any thread, because a finalizer may run in any. Never blocks."""

    def forget(self) -> None:
        """In the child of a fork: hold nothing, and close the copies of the parent's sockets."""
        self.session.holds.clear()
        for link in list(self.installed):
            link.forget()
        # When collected, asyncio's transports would write a last message to the parent's sockets.
        _inherited.append(self.maintenance)
        self.maintenance = None


LifeT = TypeVar("LifeT", bound=AnyLife)


class AnyRunner(ABC, Generic[LifeT]):
    """Runs the protocols of one client.

    Attributes:
        nodes: The configured nodes.
        homes: Where each of them keeps its keys.
        notifier: Reports events.
        closed: True once the client is closed: nothing new may begin.
        client: Returns the client object; None once it was dropped.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[Node],
        timing: Timing,
        listeners: Sequence[Callable[[Event], object]],
        watchdog: Callable[[Session, float], Steps[None]],
        shutdown: Callable[[Session, float], Steps[None]],
        environment: Environment,
    ) -> None:
        """Make a runner, without connecting.

        Args:
            nodes: The configured nodes.
            timing: The client's time settings.
            listeners: Called with each event.
            watchdog: The protocol that the maintenance runs for as long as the client lives.
            shutdown: The protocol that releases all holds when the client is closed.
            environment: Clock, random numbers and identity.
        """
        self.nodes: Final = tuple(nodes)
        self.homes: Final = tuple(node.home for node in nodes)
        self.timing: Final = timing
        self.environment: Final = environment
        self.clock: Final = environment.clock
        self.watchdog: Final = watchdog
        self.shutdown: Final = shutdown
        self._addresses: Final = [node.address for node in nodes]
        self.notifier: Final = Notifier(listeners, self._contain, self.clock)
        self.closed = False
        self.client: Callable[[], object] = lambda: self
        self._lives: Final[dict[int, LifeT]] = {}
        _runners[id(self)] = self

    @abstractmethod
    def _make_life(self) -> LifeT:
        """Return the client in a process that uses it for the first time."""

    @abstractmethod
    def _contain(self, error: BaseException) -> bool:
        """Keep a callback's error from ending the maintenance; return True if that was done."""

    @property
    def life(self) -> LifeT:
        """The client in this process."""
        life = self._lives.get(os.getpid())
        return life if life is not None else self._new_life()

    def _new_life(self) -> LifeT:
        # One step: of two threads that begin at once, both get the same.
        life = self._lives.setdefault(os.getpid(), self._make_life())
        for former in list(self._lives.values()):
            if former is not life and self._lives.pop(former.process, None) is not None:
                # Its sockets were closed right after the fork, unless an exception struck there. Then they stay open:
                # by now their numbers may be other files, since a daemon closes all that it finds.
                former.session.holds.clear()
                _inherited.append(former)
                for node in self.nodes:
                    node.forget()
        return life

    # The methods that facades use.

    @property
    def client_id(self) -> str:
        """The UUID under which this process's holds are kept; a forked child has another."""
        return self.life.client_id

    @property
    def session(self) -> Session:
        """The state that the client's synchronizers share."""
        return self.life.session

    def now(self) -> float:
        """Return the current instant in seconds; in the child of a fork, first end what the parent held."""
        if os.getpid() not in self._lives:
            self._new_life()
        return self.clock()

    def new_owner(self) -> Owner:
        """Return a new, unique owner."""
        return Owner(self.client_id, next(_serials))

    def require_open(self) -> None:
        """Raise `ClientClosedError` if the client was closed."""
        if self.closed:
            raise ClientClosedError

    def close_copies(self) -> None:
        """In the child of a fork, right after it: close the copies of the parent's sockets."""
        for life in list(self._lives.values()):
            if life.process != os.getpid():
                life.forget()

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        maintenance = self.life.maintenance
        if maintenance is not None:
            return maintenance.statuses()
        return [node.status(self.clock(), suspect=False, guard=self.timing.restart_guard) for node in self.nodes]


_inherited: Final[list[object]] = []
"""Of a fork's parents: kept alive, or Python would close their sockets."""

_runners: Final[weakref.WeakValueDictionary[int, AnyRunner[Any]]] = weakref.WeakValueDictionary()


def all_runners() -> list[AnyRunner[Any]]:
    """Return the runners of this process."""
    # By way of a list, because a runner that a daemon makes meanwhile ends the iteration of a weak collection.
    return [runner for reference in _runners.valuerefs() if (runner := reference()) is not None]


def _after_fork_in_child() -> None:
    for runner in all_runners():
        runner.close_copies()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
