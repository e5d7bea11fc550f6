"""The maintenance: one thread per client that does the work that no caller waits for.

It has its own set of links. It runs the watchdog protocol; reads wake-ups for sleeping threads; reconnects nodes
with growing pauses; delivers pending releases; ends sets that were thrown away; reads late replies in idle sets; and
carries releases for which no set was free. It never runs the application's code: `notifier` has a thread for that.

A connect may block until its timeout, and renewals must not wait for it. So each connect has its own thread, which ends
with it.

Only the maintenance thread writes the state here, except where a comment says otherwise.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from redsync._core.events import Event
from redsync._core.interruptions import expected
from redsync._core.keys import wake_channel
from redsync._core.memory import FIRST_USE, Processes
from redsync._core.timing import Timing
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.channels import Channel, pack
from redsync._drivers.greetings import end_former, greet, join, load_scripts, subscribe
from redsync._drivers.link_sets import LinkSet, Shared
from redsync._drivers.links import AnyLink, Link, speak
from redsync._drivers.node_registry import NodeRegistry
from redsync._drivers.nodes import INTERRUPTED, TIMEOUTS, Node, NodeStatus, describe_error, reason_of
from redsync._drivers.notifier import quietly
from redsync._drivers.pool import Pool
from redsync._drivers.requests import NOTHING_TOLD, Request
from redsync._drivers.watches import Watches
from redsync.exceptions import RedsyncError

__all__ = ["PAUSE_AFTER_FAILURE", "STRAGGLERS", "TICK", "Kill", "Maintenance", "Stopped"]

log = logging.getLogger("redsync.watchdog")

TICK = 1.0
"""Seconds between two looks at idle sets."""

PAUSE_AFTER_FAILURE = 0.1

STRAGGLERS = 0.05
"""Seconds that a new client waits for more nodes once a quorum is connected."""

_LAST_CONNECTIONS = 2.0
"""The most seconds that a closing client waits for pending connects."""


class Stopped(BaseException):
    """Thrown into the watchdog when the client is closed."""


class _OwnSet(LinkSet):
    """The maintenance's set: a node is up while it has a link here."""

    def __init__(self, shared: Shared, on_broken: Callable[[Node, str], None]) -> None:
        super().__init__(shared)
        self._on_broken: Final = on_broken

    def on_discarded(self, link: AnyLink, reason: str) -> None:
        self._on_broken(link.node, reason)


class Kill(Request):
    """Ends a former connection of this client, which is remembered until the node has answered.

    Attributes:
        refused: True if the node is busy, and must be told again.
    """

    def __init__(self, node: Node, tag: tuple[str, int]) -> None:
        super().__init__(NOTHING_TOLD, None)
        self.command = None
        self.data = pack("CLIENT", "KILL", "ID", str(tag[1]))
        self.refused = False
        self._node, self._tag = node, tag

    def settle(self, reply: object) -> None:
        self.refused = isinstance(reply, str) and reply.startswith("BUSY")
        if not self.refused:
            self._node.former.discard(self._tag)


class Maintenance:
    """The thread that keeps one client alive.

    Attributes:
        own: Its set of links; only the thread may use it.
        on_abandoned: Called by the thread when the client was abandoned.
        is_dropped: Tells whether the application has dropped the client, and so abandoned it.
        begun: Set once the first connections are made, or enough time has passed.
    """

    def __init__(
        self,
        *,
        shared: Shared,
        client_id: str,
        random: Callable[[], float],
        timing: Timing,
        processes: Processes,
        tell: Callable[[Event], None],
    ) -> None:
        self._shared: Final = shared
        self._nodes: Final = shared.nodes
        self._clock: Final = shared.clock
        self._client_id: Final = client_id
        self._node_timeout: Final = timing.node_timeout
        self.connect_timeout: Final = max(4 * timing.node_timeout, 1.0)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self.own: Final = _OwnSet(shared, self._on_broken)
        self.own.watch(self._woken.fileno())
        self.pool: Pool
        self._watches: Final = Watches(self._nodes, self.connect_timeout, self._clock, self._on_moved)
        self._thread: threading.Thread | None = None
        self.begun: Final = threading.Event()
        self._begun = self._stopping = self._abandoned = self._alarmed = self._finished = False
        self._swept_at = 0.0
        self.on_abandoned: Callable[[], None] = self.stop
        self.is_dropped: Callable[[], bool] = lambda: False
        # Filled by other threads: connections made; requests to carry, each with its deadline; nodes that lag.
        self._connected: Final[SimpleQueue[tuple[Node, Link | None, str | None]]] = SimpleQueue()
        self._posted: Final[deque[tuple[Request, float]]] = deque()
        self._lagging: Final[deque[Node]] = deque()
        self._carried: list[tuple[Request, float]] = []
        # For each node, the commands under way that end former connections.
        self._kills: Final[list[dict[tuple[str, int], Kill]]] = [{} for _ in self._nodes]
        self._connecting: Final[dict[int, float]] = {}  # the instant from which the try is overdue
        self._connectors: Final[set[threading.Thread]] = set()
        self._registry: Final = NodeRegistry(
            self._nodes,
            self.own,
            self._clock,
            restart_guard=timing.restart_guard,
            processes=processes,
            tell=tell,
            wake=self.wake,
            random=random,
        )

    # Called by other threads; none of these blocks.

    def wake(self) -> None:
        """Make the thread look at once."""
        with expected(OSError):  # It is readable already, or the client was closed.
            self._waker.send(b"\0")

    def alarm(self) -> None:
        """Make the watchdog look at once."""
        self._alarmed = True
        self.wake()

    def abandon(self) -> None:
        """Make the thread call `on_abandoned` and end."""
        self._abandoned = True
        self.wake()

    def post(self, request: Request, deadline: float = 0.0) -> None:
        """Let the thread send a request; it is done by the deadline at the latest, if it has a tally."""
        self._posted.append((request, deadline))
        self.wake()
        if self._finished:
            self._end_posted()

    def _end_posted(self) -> None:
        """End requests that came too late."""
        while self._posted:
            self.own.close_round(self._posted.popleft()[0], "the client was closed")

    def note_torn(self) -> None:
        """Let the thread end a set that was thrown away; once the thread has ended, the caller does."""
        self.wake()
        if self._finished:
            with expected(IndexError):
                while True:
                    self.pool.torn.popleft().end("the client was closed", orderly=False)

    def note_lag(self, node: Node) -> None:
        """Record that a node owes another set replies for too long: the thread asks it, too."""
        self._lagging.append(node)
        self.wake()

    def connect(self, link_set: LinkSet, nodes: Sequence[Node]) -> None:
        """Begin to connect a set to these nodes."""
        for node in nodes:
            self._start_connector(self._connect_for, link_set, node)

    def _on_broken(self, node: Node, reason: str) -> None:
        self._kills[node.index].clear()  # The next connection begins with them.
        self._registry.note_broken(node, reason)

    def _on_moved(self, node: Node) -> None:
        self._registry.move(node)
        self.wake()

    # Life.

    def start(self, watch: Callable[[], object]) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._main, args=(watch,), name="redsync-maintenance", daemon=True)
        self._watches.start()
        self._thread.start()

    def await_begun(self, timeout: float) -> None:
        """Wait for the first connections.

        Raises:
            ConfigurationError: Two nodes are the same server.
            Exception: A programming error while connecting.
        """
        self.begun.wait(max(timeout, 0.0))
        self._registry.require_usable()

    @property
    def patience(self) -> float:
        """Seconds that the first connections take at most."""
        return TIMEOUTS * self.connect_timeout + FIRST_USE + self._node_timeout

    def is_current(self) -> bool:
        """Return True in the maintenance's own thread."""
        return self._thread is threading.current_thread()

    def _main(self, watch: Callable[[], object]) -> None:
        while True:
            try:
                if not self.begun.is_set():
                    self._begin()
                watch()
            except Stopped:
                try:
                    if self._abandoned and not self._stopping:
                        self.on_abandoned()
                finally:
                    self._finish()
                return
            except Exception:
                # An unrelated error must not cost a hold: log it, and continue with a new watchdog.
                quietly(log.exception, "the maintenance failed and starts again; please report this")
                for link in list(self.own.links):
                    if link is not None:
                        self.own.discard(link, "the maintenance failed")
                time.sleep(PAUSE_AFTER_FAILURE)

    def _begin(self) -> None:
        """Make the first connections, and learn what new nodes remember."""
        registry, own = self._registry, self.own
        deadline = self._clock() + TIMEOUTS * self.connect_timeout
        patient_until = deadline
        while not registry.is_heard() and (now := self._clock()) < patient_until:
            self.turn(patient_until)
            if registry.has_quorum() and patient_until == deadline and not registry.may_be_first_use():
                patient_until = min(now + STRAGGLERS, deadline)
            self._require_running()
        end = self._clock() + FIRST_USE + self._node_timeout
        while (now := self._clock()) < end:
            request = registry.initialize(own.send)
            if request is not None:
                self.carry(request, now + self._node_timeout, "no answer in time")
            elif registry.initialize_at < end:
                self.turn(registry.initialize_at)
            else:
                break
            self._require_running()
        self._begun = True
        self.begun.set()

    def _require_running(self) -> None:
        self._abandoned = self._abandoned or self.is_dropped()
        if self._stopping or self._abandoned:
            raise Stopped

    def sleep(self, until: float) -> None:
        """Do the maintenance's work until an instant or an alarm.

        Raises:
            Stopped: The client is closing.
        """
        while True:
            self._require_running()
            if self._alarmed or self._clock() >= until:
                self._alarmed = False
                return
            self.turn(until)

    def carry(self, request: Request, deadline: float, reason: str) -> None:
        """Do the maintenance's work until a request is done that was sent over the own set, or to the deadline."""
        while not request.done:
            overdue = self._clock() >= deadline
            self.turn(deadline)
            if overdue:
                break
        if not request.done:
            self.own.close_round(request, reason)

    def turn(self, until: float) -> None:
        """Do what there is to do; then read what comes, until that instant at most."""
        own, now = self.own, self._clock()
        self._end_torn(now)
        own.follow(now)
        self._send_posted()
        self._connect_missing(now)
        if self._begun:
            self._registry.initialize(own.send)
        self._registry.tell_changes()
        self._deliver(now)
        if now - self._swept_at >= (self._node_timeout / 2 if self._is_owed() else TICK):
            self._sweep(now)
        asked_at = self._clock()
        if own.read(max(min(self._next_at(until) - asked_at, TICK), 0.0)):
            with expected(BlockingIOError):
                while self._woken.recv(4096):
                    pass
        own.look(asked_at)
        self._end_carried(asked_at)
        self._take_in()

    def _next_at(self, until: float) -> float:
        """Return when there is something to do, without news."""
        if self._posted or self._alarmed or self.pool.torn:
            return -math.inf
        instants = [until, self._registry.next_try(self._connecting), *self._connecting.values()]
        if self._begun:
            instants.append(self._registry.initialize_at)
        if self._shared.releases.some:
            instants += [self._shared.releases.due_at(node.index) for node in self._nodes if node.connected]
        if self._is_owed():
            instants.append(self._swept_at + self._node_timeout / 2)
        instants += [deadline for _, deadline in self._carried]
        return min(instants)

    def _is_owed(self) -> bool:
        return self.own.owes or any(link_set.owes for link_set in self.pool.idle())

    # Requests of others.

    def _send_posted(self) -> None:
        while self._posted:
            request, deadline = self._posted.popleft()
            self.own.send(request)
            if request.tally is not None and not request.done:
                self._carried.append((request, deadline))

    def _end_carried(self, now: float) -> None:
        """End the rounds whose deadline had passed before the sockets were last read."""
        if not self._carried:
            return
        left = []
        for request, deadline in self._carried:
            if not request.done and deadline <= now:
                self.own.close_round(request, "no answer in time")
            if not request.done:
                left.append((request, deadline))
        self._carried = left

    # Sets of others.

    def _end_torn(self, now: float) -> None:
        """End sets that were thrown away; then end their connections on the nodes, before anything else goes there."""
        while self.pool.torn:
            link_set = self.pool.torn.popleft()
            link_set.end(INTERRUPTED, orderly=False)
            self.pool.note_ended(link_set)
        for node in self._nodes:
            link = self.own.links[node.index]
            if node.former and link is not None:
                process, kills = None if node.info is None else node.info.run_id, self._kills[node.index]
                for tag in list(node.former):
                    if tag[0] != process:
                        node.former.discard(tag)  # It has ended with its process.
                    elif tag not in kills:
                        kills[tag] = Kill(node, tag)
                        self.own.send_to(node.index, [kills[tag]], now)

    def _sweep(self, now: float) -> None:
        """Read late replies in idle sets, send what must follow them, and close sets that have rested for long."""
        self._swept_at = now
        for kills in self._kills:
            for tag in [tag for tag, kill in kills.items() if kill.refused]:
                del kills[tag]
        for link_set in self.pool.idle():
            if not self.pool.take_idle(link_set):
                continue
            link_set.take_arrivals()
            link_set.follow(now)
            link_set.read(0.0)
            link_set.look(now)
            if not self.pool.return_idle(link_set, now):
                link_set.end("it was idle", orderly=True)
                self.pool.note_ended(link_set)

    def _deliver(self, now: float) -> None:
        """Send pending releases to the nodes that can be reached."""
        releases = self._shared.releases
        if not releases.some:
            return
        for node in self._nodes:
            if self.own.links[node.index] is not None and (batch := releases.take(node.index, now)):
                for request in batch:
                    request.pending_release = True
                self.own.send_to(node.index, batch, now)

    # The end.

    def stop(self) -> None:
        """End the thread and all connections; after an interruption, call it again."""
        self._stopping = True
        self.wake()
        # A thread can't be joined if it did not start: there were no more threads, or an interruption came first.
        if self._thread is None or self._thread.ident is None:
            self._finish()
        else:
            self.join()

    def join(self, ended: threading.Event | None = None) -> None:
        """Wait for the thread's end, or for that event; but not without limit: a node may hang."""
        most = 2 * (self._node_timeout + _LAST_CONNECTIONS) + 3.0
        if ended is not None:
            ended.wait(most)
        elif self._thread is not None and not self.is_current() and self._thread.is_alive():
            self._thread.join(most)

    def _finish(self) -> None:
        """Send what is left, wait briefly for replies that nodes still owe, and end all connections."""
        self._stopping = True
        # Rollbacks may be in flight. Closing a socket with unread replies resets the connection and would lose them.
        own, releases, deadline = self.own, self._shared.releases, self._clock() + self._node_timeout
        free = self.pool.close()
        while True:
            now = self._clock()
            self._take_in()
            self._end_torn(now)
            own.follow(now)
            self._send_posted()
            self._deliver(now)
            for link_set in free:
                link_set.follow(now)
                link_set.read(0.0)
            owing = own.owes or any(link_set.owes for link_set in free)
            left = any(own.links[node.index] is not None and releases.count(node.index) for node in self._nodes)
            own.read(0.001 if owing or left else 0.0)
            if now >= deadline or not (owing or left or self._posted):
                break
        for request, _ in self._carried:
            own.close_round(request, "the client was closed")
        for link_set in (*free, own):
            link_set.end("the client was closed", orderly=True)
        self._watches.stop()
        connecting = self._clock() + _LAST_CONNECTIONS
        for thread in list(self._connectors):
            if thread.is_alive():  # A caller's interruption may have come before its start.
                thread.join(max(connecting - self._clock(), 0.0))
        self._finished = True
        self.note_torn()
        self._take_in()
        self._waker.close()
        self._woken.close()
        self._end_posted()
        self.begun.set()

    def forget(self, *, close: bool) -> None:
        """In the child of a fork: drop the copies of the parent's descriptors.

        `close` them right after the fork. Later they may be other files: a daemon closes all that it finds.
        """
        self.own.forget(close=close)
        self.pool.forget(close=close)
        for sock in (self._waker, self._woken):
            if close:
                sock.close()
            else:
                sock.detach()
        if close:
            self._watches.forget()

    # Nodes.

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        count = self._shared.releases.count
        return [status._replace(pending=count(i)) for i, status in enumerate(self._registry.statuses())]

    def _take_in(self) -> None:
        """Take in what other threads have found out: new connections, and nodes that lag."""
        while True:
            try:
                node, link, error = self._connected.get_nowait()
            except Empty:
                break
            self._connecting.pop(node.index, None)
            if link is not None and (self._stopping or self.own.links[node.index] is not None):
                link.shut()
                continue
            if link is not None:
                self.own.install(link)
                self._shared.releases.clear_pause(node.index)
            if not self._stopping:
                self._registry.note_tried(node, error)
        while self._lagging:
            node = self._lagging.popleft()
            lagging = self.own.links[node.index]
            if lagging is not None and not lagging.pending:
                ping = Request(NOTHING_TOLD, None)
                ping.command = None
                ping.data = pack("PING")
                self.own.send_to(node.index, [ping], self._clock())
        for node in self._nodes:
            link = self.own.links[node.index]
            if link is not None and link.generation != node.generation:
                self.own.discard(link, node.moved() or node.excuse)

    # Connecting.

    def _connect_missing(self, now: float) -> None:
        for index, overdue_at in self._connecting.items():
            if overdue_at <= now:
                # Each byte of a TLS handshake restarts the timeouts, and they do not bound the resolver.
                self._connecting[index] = math.inf
                self._registry.note_overdue(self._nodes[index], "neither connected nor refused in time")
        for node in self._registry.due(self._connecting):
            self._connecting[node.index] = now + TIMEOUTS * self.connect_timeout
            self._start_connector(self._connect_own, node)

    def _start_connector(self, target: Callable[..., None], *args: object) -> None:
        node = args[-1]
        assert isinstance(node, Node), "each connector has one"
        thread = threading.Thread(target=self._run_connector, args=(target, *args), daemon=True)
        thread.name = f"redsync-connect-{node.address}"
        self._connectors.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # There are no more threads, or the interpreter is shutting down.
            if isinstance(error, RedsyncError):
                raise  # a signal handler's
            self._connectors.discard(thread)
            if target == self._connect_own:
                self._connected.put((node, None, describe_error(error)))
            else:
                link_set = args[0]
                assert isinstance(link_set, LinkSet), "it is for one"
                link_set.arrive(node.index, describe_error(error))

    def _run_connector(self, target: Callable[..., None], *args: object) -> None:
        try:
            target(*args)
        finally:
            self._connectors.discard(threading.current_thread())

    def _connect_own(self, node: Node) -> None:
        """Connect a node for the maintenance; runs in a thread for this."""
        link, error = None, None
        try:
            self._watches.locate(node)
            channel = node.open(self.connect_timeout)
            try:
                self._registry.meet(node, channel.talk(greet(node, self._node_timeout, raw=channel.raw)))
                # Before anything else is sent: a late command of a former connection must not come behind it.
                tag = channel.talk(end_former(node))
                channel.talk(load_scripts())
                channel.talk(subscribe(node.dialect, wake_channel(self._client_id), raw=channel.raw))
                link = self._link(node, channel, tag)
            except BaseException:
                channel.close()
                raise
        except BaseException as problem:
            # This also catches a `sys.exit()` by the application's credential provider; otherwise the node would never
            # be tried again.
            error = self._registry.note_failure(node, problem)
        self._connected.put((node, link, error))
        self.wake()
        if self._finished:
            self._take_in()  # The thread has ended; this ends the connection.

    def _connect_for(self, link_set: LinkSet, node: Node) -> None:
        """Connect a node for a set of the pool; runs in a thread for this."""
        result: Link | str
        try:
            channel = node.open(self.connect_timeout)
            try:
                result = self._link(node, channel, channel.talk(join(node)))
            except BaseException:
                channel.close()
                raise
        except BaseException as problem:  # as above
            result = reason_of(problem, node.address, node.excuse)
        link_set.arrive(node.index, result)

    def _link(self, node: Node, channel: Channel, tag: tuple[str, int] | None) -> Link:
        link = Link(node, channel, tag)
        if node.is_lent:
            speak(link)
        if node.needed:
            hold_back(link, node.needed, self._node_timeout)
        return link
