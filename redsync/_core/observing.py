"""Observing: the data that a client gives its listeners and observers, the source of metrics and traces.

Ordinary listeners get an *event* when something goes wrong: a frozen value, safe to keep and to hand to other threads.
An *observer* also learns of each acquire, hold, renewal and reply. That is a lot, so the rules are strict:

* A client without observers builds no reports: protocols look at `Session.observed` first.
* Protocols note the steps of an acquire (`Session.note`), or yield `Notify`. So no observer runs inside their steps.
* Drivers append each round to a deque of the `ObserverSubscription`: that is atomic, needs no lock, and runs no foreign
  code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Literal, NamedTuple, TypeAlias

from redsync._core.holds import HoldState
from redsync._core.quorum import Choice, Tally

__all__ = [
    "AcquireEnded",
    "AcquireRecord",
    "Detail",
    "Event",
    "HoldEnded",
    "HoldLost",
    "HoldOrphaned",
    "HoldsRenewed",
    "NodeChanged",
    "Observer",
    "ObserverSubscription",
    "Round",
    "Step",
    "WatchdogWoke",
    "functions_of",
    "is_function",
    "round_of",
]

_MOST_STEPS = 128
"""The most steps kept of one acquire: a wait of hours has thousands."""


def is_function(callback: Any) -> bool:
    """Return whether a callback can be called, and does its work then: no client runs coroutines or generators."""
    kinds = iscoroutinefunction, isgeneratorfunction, isasyncgenfunction
    return callable(callback) and not any(kind(call) for call in functions_of(callback) for kind in kinds)


def functions_of(callback: Any) -> tuple[Any, Any]:
    """Return the two functions that a call may run: the callback, without its partials, and its class's `__call__`."""
    while isinstance(callback, partial):
        callback = callback.func
    return callback, type(callback).__call__


class HoldLost(NamedTuple):
    """A hold ended before its owner released it.

    Attributes:
        name: The synchronizer's name.
        owner: The former holder, as `Hold.owner` names it.
        reason: The cause, as a sentence.
        state: The hold itself.
    """

    name: str | bytes
    owner: str
    reason: str
    state: HoldState


class HoldOrphaned(NamedTuple):
    """The watchdog ended a hold whose owner had ended without a release: a thread, a task or a dropped object.

    Attributes:
        name: The synchronizer's name.
        owner: The former holder, as `Hold.owner` names it.
    """

    name: str | bytes
    owner: str


class NodeChanged(NamedTuple):
    """A node went up, down, suspect or quarantined.

    Attributes:
        node: The node's address.
        state: "up", "down", "suspect" or "quarantined".
        reason: Why, as a sentence; empty for "up".
    """

    node: str
    state: str
    reason: str


Event: TypeAlias = HoldLost | HoldOrphaned | NodeChanged


class Step(NamedTuple):
    """One thing that happened during an acquire.

    Attributes:
        what: "round", "split", "queued", "woken" or "handed over".
        at: The instant, in seconds on the driver's clock.
        votes: For a round: the numbers of nodes that granted, refused and failed.
    """

    what: str
    at: float
    votes: tuple[int, int, int] | None = None


class AcquireRecord:
    """A record of one acquire, for observers; the acquire itself never reads it.

    Attributes:
        name: The synchronizer's name.
        kind: The synchronizer's kind, such as "fair_lock".
        wanted: The number of holds or permits that the acquire asks for.
        limit: The semaphore's number of permits; None for other kinds.
        started: The instant at which it began, in seconds on the driver's clock.
        steps: The first `_MOST_STEPS` of its steps.
        counts: How often each step was noted, by `Step.what`; "waiting": how often it waited without a place.
    """

    def __init__(self, name: str | bytes, kind: str, *, wanted: int, limit: int | None, started: float) -> None:
        self.name = name
        self.kind = kind
        self.wanted = wanted
        self.limit = limit
        self.started = started
        self.steps: list[Step] = []
        self.counts: dict[str, int] = {}

    def note(self, what: str, at: float, tally: Tally | None = None) -> None:
        """Record a step, "queued" once; or "waiting", which only counts. `tally`: the votes of a round."""
        count = self.counts[what] = self.counts.get(what, 0) + 1
        if what != "waiting" and (what != "queued" or count == 1) and len(self.steps) < _MOST_STEPS:
            votes = None if tally is None else (tally.granted, tally.refused, tally.failed)
            self.steps.append(Step(what, at, votes))


class AcquireEnded(NamedTuple):
    """An acquire ended, with success or without.

    Attributes:
        record: Its record.
        outcome: "won", "busy", "no_quorum" or "error".
        hold: The hold that it acquired, if any.
        error: The name of the error's class; empty if there was no error.
    """

    record: AcquireRecord
    outcome: Literal["won", "busy", "no_quorum", "error"]
    hold: HoldState | None = None
    error: str = ""


class HoldEnded(NamedTuple):
    """A hold ended, but not by a loss noticed earlier; reported again if several threads end it.

    Attributes:
        hold: The hold; `hold.lost` is set if its release found a loss.
    """

    hold: HoldState


class HoldsRenewed(NamedTuple):
    """The client asked the nodes to renew holds.

    Attributes:
        left: Confirmed holds, each with the share left of its lease or, after a hand-over, of its shorter claim.
    """

    left: dict[HoldState, float]


class WatchdogWoke(NamedTuple):
    """The watchdog woke up, as something was due.

    Attributes:
        lag: The delay after the planned instant, in seconds.
    """

    lag: float


Detail: TypeAlias = AcquireEnded | HoldEnded | HoldsRenewed | WatchdogWoke


Round: TypeAlias = list[tuple[str, str | None, float]]
"""A round that is over: for each vote that it waited for, the node, why it FAILED, and the seconds until its reply."""


def round_of(tally: Tally) -> Round:
    """Return what observers learn of a round: without the replies, which may be long."""
    return [
        (node, reply if choice is Choice.FAILED else None, at - tally.sent_at)
        for node, vote in zip(tally.nodes, tally.ballots, strict=True)
        if vote is not None
        for choice, _, reply, at in (vote,)
    ]


class ObserverSubscription(NamedTuple):
    """The channel from one client to one observer.

    Attributes:
        hear: Called with each event, in the thread or task in which it happens.
        rounds: All rounds that are over; the observer removes them.
    """

    hear: Callable[[Event | Detail], object]
    rounds: deque[Round]


class Observer(ABC):
    """A listener that gets every report; pass it to a client as one of its `listeners`."""

    @abstractmethod
    def listen(self, now: Callable[[], float]) -> ObserverSubscription:
        """Return the subscription of a client with this clock; called once, before all else."""

    def attach(self, client: Any) -> None:  # noqa: B027  (not all observers need it)
        """Begin to observe a client, and to query its nodes and waiters; must not keep the client alive."""

    def __call__(self, event: Event) -> None:  # noqa: ARG002  (a listener takes it)
        """Fit the type of a listener; the client never calls this, but the subscription."""
        raise AssertionError("a client calls the observer's subscription")
