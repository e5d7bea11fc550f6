"""Pending releases: commands that a node must still get.

It was out of reach, refused them, or may execute an earlier ask late.

A release or a rollback whose command did not reach a node, or was not answered, waits here until the maintenance
delivers it. (Dynamo calls this a hinted hand-off.) Delivery is safe whenever it happens: each try after a rollback
makes a claim with a new number, so a late command finds none of the later claims.

A later command about the same claim makes the earlier ones needless: a hold count is set, never subtracted from, and a
rollback leaves nothing. So of each claim only the latest command waits here, and none once the node has executed a
later one. One case is left: the node may execute the later one while the earlier one is under way again over another
connection. At worst that is a release that only lowers a hold count, behind the next re-entry (`inspect` shows the
lower count until the next renewal), or a rate limiter's permit that one node keeps for a window though it was rolled
back.

**Order across sets.** A link has an order, and two links have none between them. If an owner asks over one set and
releases over another, a node that has not answered the ask yet may execute it behind the release, and would keep a
claim that has ended. So such a node gets the release again, as a pending one (`keep_behind`); so does one that has yet
to end a former connection, over which an ask may still come. A pending release waits until the node has answered, over
every set, the commands that it must follow. If the client is closed before that, the claim stays there until its lease
ends. Exclusion does not depend on it: each claim has a number.

A node that runs a slow script (BUSY) or loads its data refuses releases too. It gets them again after a pause; a
connection to it that has just been made ends the pause.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from redsync._core.scripts import Arg
from redsync._drivers.requests import Request

if TYPE_CHECKING:
    from redsync._drivers.link_sets import AnyLinkSet, Shared

__all__ = ["PendingReleases", "is_refused", "keep_behind"]

_AFTER_REFUSAL: Final = 0.2
"""Seconds after which a node that answers with errors gets them again."""

_BETWEEN: Final = 0.02
"""Seconds between two batches for a node."""

_MOST: Final = 512
"""The most commands sent at once: a node that owes more replies gets no new claims."""

_MOST_KEPT: Final = 20_000
"""The most requests kept for a node."""

_WRONG: Final = r"\bWRONGTYPE\b|^ERR unknown command|^ERR wrong number of arguments|^UNACKNOWLEDGED "
"""Redis 6 puts the place in the script before WRONGTYPE. An UNACKNOWLEDGED command was executed."""


def is_refused(text: str) -> bool:
    """Return True if an error means that the node may execute the command later, False if the command is wrong."""
    return re.search(_WRONG, text) is None


class _OfNode:
    """The requests that one node must still get.

    None expires, since a node that hung may execute commands late, and their claims live from then on. Of too many the
    latest are kept: then older claims stay on the node until their leases end.

    Attributes:
        requests: The latest one about each claim.
        at: The instant from which the node gets the next ones.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[Arg, ...], Request] = {}
        self.at = 0.0

    def add(self, request: Request) -> None:
        """Keep a request; it replaces an earlier one about the same claim."""
        same = self.requests.get(request.claim)
        if same is None or same.number < request.number:
            self.requests[request.claim] = request
            if len(self.requests) > _MOST_KEPT:
                del self.requests[next(iter(self.requests))]


class PendingReleases:
    """The pending releases of one client. Any thread may call it.

    Attributes:
        mutex: The client's.
        others: Returns the sets of links besides the one that delivers.
        of_node: Those of each node.
    """

    def __init__(self, nodes: int, mutex: AbstractContextManager[Any]) -> None:
        """Make it empty; `mutex` is reentrant, because a finalizer may interrupt a thread that holds it."""
        self.mutex = mutex
        self.of_node: Final = [_OfNode() for _ in range(nodes)]
        self.others: Callable[[], Iterable[AnyLinkSet]] = tuple

    def add(self, index: int, requests: Iterable[Request]) -> None:
        """Keep those requests that the node must get."""
        ours = self.of_node[index]
        with self.mutex:
            for request in requests:
                if request.needs(1 << index):
                    ours.add(request)

    def refuse(self, index: int, request: Request, now: float) -> None:
        """Keep a request that the node must get, and has answered with an error."""
        with self.mutex:
            self.of_node[index].at = now + _AFTER_REFUSAL
        self.add(index, (request,))

    def resolve(self, index: int, request: Request) -> None:
        """Forget what the node need not get behind a request: that one, and an earlier one about its claim."""
        with self.mutex:
            requests = self.of_node[index].requests
            same = requests.get(request.claim)
            if same is not None and same.number <= request.number:
                del requests[request.claim]

    def due(self, index: int, now: float, unanswered: int = 0) -> list[Request]:
        """Return what to send now, in order, to a node that owes that many replies; it stays here until `resolve`."""
        ours = self.of_node[index]
        if not ours.requests or now < ours.at:
            return []
        with self.mutex:
            ours.at = now + _BETWEEN
            before: dict[Arg, list[Request]] = {}  # By key: a node that hangs may owe thousands of answers.
            for link in [other.links[index] for other in self.others()]:
                for request in () if link is None else list(link.pending):
                    for key in () if request.command is None else request.command.keys:
                        before.setdefault(key, []).append(request)
            due = sorted(ours.requests.values(), key=attrgetter("number"))[: max(_MOST - unanswered, 0)]
            return [
                request
                for request in due
                for others in [before.get(request.claim[0], ()) if request.claim else ()]
                if not any(other.number < request.number and other.concerns(request) for other in others)
            ]

    def due_at(self, index: int) -> float:
        """Return when the node is due for the next ones, if it is connected; infinity if there are none."""
        ours = self.of_node[index]
        return ours.at if ours.requests else math.inf

    def count(self, index: int) -> int:
        """Return how many the node has yet to get, besides those in flight."""
        return len(self.of_node[index].requests)

    def clear_pause(self, index: int) -> None:
        """Begin again with a node that has just been connected."""
        self.of_node[index].at = 0.0


def keep_behind(request: Request, link_set: AnyLinkSet, shared: Shared, own: AnyLinkSet) -> None:
    """Keep a release, just sent over a set, for nodes that may yet execute a command before it, over another set.

    It follows an ask for its claim. It also follows a renewal, which goes out over the maintenance's set (`own`) for
    all owners, and creates claims that a node has forgotten; and its owner's earlier asks, whatever their claims: each
    may take a place in the queue, which belongs to the owner.
    """
    owner = request.effect.owner
    # A node may yet execute what came over a former connection, until it has ended that.
    behind = {node.index for node in shared.nodes if node.former}
    for other in (*shared.releases.others(), own):
        for link in () if other is link_set else list(other.links):
            # Not a tuple: while it makes one, Python 3.11 may collect garbage, and another thread use its set.
            for before in () if link is None else list(link.pending):
                # Most are other owners'. Only the maintenance sends for several at once.
                if (before.effect.owner is owner or other is own) and before.concerns(request):
                    behind.add(link.index)
                    break
    for index in behind:
        again = Request(request.effect, None)
        again.number = shared.next_number()  # Not that of the sent one, whose answer does not resolve it.
        shared.releases.add(index, (again,))
        shared.wake()
