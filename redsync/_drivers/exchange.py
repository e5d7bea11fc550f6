"""What the lanes of all drivers have in common: links to write to, and replies to hand out.

`mutex` guards tallies, wake-ups, who flushes, what is owed, and the table of links, see `boards`. It is held for
arithmetic only, never over a system call. Where all is done in one thread it is never contended, and costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import hiredis

from redsync._drivers.boards import Board
from redsync._drivers.links import Link
from redsync._drivers.nodes import NOTHING, Node, describe_error
from redsync._drivers.outboxes import Outbox
from redsync._drivers.parcels import Parcel, Sleeper
from redsync._drivers.pollers import Poller
from redsync._drivers.wakeups import Wakeups

__all__ = ["Exchange"]

_GIVE_UP = 10.0
"""Seconds of silence after which a connection is replaced: the node may be back where the connection is not."""

_PUSH, _ERROR = hiredis.PushNotification, hiredis.ReplyError


class Exchange:
    """One connection per node, without the waiting and reading.

    Attributes:
        links: The link to each node, None where there is none.
        wakeups: The signals that end sleeps.
    """

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
        self.wakeups: Final = Wakeups(mutex, clock, awaken)
        self._board: Final = Board(nodes, clock, mutex, poller, awaken, on_broken=on_broken)
        self.links: Final = self._board.links
        self._outbox: Final = Outbox(self._board, clock, mutex, receive_at_once, on_change)

    def _receive(self, link: Link, now: float) -> None:
        """Read one link and hand out what has come; by one thread at a time."""
        again = False
        try:
            data = link.read()
            if not data:
                if data is not None:
                    self._board.discard(link, "closed the connection")
                return
            link.feed(data)
            with self._mutex:
                # Who breaks a link says so before it begins to miss what is pending: these replies belong to some of
                # that, not to what is left, or to what is appended by one who has not noticed yet.
                if link.broken is None:
                    again = self._hand_out(link, now)
            if link.broken is not None:
                self._board.discard(link, link.broken)
        except BlockingIOError:
            return
        except IndexError:
            self._board.discard(link, "sent a reply to no command")
        except (OSError, hiredis.HiredisError, TypeError) as error:
            # Of no known type: a map with a list for a key, a message whose channel is none.
            self._board.discard(link, describe_error(error))
        except BaseException:
            link.broken = link.broken or "an interruption left replies half handed out"
            self._board.discard(link, link.broken)
            raise
        if again:
            self._outbox.flush()

    def _hand_out(self, link: Link, now: float) -> bool:
        """Give each reply to the oldest parcel of its link, each wake-up to its mailbox; with the mutex held.

        Returns whether something is to be sent again.
        """
        pending, gets, index = link.pending, link.gets, link.index
        again = False
        link.since = now
        if link.suspect:
            link.suspect = False
            self._board.recount_at = now
        while (reply := gets()) is not NOTHING:
            kind = reply.__class__
            if kind is _PUSH:
                self.wakeups.deliver(reply, link.node.bit)
                continue
            # Taken away only when it is settled: after an interruption it is still there to be missed.
            parcel = pending[0]
            if link.healing:
                link.healing = [earlier for earlier in link.healing if not earlier.precedes(parcel)]
            if kind is _ERROR:
                again |= self._hand_out_error(link, parcel, str(reply))
            elif (tally := parcel.tally) is not None and (tally.late or not parcel.done) and tally.record(index, reply):
                parcel.done = True
                if parcel.gate is not None:
                    parcel.wake()
            pending.popleft()
        return again

    def _hand_out_error(self, link: Link, parcel: Parcel, text: str) -> bool:
        bit = link.node.bit
        if text.startswith("NOSCRIPT") and not parcel.healed & bit and parcel.command is not None:
            parcel.healed |= bit
            self._outbox.resend(link, parcel)
            return True
        if (reason := link.node.note_forgetful(text, parcel.guard, self._clock())) is not None:
            self._board.recount_at = 0.0
            self._on_change()
            text = reason
        link.node.last_error = text[:200]
        self._board.fail(link.node, parcel, text[:200])
        return False

    def _look_for_suspects(self, now: float | None = None) -> None:
        """Find links that have owed replies for too long, at the instant since which the sockets have been read."""
        now = self._clock() if now is None else now
        self._look_at = now + self._node_timeout / 4
        for link in self.links:
            if link is None:
                continue
            if link.broken is not None:
                # Who broke it was interrupted before it could discard it.
                self._board.discard(link, link.broken)
            if not link.pending:
                continue
            silence = now - link.since
            if silence > self._node_timeout and not link.suspect:
                with self._mutex:
                    link.suspect = True
                    self._board.recount_at = 0.0
                link.node.last_error = f"owes {len(link.pending)} replies for {silence:.2f} s"
                self._on_change()
            if silence > _GIVE_UP:
                # What the node owes an answer to is lost or late; of it, releases are owed to the next connection.
                self._board.discard(link, f"no answer for {silence:.0f} s")

    def reconsider(self) -> None:
        """Look again at who takes part in what: what is known of a node's memory has changed."""
        with self._mutex:
            self._board.recount_at = 0.0

    def _is_owed_replies(self) -> bool:
        return any(link is not None and link.pending for link in self.links)

    def _discard_all(self) -> None:
        for link in list(self.links):
            if link is not None:
                self._board.discard(link, "the client was closed")
        self._board.plan = ([], 0, [])
