"""Checkers: each watches a run for the breach of one promise.

A checker is one small module with one class. To add one: derive from `Checker`, list in `watches` the happenings it
wants to see (see `redsync.testing.simulator.happenings`), return a complaint from `see` as soon as the promise is
broken, from `look`, called once in `every` seconds, or from `finish` when the run is over, and add it to the lists
below.

Several checkers share helpers: `rounds` knows the requests and their outcomes, `kept` what nodes keep, `queues` who
must be in the queues of fair locks, `latches` what calls on a latch may report, `vacancy` what is free, `calm` since
when there are no faults.

A checker may read everything: `sim.machines` and their `runners` (`runner.session.holds` has the holds that a client
believes in), `sim.nodes` and their `store`, `sim.now`. It changes nothing.
"""

from itertools import chain
from typing import Final

from redsync._kinds import KINDS
from redsync.testing.simulator.checks.admission import Admission
from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.checks.delivery import Delivery
from redsync.testing.simulator.checks.exclusion import Exclusion
from redsync.testing.simulator.checks.expiry import Expiry
from redsync.testing.simulator.checks.fairness import Fairness
from redsync.testing.simulator.checks.latch_early import LatchNeverEarly
from redsync.testing.simulator.checks.latch_opens import LatchOpens
from redsync.testing.simulator.checks.leftovers import Leftovers
from redsync.testing.simulator.checks.liveness import Liveness
from redsync.testing.simulator.checks.loss import LossTold
from redsync.testing.simulator.checks.order import Order
from redsync.testing.simulator.checks.permits import PermitBound
from redsync.testing.simulator.checks.promised import Promised
from redsync.testing.simulator.checks.reentrancy import Reentrancy
from redsync.testing.simulator.checks.renewal import Renewal
from redsync.testing.simulator.checks.replies import Replies
from redsync.testing.simulator.checks.separation import Separation
from redsync.testing.simulator.checks.slots import Slots
from redsync.testing.simulator.checks.tokens import Tokens
from redsync.testing.simulator.checks.turns import Turns
from redsync.testing.simulator.checks.window import SlidingWindow
from redsync.testing.simulator.checks.zombies import Zombies

__all__ = [
    "ALL",
    "OF_CLUSTERS",
    "OF_GROUPS",
    "OF_KIND",
    "Admission",
    "Checker",
    "Delivery",
    "Exclusion",
    "Expiry",
    "Fairness",
    "LatchNeverEarly",
    "LatchOpens",
    "Leftovers",
    "Liveness",
    "LossTold",
    "Order",
    "PermitBound",
    "Promised",
    "Reentrancy",
    "Renewal",
    "Replies",
    "Separation",
    "SlidingWindow",
    "Slots",
    "Tokens",
    "Turns",
    "Zombies",
]

_TRANSPORT: Final = (Replies, Order, Delivery, Leftovers)
_LEFT: Final = (Zombies, Expiry, Liveness, *_TRANSPORT)
_LOCKS: Final = (Exclusion, Reentrancy, Renewal, LossTold, *_LEFT)
_READ_WRITE: Final = (Exclusion, Admission, Reentrancy, Renewal, LossTold, *_LEFT)
_PERMITS: Final = (Exclusion, PermitBound, Slots, Renewal, LossTold, *_LEFT)
_RATES: Final = (SlidingWindow, Promised, Slots, *_LEFT)
_LATCHES: Final = (LatchNeverEarly, LatchOpens, Exclusion, Renewal, LossTold, *_LEFT, Tokens)

_LIKE: Final[dict[str, tuple[type[Checker], ...]]] = {
    "lock": _LOCKS,
    "read-write": _READ_WRITE,
    "semaphore": _PERMITS,
    "limiter": _RATES,
    "latch": _LATCHES,
}
_MORE: Final[dict[str, tuple[type[Checker], ...]]] = {"fair": (Turns, Fairness), "fenced": (Tokens,)}
"""Checkers of the promises that a kind makes beyond those of kinds like it."""

OF_KIND: Final[dict[str, tuple[type[Checker], ...]]] = {
    word: (*_LIKE[kind.like], *_MORE.get(word, ())) for word, kind in KINDS.items() if kind.like in _LIKE
}
"""The checkers that apply when programs contend for one kind of synchronizer only."""

_OF_SERVERS: Final = (Admission, Turns, Zombies)
"""The checkers that compare a server's data with the commands it got; a promoted one keeps data of others."""

OF_GROUPS: Final[dict[str, tuple[type[Checker], ...]]] = {
    word: tuple(checker for checker in checkers if checker not in _OF_SERVERS) for word, checkers in OF_KIND.items()
}
"""The checkers for nodes that are Sentinel groups."""

_OF_MOVED_KEYS: Final = (Expiry, Slots)
"""The checkers that judge a server's data by its own clock, or expect related keys to arrive together."""

OF_CLUSTERS: Final[dict[str, tuple[type[Checker], ...]]] = {
    word: (*(checker for checker in checkers if checker not in _OF_MOVED_KEYS), Separation)
    for word, checkers in OF_GROUPS.items()
}
"""The checkers for nodes of a cluster: their keys move one by one, between servers with different clocks."""

ALL: Final[tuple[type[Checker], ...]] = (*dict.fromkeys(chain.from_iterable(OF_KIND.values())), Separation)
"""The default checkers of a simulation."""
