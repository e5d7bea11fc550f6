"""Serving: the leader (with asyncio the event loop) reads the ready sockets, and hands out what they say.

There are two ways, with the same result:

* `_serve` reads all ready links first, and then hands out their replies under one hold of the mutex: other threads,
  which have their own rounds, must not wait for system calls.
* `_serve_alone` takes each link in one step, with the mutex held all the time. It is for a leader without followers:
  usually no other thread wants the mutex. A vote that says the same as one before is just counted, also one that comes
  after its round. With asyncio, it is for a round that is alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from redsync._core.interruptions import is_interruption
from redsync._core.quorum import NO_REPLY
from redsync._core.replies import LINES
from redsync._drivers.dispatcher import MOST_MESSAGES, Dispatcher
from redsync._drivers.interruptions import HALF_READ, HALF_SENT
from redsync._drivers.links import Link
from redsync._drivers.nodes import describe_error
from redsync._drivers.pollers import BOTH, READ, WRITE
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.wakers import Waker

__all__ = ["Serving"]


class Lead(Protocol):
    """The role of reading for all.

    Attributes:
        leading: True while there is a leader.
        followers: Tells by its truth whether others wait.
    """

    leading: bool

    @property
    def followers(self) -> object: ...


class Serving(Dispatcher):
    """A dispatcher whose leader polls the sockets."""

    _leadership: Lead
    _waker: Waker | None

    def _serve_alone(  # noqa: PLR0912, PLR0915  (each is a step of the hot path)
        self, ready: Sequence[tuple[int, int]], now: float, request: Request
    ) -> None:
        """Read ready links and hand out their replies, as `_serve`, for a leader without followers and its round."""
        find, noting, tally = self._table.by_fd.get, self.noting, request.tally
        assert tally is not None, "a round has one"
        cast, vote, votes = tally.cast, tally.vote, 0
        link, data, again = None, None, False
        left: Sequence[tuple[int, int]] = ()
        try:
            with self._mutex:
                # Unless `_serve` has read another grant since, or the first one. NO_REPLY equals nothing that a link
                # reads: neither the empty bytes at its end, nor the None of TLS.
                usual = request.usual if tally.same is request.said else NO_REPLY
                try:
                    for fd, events in ready:
                        link = find(fd)
                        if link is None or events != READ or link.broken is not None:
                            left, link = ready[ready.index((fd, events)) :], None
                            break
                        data, pending = link.glance() if link.at_rest else None, link.pending
                        if data == usual and pending[0] is request and cast[link.index] is None:
                            if noting:
                                noting[link.index](now - tally.sent_at)
                            cast[link.index] = vote
                            votes += 1
                            pending.popleft()
                            link.since = now
                        elif data and pending and (late := pending[0]).done and data == late.usual:
                            former = late.tally
                            if former is not None and late.said is former.further:
                                former.confirmed |= link.node.bit
                            elif former is not None and former.late:
                                former.record(link.index, late.said)
                            pending.popleft()
                            link.since = now
                        elif data and (replies := LINES[data]) is not None:
                            tally.granted, votes = tally.granted + votes, 0
                            if tally.granted >= tally.quorum and tally.conclude():
                                request.done = True
                            self._settle(((link, replies),), now)
                            usual = request.usual if tally.same is request.said else NO_REPLY
                            vote = tally.vote
                        else:
                            left = ready[ready.index((fd, events)) + 1 :]
                            break
                    else:
                        link = None
                finally:
                    tally.granted += votes
                    if tally.granted >= tally.quorum and tally.conclude():
                        request.done = True
                if not left and link is None and request.done and not self._leadership.followers:
                    request.leads = self._leadership.leading = False
            if link is not None:
                again = self._receive(link, now, data)
        except BaseException as error:
            # First, by plain assignments, as in `_receive`. Links that were not read stay ready.
            self._undecided, self._torn = request, True
            if link is None:
                raise
            before, link.broken = link.broken, link.broken or HALF_READ
            if not self._blame(link, error, before):
                self._outbox.on_left()
                raise
        if left:
            self._serve(left, now, request)
        if again:
            self._outbox.flush()

    def _serve(  # noqa: PLR0912  (each is a step of the hot path)
        self, ready: Sequence[tuple[int, int]], now: float, leader: Sleeper
    ) -> None:
        """Read ready links, write their backlog, and hand out all replies; only the leader calls it.

        It takes the lead from a leader whose wait is over, unless there is a follower.
        """
        find, link = self._table.by_fd.get, None
        read: list[tuple[Link, tuple[int, ...]]] = []
        self._unsettled = iter(read)
        again = False
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
                elif data == (known := self.wakeups.known)[0] and data and link.messages < MOST_MESSAGES:
                    link.messages += 1
                    self._rung.setdefault(data, (known[1], []))[1].append(link.node)
                else:
                    again |= self._receive(link, now, data)
            link = None
            if self._rung:
                self._deliver_rung()
            if read:
                with self._mutex:
                    self._settle(self._unsettled, now)
                    if leader.done and not self._leadership.followers:
                        leader.leads = self._leadership.leading = False
        except BaseException as error:
            # As in `_receive`. Replies that were read before are in no socket any more: the next leader hands them out
            # before it polls. Links that were not read stay ready.
            if leader.leads:
                self._torn = True
            link, self._doubtful = link or self._doubtful, None
            if link is None:
                self._outbox.on_left()
                raise
            before, link.broken = link.broken, link.broken or HALF_READ
            if not self._blame(link, error, before):
                self._outbox.on_left()
                raise
            self._settle_read(now)
        if again:
            # Not before: an error of this call concerns other links.
            self._outbox.flush()

    def _settle_read(self, now: float) -> None:
        """Hand out what an error left in `_rung`, and `_unsettled`; decide the round that is `_undecided`."""
        self._deliver_rung()
        while True:
            try:
                with self._mutex:
                    self._decide()
                    self._settle(self._unsettled, now)
                    self._torn = False
                return
            except BaseException as error:
                # As in `_receive`.
                link, self._doubtful = self._doubtful, None
                if link is None:
                    raise
                before, link.broken = link.broken, link.broken or HALF_READ
                if not self._blame(link, error, before):
                    raise

    def _decide(self) -> None:
        request = self._undecided
        if request is not None and request.tally is not None:
            request.tally.conclude()
            # Even if that was called before: an error may have come right after it.
            if not request.tally.open:
                request.done = True
                request.wake()
        self._undecided = None

    def _deliver_rung(self) -> None:
        """Put known wake-ups into their mailboxes, those of one mailbox at once; after an interruption, again."""
        with self._mutex:
            for message, nodes in self._rung.values():
                self.wakeups.deliver(message, nodes)
            # Not before: a wake-up that comes twice counts once.
            self._rung.clear()

    def _serve_apart(self, fd: int, link: Link | None, events: int, now: float) -> bool:
        if link is None:
            if self._waker is not None and fd == self._waker.fileno:
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
