"""Checkers: each watches a run for the breach of one promise.

A checker is one class; its docstring defines the promise, and what the checker can't see. To add one: derive from
`OwnChecker`, list in `watches` the events it wants to see (see `redsync.testing.simulator.trace_events`), return a
complaint from `see` as soon as the promise is broken, from `look`, called once in `every` seconds, or from `finish`
when the run is over, and add it to the lists below.

Several checkers share helpers: the module `rounds` knows the requests and their outcomes, `kept` what nodes keep;
`Queues` knows who must be in the queues of fair locks, `Latches` what calls on a latch may report, and
`Trial.fault_free` since when there are no faults.

A checker may read everything: `sim.machines` and their `runners` (`runner.session.holds` has the holds that a client
believes in), `sim.nodes` and their `store`, `sim.now`. It changes nothing.
"""

from itertools import chain
from typing import Final

from redsync._kinds import KINDS
from tests.simulation.checks.base import OwnChecker
from tests.simulation.checks.beliefs import Exclusion, LossTold, Reentrancy, Renewal, Tokens
from tests.simulation.checks.fair import Fairness, Turns
from tests.simulation.checks.latch_knowledge import LatchNeverEarly, LatchOpens
from tests.simulation.checks.limits import PermitBound, SlidingWindow, Slots
from tests.simulation.checks.served import Liveness
from tests.simulation.checks.server_records import Admission, Expiry, LeakedClaims

_LEFT: Final = (LeakedClaims, Expiry, Liveness)
_LOCKS: Final = (Exclusion, Reentrancy, Renewal, LossTold, *_LEFT)
_READ_WRITE: Final = (Exclusion, Admission, Reentrancy, Renewal, LossTold, *_LEFT)
_PERMITS: Final = (Exclusion, PermitBound, Slots, Renewal, LossTold, *_LEFT)
_RATES: Final = (SlidingWindow, Slots, *_LEFT)
_LATCHES: Final = (LatchNeverEarly, LatchOpens, Exclusion, Renewal, LossTold, *_LEFT, Tokens)

_LIKE: Final[dict[str, tuple[type[OwnChecker], ...]]] = {
    "lock": _LOCKS,
    "read-write": _READ_WRITE,
    "semaphore": _PERMITS,
    "limiter": _RATES,
    "latch": _LATCHES,
}
_MORE: Final[dict[str, tuple[type[OwnChecker], ...]]] = {"fair": (Turns, Fairness), "fenced": (Tokens,)}
"""Checkers of the promises that a kind makes beyond those of kinds like it."""

OF_KIND: Final[dict[str, tuple[type[OwnChecker], ...]]] = {
    word: (*_LIKE[kind.like], *_MORE.get(word, ())) for word, kind in KINDS.items() if kind.like in _LIKE
}
"""The checkers that apply when programs contend for one kind of synchronizer only."""

_OF_SERVERS: Final = (Admission, Turns, LeakedClaims)
"""The checkers that compare a server's data with the commands it got; a promoted one keeps data of others."""

OF_GROUPS: Final[dict[str, tuple[type[OwnChecker], ...]]] = {
    word: tuple(checker for checker in checkers if checker not in _OF_SERVERS) for word, checkers in OF_KIND.items()
}
"""The checkers for nodes that are Sentinel groups."""

_OF_MOVED_KEYS: Final = (Expiry, Slots)
"""The checkers that judge a server's data by its own clock, or expect related keys to arrive together."""

OF_CLUSTERS: Final[dict[str, tuple[type[OwnChecker], ...]]] = {
    word: tuple(checker for checker in checkers if checker not in _OF_MOVED_KEYS)
    for word, checkers in OF_GROUPS.items()
}
"""The checkers for nodes of a cluster: their keys move one by one, between servers with different clocks."""

ALL: Final[tuple[type[OwnChecker], ...]] = tuple(dict.fromkeys(chain.from_iterable(OF_KIND.values())))
"""The default checkers of a simulation."""
