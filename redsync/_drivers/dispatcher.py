"""The dispatcher hands replies to the rounds that wait for them; the transports of both drivers share it.

`mutex` guards tallies, wake-ups, the flushing flag, owed requests, and the connection table. It is held for arithmetic
only; over system calls only by a thread that is alone, see `serving`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

import hiredis

from redsync._core.interruptions import is_interruption
from redsync._core.quorum import Tally
from redsync._core.replies import LINES, MOST_BYTES, NOTHING
from redsync._core.text import one_line, outline
from redsync._drivers.connection_table import ConnectionTable
from redsync._drivers.interruptions import HALF_READ
from redsync._drivers.links import GIVE_UP, Link
from redsync._drivers.nodes import Node, describe_error
from redsync._drivers.outboxes import Outbox
from redsync._drivers.pollers import Poller
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.retries import is_refused
from redsync._drivers.wakeups import Wakeups

__all__ = ["MOST_MESSAGES", "Dispatcher"]

MOST_MESSAGES = 20_000
"""The most wake-ups that a node may send in one second: two for each of ten thousand waiters."""

_NODES_FAULTS = OSError, hiredis.HiredisError, TypeError, IndexError
"""Errors of reading a link that are the node's fault."""

_PUSH, _ERROR = hiredis.PushNotification, hiredis.ReplyError


class Dispatcher:
    """One connection per node; subclasses add waiting and reading.

    Attributes:
        links: The link to each node, None where there is none.
        wakeups: The signals that end sleeps.
        noting: For each node, what notes how long a reply took, for all observers; empty without observers.
    """

    _OUTBOX: ClassVar = Outbox

    def __init__(
        self,
        nodes: Sequence[Node],
        clock: Callable[[], float],
        node_timeout: float,
        *,
        mutex: threading.Lock,
        poller: Poller | None,
        awaken: Callable[[Sleeper], None],
        receive_at_once: Callable[[Link, float], object],
        on_broken: Callable[[Node, str], None],
        on_change: Callable[[], None],
    ) -> None:
        self._clock: Final = clock
        self._node_timeout: Final = node_timeout
        self._on_change: Final = on_change
        self._mutex: Final = mutex
        self._look_at = 0.0
        self.noting: Sequence[Callable[[float], object]] = ()
        self.wakeups: Final = Wakeups(mutex, clock, awaken)
        self._table: Final = ConnectionTable(
            nodes, clock, mutex, poller, awaken, on_broken=on_broken, on_refused=on_change
        )
        self.links: Final = self._table.links
        # Links that were read, and their replies that need no parser. Only the thread that leads uses it: another may
        # read a link that answers within a write. Whatever was taken from this iterator is handed out, or its link is
        # doubtful. `_torn`: some may be left.
        self._unsettled: Iterator[tuple[Link, tuple[int, ...]]] = iter(())
        self._doubtful: Link | None = None
        self._torn = False
        # A round whose votes were counted before an error, but whose verdict may be missing.
        self._undecided: Request | None = None
        # Wake-ups that were read and need no parser, by their bytes, each with the nodes that sent it. Only the thread
        # that reads uses it.
        self._rung: Final[dict[bytes, tuple[Sequence[Any], list[Node]]]] = {}
        self._outbox: Final[Outbox] = self._OUTBOX(self._table, clock, mutex, receive_at_once, on_change)

    def _take_in(self, link: Link, now: float, data: Any) -> None:
        """Hand out the replies in the data that were read from a link; one thread at a time may call it."""
        again = False
        try:
            if link.at_rest and (replies := LINES[data]) is not None:
                with self._mutex:
                    self._settle(((link, replies),), now)
            else:
                again = self._receive(link, now, data)
        except BaseException as error:
            # As in `_receive`.
            before, link.broken = link.broken, link.broken or HALF_READ
            if not self._blame(link, error, before):
                raise
        if again:
            self._outbox.flush()

    def _receive(self, link: Link, now: float, data: Any = None) -> bool:
        """Read one link, unless its `data` was read, and hand out the replies; one thread at a time may call it.

        Returns True if a request must be sent again, by a flush of the outbox.
        """
        again = False
        try:
            data = data or link.read()
            if not data:
                if data is not None:
                    self._table.discard(link, "closed the connection")
                return False
            piece, known = self.wakeups.known
            message = known if link.at_rest and data == piece else None
            if message is None:
                link.feed(data)
            with self._mutex:
                # A thread that breaks a link sets `broken` before it settles the pending requests as missed. These
                # replies belong to settled requests, not to those that are left or that another thread appends, unaware
                # of the break.
                if link.broken is None:
                    if message is not None:
                        self._deliver(link, message, now)
                    else:
                        again = self._hand_out(link, now, data)
            if link.broken is not None:
                self._table.discard(link, link.broken)
        except BaseException as error:
            # First, by a plain assignment: an interruption may stop the lines below too.
            before, link.broken = link.broken, link.broken or HALF_READ
            if not self._blame(link, error, before):
                raise
        return again

    def _blame(self, link: Link, error: BaseException, before: str | None) -> bool:
        """Discard a link after an error; return whether that is the node's fault, and not an interruption.

        Args:
            link: The link, already broken.
            error: The error of reading the link, or of handing out its replies.
            before: Why the link was broken before; None if it was not.
        """
        blamed = isinstance(error, _NODES_FAULTS) and not is_interruption(error)
        if blamed:
            link.broken = before
            if isinstance(error, BlockingIOError):
                return True
            # Malformed replies raise TypeError: a map with a list as a key, a message with an invalid channel.
            to_nothing = isinstance(error, IndexError)
            self._table.discard(link, "sent a reply to no command" if to_nothing else describe_error(error))
        else:
            self._table.discard(link, link.broken or HALF_READ)
        return blamed

    def _hand_out(self, link: Link, now: float, data: Any) -> bool:
        """Give each reply to the oldest request of its link, each wake-up to its mailbox; with the mutex held.

        Args:
            link: The link, whose parser has the replies.
            now: The current instant.
            data: The bytes read.

        Returns:
            True if a request must be sent again.
        """
        pending, gets, was_at_rest = link.pending, link.gets, link.at_rest
        again = between = link.at_rest = False
        behind: object = link.healing or link.again.under_way
        handed = 0
        while not between and (reply := gets()) is not NOTHING:
            handed += 1
            kind = reply.__class__
            between = not link.has_more()
            if kind is _PUSH:
                self._deliver(link, reply, now)
                if handed == 1 and was_at_rest and between:
                    # The piece is this message and nothing else, and most nodes send the same.
                    self.wakeups.known = data, reply
            elif kind is _ERROR:
                again |= self._hand_out_error(link, pending[0], str(reply), now)
                behind = True
                pending.popleft()
                self._note_answer(link, now)
            else:
                if behind:
                    self._overtake(link, pending[0], now)
                self._settle(((link, (reply,)),), now)
                self._note_answer(link, now)
        if behind and link.again.at <= now:
            self._outbox.retry(link)
            again = True
        if not handed:
            self._note_unfinished(link, len(data))
        link.at_rest = between and not (link.suspect or link.healing or link.again.under_way)
        return again

    def _settle(  # noqa: PLR0912  (each is a step of the hot path)
        self, read: Iterable[tuple[Link, Sequence[Any]]], now: float
    ) -> None:
        """Count replies as votes of their nodes in the oldest requests of their links; with the mutex held."""
        noting, link = self.noting, None
        try:
            for link, replies in read:
                if link.broken is not None:
                    # See `_receive`. The thread that broke it may have been interrupted.
                    self._look_at = 0.0
                    continue
                pending, index = link.pending, link.index
                for reply in replies:
                    # Removed only once settled, so that after an interruption it is still there and counts as missed.
                    request = pending[0]
                    tally = request.tally
                    if tally is not None and reply is tally.same and tally.cast[index] is None:
                        # One more of the same grants: as `record`, without a call. So the round is not done.
                        if noting:
                            noting[index](now - tally.sent_at if now > tally.sent_at else 0.0)
                        tally.cast[index] = tally.vote
                        tally.granted = votes = tally.granted + 1
                        if votes >= tally.quorum and tally.conclude():
                            request.done = True
                            if request.gate is not None:
                                request.wake()
                    elif tally is not None and reply is tally.further:
                        tally.confirmed |= link.node.bit
                    elif tally is not None and (tally.late or not request.done):
                        if noting and not request.done:
                            # Another thread may have sent it after `now`, while this one read other links.
                            noting[index](now - tally.sent_at if now > tally.sent_at else 0.0)
                        ended = tally.record(index, reply)
                        if ended is None:
                            # A proxy may have lost or repeated an answer, which would shift all later replies to other
                            # requests.
                            raise hiredis.ProtocolError(f"sent an unexpected reply {outline(reply)}")
                        if ended:
                            request.done = True
                            if request.gate is not None:
                                request.wake()
                        if reply is tally.grant and reply is not request.said:
                            request.learn(reply)
                    pending.popleft()
                link.since = now
        except BaseException:
            # Else the caller knows its only link, and may not be the leader.
            if read is self._unsettled:
                self._doubtful = link
            raise

    def _note_answer(self, link: Link, now: float) -> None:
        """Record a complete answer.

        Only complete answers show that a node works: one that wakes waiters, or sends a byte now and then, may never
        answer.
        """
        link.since, link.unfinished = now, 0
        if link.suspect and not link.pending:
            # Only once it has caught up: otherwise a node that answers one command a second would get all of them.
            link.suspect = False
            self._table.recount_at = now

    def _note_unfinished(self, link: Link, size: int) -> None:
        """Add to the bytes read of an unfinished answer."""
        link.unfinished += size
        if link.unfinished > MOST_BYTES:
            raise hiredis.ProtocolError(f"sent a reply of more than {MOST_BYTES} bytes")

    def _deliver(self, link: Link, message: Sequence[Any], now: float) -> None:
        """Put a node's wake-up into its mailbox; with the mutex held."""
        self.wakeups.deliver(message, (link.node,))
        link.unfinished = 0
        link.messages += 1
        if link.messages > MOST_MESSAGES:
            if now - link.counted_at < 1.0:
                raise hiredis.ProtocolError(f"sent more than {MOST_MESSAGES} messages in a second")
            link.messages, link.counted_at = 0, now

    def _hand_out_error(self, link: Link, request: Request, text: str, now: float) -> bool:
        bit = link.node.bit
        if text.startswith("NOSCRIPT") and not request.healed & bit and request.command is not None:
            request.healed |= bit
            self._outbox.resend(link, request)
            return True
        if (reason := link.node.note_forgetful(text, request.guard, now)) is not None:
            self._table.recount_at = 0.0
            self._on_change()
            text = reason
        link.node.last_error = said = one_line(text)
        self._table.fail(link.node, request, said)
        if not is_refused(text):
            self._overtake(link, request, now)
        elif request.owed(bit):
            self._table.retry(link, request, now)
        return False

    def _overtake(self, link: Link, request: Request, now: float) -> None:
        """Drop repeats that precede an executed command; of owed requests, only those of the same claim."""
        bit, claim = link.node.bit, request.claim
        link.healing = [
            earlier
            for earlier in link.healing
            if not earlier.precedes(request) or (earlier.owed(bit) and earlier.claim != claim)
        ]
        link.again.settle(request, now)

    def _send_due(self) -> None:
        """Send the repeats that are due."""
        now = self._clock()
        for link in self.links:
            if link is not None and link.again.at <= now:
                with self._mutex:
                    self._outbox.retry(link)
        self._outbox.flush()

    @property
    def retry_at(self) -> float:
        """The instant of the next repeat of a request that a node refused to execute."""
        return min([link.again.at for link in self.links if link is not None], default=math.inf)

    def _look_for_suspects(self, now: float | None = None) -> None:
        """Find links that have owed replies for too long; `now` is an instant before the sockets were last read."""
        now = self._clock() if now is None else now
        self._look_at = now + self._node_timeout / 4
        for link in self.links:
            if link is None:
                continue
            if link.broken is not None:
                # The thread that broke it was interrupted before the discard.
                self._table.discard(link, link.broken)
            if not link.pending:
                continue
            silence = now - link.since
            if silence > self._node_timeout and not link.suspect:
                with self._mutex:
                    link.suspect, link.at_rest = True, False
                    self._table.recount_at = 0.0
                link.node.last_error = f"owes {len(link.pending)} replies for {silence:.2f} s"
                self._on_change()
            if silence > GIVE_UP:
                # The unanswered commands are lost or late; the next connection gets those that the node is owed.
                self._table.discard(link, f"no answer for {silence:.0f} s")

    def _begin_lingering(self, request: Request, tally: Tally) -> None:
        """Reopen a request that was done, until all nodes have voted."""
        with self._mutex:
            request.done = not tally.open

    def _end_lingering(self, request: Request, tally: Tally) -> None:
        """Freeze a tally before its protocol reads it."""
        with self._mutex:
            request.done = True
            tally.freeze()

    def part(self, node: Node, reason: str) -> None:
        """Discard the connection to a node, if any, because it leads to a server that is no longer the node's."""
        link = self.links[node.index]
        if link is not None:
            self._table.discard(link, reason)

    def pending(self, index: int) -> int:
        """Return how many releases and rollbacks a node has yet to get, besides those in flight."""
        # Without the mutex: a signal handler may ask in the middle of a call that holds it.
        link = self.links[index]
        return self._table.owed(index) + (0 if link is None else len(list(link.again)))

    def reconsider(self) -> None:
        """Recompute which nodes take part, because the known state of a node's memory has changed."""
        with self._mutex:
            self._table.recount_at = 0.0

    def _is_owed_replies(self) -> bool:
        return bool([link for link in self.links if link is not None and (link.pending or link.again.under_way)])
