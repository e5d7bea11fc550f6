"""The connection table: each node's link, and the requests that a broken link leaves behind.

When a link breaks, all its pending requests fail; those that are owed to its node wait for the next link. While a node
has a link, nothing is owed to it. Links are replaced one by one: None where there is no connection, so no caller ever
waits for one.

The transport's mutex guards everything here. It is held for arithmetic only, never over a system call that may block.
An interruption can come at any call. So code that moves a request first adds it to its new place, then removes it from
the old one, and may run twice: a vote counts once, and an owed request is kept once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Final

from redsync._core.interruptions import expected
from redsync._core.quorum import Verdict
from redsync._drivers.links import Link
from redsync._drivers.nodes import Node, describe_error
from redsync._drivers.pollers import BOTH, READ, Poller
from redsync._drivers.requests import Owed, Request, Sleeper

__all__ = ["ConnectionTable"]

_PENDING = Verdict.PENDING


class ConnectionTable:
    """The links of a client.

    Attributes:
        links: The link to each node, None where there is none.
        by_fd: The links that are polled.
        plan: The links that get everything, their bit set, and the nodes that need a closer look; every node is in one
            of the two. Replaced as a whole.
        recount_at: The instant at which the plan must be recomputed.
        guard: The longest guard of a claim so far; a node that takes part in all claims must remember that long.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        clock: Callable[[], float],
        mutex: threading.Lock,
        poller: Poller | None,
        awaken: Callable[[Sleeper], None],
        *,
        on_broken: Callable[[Node, str], None],
        on_refused: Callable[[], None],
    ) -> None:
        """Make a table without links.

        Args:
            nodes: The configured nodes.
            clock: Returns the current instant in seconds.
            mutex: Guards everything here.
            poller: Polls the links that have a descriptor; None if none has.
            awaken: Makes the thread or task that waits for a request look again.
            on_broken: Called for each discarded link.
            on_refused: Called when the maintenance must repeat a request later.
        """
        self._nodes: Final = nodes
        self._clock: Final = clock
        self._mutex: Final = mutex
        self._poller: Final = poller
        self._awaken: Final = awaken
        self._on_broken: Final = on_broken
        self._on_refused: Final = on_refused
        self._owed: Final = [Owed() for _ in nodes]
        self.links: Final[list[Link | None]] = [None] * len(nodes)
        self.by_fd: Final[dict[int, Link]] = {}
        self.plan: tuple[list[Link], int, list[Node]] = ([], 0, [])
        self.recount_at = 0.0
        self.guard = 0.0
        self._ended = False

    # Which link each node has.

    def install(self, link: Link) -> bool:
        """Put a new link into use; it keeps the commands owed to its node ahead of any new claim.

        Returns True if anything was owed. Called by connecting threads, where no signal handler ever runs. After `end`,
        a new link is closed at once.
        """
        index, now = link.node.index, self._clock()
        with self._mutex:
            if self._ended:
                link.shut()
                return False
            owed = self._owed[index].take(now)
            if owed:
                link.since = now
                link.pending.extend(owed)
                try:
                    for data in link.parts(owed):
                        link.keep(data)
                except OSError as error:
                    link.broken = describe_error(error)
            self.links[index] = link
            self.recount_at = 0.0
            if link.fileno >= 0 and self._poller is not None:
                self.by_fd[link.fileno] = link
                self._poller.register(link.fileno, BOTH if owed else READ)
        if link.broken is not None:
            self.discard(link, link.broken)
        return bool(owed)

    def discard(self, link: Link, reason: str, *, orderly: bool = False) -> None:
        """Stop using a link. Any thread may call it, even repeatedly: each pending request is settled once.

        Unsent bytes are dropped, because the next link gets what is owed. An `orderly` end still sends them.
        """
        link.broken = link.broken or reason
        node, now = link.node, self._clock()
        with self._mutex:
            self._settle(link, link.broken, now)
        if orderly:
            link.shut()
        else:
            link.reset()
        with self._mutex:
            # Last: after an interruption above, the link is still found here, and discarded again.
            first = self.links[node.index] is link
            if first:
                if link.tag is not None and link.tag not in node.former:
                    node.former = (*node.former, link.tag)
                self.links[node.index] = None
                self.recount_at = 0.0
            newer = self.links[node.index] if self._owed[node.index] else None
        if first:
            self._on_broken(node, link.broken)
        if newer is not None:
            # The flushing thread may still have been writing to this link when the next one was installed with all that
            # was owed until then. The next link has got nothing else yet, because that flush has not ended. Later would
            # be too late: a release behind its owner's next claim would end that claim.
            self.discard(newer, "is owed commands that the previous connection lost")

    def end(self) -> None:
        """Close all links and accept no new ones: a closing client does not wait for pending connects."""
        with self._mutex:
            self._ended = True
        for link in list(self.links):
            if link is not None:
                self.discard(link, "the client was closed", orderly=True)
        self.plan = ([], 0, [])

    def _settle(self, link: Link, reason: str, now: float) -> None:
        """Settle all requests pending on a link as missed by its node."""
        fileno, node, pending = link.fileno, link.node, link.pending
        if self._poller is not None and self.by_fd.get(fileno) is link:
            with expected(KeyError, OSError):  # An interruption came between these two lines; this is the second try.
                self._poller.unregister(fileno)
            del self.by_fd[fileno]
        if pending:
            self._owed[node.index].unanswered = True
        for request in (*link.healing, *link.again):
            self.miss(node, request, reason, now)
        while pending:
            self.miss(node, pending[0], reason, now)
            pending.popleft()
        link.healing = []
        link.again.clear()

    def watch(self, link: Link, events: int) -> None:
        """Poll a link for these events, if it is still in use."""
        with self._mutex:
            if self._poller is not None and self.by_fd.get(link.fileno) is link:
                self._poller.modify(link.fileno, events)

    def recount(self) -> None:
        """Sort the nodes again into those that get everything and those that need a closer look."""
        now = self._clock()
        with self._mutex:
            ready: list[Link] = []
            apart = []
            again = float("inf")
            for node in self._nodes:
                link = self.links[node.index]
                fit_at = node.remembers_since + self.guard if self.guard else now
                if link is not None and link.swift and not link.suspect and fit_at <= now:
                    ready.append(link)
                else:
                    apart.append(node)
                    if fit_at > now:
                        again = min(again, fit_at)
            self.plan = (ready, sum(link.node.bit for link in ready), apart)
            self.recount_at = again

    # The fate of a request; with the mutex held.

    def miss(self, node: Node, request: Request, reason: str, now: float) -> None:
        """Record that a request does not reach a node now."""
        self.fail(node, request, reason)
        self._owed[node.index].add(request, node.bit, now)

    def owed(self, index: int) -> int:
        """Return how many commands wait for the next connection of a node."""
        return len(self._owed[index])

    def retry(self, link: Link, request: Request, now: float) -> None:
        """Record that a node refused to execute a request that it must get."""
        idle = link.again.at == math.inf
        link.again.add(request, now)
        if idle and link.again.at != math.inf:
            self._on_refused()

    def fail(self, node: Node, request: Request, reason: str) -> None:
        """Count a node's vote as failed."""
        tally = request.tally
        if tally is None:
            return
        tally.fail(node.index, reason)
        if tally.verdict is _PENDING and None not in tally.cast:
            # An interruption came between the last vote and the verdict.
            tally.close(reason)
        # Even if this vote did not decide it: an interruption may have come between the verdict and this line earlier.
        if not tally.open:
            request.done = True
            self._awaken(request)

    def close(self, request: Request, reason: str) -> None:
        """Count missing votes as failed, which decides the request's tally; without the mutex."""
        with self._mutex:
            if request.tally is not None:
                request.tally.close(reason)
            request.done = True
            self._awaken(request)
