"""The transport of a client for threads: one connection per node, for all its owners.

The rules for any number of threads:

* **Sending**: one thread at a time sends for all, see `outboxes`.
* **Reading**: one thread at a time polls the sockets and hands out replies and wake-ups, see `leadership`. While no
  thread waits, none reads: late replies, after an early verdict, stay in the sockets until the next leader or the
  maintenance reads them.
* `_mutex` guards the state that `dispatcher` lists, and the lead. It is held for arithmetic only; over system calls
  only by a leader without followers, see `serving`.

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
from redsync._drivers.leadership import Leadership
from redsync._drivers.links import Link
from redsync._drivers.nodes import Node
from redsync._drivers.pollers import READ, make_poller
from redsync._drivers.reentry import BUSY, Doing
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.serving import Serving
from redsync._drivers.wakers import Waker
from redsync._drivers.wakeups import Waits
from redsync.exceptions import ClientClosedError

__all__ = ["Transport"]

_LONGEST_POLL = 1.0
"""Seconds after which a polling thread checks whether it still leads: another thread may drain its wake-up."""


class Transport(Serving):
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
    _leadership: Leadership
    _waker: Waker

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
        self._waker = self.make_waker()
        self._poller.register(self._waker.fileno, READ)
        self._leadership = Leadership(mutex, clock, self._waker, self._lead, doing, make_lock=self.make_lock)
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

    def carry(self, request: Request, deadline: float) -> None:  # noqa: PLR0912  (each is a step of the hot path)
        """Send a request; return when it is done, or at the deadline.

        If no other thread sends or leads, one step takes both roles. Otherwise this is `send`, then `wait`.
        """
        outbox, leadership = self._outbox, self._leadership
        items = outbox.items
        request.rest = leadership.rest
        mine = False
        try:
            try:
                with self._mutex:
                    if not (leadership.leading or outbox.flushing):
                        # One assignment: no interruption can split it.
                        leadership.leading = request.leads = outbox.flushing = mine = True
                if not (mine and outbox.post(request)):
                    items.append(request)
                if mine:
                    while items or outbox.batch:
                        outbox.dispatch()
                    outbox.flushing = mine = False
                if items or outbox.batch:
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
                    # As in `Leadership.wait`.
                    try:
                        leadership.leave(request)
                    finally:
                        if request.leads:
                            request.leads = leadership.leading = False
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
        now = clock()
        while not sleeper.done and (sleeper.lasts or not self._leadership.closed):
            left = deadline - now
            if left <= 0:
                return
            if self._torn:
                # Messages and replies that a thread read before an error: no poll tells of them.
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
            now = clock()
            if sleeper.__class__ is Request and not self._leadership.followers:
                self._serve_alone(ready, now, sleeper)
            else:
                self._serve(ready, now, sleeper)
            if now >= self._look_at:
                self._look_for_suspects()

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
                ready, now = self._poller.poll(0), self._clock()
                if self._torn:
                    self._settle_read(now)
                self._serve(ready, now, keeper)
                self._look_for_suspects()
        finally:
            # Even after an error above: an interruption must not leave the lead with a thread that has left.
            if keeper.leads:
                try:
                    self._leadership.leave(keeper)
                except BaseException:
                    # As in `Leadership.wait`.
                    try:
                        self._leadership.leave(keeper)
                    finally:
                        if keeper.leads:
                            keeper.leads = self._leadership.leading = False
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
        if self._mutex.locked():
            self._mutex.release()  # perhaps held by a thread that this process does not have
