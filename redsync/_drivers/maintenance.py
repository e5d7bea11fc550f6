"""The maintenance of a client for threads: one thread that does the work that no caller waits for.

`any_maintenance` has what both flavours do. This thread also runs the watchdog protocol; reads wake-ups for sleeping
threads; ends sets that were thrown away; reads late replies in idle sets; and sends rounds for which no set is
connected. It never runs the application's code: `notifier` has a thread for that.

Other threads reach it in one way: they `post` a function for it to call. Once it has ended, the poster calls that.

A connect may block until its timeout, and renewals must not wait for it. So each connect has its own thread, which ends
with it.

Only the maintenance thread writes the state here, except where a comment says otherwise.
"""

from __future__ import annotations

import _thread
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redsync._core.interruptions import expected
from redsync._core.memory import FIRST_USE
from redsync._drivers.any_maintenance import PAUSE_AFTER_FAILURE, AnyMaintenance, Stopped, WitnessPoll, Work
from redsync._drivers.handshake_connections import TIMEOUTS, HandshakeConnection, describe_error, open_blocking, pack
from redsync._drivers.handshakes import join
from redsync._drivers.link_sets import AnyLinkSet, LinkSet, Shared
from redsync._drivers.links import AnyLink, Link
from redsync._drivers.nodes import INTERRUPTED, ConnectionId, Node, NodeInfo
from redsync._drivers.notifier import quietly
from redsync._drivers.pool import Pool
from redsync._drivers.requests import NOTHING_TOLD, Request
from redsync._signal_safe import SafeEvent

if TYPE_CHECKING:
    from redsync._drivers.any_runner import AnyLife

__all__ = ["Maintenance"]

T = TypeVar("T")

log = logging.getLogger("redsync.watchdog")

_SWEEP_EVERY: Final = 1.0
"""Seconds between two looks at idle sets that owe nothing."""

_KEPT_IDLE: Final = 30.0
"""Seconds of rest after which a set is closed, unless it is the last one."""

_LONGEST_CLOSE: Final = 7.0
"""The most seconds that `join` waits, besides those for nodes."""


class _OwnSet(LinkSet):
    """The maintenance's set: a node is up while it has a link here. Waiting for a reply is working."""

    def __init__(self, maintenance: Maintenance, shared: Shared) -> None:
        super().__init__(shared)
        self._maintenance: Final = maintenance

    def wait(self, request: Request, deadline: float) -> bool:
        self._maintenance.work_for(request, deadline)
        return request.done

    def _owes_too_many(self, link: Any) -> bool:
        return AnyLinkSet._owes_too_many(self, link)  # It carries the commands of many.

    def arrive(self, index: int, link: Link | str) -> None:
        self._maintenance.post(partial(self._maintenance.take_connection, index, link))

    def on_discarded(self, link: AnyLink, reason: str) -> None:
        self._maintenance._on_broken(link.node, reason)


class Maintenance(AnyMaintenance[LinkSet]):
    """The thread that keeps one client alive; only the thread may use its set.

    Attributes:
        pool: The sets that callers borrow.
        begun: Set once the first connections are made, or enough time has passed.
    """

    def __init__(self, life: AnyLife) -> None:
        """Make a maintenance that has not started."""
        super().__init__(_OwnSet(self, life), life)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self.own.watch(self._woken.fileno())
        self.pool: Pool
        self._thread: threading.Thread | None = None
        self._ident = 0
        self.begun: Final = SafeEvent()
        self._ended: Final = SafeEvent()
        self._swept_at = 0.0
        self._inbox: Final[deque[Callable[[], object]]] = deque()  # Other threads append.

    # Called by other threads; none of these blocks.

    def wake(self) -> None:
        """Make the thread look at once."""
        if os.getpid() == self._life.process:  # The socket is the parent's, or its number another file by now.
            with expected(OSError):  # It is readable already, or the client was closed.
                self._waker.send(b"\0")

    def post(self, action: Callable[[], object]) -> None:
        """Let the thread call something soon; once it has ended, call that here."""
        self._inbox.append(action)
        self.wake()
        if self._ended.is_set():
            self._empty_inbox()

    def note_lag(self, node: Node) -> None:
        """Let the thread ask a node, too, that owes another set replies for too long."""
        self.post(partial(self._ping, node))

    def connect(self, link_set: LinkSet, nodes: Sequence[Node]) -> None:
        """Begin to connect a set to these nodes, each in a thread for this."""
        for node in nodes:
            try:
                # Not `Thread.start`: it waits for the thread, in which a finalizer may come first, and wait for us.
                _thread.start_new_thread(self._connect, (link_set, node))
            except RuntimeError as error:  # There are no more threads.
                if type(error) is not RuntimeError:
                    raise  # a signal handler's
                link_set.arrive(node.index, describe_error(error))

    def _connect(self, link_set: LinkSet, node: Node) -> None:
        try:
            generation = node.generation  # Before the connect: it may lead to a former server by the time it is made.
            connection = node.open(self.connect_timeout)
            try:
                if link_set is self.own:
                    self.post(partial(self._meet, node, connection, connection.run(self._introduce(node))))
                else:
                    link = self._make_link(node, connection, connection.run(join(node, generation)))
                    link.generation = generation
                    link_set.arrive(node.index, link)
            except BaseException:
                connection.close()
                raise
        except BaseException as problem:
            # This also catches a `sys.exit()` by the application's credential provider; otherwise the node would never
            # be tried again.
            link_set.arrive(node.index, self._registry.note_failure(node, problem))

    def _make_link(self, node: Node, connection: HandshakeConnection, connection_id: ConnectionId | None) -> Link:
        link = Link(node, connection, connection_id)
        self._prepare_link(link)
        return link

    # Witnesses, each asked by a thread.

    def _poll(self, poll: WitnessPoll) -> None:
        """Poll a witness until the end."""
        while not self._stopping:
            try:
                self._ask(poll)
            except BaseException as error:
                # The application's credential provider may exit, too.
                self.post(partial(self._note_answer, poll, self._reason_of(poll, error), self._clock()))
            self._ended.wait(self._ask_every)

    def _ask(self, poll: WitnessPoll) -> None:
        """Ask a witness over one connection, until either ends."""
        connection = open_blocking(self._connection_to(poll), self.connect_timeout)
        with closing(connection):
            while not self._stopping:
                asked_at = self._clock()
                connection.until = asked_at + self.connect_timeout
                self.post(partial(self._note_answer, poll, connection.run(poll.locator.ask()), asked_at))
                self._ended.wait(self._ask_every)

    # Life.

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._main, name="redsync-maintenance", daemon=True)
        for each in self._polls:
            threading.Thread(target=self._poll, args=(each,), name=each.name, daemon=True).start()
        self._thread.start()

    def await_begun(self, timeout: float | None) -> None:
        """Wait for the first connections; if `timeout` is None, for as long as they may take.

        Raises:
            ConfigurationError: Two nodes are the same server.
            Exception: A programming error while connecting.
        """
        longest = TIMEOUTS * self.connect_timeout + FIRST_USE + self._node_timeout
        self.begun.wait(longest if timeout is None else max(timeout, 0.0))
        self._registry.require_usable()

    def is_current(self) -> bool:
        """Return True in the maintenance's own thread."""
        return threading.get_ident() == self._ident

    def _main(self) -> None:
        self._ident, life = threading.get_ident(), self._life
        while True:
            try:
                if not self.begun.is_set():
                    self._do(self.beginning())
                    self.begun.set()
                life.runner.watch(life, self)
            except Stopped:
                try:
                    life.runner.leave(life, self)
                finally:
                    self._finish()
                return
            except BaseException:
                # An unrelated error must not cost a hold: log it, and continue with a new watchdog. Even a log handler
                # of the application that exits: it would end this thread alone, and renewals with it.
                with suppress(SystemExit):
                    quietly(log.exception, "the maintenance failed and starts again; please report this")
                for link in list(self.own.links):
                    if link is not None:
                        self.own.discard(link, "the maintenance failed")
                time.sleep(PAUSE_AFTER_FAILURE)

    def _require_running(self) -> None:
        if self._stopping or self._life.runner.client() is None:
            raise Stopped

    def sleep(self, until: float) -> None:
        """Do the maintenance's work until an instant or an alarm.

        Raises:
            Stopped: The client is closing.
        """
        self._do(self.until(until))

    def work_for(self, request: Request, deadline: float) -> None:
        """Do the maintenance's work until a request is done, or the deadline has passed and nothing is left to read."""
        while not request.done:
            overdue = self._clock() >= deadline
            self.serve(deadline)
            if overdue:
                break

    def serve(self, until: float) -> None:
        """Do what there is to do now, and read what comes, until that instant at most."""
        self._do(self.turn(until))

    def _do(self, work: Work) -> None:
        try:
            until = next(work)
            while True:
                asked_at = self._clock()
                if self.own.read(max(until - asked_at, 0.0)):
                    with expected(BlockingIOError):
                        while self._woken.recv(4096):
                            pass
                    self._empty_inbox()  # Now: the work may wait for just that.
                until = work.send(asked_at)
        except StopIteration:
            return

    def _owes(self) -> bool:
        return self.own.owes or any(link_set.owes for link_set in self.pool.idle())

    # The work for others.

    def _prepare(self) -> None:
        """End sets that were thrown away, before pending releases follow the ends of their connections."""
        for link_set in _taken(self.pool.invalidated):
            link_set.end(INTERRUPTED, orderly=False)
            self.pool.note_ended(link_set)

    def end_torn(self) -> None:
        """End sets that were thrown away, before what is posted later."""
        self._catch_up(self._clock())

    def _help_others(self, now: float) -> None:
        self._empty_inbox()
        if self._stopping or now - self._swept_at >= (self._node_timeout / 2 if self._owes() else _SWEEP_EVERY):
            self._sweep(now)

    def _empty_inbox(self) -> None:
        for action in _taken(self._inbox):
            action()

    def give_up(self, request: Request) -> None:
        """End a round that was posted, and whose time is over, unless its votes have come."""
        if not self._ended.is_set():
            self.own.read(0.0)
        self.own.close_round(request, "no answer in time")

    def _meet(
        self, node: Node, connection: HandshakeConnection, introduction: tuple[NodeInfo, ConnectionId | None]
    ) -> None:
        """Put a new connection into use, unless its server is another node, too."""
        try:
            info, connection_id = introduction
            self._registry.meet(node, info)
            made: Link | str = self._make_link(node, connection, connection_id)
        except Exception as problem:
            connection.close()
            made = self._registry.note_failure(node, problem)
        self.take_connection(node.index, made)

    def take_connection(self, index: int, link: Link | str) -> None:
        """Put a new connection into use; or record why there is none."""
        node, error = self._nodes[index], link if isinstance(link, str) else None
        self._connecting.pop(index, None)
        if isinstance(link, Link):
            if self._stopping or self.own.links[index] is not None:
                link.shut()
                return
            self.own.install(link)
            self._life.releases.clear_pause(index)
        if not self._stopping:
            self._registry.note_tried(node, error)
        # Before anything else is sent over it.
        self._catch_up(self._clock())

    def _ping(self, node: Node) -> None:
        link = self.own.links[node.index]
        if link is not None and not link.pending:
            ping = Request(NOTHING_TOLD, None)
            ping.command = None
            ping.data = pack("PING")
            self.own.send_to(node.index, [ping], self._clock())

    def _start_connect(self, node: Node) -> None:
        self.connect(self.own, [node])
        self._connecting[node.index] = None  # Last: what fails to begin has no end.

    def _sweep(self, now: float) -> None:
        """Read late replies in idle sets, and close sets that have rested for long."""
        self._swept_at = now
        for _ in self.pool.idle():
            sets: list[LinkSet] = []
            if not self.pool.borrow_rested(sets):
                break
            link_set = sets[0]
            try:
                link_set.take_arrivals()
                link_set.read(0.0)
                link_set.look(now)
            except BaseException:
                self.pool.throw_away(sets)
                raise
            if now - link_set.used_at > _KEPT_IDLE and len(self.pool) > 1:
                link_set.end("it was idle", orderly=True)
                self.pool.note_ended(link_set)
            else:
                self.pool.take_back(sets)

    # The end.

    def stop(self) -> None:
        """Let the thread close the client and end all connections; without a thread, end them here."""
        self._stopping = True
        self.wake()
        # A thread can't be joined if it did not start: there were no more threads, or an interruption came first.
        if self._thread is None or self._thread.ident is None:
            self._finish()

    def join(self, ended: SafeEvent | None = None) -> None:
        """Wait for the thread's end, or for that event; but not without limit: a node may hang."""
        most = 2 * self._node_timeout + _LONGEST_CLOSE
        if ended is not None:
            ended.wait(most)
        elif self._thread is not None and not self.is_current() and self._thread.is_alive():
            self._thread.join(most)

    def _finish(self) -> None:
        """Send what is left, wait briefly for replies that nodes still owe, and end all connections."""
        self._stopping = True
        self._do(self.finishing(self._clock() + self._node_timeout))
        for link_set in (*self.pool.close(), self.own):
            link_set.end("the client was closed", orderly=True)
        self._ended.set()
        self._empty_inbox()
        self._waker.close()
        self._woken.close()
        self.begun.set()


def _taken(queue: deque[T]) -> Iterator[T]:
    """Take the items of a queue, of which other threads may take some."""
    while queue:
        try:
            item = queue.popleft()
        except IndexError:
            return
        yield item
