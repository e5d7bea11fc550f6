"""The maintenance: one thread per client that does what nobody waits for.

It runs the watchdog protocol, and while that sleeps: connects nodes again with growing pauses, reads the stragglers'
replies when no caller does, notices connections that were closed while idle, and tells of nodes whose state changed.

A connect may block for as long as its timeout, and renewals must not wait for it: each is made by a thread of its own
that lives for just that long, one at a time per node, for all lanes.

State here is written by the maintenance thread, except where a comment names the lock.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from redsync._core.effects import Command, Tell
from redsync._core.events import Event, NodeChanged
from redsync._core.keys import wake_channel
from redsync._core.memory import BIRTH_KEY, NEWBORN, Birth, christening
from redsync._core.ownership import LANES
from redsync._core.scripts import Script
from redsync._core.timing import retry_delay
from redsync._drivers.lanes import Lane
from redsync._drivers.links import make_link
from redsync._drivers.nodes import Node, NodeInfo, NodeStatus, describe_error, pack
from redsync._drivers.parcels import Parcel
from redsync._drivers.pollers import READ, make_poller
from redsync._drivers.wakers import Waker
from redsync.exceptions import ConfigurationError

__all__ = ["Maintenance", "Stopped"]

log = logging.getLogger("redsync.node")
watchdog_log = logging.getLogger("redsync.watchdog")

_CHRISTEN = Script.load("node_christen")

_TICK = 1.0
"""Seconds between two looks at idle connections, where the system does not report their end by itself."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to connect a node: it counts again at most this long after it is back."""

_PAUSE_AFTER_FAILURE = 0.1

_SETTLED = 1.0
"""Seconds that a connection must have lasted for its end to be followed by a new one without a pause."""

_STRAGGLERS = 0.05
"""Seconds that a new client waits for further nodes once a quorum is connected."""


class Stopped(BaseException):
    """Thrown into the watchdog when the client is closed."""


class Maintenance:
    """The lanes of one client and the thread that keeps them alive.

    Attributes:
        lanes: The client's lanes, by index.
        on_abandoned: What the thread does when nobody can use the client any more.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[Node],
        client_id: str,
        clock: Callable[[], float],
        node_timeout: float,
        restart_guard: float,
        tell: Callable[[Event], None],
    ) -> None:
        self._nodes: Final = nodes
        self._client_id: Final = client_id
        self._clock: Final = clock
        self._node_timeout: Final = node_timeout
        self._connect_timeout: Final = max(4 * node_timeout, 1.0)
        self._restart_guard: Final = restart_guard
        self._tell: Final = tell
        self.lanes: Final = [Lane(nodes, clock, node_timeout, self._on_broken, self._waker_up) for _ in range(LANES)]
        self._waker: Final = Waker()
        self._poller: Final = make_poller()
        self._poller.register(self._waker.fileno, READ)
        self._thread: threading.Thread | None = None
        self._stopping = self._disposing = False
        self._abandoned = False
        self._alarmed = False
        self.on_abandoned: Callable[[], None] = self.stop
        # Guards the four below, which connecting threads write and a new client waits for.
        self._settled: Final = threading.Condition()
        self._connecting: Final[dict[int, threading.Thread]] = {}
        self._reported: Final[set[int]] = set()
        self._failures: Final = [0] * len(nodes)
        self._retry_at: Final = [0.0] * len(nodes)
        self._conflict: str | None = None
        # Whether nodes are known to have had birth records: then none of them is new, whatever it forgets.
        self._seasoned = False

    # Life.

    def start(self, watch: Callable[[], object]) -> None:
        """Start the thread, and wait a moment for the first connections.

        Raises:
            ConfigurationError: Two nodes are the same server.
        """
        self._thread = threading.Thread(target=self._main, args=(watch,), name="redsync-maintenance", daemon=True)
        self._connect_missing()
        self._thread.start()
        self._await_first_connections()
        self._christen()
        if self._conflict is not None:
            raise ConfigurationError(self._conflict)

    def _await_first_connections(self) -> None:
        quorum, everybody = len(self._nodes) // 2 + 1, len(self._nodes)
        deadline = self._clock() + self._connect_timeout
        with self._settled:
            self._settled.wait_for(
                lambda: len(self._reported) == everybody or sum(node.connected for node in self._nodes) >= quorum,
                self._connect_timeout,
            )
            left = deadline - self._clock()
            if all(node.birth is not None for node in self._nodes if node.info is not None) or not self._restart_guard:
                # Else it may be the first use, and nothing is granted before everybody has been heard.
                left = min(left, _STRAGGLERS)
            self._settled.wait_for(lambda: len(self._reported) == everybody, max(left, 0.0))

    def _main(self, watch: Callable[[], object]) -> None:
        while True:
            try:
                watch()
            except Stopped:
                if self._abandoned and not self._stopping:
                    self.on_abandoned()
                return
            except Exception:
                # A hold must not be lost because something else went wrong: say so, and go on with a new watchdog.
                watchdog_log.exception("the watchdog failed and starts again; please report this")
                time.sleep(_PAUSE_AFTER_FAILURE)

    def stop(self) -> None:
        """End the thread and all connections; may be interrupted, and is then done again."""
        self._stopping = True
        self._waker.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._settled:
            connecting = list(self._connecting.values())
        for thread in connecting:
            thread.join(2 * self._connect_timeout)
        # Undo commands may be on their way; a socket closed over unread replies would reset, and take them with it.
        deadline = self._clock() + self._node_timeout
        while not self._disposing and sum(lane.tend() for lane in self.lanes) and self._clock() < deadline:
            time.sleep(0.0005)
        self._disposing = True
        for lane in self.lanes:
            lane.dispose()
        self._poller.close()
        self._waker.close()

    def await_connections(self, nodes: Sequence[Node], timeout: float) -> None:
        """Wait until these nodes are connected, for that many seconds at most."""
        with self._settled:
            self._settled.wait_for(lambda: all(node.connected for node in nodes), timeout)

    def join(self, timeout: float) -> None:
        """Wait until the thread has ended, for that many seconds at most; unless it is the one that waits."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def abandon(self) -> None:
        """Let the thread call `on_abandoned` and end; never blocks."""
        self._abandoned = True
        self._waker.wake()

    def release_waiters(self) -> None:
        """Let nobody sleep in a lane any longer."""
        for lane in self.lanes:
            lane.close()

    def forget(self) -> None:
        """In the child of a fork: give up the copies of the parent's descriptors."""
        for lane in self.lanes:
            lane.forget()
        self._poller.close()
        self._waker.close()

    def alarm(self) -> None:
        """Let the watchdog look at once; callable from any thread, never blocks."""
        self._alarmed = True
        self._waker.wake()

    def _waker_up(self) -> None:
        self._waker.wake()

    def sleep(self, until: float) -> None:
        """Keep house until that instant or an alarm.

        Raises:
            Stopped: The client is being closed.
        """
        while True:
            owing = [lane.tend() for lane in self.lanes]
            self._christen()
            self._tell_changes()
            self._connect_missing()
            if self._stopping or self._abandoned:
                raise Stopped
            now = self._clock()
            if self._alarmed or now >= until:
                self._alarmed = False
                return
            tick = self._node_timeout / 2 if any(owing) else _TICK
            self._poller.poll(min(max(min(until, self._next_try()) - now, 0.001), tick))
            self._waker.drain()

    # Nodes.

    def statuses(self) -> list[NodeStatus]:
        """Return the state of every node."""
        now = self._clock()
        return [node.status(now, self._is_suspect(node), self._restart_guard) for node in self._nodes]

    def _is_suspect(self, node: Node) -> bool:
        links = [lane.links[node.index] for lane in self.lanes]
        return any(link is not None and link.suspect for link in links)

    def _tell_changes(self) -> None:
        now = self._clock()
        for node in self._nodes:
            change = node.change(now, self._is_suspect(node), self._restart_guard)
            if change is not None:
                _log_change(change)
                self._tell(change)

    def _on_broken(self, node: Node, reason: str) -> None:
        """A lane lost its link to a node; called from whatever thread noticed."""
        with self._settled:
            node.last_error = node.excuse = reason
            if node.connected:  # The first lane to notice speaks for all.
                node.connected = False
                if self._clock() - node.connected_at >= _SETTLED:
                    self._failures[node.index] = 0
                else:
                    self._put_off(node)
        self._waker.wake()

    def _put_off(self, node: Node) -> None:
        """Let some time pass before the next connect, more with each failure; with `_settled` held."""
        failures = self._failures[node.index] = self._failures[node.index] + 1
        pause = retry_delay(failures, random.random(), shortest=_SHORTEST_PAUSE, longest=_LONGEST_PAUSE)
        self._retry_at[node.index] = self._clock() + pause

    # Connecting.

    def _next_try(self) -> float:
        with self._settled:
            due = [self._retry_at[i] for i in self._missing() if i not in self._connecting]
        return min(due, default=float("inf"))

    def _missing(self) -> list[int]:
        return [node.index for node in self._nodes if any(lane.links[node.index] is None for lane in self.lanes)]

    def _connect_missing(self) -> None:
        now = self._clock()
        with self._settled:
            for index in self._missing():
                if index in self._connecting or self._retry_at[index] > now or self._stopping:
                    continue
                node = self._nodes[index]
                thread = threading.Thread(
                    target=self._connect, args=(node,), name=f"redsync-connect-{node.address}", daemon=True
                )
                self._connecting[index] = thread
                try:
                    thread.start()
                except RuntimeError as error:  # No more threads to be had, or the interpreter is shutting down.
                    del self._connecting[index]
                    node.last_error = node.excuse = describe_error(error)
                    self._put_off(node)

    def _connect(self, node: Node) -> None:
        """Connect a node on every lane that lacks it; the body of a thread of its own."""
        error: str | None = None
        try:
            self._connect_lanes(node)
        except Exception as problem:
            # Whatever listens there may answer anything, and a handshake with nonsense fails in many ways.
            error = describe_error(problem)
        with self._settled:
            if error is not None:
                node.last_error = node.excuse = error
                self._put_off(node)
            node.connected = not any(lane.links[node.index] is None for lane in self.lanes)
            node.tried = True
            self._reported.add(node.index)
            del self._connecting[node.index]
            self._settled.notify_all()
        self._waker.wake()

    def _connect_lanes(self, node: Node) -> None:
        greeted = False
        for number, lane in enumerate(self.lanes):
            if lane.links[node.index] is not None:
                continue
            channel = node.open(self._connect_timeout)
            try:
                if not greeted:
                    self._meet(node, channel.greet(self._restart_guard > 0))
                    channel.ask(*(pack("SCRIPT", "LOAD", script.source) for script in Script.shipped()))
                    greeted = True
                channel.subscribe(wake_channel(self._client_id, number))
            except BaseException:
                channel.close()
                raise
            lane.install(make_link(node, channel))

    def _meet(self, node: Node, info: NodeInfo) -> None:
        """Take note of who a node says it is, and whether it may have lost its memory."""
        with self._settled:
            for other in self._nodes:
                same = other is not node and other.info is not None and other.info.run_id == info.run_id
                if same and info.run_id is not None:
                    self._conflict = (
                        f"{other.address} and {node.address} are the same server: list each node once, or one failure "
                        f"would count as several"
                    )
                    raise ConfigurationError(self._conflict)
            node.meet(info, self._clock())

    def _christen(self) -> None:
        """Give nodes without a birth record one, when all that can be asked have been asked; see `memory`."""
        if not self._restart_guard:
            return
        with self._settled:
            asked = [node for node in self._nodes if node.info is not None]
            if not asked or len(self._reported) < len(self._nodes):
                return
            certain = len(asked) == len(self._nodes) and not self._seasoned
            record = christening([node.birth for node in asked], certain=certain)
            self._seasoned = True
            for node in asked:
                if node.birth is None and record is not None:
                    node.remember(Birth(record == NEWBORN, 0.0), self._clock())
        if record is not None:
            # On its way before any claim that counts on it: one lane keeps the order.
            self.lanes[0].send(Parcel(Tell(Command(_CHRISTEN, (BIRTH_KEY,), (record,)), 0, None), None))
            for lane in self.lanes:
                lane.reconsider()


def _log_change(change: NodeChanged) -> None:
    if change.state == "up":
        log.info("node %s is up", change.node)
    else:
        log.warning("node %s is %s: %s", change.node, change.state, change.reason)
