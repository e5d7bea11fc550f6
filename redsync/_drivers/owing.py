"""Order across sets: a release also goes out over the other sets whose nodes may execute its claim late.

A link has an order, and two links have none between them. If an owner asks over one set and releases over another, a
node that has not answered the ask yet may execute it behind the release, and would keep a claim that has ended. So
such a node gets the release over both sets. Its vote for the release says nothing, and counts as failed.

So it is with a renewal, which goes out over the maintenance's set, and creates claims that a node has forgotten: one
that was decided early may be executed behind the release on the other nodes.

And so it is with an owner's earlier asks, whatever their claims: each may take a place in the queue, which belongs to
the owner.

Exclusion does not depend on it: each claim has its own number.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from redsync._core.ownership import Owner
from redsync._drivers.link_sets import AnyLinkSet, fail
from redsync._drivers.requests import Request

__all__ = ["Owing"]

_MANY: Final = 100
"""The number of owners from which those are dropped whose nodes have answered."""


class Owing:
    """The sets whose nodes owed an owner replies when it returned them.

    Any thread may call it; two at the same time have different owners. The guard keeps one from dropping what another
    records just then.

    Attributes:
        sets: By owner.
        own: The maintenance's set; its commands are for all owners.
    """

    def __init__(self, next_number: Callable[[], int], guard: AbstractContextManager[Any]) -> None:
        """Make it empty.

        Args:
            next_number: Returns the next number in the order of the client's commands.
            guard: Reentrant, because a signal handler may use the client in between.
        """
        self._next_number: Final = next_number
        self._guard: Final = guard
        self.sets: Final[dict[Owner, list[weakref.ref[AnyLinkSet]]]] = {}
        self.own: AnyLinkSet | None = None

    def note(self, owner: Owner, link_set: AnyLinkSet) -> None:
        """Record that an owner returns a set whose nodes owe it replies."""
        known = self.sets.get(owner)
        if known is not None and len(known) == 1 and known[0]() is link_set:
            return
        with self._guard:
            if len(self.sets) >= _MANY:
                for each in list(self.sets):
                    if not self._others(each):
                        self.sets.pop(each, None)
            others = self._others(owner, link_set)
            self.sets[owner] = [weakref.ref(each) for each in (*others, link_set)]

    def follow(self, request: Request, link_set: AnyLinkSet | None) -> bool:
        """Let a release that goes out over `link_set`, or by the maintenance, also follow its claim over other sets.

        Returns True if it must, on some node: a user of that set sends it, or the maintenance.
        """
        owner, some = request.effect.owner, False
        if owner is None:
            return False
        # They stay known for as long as something is owed: the owner may release other claims later.
        others = self._others(owner, link_set)
        if self.own is not None and self.own is not link_set and self.own.owes:
            others.append(self.own)
        for other in others:
            for link in list(other.links):
                if link is not None and request.owed(link.bit) and link.owes(request):
                    again = Request(request.effect, None)
                    again.number = self._next_number()
                    other.following.append((link.index, again))
                    fail(request, link.node, "has not answered an earlier command for this claim")
                    some = True
        return some

    def _others(self, owner: Owner, but: AnyLinkSet | None = None) -> list[AnyLinkSet]:
        """Return the sets, but one, whose nodes still owe the owner replies."""
        known = self.sets.get(owner)
        if known is None:
            return []
        return [each for ref in known if (each := ref()) is not None and each is not but and each.owes]
