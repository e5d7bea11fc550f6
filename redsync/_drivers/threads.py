"""The driver for threads: runs protocols in their callers' threads.

* **Effects** are performed in the calling thread, one step of a protocol at a time, see `thread_driver`.
* **Owners are threads**, numbered per process. Numbers are never reused; a thread's number lives in a
  `threading.local`.
* **Interruptions** are thrown into the protocol; the driver then performs its clean-up effects to the end.
* **One more thread** per client does the work that no caller waits for, see `maintenance`.
* **fork**: the child gets a new client id, new locks and new connections, and holds nothing. It closes its copies of
  the parent's sockets without sending anything to the nodes.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from redsync._core.effects import Steps
from redsync._core.events import Event
from redsync._core.holds import HoldTable
from redsync._core.keys import client_key
from redsync._core.memory import Processes
from redsync._core.observing import journal_of, noting_of
from redsync._core.ownership import Owner
from redsync._core.presence import digests_of
from redsync._core.runner import Session
from redsync._core.timing import Timing
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.nodes import Node, NodeStatus
from redsync._drivers.process import Surroundings, at_exit
from redsync._drivers.reentry import BUSY, Doing
from redsync._drivers.requests import Sleeper
from redsync._drivers.thread_driver import Subscribed, ThreadDriver, forked
from redsync.exceptions import ClientClosedError, ReentrantCallError

__all__ = ["ThreadRunner"]

T = TypeVar("T")

log = logging.getLogger("redsync")

_serials = itertools.count(1)
_CLOSE_TIMEOUT = 2.0
"""Seconds that `close` waits for other threads to end their calls."""


class _Tag:
    """Ends with its thread, and then tells the watchdog that the thread's holds are orphaned."""

    __slots__ = ("_holds", "_owner")

    def __init__(self, holds: HoldTable, owner: Owner) -> None:
        self._owner = owner
        self._holds = holds

    def __del__(self) -> None:
        # An interruption may have come before `__init__` ended.
        if hasattr(self, "_holds"):
            self._holds.orphan(self._owner)


class _Identity(threading.local):
    """Per thread that has asked: its owner under the present client id, and a tag that ends with the thread."""

    owner: Owner
    tag: _Tag


class ThreadRunner(ThreadDriver):
    """Runs the protocols of one client in the calling threads.

    Attributes:
        session: The state that the client's synchronizers share.
        nodes: The configured nodes.
        homes: Where each of them keeps its keys.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[Node],
        timing: Timing,
        listeners: Sequence[Callable[[Event], object]],
        watchdog: Callable[[Session, float], Steps[None]],
        farewell: Callable[[Session], Steps[None]],
        surroundings: Surroundings,
    ) -> None:
        """Make a runner, without connecting.

        Args:
            nodes: The configured nodes.
            timing: The client's time settings.
            listeners: Called with each event.
            watchdog: The protocol that the maintenance runs for as long as the client lives.
            farewell: The protocol that releases all holds when the client is closed.
            surroundings: Clock, random numbers and identity.
        """
        super().__init__([node.address for node in nodes], surroundings.clock, listeners)
        self.nodes: Final = tuple(nodes)
        self.homes: Final = tuple(node.home for node in nodes)
        self._timing: Final = timing
        self._surroundings: Final = surroundings
        self._watchdog: Final = watchdog
        self._farewell: Final = farewell
        self.closed = False
        self._start()
        _runners[id(self)] = self

    def _start(self) -> None:
        """Begin with a new identity, and locks, without connections: at creation, and in the child of a fork."""
        self.client_id = self._surroundings.new_id()
        self._identity = _Identity()
        self._doing = Doing()
        self._monitor = threading.Lock()
        self._opening = threading.RLock()
        self._starting = self._ready = False
        self._deferred: deque[Steps[None]] = deque()
        # One entry per thread that is inside `run`; a deque's append and pop are atomic.
        self._active: deque[None] = deque()
        # Made at the first use: a daemon closes all descriptors that it finds after its fork.
        self._maintenance: Maintenance | None = None
        client = self._surroundings.describe()._replace(nodes=digests_of(self.homes))
        self.session = Session(
            len(self.nodes),
            self._timing,
            HoldTable(self._alarm),
            self._surroundings.random,
            record_key=client_key(self.client_id),
            record=client.pack(),
            processes=Processes(),
            observed=bool(self._notifier.ears),
            journal=journal_of(self._notifier.ears),
            client=client,
            epoch=client.since - self.now(),
        )

    @property
    def usable(self) -> bool:
        """True while another user may share this client."""
        return not self.closed

    def connect(self) -> None:
        """Start the maintenance and wait briefly for the first connections, unless that was done before.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: Two nodes are the same server.
            ReentrantCallError: This thread is already connecting it.
        """
        with self._doing.busy(), self._opening:
            self.require_open()
            if self._starting:
                raise ReentrantCallError
            if not self._ready:
                self._begin()

    def _begin(self) -> None:
        try:
            self._starting = True
            maintenance = self._make_maintenance()
            # A handler may have closed the client before there was a maintenance to do the rest.
            self.require_open()
            maintenance.start(self._watch)
        except BaseException:
            if self._maintenance is not None:  # Otherwise there were no descriptors left; there may be later.
                self.closed = True
                self._maintenance.stop()
            raise
        finally:
            self._starting = False
        at_exit(_close_all)
        self._ready = True

    def _make_maintenance(self) -> Maintenance:
        maintenance = Maintenance(
            nodes=self.nodes,
            client_id=self.client_id,
            clock=self.now,
            random=self._surroundings.random,
            node_timeout=self._timing.node_timeout,
            restart_guard=self._timing.restart_guard,
            processes=self.session.processes,
            tell=self._notifier.tell,
            doing=self._doing,
        )
        maintenance.on_abandoned = self._close
        maintenance.transport.noting = noting_of(self._notifier.ears)
        self._transport = maintenance.transport
        self._maintenance = maintenance
        return maintenance

    def _alarm(self) -> None:
        """Make the watchdog look; callable in any thread, never blocks."""
        if self._maintenance is not None:
            self._maintenance.alarm()

    def _watch(self) -> None:
        self._drive(self._watchdog(self.session, self.now()), set(), self._perform_watchdog)

    # The methods that facades use.

    def owner(self) -> Owner:
        """Return the calling thread's owner."""
        try:
            return self._identity.owner
        except AttributeError:
            owner = self.new_owner()
            self._identity.tag = _Tag(self.session.holds, owner)
            self._identity.owner = owner
            return owner

    def new_owner(self) -> Owner:
        """Return a new, unique owner."""
        return Owner(self.client_id, next(_serials))

    def require_open(self) -> None:
        """Raise `ClientClosedError` if the client was closed."""
        if self.closed:
            raise ClientClosedError

    def run(self, steps: Steps[T]) -> T:
        """Perform the protocol's effects until it returns; return its result or raise its error."""
        # As in `Transport._lead`.
        doing = self._doing.__dict__
        if doing.get("what") is not None:
            return self._run_in_between(steps)
        subscribed: Subscribed = set()
        client_id = self.client_id
        try:
            doing["what"] = BUSY
            try:
                # Counted before `_ready` is read: close() clears that first, then waits for the counted threads.
                # Within the `try`: otherwise, after an interruption right behind the append, close() would wait for a
                # thread that has left.
                self._active.append(None)
                if not self._ready:
                    # The first call in the child of a fork, or one after close().
                    self.connect()
                return self._drive(steps, subscribed, self._perform)
            finally:
                self._active.pop()
                for kept in subscribed:
                    self._transport.wakeups.unsubscribe(kept)
        finally:
            doing["what"] = None
            if self.client_id is not client_id:
                raise forked()

    def give_back(self, steps: Steps[None]) -> None:
        """Run a protocol that releases something; leave it to the maintenance if this thread must not wait."""
        if self._doing.what is not BUSY:
            self.run(steps)
            return
        self.require_open()
        self._deferred.append(steps)
        self._alarm()

    def _run_in_between(self, steps: Steps[T]) -> T:
        """Run a protocol inside another call of this thread: in a callback, a finalizer, a signal handler."""
        if self._doing.what is BUSY:
            self.require_open()
            raise ReentrantCallError
        with self._doing.aside():
            return self.run(steps)

    def servers(self) -> frozenset[str]:
        """Return the connected servers and databases, by their own identities."""
        return frozenset(server for node in self.nodes if (server := node.server) is not None)

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        if self._maintenance is not None:
            return self._maintenance.statuses()
        return [node.status(self.now(), suspect=False, guard=self._timing.restart_guard) for node in self.nodes]

    def close(self) -> None:
        """Wake waiters, run the farewell protocol, stop the maintenance, end the connections; idempotent.

        Never waits for a call that the calling thread itself has begun: inside one, a handler or a finalizer leaves the
        whole close to the maintenance. So does a callback of the maintenance.
        """
        what, maintenance = self._doing.what, self._maintenance
        if what is BUSY or (maintenance is not None and maintenance.is_current()):
            self.closed = True
            self.abandon()
        elif what is None:
            self._close()
        else:
            with self._doing.aside():
                self._close_in_between()

    def _close_in_between(self) -> None:
        """Release all holds, and leave the rest to the maintenance: this thread's own call has yet to clean up."""
        with self._doing.busy():
            self.closed = True
            if self._ready and self._maintenance is not None:
                self._maintenance.release_waiters()
                self._drive(self._farewell(self.session), set(), self._perform)
                self._maintenance.settle()
        self.abandon()

    def _close(self) -> None:
        with self._doing.busy():
            self._close_here()

    def _close_here(self) -> None:
        started = False
        up = [node for node in self.nodes if node.connected]
        try:
            with self._opening:
                first, self.closed = not self.closed, True
                started, self._ready = self._ready, False
            maintenance = self._maintenance
            if maintenance is None:
                return
            if not first:
                # Another thread is closing it; wait, because at the interpreter's exit no thread continues after us.
                maintenance.join(2 * _CLOSE_TIMEOUT)
            if started:
                maintenance.release_waiters()
                deadline = self.now() + _CLOSE_TIMEOUT
                while self._active and self.now() < deadline:
                    time.sleep(0.001)
                maintenance.await_interrupted(deadline - self.now())
        finally:
            # Even after an interruption: a later call finds the client closed, so no other call would do this.
            # Interrupted steps, perhaps not even begun, run again.
            if started:
                maintenance = self._maintenance
                assert maintenance is not None, "it has started"
                try:
                    self._drive(self._farewell(self.session), set(), self._perform)
                except BaseException:
                    self._drive(self._farewell(self.session), set(), self._perform)
                    # A half-sent command has cost a connection; the next one delivers what the node is owed.
                    maintenance.await_connections(up, _CLOSE_TIMEOUT)
                    raise
                finally:
                    try:
                        maintenance.stop()
                    except BaseException:
                        maintenance.stop()
                        raise

    def abandon(self) -> None:
        """Let the maintenance thread close; safe in a finalizer, which may interrupt anything."""
        if self._maintenance is not None:
            self._maintenance.abandon()
        else:
            self.closed = True

    # fork.

    def restart_after_fork(self) -> None:
        """Start over in the child of a fork: a new identity, no holds, its own connections."""
        holds, maintenance = self.session.holds, self._maintenance
        holds.clear()
        if maintenance is not None:
            maintenance.forget()
        self._end_call()
        for node in self.nodes:
            node.forget()
        if self.closed:
            self._opening = threading.RLock()  # the parent's may be held by a thread that this process does not have
        else:
            self._start()

    def _end_call(self) -> None:
        """Let a call of this thread that the fork interrupted find its error: it continues in the parent alone."""
        what = self._doing.what
        if isinstance(what, Sleeper):
            what.done = True
            what.wake()
        if self._monitor.locked():
            self._monitor.release()  # perhaps held by a thread that this process does not have


_runners: weakref.WeakValueDictionary[int, ThreadRunner] = weakref.WeakValueDictionary()


def _close_all() -> None:
    # A list, because a runner that a daemon makes meanwhile ends the iteration of a weak collection with an error.
    for reference in _runners.valuerefs():
        if (runner := reference()) is not None:
            runner.close()


def _after_fork_in_child() -> None:
    for runner in list(_runners.values()):
        runner.restart_after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
