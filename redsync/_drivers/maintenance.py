"""The maintenance of a client for threads: one thread that does the work that no caller waits for.

`any_maintenance` has what both flavours do. This thread also runs the watchdog protocol; reads wake-ups for sleeping
threads; ends sets that were thrown away; reads late replies in idle sets; and carries releases for which no set was
free. It never runs the application's code: `notifier` has a thread for that.

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
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from redsync._core.interruptions import expected
from redsync._core.memory import FIRST_USE
from redsync._drivers.any_maintenance import PAUSE_AFTER_FAILURE, AnyMaintenance, Stopped, Work
from redsync._drivers.channels import Channel, pack
from redsync._drivers.greetings import join
from redsync._drivers.link_sets import LinkSet, Shared
from redsync._drivers.links import AnyLink, Link
from redsync._drivers.nodes import INTERRUPTED, TIMEOUTS, Node, describe_error, reason_of
from redsync._drivers.notifier import quietly
from redsync._drivers.pool import Pool
from redsync._drivers.requests import NOTHING_TOLD, Request
from redsync._drivers.watches import Watches

__all__ = ["Kill", "Maintenance"]

log = logging.getLogger("redsync.watchdog")

_SWEEP_EVERY: Final = 1.0
"""Seconds between two looks at idle sets that owe nothing."""

_LAST_CONNECTIONS = 2.0
"""The most seconds that a closing client waits for pending connects."""


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


class Maintenance(AnyMaintenance[LinkSet]):
    """The thread that keeps one client alive; only the thread may use its set.

    Attributes:
        on_abandoned: Called by the thread when the client was abandoned.
        is_dropped: Tells whether the application has dropped the client, and so abandoned it.
        begun: Set once the first connections are made, or enough time has passed.
    """

    def __init__(self, *, shared: Shared, **settings: Any) -> None:
        """Make a maintenance that has not started; settings as for `AnyMaintenance`."""
        super().__init__(_OwnSet(shared, self._on_broken), shared=shared, **settings)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self.own.watch(self._woken.fileno())
        self.pool: Pool
        self._watches: Final = Watches(self._nodes, self.connect_timeout, self._clock, self._on_moved)
        self._thread: threading.Thread | None = None
        self.begun: Final = threading.Event()
        self._abandoned = self._finished = False
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
        # For each node that is being connected, the instant from which the try is overdue.
        self._connecting: dict[int, float]
        self._connectors: Final[set[threading.Thread]] = set()

    # Called by other threads; none of these blocks.

    def wake(self) -> None:
        """Make the thread look at once."""
        with expected(OSError):  # It is readable already, or the client was closed.
            self._waker.send(b"\0")

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
        self._do(self.beginning())
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
        self._do(self.until(until))

    def carry(self, request: Request, deadline: float, reason: str) -> None:
        """Do the maintenance's work until a request is done that was sent over the own set, or to the deadline."""
        self._do(self.until_done(request, deadline, reason))

    def serve(self, until: float) -> None:
        """Do what there is to do now, and read what comes, until that instant at most."""
        self._do(self.turn(until))

    def _do(self, work: Work) -> None:
        asked_at, begun = 0.0, False
        while True:
            try:
                until = work.send(asked_at) if begun else next(work)
            except StopIteration:
                return
            asked_at, begun = self._clock(), True
            if self.own.read(max(until - asked_at, 0.0)):
                with expected(BlockingIOError):
                    while self._woken.recv(4096):
                        pass

    def _prepare(self, now: float) -> None:
        self._end_torn(now)

    def _help_others(self, now: float) -> None:
        self.own.follow(now)
        self._send_posted()
        if now - self._swept_at >= (self._node_timeout / 2 if self._owes() else _SWEEP_EVERY):
            self._sweep(now)
        for index, overdue_at in self._connecting.items():
            if overdue_at <= now:
                # Each byte of a TLS handshake restarts the timeouts, and they do not bound the resolver.
                self._connecting[index] = math.inf
                self._registry.note_overdue(self._nodes[index], "neither connected nor refused in time")

    def _instants(self) -> Iterable[float]:
        if self._posted or self.pool.torn:
            yield -math.inf
        yield from self._connecting.values()
        for _, deadline in self._carried:
            yield deadline

    def _owes(self) -> bool:
        return self.own.owes or any(link_set.owes for link_set in self.pool.idle())

    def _take_in(self, read_by: float) -> None:
        self._end_carried(read_by)
        self._take_connected()

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
            self._take_connected()
            self._catch_up(now)
            own.follow(now)
            self._send_posted()
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
        self._take_connected()
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

    # Connecting.

    def _take_connected(self) -> None:
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

    def _start_connect(self, node: Node) -> None:
        self._connecting[node.index] = self._clock() + TIMEOUTS * self.connect_timeout
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
            if type(error) is not RuntimeError:
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
                link = self._link(node, channel, channel.talk(self._introduce(node, raw=channel.raw)))
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
            self._take_connected()  # The thread has ended; this ends the connection.

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
        self._fit_out(link)
        return link
