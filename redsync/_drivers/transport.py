"""The transport of a client for threads: one connection per node, for all its owners.

The rules for any number of threads:

* **Sending**: one thread at a time sends for all, see `outboxes`.
* **Reading**: one thread at a time polls the sockets and hands out replies and wake-ups, see `leadership`. While no
  thread waits, none reads: late replies, after an early verdict, stay in the sockets until the next leader or the
  maintenance reads them.
* `_mutex` guards the state that `dispatcher` lists, and the lead. It is held for arithmetic only, never over a system
  call.

An interruption of the reading thread may shift the pairing of commands and replies. So that thread first breaks the
link, by a plain assignment. If another interruption stops it there, the next thread that sees the link discards it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from redsync._core.interruptions import is_interruption
from redsync._core.quorum import Tally
from redsync._core.replies import LINES
from redsync._drivers.dispatcher import Dispatcher
from redsync._drivers.interruptions import HALF_READ, HALF_SENT
from redsync._drivers.leadership import Leadership
from redsync._drivers.links import Link
from redsync._drivers.nodes import Node, describe_error
from redsync._drivers.pollers import BOTH, READ, WRITE, make_poller
from redsync._drivers.reentry import BUSY, Doing
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.wakers import Waker
from redsync._drivers.wakeups import Waits
from redsync.exceptions import ClientClosedError

__all__ = ["Transport"]

_LONGEST_POLL = 1.0
"""Seconds after which a polling thread checks whether it still leads: another thread may drain its wake-up."""


class Transport(Dispatcher):
    """One connection per node.

    Attributes:
        make_lock: Returns a new lock. Interleaving tests replace this attribute and the next two.
        make_poller: Returns a new poller.
        make_waker: Returns a new waker.
        send: Sends a request to all nodes, in the order of the calls; never blocks.
    """

    make_lock = staticmethod(threading.Lock)
    make_poller = staticmethod(make_poller)
    make_waker = Waker

    def __init__(  # noqa: PLR0917  (the client's parts)
        self,
        nodes: Sequence[Node],
        clock: Callable[[], float],
        node_timeout: float,
        on_broken: Callable[[Node, str], None],
        on_change: Callable[[], None],
        doing: Doing,
    ) -> None:
        mutex, poller = self.make_lock(), self.make_poller()
        self._poller: Final = poller
        self._waker: Final = self.make_waker()
        self._poller.register(self._waker.fileno, READ)
        self._leadership: Final = Leadership(mutex, clock, self._waker, self._lead, doing, make_lock=self.make_lock)
        self._doing: Final = doing
        self._disposed = False
        super().__init__(
            nodes,
            clock,
            node_timeout,
            mutex=mutex,
            poller=poller,
            awaken=self._leadership.awaken,
            receive_at_once=self._receive_at_once,
            on_broken=on_broken,
            on_change=on_change,
        )
        self.send: Final[Callable[[Request], None]] = self._outbox.send

    # Waiting and reading.

    def carry(self, request: Request, deadline: float) -> None:
        """Send a request; return when it is done, or at the deadline.

        If no other thread sends or leads, one step takes both roles. Otherwise this is `send`, then `wait`.
        """
        outbox, leadership = self._outbox, self._leadership
        request.rest = leadership.rest
        mine = False
        try:
            try:
                outbox.items.append(request)
                with self._mutex:
                    if not (leadership.leading or outbox.flushing):
                        # One assignment: no interruption can split it.
                        leadership.leading = request.leads = outbox.flushing = mine = True
                if mine:
                    while outbox.items or outbox.batch:
                        outbox.dispatch()
                    outbox.flushing = mine = False
                if outbox.items or outbox.batch:
                    outbox.empty()
            except BaseException:
                # Inlined from `Outbox.flush`: an interruption at the start of that call would leave `flushing` set.
                if mine:
                    outbox.flushing = False
                try:
                    outbox.empty()
                finally:
                    outbox.on_left()
                raise
            if request.leads:
                self._lead(request, deadline)
            if not request.done:
                leadership.wait(request, deadline)
        finally:
            if request.leads:
                try:
                    leadership.leave(request)
                except BaseException:
                    leadership.leave(request)
                    raise

    def wait(self, sleeper: Sleeper, deadline: float) -> None:
        """Return when the sleeper is done, at the deadline, or when the transport closes; read for all if needed."""
        self._leadership.wait(sleeper, deadline)

    def linger(self, request: Request, tally: Tally, deadline: float) -> None:
        """Return when all nodes have voted in a won round, or at the deadline."""
        self._begin_lingering(request, tally)
        self.wait(request, deadline)
        self._end_lingering(request, tally)

    def wait_for_wakeup(self, waits: Waits) -> tuple[int, int]:
        """Sleep through the waits and return their result."""
        with closing(waits):
            while True:
                try:
                    sleeper, until = next(waits)
                except StopIteration as stop:
                    signals: tuple[int, int] = stop.value
                    return signals
                self._leadership.wait(sleeper, until)

    def _lead(self, sleeper: Sleeper, deadline: float) -> None:
        # The dictionary of this thread: an attribute of a `threading.local` is found more slowly.
        poll, clock, doing = self._poller.poll, self._clock, self._doing.__dict__
        while not sleeper.done and (sleeper.lasts or not self._leadership.closed):
            now = clock()
            left = deadline - now
            if left <= 0:
                return
            if self._torn:
                # Replies that a thread read before an error: no poll tells of them.
                self._settle_read(now)
                continue
            doing["what"] = sleeper
            try:
                ready = poll(left if left < _LONGEST_POLL else _LONGEST_POLL)  # noqa: FURB136  (`min` is a call)
            except (OSError, ValueError) as error:
                if self._disposed and not is_interruption(error):
                    # A signal handler closed the client during this poll.
                    raise ClientClosedError from None
                raise
            finally:
                doing["what"] = BUSY
            if not sleeper.leads:
                return
            self._serve(ready)
            if now >= self._look_at:
                self._look_for_suspects()

    def _serve(self, ready: Sequence[tuple[int, int]]) -> None:
        """Read ready links, write their backlog, and hand out all replies; only the leader calls it."""
        if self._torn:
            self._settle_read(self._clock())
        find, now, link = self._table.by_fd.get, self._clock(), None
        read: list[tuple[Link, tuple[int, ...]]] = []
        again = False
        self._unsettled = iter(read)
        try:
            for fd, events in ready:
                link = find(fd)
                if link is None or events != READ or not link.at_rest:
                    again |= self._serve_apart(fd, link, events, now)
                    continue
                try:
                    data = link.read()
                except OSError as error:
                    if is_interruption(error):
                        raise
                    if not isinstance(error, BlockingIOError):
                        self._table.discard(link, describe_error(error))
                    continue
                if data and (replies := LINES[data]) is not None:
                    read.append((link, replies))
                else:
                    again |= self._receive(link, now, data)
            link = None
            if read:
                self._settle_read(now)
        except BaseException:
            # As in `_receive`. Replies that were read before are in no socket any more: the next leader hands them out
            # before it polls. Links that were not read stay ready.
            self._torn = True
            if link is not None:
                link.broken = link.broken or HALF_READ
                self._table.discard(link, link.broken)
            self._outbox.on_left()
            raise
        if again:
            # Not before: an error of this call concerns other links.
            self._outbox.flush()

    def _serve_apart(self, fd: int, link: Link | None, events: int, now: float) -> bool:
        if link is None:
            if fd == self._waker.fileno:
                self._waker.drain()
            return False
        if events & WRITE:
            self._unclog(link)
        return events != WRITE and self._receive(link, now)

    def _unclog(self, link: Link) -> None:
        try:
            try:
                link.flush()
            except OSError as error:
                if is_interruption(error):
                    raise
                self._table.discard(link, describe_error(error))
                return
        except BaseException:
            link.broken = link.broken or HALF_SENT
            self._table.discard(link, link.broken)
            raise
        if not link.backlog:
            self._table.watch(link, READ)
            if link.backlog:
                # Another thread kept bytes after the flush, and its call of `watch` may have come before ours.
                self._table.watch(link, BOTH)

    def _receive_at_once(self, link: Link, now: float) -> None:
        """Read a link without a socket, which the leader can't poll."""
        self._receive(link, now)
        self._waker.wake()

    # Links.

    def install(self, link: Link) -> None:
        """Put a new link into use. Commands owed to its node go out before any new claim."""
        owed = self._table.install(link)
        if link.instant:
            if self._receive(link, self._clock()):
                self._outbox.flush()
        elif owed:
            self._unclog(link)

    def tend(self) -> bool:
        """Read and write without waiting, unless a leader does so; return True while nodes owe replies."""
        keeper = Sleeper()
        try:
            if self._leadership.try_lead(keeper):
                self._serve(self._poller.poll(0))
                self._look_for_suspects()
        finally:
            # Even after an error above: an interruption must not leave the lead with a thread that has left.
            if keeper.leads:
                try:
                    self._leadership.leave(keeper)
                except BaseException:
                    self._leadership.leave(keeper)
                    raise
        # The outbox holds only requests that an interrupted thread left there.
        self._send_due()
        return self._is_owed_replies()

    # The end.

    def end_round(self, request: Request, reason: str) -> None:
        """Count missing votes as failed, which decides the request's tally."""
        # After the process was suspended, the deadline has passed, but unread answers may be waiting.
        self.tend()
        if not request.done:
            self._table.close(request, reason)

    def close(self) -> None:
        """End all sleeps, except those of sleepers that `lasts`."""
        self._leadership.close()

    def dispose(self) -> None:
        """End all connections; only after all callers have left."""
        self._disposed = True
        self._table.end()
        self._poller.close()
        self._waker.close()

    def forget(self) -> None:
        """Close a forked child's copies of the parent's sockets."""
        for link in self.links:
            if link is not None:
                link.forget()
        self._poller.close()
        self._waker.close()
