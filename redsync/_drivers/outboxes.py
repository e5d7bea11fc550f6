"""Outboxes: the requests of all owners of a client, written to all nodes in one order.

A thread puts its request into the outbox. The first thread flushes for all until the outbox is empty, so commands of
several threads share one write. `flushing` is set while a thread does so. Only one thread flushes at a time, so every
node gets the same order, which is also each owner's own.

So an interruption of the flushing thread affects the requests of other threads, which are asleep by then. Invariant: a
request is in the outbox; or in the batch, not yet sent; or each node has it pending or has missed it, once. To keep it,
a flush records its progress, and the next flush, usually by the interrupted thread itself, continues from there:

| interrupted | record | then |
|---|---|---|
| while requests are taken | `batch`, and `_left` is None | nothing was sent; more is taken, and all is sent |
| while a link is written to | `_doubtful`, that link | discarded: its pending requests are missed, and owed |
| between links | `_left`, `_apart`: the nodes left | they get it |

Python checks for signals when a function begins, after a call and where a loop repeats. The record is kept by plain
assignments next to the steps that they describe, with none of these points in between; do not separate them.
`_post_all` records the doubtful link only when an exception passes it, before anything else.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from redsync._core.effects import Command, Tell
from redsync._core.interruptions import is_interruption
from redsync._core.scripts import Script
from redsync._drivers.channels import pack
from redsync._drivers.connection_table import ConnectionTable
from redsync._drivers.interruptions import HALF_SENT
from redsync._drivers.links import Link
from redsync._drivers.nodes import Node, describe_error
from redsync._drivers.pollers import BOTH
from redsync._drivers.requests import Request

__all__ = ["Outbox"]

_NOTHING_TOLD = Tell(Command(Script("", b"", b""), (), ()), None)
_NO_REQUEST = Request(_NOTHING_TOLD, None)


class Outbox:
    """Keeps a client's requests until they are sent, and sends them.

    Attributes:
        items: The requests not yet taken, in sending order; the next `flush` sends them. A pair of a link and a request
            goes to that link alone.
        batch: The requests that the flushing thread has taken.
        flushing: True while a thread sends; guarded by the mutex.
        on_left: Called when an interruption may have left requests behind; another thread must then call `flush`.
    """

    def __init__(
        self,
        table: ConnectionTable,
        clock: Callable[[], float],
        mutex: threading.Lock,
        receive: Callable[[Link, float], object],
        on_left: Callable[[], None],
    ) -> None:
        """Make an empty outbox; it calls `receive` right after each write to a link that answers at once."""
        self._table: Final = table
        self._clock: Final = clock
        self._mutex: Final = mutex
        self._receive: Final = receive
        self.on_left: Final = on_left
        self.items: Final[deque[Request | tuple[Link, Request]]] = deque()
        self.flushing = False
        self._number = 0
        # The record of a flush. `_apart`: the nodes that may not get everything; `_case`: the current one.
        self.batch: list[Request] = []
        self._left: Iterator[Link] | None = None
        self._apart: Iterable[Node] = ()
        self._case: Node | None = None
        self._doubtful: Link | None = None

    def send(self, request: Request) -> None:
        """Send a request to all nodes, in the order of the calls; never blocks."""
        self.items.append(request)
        self.flush()

    def resend(self, link: Link, request: Request) -> None:
        """Send a request again to one node, at the next `flush`; with the mutex held."""
        link.healing.append(request)
        self.items.append((link, request))

    def retry(self, link: Link) -> None:
        """Send the requests that a node refused to execute again at the next `flush`; with the mutex held."""
        self.items.append((link, _NO_REQUEST))
        link.again.at = math.inf

    def flush(self) -> None:
        """Send all requests in the outbox, unless another thread does.

        After an interruption it continues, because other threads rely on it. A second one leaves the rest to the next
        call.
        """
        try:
            self.empty()
        except BaseException:
            try:
                self.empty()
            finally:
                self.on_left()
            raise

    def empty(self) -> None:
        mine = False
        items = self.items
        try:
            while items or self.batch:
                with self._mutex:
                    if self.flushing:
                        # The flushing thread checks the outbox once more before it ends.
                        return
                    self.flushing = mine = True
                while items or self.batch:
                    self.dispatch()
                self.flushing = mine = False
        finally:
            if mine:
                self.flushing = False

    def post(self, request: Request) -> bool:
        """Write a request to every link, if it is the only one and made already; else return False.

        Only the thread that has set `flushing` may call it. This is `dispatch` for a lone thread.
        """
        table, now = self._table, self._clock()
        ready, bits, apart = table.plan
        if self.items or self.batch or now >= table.recount_at or request.guard > table.guard:
            return False
        if not request.data or request.tally is None:
            return False
        request.number = self._number = self._number + 1
        request.tally.sent = bits
        left, self._apart = iter(ready), iter(apart) if apart else ()
        self.batch, self._left = [request], left
        if ready:
            self._post_all(now)
        if apart:
            self._offer_apart(now)
        self.batch, self._left = [], None
        return True

    def send_alone(self, request: Request) -> None:
        """Send a request as `send` does, by `post` if possible; only for a client whose calls share one thread."""
        mine = False
        try:
            if not self.flushing:
                # Python checks for no signals before this.
                self.flushing = mine = True
            if not (mine and self.post(request)):
                self.items.append(request)
            if mine:
                self.flushing = mine = False
            if self.items or self.batch:
                self.empty()
        except BaseException:
            if mine:
                self.flushing = False
            # As in `flush`.
            try:
                self.empty()
            finally:
                self.on_left()
            raise

    def dispatch(self) -> None:
        """Write the outbox to every link; only one thread at a time may call it."""
        if self._doubtful is not None or self._case is not None:
            self._recover()
        now = self._clock()
        if self._left is None and not self._take(now):
            return
        self._post_all(now)
        self._offer_apart(now)
        self.batch, self._left = [], None

    def _offer_apart(self, now: float) -> None:
        for case in self._apart:
            self._case = case
            self._offer(case, now)
            self._case = self._doubtful = None

    def _recover(self) -> None:
        """Settle the interrupted step; after another interruption it is called again."""
        if self._doubtful is not None:
            # Requests recorded there may or may not have been sent, or even answered. Unanswered ones count as missed.
            # The next connection may repeat an executed one, but before anything new.
            self._table.discard(self._doubtful, HALF_SENT)
            if self._left is None:
                # It was a repeat, for that link alone.
                self.batch = []
        elif self._case is not None:
            # The batch is on no link yet. Part of it may count as missed already; each miss counts once.
            self._offer(self._case, self._clock())
        self._case = self._doubtful = None

    # Taking.

    def _take(self, now: float) -> bool:
        """Take requests from the outbox and decide which nodes get them; return False if it was empty."""
        items, batch, table = self.items, self.batch, self._table
        if batch and items and items[0] is batch[-1]:
            # An interruption came between the append and the `popleft` below.
            items.popleft()
        while items:
            item = items[0]
            if isinstance(item, tuple):
                if not batch:
                    self.batch, self._doubtful = [item[1]], item[0]
                    items.popleft()
                    self._resend(*item)
                    self.batch, self._doubtful = [], None
                    return False
                break
            item.number = self._number = self._number + 1
            if not (item.data or self._compose(item)):
                continue
            if item.guard > table.guard:
                table.guard, table.recount_at = item.guard, 0.0
            batch.append(item)
            items.popleft()
        if not batch:
            return False
        if now >= table.recount_at:
            table.recount()
        ready, bits, apart = table.plan
        for request in batch:
            if request.tally is not None:
                request.tally.sent = bits
        self._apart = iter(apart) if apart else ()
        self._left = iter(ready)
        return True

    def _compose(self, request: Request) -> bool:
        """Make a request's command; return True if there is one, else drop the request from the outbox."""
        try:
            if request.make(self._number):
                return True
            self._table.close(request, "nothing to send")
        except Exception as error:
            if is_interruption(error):
                raise
            # After an interruption the command could be made again. But this error would recur each time, and nothing
            # behind the request would ever be sent.
            self._table.close(request, describe_error(error))
            self.items.popleft()
            raise
        self.items.popleft()
        return False

    # Writing.

    def _post_all(self, now: float) -> None:
        """Write to all nodes that get everything: the hot path."""
        assert self._left is not None, "the batch was taken"
        batch = self.batch
        data = batch[0].data if len(batch) == 1 else b"".join([request.data for request in batch])
        size, link = len(data), None
        try:
            for link in self._left:
                try:
                    pending = link.pending
                    if not pending:
                        link.since = now
                    # Unlike a call, this never checks for signals before the requests are pending.
                    pending += batch
                    sent = 0 if link.backlog else link.send(data)
                    if sent != size and sent is not None:
                        self._keep(link, data[sent:])
                except OSError as error:
                    if is_interruption(error):
                        raise
                    if isinstance(error, BlockingIOError):
                        self._keep(link, data)
                    else:
                        self._table.discard(link, describe_error(error))
                if link.broken is not None:
                    # Another thread broke it meanwhile, and may not have settled the requests appended since.
                    self._table.discard(link, link.broken)
        except BaseException:
            # Python checks for no signals between the interruption and this line.
            self._doubtful = link
            raise

    def _keep(self, link: Link, data: bytes) -> None:
        """Leave bytes that a node does not accept now to the leader."""
        try:
            link.keep(data)
        except OSError as error:
            if is_interruption(error):
                raise
            self._table.discard(link, describe_error(error))
        else:
            self._table.watch(link, BOTH)

    def _offer(self, node: Node, now: float) -> None:
        """Send to a node that may not get everything.

        A node without a connection gets nothing, a suspect one only what it is owed, a quarantined one no new claims.
        """
        batch = []
        with self._mutex:
            link = self._table.links[node.index]
            for request in self.batch:
                if link is None:
                    reason: str | None = node.excuse
                elif link.suspect and not request.owed(node.bit):
                    reason = f"suspect: owes {len(link.pending)} replies for {now - link.since:.2f} s"
                else:
                    reason = node.unfit(now, request.guard)
                if reason is None:
                    batch.append(request)
                else:
                    self._table.miss(node, request, reason, now)
        if link is not None and batch:
            self._note(link, batch, now)
            self._write(link, batch, now)

    def _note(self, link: Link, batch: Sequence[Request], now: float) -> None:
        """Append requests to those pending on a link, before they are sent."""
        if not link.pending:
            link.since = now
        for request in batch:
            if request.tally is not None:
                request.tally.sent |= link.node.bit
        # As in `_post_all`: nothing in between may check for signals.
        self._doubtful = link
        link.pending.extend(batch)

    def _write(self, link: Link, batch: Sequence[Request], now: float) -> None:
        """Write recorded requests to one link, in the link's own way."""
        try:
            for data in link.parts(batch):
                # A link without a socket makes a call for each part, and the first may break it.
                if link.broken is None:
                    link.write(data)
        except OSError as error:
            if is_interruption(error):
                raise
            self._table.discard(link, describe_error(error))
        if link.instant:
            self._receive(link, now)
        elif link.backlog:
            self._table.watch(link, BOTH)
        if link.broken is not None:
            self._table.discard(link, link.broken)

    def _resend(self, link: Link, request: Request) -> None:
        """Answer NOSCRIPT: load the script and send the command again, unless something later depends on its order."""
        if request is _NO_REQUEST:
            self._retry(link)
            return
        assert request.command is not None, "what was answered was sent"
        load = Request(_NOTHING_TOLD, None)
        # No command, so a dialect sends these bytes unchanged.
        load.command = None
        load.data = pack(b"SCRIPT", b"LOAD", request.command.script.source)
        now = self._clock()
        batch = [load]
        with self._mutex:
            overtaken = request not in link.healing or any(request.precedes(later) for later in link.pending)
            if overtaken or (request.done and not request.owed(link.node.bit)):
                self._table.fail(link.node, request, "NOSCRIPT: the node had forgotten the script")
                if request in link.healing and request.owed(link.node.bit):
                    # The later requests under way may fail as well.
                    self._table.retry(link, request, now)
            else:
                batch.append(request)
            # Pending before it leaves `healing`, and both with the mutex held: a thread that discards the link finds
            # it.
            self._note(link, batch, now)
            link.healing = [other for other in link.healing if other is not request]
        for each in batch:
            # The first may break the link.
            if link.broken is None:
                self._write(link, [each], now)
        if link.broken is not None:
            self._table.discard(link, link.broken)

    def _retry(self, link: Link) -> None:
        """Send due repeats of requests that a node refused to execute."""
        now = self._clock()
        with self._mutex:
            batch = link.again.due(now, link.pending)
            for request in batch:
                request.healed &= ~link.node.bit
            self._note(link, batch, now)
            link.again.remove(batch)
        self._write(link, batch, now)
