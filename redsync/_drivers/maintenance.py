"""The maintenance: one thread per client that does the work that no caller waits for.

It runs the watchdog protocol. While the watchdog sleeps, it reconnects nodes with growing pauses, reads late replies
when no caller does, detects idle connections that were closed, and reports changes of nodes' states.

A connect may block until its timeout, and renewals must not wait for it. So each connect has its own thread, which ends
with it, one at a time per node.

Only the maintenance thread writes the state here, except where a comment names the lock.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from redsync._core.events import Event
from redsync._core.interruptions import is_interruption
from redsync._core.keys import wake_channel
from redsync._core.memory import FIRST_USE, Processes
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.greetings import end_former, greet, load_scripts, subscribe
from redsync._drivers.handshakes import TIMEOUTS
from redsync._drivers.interruptions import INTERRUPTED
from redsync._drivers.links import make_link, speak
from redsync._drivers.node_registry import NodeRegistry
from redsync._drivers.nodes import Node, NodeStatus, describe_error
from redsync._drivers.pollers import READ, make_poller
from redsync._drivers.reentry import BUSY, CALLING, Doing
from redsync._drivers.transport import Transport
from redsync._drivers.wakers import Waker
from redsync._drivers.watches import Watches
from redsync.exceptions import ConfigurationError

__all__ = ["PAUSE_AFTER_FAILURE", "STRAGGLERS", "TICK", "Maintenance", "Stopped"]

watchdog_log = logging.getLogger("redsync.watchdog")

TICK = 1.0
"""Seconds between two checks of idle connections, where the system does not report their end."""

PAUSE_AFTER_FAILURE = 0.1

STRAGGLERS = 0.05
"""Seconds that a new client waits for more nodes once a quorum is connected."""


_LAST_CONNECTIONS = 2.0
"""The most seconds that a closing client waits for pending connects."""


class Stopped(BaseException):
    """Thrown into the watchdog when the client is closed."""


class Maintenance:
    """The transport of one client and the thread that keeps it alive.

    Attributes:
        transport: The client's transport.
        on_abandoned: Called by the thread when the client was abandoned.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[Node],
        client_id: str,
        clock: Callable[[], float],
        random: Callable[[], float],
        node_timeout: float,
        restart_guard: float,
        processes: Processes,
        tell: Callable[[Event], None],
        doing: Doing,
    ) -> None:
        self._nodes: Final = nodes
        self._client_id: Final = client_id
        self._clock: Final = clock
        self._node_timeout: Final = node_timeout
        self._connect_timeout: Final = max(4 * node_timeout, 1.0)
        self._doing: Final = doing
        self.transport: Final = Transport(nodes, clock, node_timeout, self._on_broken, self._waker_up, doing)
        self._watches: Final = Watches(nodes, self._connect_timeout, clock, self._on_moved)
        self._waker: Final = Waker()
        self._poller: Final = make_poller()
        self._poller.register(self._waker.fileno, READ)
        self._thread: threading.Thread | None = None
        self._begun = self._stopping = self._disposing = False
        self._abandoned = False
        self._alarmed = False
        self.on_abandoned: Callable[[], None] = self.stop
        # Guards the attributes below; connecting threads write them, and a new client waits for them.
        self._settled: Final = threading.Condition()
        self._connecting: Final[dict[int, threading.Thread]] = {}
        self._overdue_at: Final[dict[int, float]] = {}
        self._registry: Final = NodeRegistry(
            nodes,
            self.transport,
            clock,
            restart_guard=restart_guard,
            processes=processes,
            tell=tell,
            wake=self._waker_up,
            guard=self._settled,
            random=random,
        )

    # Life.

    def start(self, watch: Callable[[], object]) -> None:
        """Start the thread, and wait briefly for the first connections.

        Raises:
            ConfigurationError: Two nodes are the same server.
        """
        self._thread = threading.Thread(target=self._main, args=(watch,), name="redsync-maintenance", daemon=True)
        self._watches.start()
        self._connect_missing()
        self._thread.start()
        self._await_first_connections()
        self._initialize_first()
        if self._registry.conflict is not None:
            raise ConfigurationError(self._registry.conflict)

    def _await_first_connections(self) -> None:
        registry, deadline = self._registry, self._clock() + self._connect_timeout
        with self._settled:
            self._settled.wait_for(lambda: registry.is_heard() or registry.has_quorum(), self._connect_timeout)
            left = deadline - self._clock()
            if not registry.may_be_first_use():
                left = min(left, STRAGGLERS)
            self._settled.wait_for(registry.is_heard, max(left, 0.0))

    def _main(self, watch: Callable[[], object]) -> None:
        self._doing.what = BUSY
        while True:
            try:
                watch()
            except Stopped:
                if self._abandoned and not self._stopping:
                    self.on_abandoned()
                return
            except Exception:
                # An unrelated error must not cost a hold: log it, and continue with a new watchdog.
                watchdog_log.exception("the watchdog failed and starts again; please report this")
                time.sleep(PAUSE_AFTER_FAILURE)

    def stop(self) -> None:
        """End the thread and all connections; after an interruption, call it again."""
        self._stopping = True
        self._waker.wake()
        # A thread can't be joined if it did not start: there were no more threads, or an interruption came first.
        if self._thread is not None and not self.is_current() and self._thread.is_alive():
            self._thread.join()
        self._watches.stop()
        with self._settled:
            connecting = list(self._connecting.values())
        # No longer, because a node may be silent forever. A later connection is closed at once.
        deadline = self._clock() + min(2 * self._connect_timeout, _LAST_CONNECTIONS)
        for thread in connecting:
            if thread.is_alive():
                thread.join(max(deadline - self._clock(), 0.0))
        self.settle()
        self._disposing = True
        self.transport.dispose()
        self._poller.close()
        self._waker.close()

    def settle(self) -> None:
        """Wait briefly for replies that nodes still owe.

        Rollbacks may be in flight. Closing a socket with unread replies resets the connection and would lose them.
        """
        deadline = self._clock() + self._node_timeout
        while not self._disposing and self.transport.tend() and self._clock() < deadline:
            time.sleep(0.0005)

    def await_interrupted(self, timeout: float) -> None:
        """Wait until the nodes that lost their connection by an interruption are connected again."""
        self.await_connections([node for node in self._nodes if node.excuse in INTERRUPTED], timeout)

    def await_connections(self, nodes: Sequence[Node], timeout: float) -> None:
        """Connect these nodes, and wait for them at most `timeout` seconds."""
        deadline = self._clock() + timeout
        with self._settled:
            while not all(node.connected for node in nodes) and (left := deadline - self._clock()) > 0:
                # The maintenance thread may be the one that waits here.
                self._connect_missing()
                self._settled.wait(min(left, max(self._next_try() - self._clock(), 0.01)))

    def join(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the thread's end, unless it is the calling thread."""
        if self._thread is not None and not self.is_current() and self._thread.is_alive():
            self._thread.join(timeout)

    def is_current(self) -> bool:
        """Return True in the maintenance's own thread."""
        return self._thread is threading.current_thread()

    def abandon(self) -> None:
        """Make the thread call `on_abandoned` and end; never blocks."""
        self._abandoned = True
        self._waker.wake()

    def release_waiters(self) -> None:
        """End all sleeps, except those of sleepers that `lasts`."""
        self.transport.close()

    def forget(self) -> None:
        """Close a forked child's copies of the parent's descriptors."""
        self._watches.forget()
        self.transport.forget()
        self._poller.close()
        self._waker.close()

    def alarm(self) -> None:
        """Make the watchdog look at once; callable from any thread, never blocks."""
        self._alarmed = True
        self._waker.wake()

    def _waker_up(self) -> None:
        self._waker.wake()

    def sleep(self, until: float) -> None:
        """Do the maintenance's work until an instant or an alarm.

        Raises:
            Stopped: The client is closing.
        """
        while True:
            owing = self.transport.tend()
            initialize_at = float("inf")
            if self._begun:
                self._registry.initialize(self.transport.send)
                initialize_at = self._registry.initialize_at
            self._doing.what = CALLING
            self._registry.tell_changes()
            self._doing.what = BUSY
            self._connect_missing()
            if self._stopping or self._abandoned:
                raise Stopped
            now = self._clock()
            if self._alarmed or now >= until:
                self._alarmed = False
                return
            tick = self._node_timeout / 2 if owing else TICK
            soon = min(until, self._next_try(), initialize_at, self.transport.retry_at)
            self._poller.poll(min(max(soon - now, 0.001), tick))
            self._waker.drain()

    def _initialize_first(self) -> None:
        """Initialize new nodes in the thread that makes the client; its first claims wait briefly for that."""
        transport, registry = self.transport, self._registry
        end = self._clock() + FIRST_USE + self._node_timeout
        while self._clock() < end:
            request = registry.initialize(transport.send)
            if request is not None:
                transport.wait(request, self._clock() + self._node_timeout)
                if not request.done:
                    transport.end_round(request, "no answer in time")
            elif registry.initialize_at < end:
                time.sleep(max(registry.initialize_at - self._clock(), 0.0))
            else:
                break
        self._begun = True

    # Nodes.

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        return [
            status._replace(pending=self.transport.pending(i)) for i, status in enumerate(self._registry.statuses())
        ]

    def _on_broken(self, node: Node, reason: str) -> None:
        """Record that the transport lost its link to a node; called in the thread that noticed."""
        self._registry.note_broken(node, reason)
        self._waker.wake()

    def _on_moved(self, node: Node) -> None:
        """Follow a node to another server; called in the thread that learned of the move."""
        self._registry.move(node, self.transport.part)
        self._waker.wake()

    # Connecting.

    def _next_try(self) -> float:
        with self._settled:
            return self._registry.next_try(self._connecting)

    def _connect_missing(self) -> None:
        with self._settled:
            if self._stopping:
                return
            self._note_overdue()
            for node in self._registry.due(self._connecting):
                thread = threading.Thread(
                    target=self._connect, args=(node,), name=f"redsync-connect-{node.address}", daemon=True
                )
                self._connecting[node.index] = thread
                self._overdue_at[node.index] = self._clock() + TIMEOUTS * self._connect_timeout
                try:
                    thread.start()
                except RuntimeError as error:  # There are no more threads, or the interpreter is shutting down.
                    if is_interruption(error):
                        raise
                    del self._connecting[node.index]
                    self._registry.note_tried(node, describe_error(error))

    def _note_overdue(self) -> None:
        """Count a connect as tried if its thread has waited beyond all timeouts.

        Each byte of a TLS handshake restarts these timeouts, and they do not bound the resolver.
        """
        now = self._clock()
        for index in self._connecting:
            if self._overdue_at[index] <= now:
                self._overdue_at[index] = math.inf
                self._registry.note_overdue(self._nodes[index], "neither connected nor refused in time")

    def _connect(self, node: Node) -> None:
        """Connect a node; runs in a thread for this node."""
        self._doing.what = BUSY
        error: str | None = None
        try:
            self._connect_link(node)
        except BaseException as problem:
            # Any server may answer at that address, and a handshake with nonsense fails in many ways. This also catches
            # a `sys.exit()` by the application's credential provider; otherwise the node would never be tried again.
            error = describe_error(problem)
            if isinstance(problem, ConfigurationError):
                self._registry.note_conflict(str(problem))
        with self._settled:
            # A closing client ends the try, which says nothing about the node.
            if not self._stopping:
                self._registry.note_tried(node, error)
            del self._connecting[node.index]
            self._settled.notify_all()
        self._waker.wake()

    def _connect_link(self, node: Node) -> None:
        self._watches.locate(node)
        # redis-py may ask the application for a password.
        self._doing.what = CALLING
        try:
            channel = node.open(self._connect_timeout)
        finally:
            self._doing.what = BUSY
        try:
            info = channel.talk(greet(node, self._node_timeout, raw=channel.raw))
            self._registry.meet(node, info)
            channel.talk(load_scripts())
            tag = channel.talk(end_former(node))
            channel.talk(subscribe(node.dialect, wake_channel(self._client_id), raw=channel.raw))
            if self._stopping:
                raise ConnectionError("connected after the client was closed")
        except BaseException:
            channel.close()
            raise
        link = make_link(node, channel)
        link.tag = tag
        if node.is_lent:
            speak(link)
        if node.needed:
            hold_back(link, node.needed, self._node_timeout)
        self.transport.install(link)
