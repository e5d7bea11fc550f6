"""Lanes: one connection per node, shared by the owners that are assigned to it.

Who may do what, for any number of threads:

* **Sending**: a thread puts its parcel into the outbox; the first to come flushes for all until the outbox is empty, so
  commands of several threads share one write. `_flushing` says that somebody does. Being one at a time, flushing gives
  every node the same order, which is each owner's own.
* **Reading**: one thread at a time polls the sockets and hands out replies and wake-ups, see `turns`. Nobody reads when
  nobody waits: replies that are owed (stragglers after an early verdict) stay in the sockets until the next leader, or
  the maintenance, takes them.
* `_mutex` guards tallies, wake-ups, turns, `_flushing`, what is owed, and the table of links. It is held
  for arithmetic only, never over a system call.

A link that breaks fails all it had pending; of those, what is owed to its node waits in `_owed` for the next link. The
table of links is replaced link by link: None where there is no connection, so no caller ever waits for one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import hiredis

from redsync._core.effects import Command, Tell
from redsync._core.scripts import Script
from redsync._drivers.links import Link, SocketLink
from redsync._drivers.nodes import NOTHING, Node, describe_error, pack
from redsync._drivers.parcels import Owed, Parcel, Sleeper
from redsync._drivers.pollers import BOTH, READ, WRITE, make_poller
from redsync._drivers.turns import Turns
from redsync._drivers.wakers import Waker
from redsync._drivers.wakeups import Wakeups

__all__ = ["Lane"]

_GIVE_UP = 10.0
"""Seconds of silence after which a connection is replaced: the node may be back where the connection is not."""

_LONGEST_POLL = 3600.0
"""Seconds; a poll for ever is none that the system takes."""

_PUSH, _ERROR = hiredis.PushNotification, hiredis.ReplyError
_NOTHING_TOLD = Tell(Command(Script("", b"", b""), (), ()), 0, None)


class Lane:
    """One connection per node.

    Attributes:
        links: The link to each node, None where there is none.
        wakeups: The signals that end sleeps.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        clock: Callable[[], float],
        node_timeout: float,
        on_broken: Callable[[Node, str], None],
        on_change: Callable[[], None],
    ) -> None:
        self._nodes: Final = nodes
        self._clock: Final = clock
        self._node_timeout: Final = node_timeout
        self._on_broken: Final = on_broken
        self._on_change: Final = on_change
        self.links: Final[list[Link | None]] = [None] * len(nodes)
        self._mutex: Final = threading.Lock()
        self._outbox: Final[deque[Parcel | tuple[Link, Parcel]]] = deque()
        self._flushing = False
        self._number = 0
        self._owed: Final = [Owed() for _ in nodes]
        self._poller: Final = make_poller()
        self._by_fd: Final[dict[int, Link]] = {}
        self._look_at = 0.0
        # The links that take everything, their bit set, and the nodes that need a closer look; every node is in one
        # of the two. Replaced as a whole, and counted anew when `_recount_at` has come.
        self._plan: tuple[list[SocketLink], int, list[Node]] = ([], 0, [])
        self._recount_at = 0.0
        self._waker: Final = Waker()
        self._poller.register(self._waker.fileno, READ)
        self._turns: Final = Turns(self._mutex, clock, self._waker, self._lead)
        self.wakeups: Final = Wakeups(self._mutex, clock, self._turns)

    # Sending.

    def send(self, parcel: Parcel) -> None:
        """Send a parcel to all nodes, in the order of the calls; never blocks."""
        self._outbox.append(parcel)
        self._flush()

    def _flush(self) -> None:
        mine = False
        outbox = self._outbox
        try:
            while outbox:
                with self._mutex:
                    if self._flushing:
                        # That thread looks at the outbox once more after it has ended.
                        return
                    self._flushing = mine = True
                while outbox:
                    self._dispatch()
                self._flushing = mine = False
        finally:
            if mine:
                self._flushing = False

    def _dispatch(self) -> None:
        """Write what is in the outbox to every link; only one thread at a time is in here."""
        outbox = self._outbox
        item = outbox.popleft()
        if isinstance(item, tuple):
            self._resend(*item)
            return
        self._number += 1
        batch = [item] if item.make(self._number) or self._close(item, "nothing to send") else []
        while outbox and isinstance(outbox[0], Parcel):
            item = outbox.popleft()
            assert isinstance(item, Parcel), "only who flushes takes from the outbox"
            self._number += 1
            if item.make(self._number) or self._close(item, "nothing to send"):
                batch.append(item)
        if not batch:
            return
        data = batch[0].data if len(batch) == 1 else b"".join([parcel.data for parcel in batch])
        now = self._clock()
        if now >= self._recount_at:
            self._recount()
        ready, bits, apart = self._plan
        self._post_all(ready, bits, batch, data, now)
        for node in apart:
            self._post_apart(node, batch, now)

    def _post_all(self, ready: list[SocketLink], bits: int, batch: list[Parcel], data: bytes, now: float) -> None:
        """Write to all nodes that take everything: the hot path."""
        size = len(data)
        for parcel in batch:
            if parcel.tally is not None:
                parcel.tally.sent |= bits
        alone = batch[0] if len(batch) == 1 else None
        for link in ready:
            pending = link.pending
            try:
                if not pending:
                    link.since = now
                if alone is not None:
                    pending.append(alone)
                else:
                    pending.extend(batch)
                sent = 0 if link.backlog else link.send(data)
                if sent != size:
                    self._keep(link, data[sent:])
            except BlockingIOError:
                self._keep(link, data)
            except OSError as error:
                self._discard(link, describe_error(error))
            except BaseException:
                self._discard(link, "an interruption left a command half sent")
                raise
            if link.broken is not None:
                # Another thread broke it meanwhile and may have missed what was appended since.
                self._discard(link, link.broken)

    def _keep(self, link: Link, data: bytes) -> None:
        """Leave to the leader what a node does not take now."""
        try:
            link.keep(data)
        except OSError as error:
            self._discard(link, describe_error(error))
        else:
            self._watch(link, BOTH)

    def _watch(self, link: Link, events: int) -> None:
        """Poll a link for these events, if it is still in use."""
        with self._mutex:
            if self._by_fd.get(link.fileno) is link:
                self._poller.modify(link.fileno, events)

    def _post(self, link: Link, batch: Sequence[Parcel], data: bytes, now: float) -> None:
        """Write to one link, by whatever way it takes."""
        pending = link.pending
        try:
            if not pending:
                link.since = now
            for parcel in batch:
                if parcel.tally is not None:
                    parcel.tally.sent |= link.node.bit
            pending.extend(batch)
            link.write(data)
        except OSError as error:
            self._discard(link, describe_error(error))
        except BaseException:
            self._discard(link, "an interruption left a command half sent")
            raise
        if link.fileno < 0:
            self._receive(link, now)
            self._waker.wake()
        elif link.backlog:
            self._watch(link, BOTH)
        if link.broken is not None:
            self._discard(link, link.broken)

    def _post_apart(self, node: Node, batch: Sequence[Parcel], now: float) -> None:
        """Deal with a node that may not get everything.

        One without a connection gets nothing, a suspect one only what it is owed, a young one no new claims.
        """
        with self._mutex:
            link = self.links[node.index]
            if link is None:
                for parcel in batch:
                    self._miss(node, parcel, node.excuse, now)
                return
        for parcel in batch:
            if link.suspect and not parcel.owed(node.bit, now):
                reason = f"suspect: owes {len(link.pending)} replies for {now - link.since:.2f} s"
            elif parcel.fresh() and (unfit := node.unfit(now)):
                reason = unfit
            else:
                self._post(link, [parcel], parcel.data, now)
                continue
            with self._mutex:
                self._miss(node, parcel, reason, now)

    def _recount(self) -> None:
        """Sort the nodes anew into those that take everything and those that need a closer look."""
        now = self._clock()
        with self._mutex:
            ready: list[SocketLink] = []
            apart = []
            again = float("inf")
            for node in self._nodes:
                link = self.links[node.index]
                if isinstance(link, SocketLink) and link.plain and not link.suspect and node.quarantined_until <= now:
                    ready.append(link)
                else:
                    apart.append(node)
                    if node.quarantined_until > now:
                        again = min(again, node.quarantined_until)
            self._plan = (ready, sum(link.node.bit for link in ready), apart)
            self._recount_at = again

    def _resend(self, link: Link, parcel: Parcel) -> None:
        """Answer NOSCRIPT: load the script and send the command again, unless something later depends on its order."""
        assert parcel.command is not None, "what was answered was sent"
        load = Parcel(_NOTHING_TOLD, None)
        load.data = pack(b"SCRIPT", b"LOAD", parcel.command.script.source)
        now = self._clock()
        with self._mutex:
            overtaken = parcel not in link.healing or any(parcel.precedes(later) for later in link.pending)
            link.healing = [other for other in link.healing if other is not parcel]
        late = parcel.done and not parcel.owed(link.node.bit, now)
        if overtaken or late or link.broken is not None:
            self._post(link, [load], load.data, now)
            with self._mutex:
                self._fail(link.node, parcel, "NOSCRIPT: the node had forgotten the script")
        else:
            self._post(link, [load, parcel], load.data + parcel.data, now)

    def _miss(self, node: Node, parcel: Parcel, reason: str, now: float) -> None:
        """Note, with the mutex held, that a node does not get a parcel now."""
        self._fail(node, parcel, reason)
        self._owed[node.index].add(parcel, node.bit, now)

    def _fail(self, node: Node, parcel: Parcel, reason: str) -> None:
        if parcel.tally is not None and parcel.tally.fail(node.index, reason):
            parcel.done = True
            self._turns.awaken(parcel)

    def _close(self, parcel: Parcel, reason: str) -> bool:
        with self._mutex:
            if parcel.tally is not None:
                parcel.tally.close(reason)
            parcel.done = True
            self._turns.awaken(parcel)
        return False

    # Waiting and reading.

    def wait(self, sleeper: Sleeper, deadline: float) -> None:
        """Return when the sleeper is done, at the deadline, or when the lane is closed; reads for all if need be."""
        self._turns.wait(sleeper, deadline)

    def _lead(self, sleeper: Sleeper, deadline: float) -> None:
        poll, clock = self._poller.poll, self._clock
        while not sleeper.done and (sleeper.lasts or not self._turns.closed):
            now = clock()
            if now >= deadline:
                return
            self._serve(poll(min(deadline - now, _LONGEST_POLL)))
            if now >= self._look_at:
                self._look_for_suspects()

    def _serve(self, ready: Sequence[tuple[int, int]]) -> None:
        """Read what a poll found ready, hand it out, and write what waited for room; only the leader is in here."""
        by_fd, now = self._by_fd, self._clock()
        for fd, events in ready:
            link = by_fd.get(fd)
            if link is None:
                if fd == self._waker.fileno:
                    self._waker.drain()
                continue
            if events & WRITE:
                self._unclog(link)
            if events != WRITE:
                self._receive(link, now)

    def _unclog(self, link: Link) -> None:
        try:
            link.flush()
        except OSError as error:
            self._discard(link, describe_error(error))
            return
        if not link.backlog:
            self._watch(link, READ)
            if link.backlog:
                # Another thread left something behind after the flush; its own request may have come before ours.
                self._watch(link, BOTH)

    def _receive(self, link: Link, now: float) -> None:
        """Read one link and hand out what has come; only the leader does, or who flushes a link without a socket."""
        again: list[Parcel] = []
        try:
            data = link.read()
            if not data:
                if data is not None:
                    self._discard(link, "closed the connection")
                return
            link.feed(data)
            with self._mutex:
                self._hand_out(link, now, again)
        except BlockingIOError:
            return
        except IndexError:
            self._discard(link, "sent a reply to no command")
        except (OSError, hiredis.HiredisError) as error:
            self._discard(link, describe_error(error))
        except BaseException:
            self._discard(link, "an interruption left replies half handed out")
            raise
        if again:
            self._outbox.extend((link, parcel) for parcel in again)
            self._flush()

    def _hand_out(self, link: Link, now: float, again: list[Parcel]) -> None:
        """Give each reply to the oldest parcel of its link, each wake-up to its mailbox; with the mutex held."""
        pending, gets, index = link.pending, link.gets, link.index
        link.since = now
        if link.suspect:
            link.suspect = False
            self._recount_at = now
        while (reply := gets()) is not NOTHING:
            kind = reply.__class__
            if kind is _PUSH:
                self.wakeups.deliver(reply, link.node.bit)
                continue
            parcel = pending.popleft()
            if link.healing:
                link.healing = [earlier for earlier in link.healing if not earlier.precedes(parcel)]
            if kind is _ERROR:
                self._hand_out_error(link, parcel, str(reply), again)
            elif not parcel.done and parcel.tally is not None and parcel.tally.record(index, reply):
                parcel.done = True
                if parcel.gate is not None:
                    parcel.wake()

    def _hand_out_error(self, link: Link, parcel: Parcel, text: str, again: list[Parcel]) -> None:
        bit = link.node.bit
        if text.startswith("NOSCRIPT") and not parcel.healed & bit and parcel.command is not None:
            parcel.healed |= bit
            link.healing.append(parcel)
            again.append(parcel)
            return
        link.node.last_error = text[:200]
        self._fail(link.node, parcel, text[:200])

    def _look_for_suspects(self) -> None:
        """Find links that owe replies for too long; the sockets have just been read, so nothing lies unread."""
        now = self._clock()
        self._look_at = now + self._node_timeout / 4
        for link in self.links:
            if link is None or not link.pending:
                continue
            silence = now - link.since
            if silence > self._node_timeout and not link.suspect:
                with self._mutex:
                    link.suspect = True
                    self._recount_at = 0.0
                link.node.last_error = f"owes {len(link.pending)} replies for {silence:.2f} s"
                self._on_change()
            if silence > _GIVE_UP:
                # What the node owes an answer to is lost or late; of it, releases are owed to the next connection.
                self._discard(link, f"no answer for {silence:.0f} s")

    # Links.

    def install(self, link: Link) -> None:
        """Take a new link into use. What is owed to its node goes first, before any new claim."""
        index, now = link.node.index, self._clock()
        with self._mutex:
            owed = self._owed[index].take(link.node.bit, now)
            if owed:
                link.since = now
                link.pending.extend(owed)
                link.keep(b"".join([parcel.data for parcel in owed]))
            self.links[index] = link
            self._recount_at = 0.0
            if link.fileno >= 0:
                self._by_fd[link.fileno] = link
                self._poller.register(link.fileno, BOTH if owed else READ)
        if link.fileno < 0:
            self._receive(link, now)
        elif owed:
            self._unclog(link)

    def _discard(self, link: Link, reason: str) -> None:
        """Stop using a link. May be called by several threads and again: each pending parcel is settled once."""
        link.broken = link.broken or reason
        node, now = link.node, self._clock()
        with self._mutex:
            first = self.links[node.index] is link
            if first:
                self.links[node.index] = None
                self._recount_at = 0.0
                if self._by_fd.pop(link.fileno, None) is not None:
                    self._poller.unregister(link.fileno)
            while link.pending:
                self._miss(node, link.pending.popleft(), link.broken, now)
        if first:
            link.shut()
            self._on_broken(node, link.broken)

    def tend(self) -> bool:
        """Read and write what is possible at once, unless a leader does anyway; True while replies are owed to us."""
        keeper = Sleeper()
        if self._turns.try_lead(keeper):
            try:
                self._serve(self._poller.poll(0))
                self._look_for_suspects()
            finally:
                self._turns.step_down(keeper)
        # Nothing stays in the outbox but what an interrupted thread left there.
        self._flush()
        return any(link is not None and link.pending for link in self.links)

    # The end.

    def end_round(self, parcel: Parcel, reason: str) -> None:
        """Let who has not voted fail, so that the parcel's tally is decided."""
        self._close(parcel, reason)

    def close(self) -> None:
        """Let nobody sleep any longer."""
        self._turns.close()

    def dispose(self) -> None:
        """End all connections. Only after everybody has left."""
        for link in list(self.links):
            if link is not None:
                self._discard(link, "the client was closed")
        self._plan = ([], 0, [])
        self._poller.close()
        self._waker.close()

    def forget(self) -> None:
        """Give up the copies of the parent's sockets in the child of a fork."""
        for link in self.links:
            if link is not None:
                link.forget()
        self._poller.close()
        self._waker.close()
