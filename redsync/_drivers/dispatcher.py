"""The dispatcher hands replies to the rounds that wait for them: what the transports of both drivers have in common.

`mutex` guards tallies, wake-ups, who flushes, what is owed, and the connection table. It is held for arithmetic only,
never over a system call. With a single thread it is never contended, and costs nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import hiredis

from redsync._core.interruptions import is_interruption
from redsync._core.observing import Ear
from redsync._core.quorum import Tally, outline
from redsync._core.replies import MOST_BYTES, NOTHING
from redsync._core.text import one_line
from redsync._drivers.connection_table import ConnectionTable
from redsync._drivers.interruptions import HALF_READ
from redsync._drivers.links import GIVE_UP, Link
from redsync._drivers.nodes import Node, describe_error
from redsync._drivers.outboxes import Outbox
from redsync._drivers.pollers import Poller
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.retries import is_refused
from redsync._drivers.wakeups import Wakeups

__all__ = ["Dispatcher"]

_MOST_MESSAGES = 20_000
"""Wake-ups that a node may send in one second: two for each of ten thousand waiters."""

_NODES_FAULTS = OSError, hiredis.HiredisError, TypeError, IndexError
"""Errors from reading a link for which the node is to blame."""

_PUSH, _ERROR = hiredis.PushNotification, hiredis.ReplyError


class Dispatcher:
    """One connection per node, without the waiting and reading.

    Attributes:
        links: The link to each node, None where there is none.
        wakeups: The signals that end sleeps.
        ears: What observers are told.
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
        receive_at_once: Callable[[Link, float], None],
        on_broken: Callable[[Node, str], None],
        on_change: Callable[[], None],
    ) -> None:
        self._clock: Final = clock
        self._node_timeout: Final = node_timeout
        self._on_change: Final = on_change
        self._mutex: Final = mutex
        self._look_at = 0.0
        self.ears: Sequence[Ear] = ()
        self.wakeups: Final = Wakeups(mutex, clock, awaken)
        self._table: Final = ConnectionTable(
            nodes, clock, mutex, poller, awaken, on_broken=on_broken, on_refused=on_change
        )
        self.links: Final = self._table.links
        self._outbox: Final[Outbox] = self._OUTBOX(self._table, clock, mutex, receive_at_once, on_change)

    def _receive(self, link: Link, now: float) -> None:
        """Read one link and hand out what has come; only one thread at a time may call it."""
        again = False
        try:
            try:
                data = link.read()
            except BlockingIOError as error:
                if is_interruption(error):
                    raise
                return
            if not data:
                if data is not None:
                    self._table.discard(link, "closed the connection")
                return
            link.feed(data)
            with self._mutex:
                # A thread that breaks a link sets `broken` before it settles the pending requests as missed. These
                # replies belong to some of those: not to the requests that are left, nor to those that another thread
                # appends unaware of the break.
                if link.broken is None:
                    again = self._hand_out(link, now, len(data))
            if link.broken is not None:
                self._table.discard(link, link.broken)
        except BaseException as error:
            # First, and by a mere assignment, because what follows may be interrupted too.
            before, link.broken = link.broken, link.broken or HALF_READ
            # TypeError comes from odd replies: a map with a list for a key, a message whose channel is none.
            if not isinstance(error, _NODES_FAULTS) or is_interruption(error):
                self._table.discard(link, link.broken)
                raise
            link.broken = before
            to_nothing = isinstance(error, IndexError)
            self._table.discard(link, "sent a reply to no command" if to_nothing else describe_error(error))
        if again:
            self._outbox.flush()

    def _hand_out(self, link: Link, now: float, size: int) -> bool:  # noqa: PLR0912  (a call per reply is too dear)
        """Give each reply to the oldest request of its link, each wake-up to its mailbox; with the mutex held.

        Only whole answers to commands show that a node is well: a node that wakes waiters, or sends a byte now and
        then, may owe its answers for ever.

        Args:
            link: The link that was read.
            now: The instant.
            size: How many bytes have been read.

        Returns:
            Whether a request is to be sent again.
        """
        pending, gets, index = link.pending, link.gets, link.index
        again = False
        behind: object = link.healing or link.again.under_way
        request = None
        while (reply := gets()) is not NOTHING:
            kind = reply.__class__
            if kind is _PUSH:
                self.wakeups.deliver(reply, link.node.bit, link.node.remembers_since)
                self._note_message(link, now)
                size = 0
                continue
            # Removed only when it is settled, so that after an interruption it is still there and can be missed.
            request = pending[0]
            if kind is _ERROR:
                again |= self._hand_out_error(link, request, str(reply), now)
                behind = True
            else:
                if behind:
                    self._overtake(link, request, now)
                tally = request.tally
                if tally is not None and (tally.late or not request.done):
                    if self.ears and not request.done:
                        for ear in self.ears:
                            ear.took[index].append(now - tally.sent_at)
                    if ended := tally.record(index, reply):
                        request.done = True
                        if request.gate is not None:
                            request.wake()
                    elif ended is None:
                        # A proxy may have lost an answer, or sent one twice: all later replies may belong to other
                        # requests.
                        raise hiredis.ProtocolError(f"sent an unexpected reply {outline(reply)}")
            pending.popleft()
        if behind and link.again.at <= now:
            self._outbox.retry(link)
            again = True
        if request is None:
            self._note_unfinished(link, size)
            return again
        link.since, link.unfinished = now, 0
        if link.suspect and not pending:
            # Only once it has caught up: else a node that answers one command a second would be sent all of them.
            link.suspect = False
            self._table.recount_at = now
        return again

    def _note_unfinished(self, link: Link, size: int) -> None:
        """Record how many bytes of an unfinished answer were read."""
        link.unfinished += size
        if link.unfinished > MOST_BYTES:
            raise hiredis.ProtocolError(f"sent a reply of more than {MOST_BYTES} bytes")

    def _note_message(self, link: Link, now: float) -> None:
        link.unfinished = 0
        link.messages += 1
        if link.messages > _MOST_MESSAGES:
            if now - link.counted_at < 1.0:
                raise hiredis.ProtocolError(f"sent more than {_MOST_MESSAGES} messages in a second")
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
        """Drop requests to be sent again that precede an executed command; of owed ones, only the same claim's."""
        bit, claim = link.node.bit, request.claim
        link.healing = [
            earlier
            for earlier in link.healing
            if not earlier.precedes(request) or (earlier.owed(bit) and earlier.claim != claim)
        ]
        link.again.settle(request, now)

    def _send_due(self) -> None:
        """Send again the requests that are due."""
        now = self._clock()
        for link in self.links:
            if link is not None and link.again.at <= now:
                with self._mutex:
                    self._outbox.retry(link)
        self._outbox.flush()

    @property
    def retry_at(self) -> float:
        """The instant at which the next request is to be sent again that a node refused to execute."""
        return min([link.again.at for link in self.links if link is not None], default=math.inf)

    def _look_for_suspects(self, now: float | None = None) -> None:
        """Find links that have owed replies for too long; `now`: an instant after which the sockets were read."""
        now = self._clock() if now is None else now
        self._look_at = now + self._node_timeout / 4
        for link in self.links:
            if link is None:
                continue
            if link.broken is not None:
                # The thread that broke it was interrupted before it could discard it.
                self._table.discard(link, link.broken)
            if not link.pending:
                continue
            silence = now - link.since
            if silence > self._node_timeout and not link.suspect:
                with self._mutex:
                    link.suspect = True
                    self._table.recount_at = 0.0
                link.node.last_error = f"owes {len(link.pending)} replies for {silence:.2f} s"
                self._on_change()
            if silence > GIVE_UP:
                # The unanswered commands are lost or late; those that the node must get are owed to the next
                # connection.
                self._table.discard(link, f"no answer for {silence:.0f} s")

    def _begin_lingering(self, request: Request, tally: Tally) -> None:
        """Make a request that was done wait on, until all nodes have voted."""
        with self._mutex:
            request.done = not tally.open

    def _end_lingering(self, request: Request, tally: Tally) -> None:
        """Freeze a tally: its protocol is going to read it."""
        with self._mutex:
            request.done = True
            tally.freeze()

    def part(self, node: Node, reason: str) -> None:
        """Give up the connection to a node, if there is one: it leads to a server that is not the node's any more."""
        link = self.links[node.index]
        if link is not None:
            self._table.discard(link, reason)

    def pending(self, index: int) -> int:
        """Return how many releases and rollbacks a node has yet to execute, besides those under way."""
        with self._mutex:
            link = self.links[index]
            return self._table.owed(index) + (0 if link is None else len(list(link.again)))

    def reconsider(self) -> None:
        """Compute again which nodes take part in what: what is known of a node's memory has changed."""
        with self._mutex:
            self._table.recount_at = 0.0

    def _is_owed_replies(self) -> bool:
        return bool([link for link in self.links if link is not None and (link.pending or link.again.under_way)])
