"""Observing: the data that a client gives its listeners and observers, the source of metrics and traces.

Ordinary listeners get an *event* when something goes wrong: a frozen value, safe to keep and to hand to other threads.
An *observer* also learns of each acquire, hold, renewal and reply. That is a lot, so the rules are strict:

* A client without observers builds no reports: protocols look at `Session.observed` first, or at the request's record.
* Protocols write into plain records (`AcquireRecord`), or yield `Notify`. So no observer runs inside a protocol's step.
* Drivers append to the deques of an `ObserverSubscription`. A deque's append is atomic, needs no lock, and runs no
  foreign code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from redsync._core.holds import HoldState
from redsync._core.quorum import Tally

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
    "Step",
    "WatchdogWoke",
    "noting_of",
]

_MOST_REPLIES = 65_536
"""The most round trips and failed votes kept until an observer fetches them; the oldest are dropped first."""

_MOST_STEPS = 128
"""The most steps kept of one acquire: a wait of hours has thousands."""


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
    """The watchdog released a hold whose owner had ended without a release: a thread, a task or a dropped object.

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
        at: The end of the latest round or hand-over; the beginning before the first.
        rounds: The number of rounds so far; `splits` and `hand_overs` likewise.
        waiting: True once it has begun to wait for others.
    """

    # Class attributes, because most acquires take one round and do not wait.
    rounds = splits = hand_overs = 0
    waiting = _queued = False

    def __init__(  # noqa: PLR0917  (once for each acquire: keywords would cost more)
        self,
        name: str | bytes,
        kind: str,
        wanted: int,
        limit: int | None,
        started: float,
        all_waiting: set[AcquireRecord],
    ) -> None:
        """Begin; `all_waiting`: the set of waiting records."""
        self.name = name
        self.kind = kind
        self.wanted = wanted
        self.limit = limit
        self.started = self.at = started
        self.steps: list[Step] = []
        self._all_waiting = all_waiting

    def note_round(self, tally: Tally) -> None:
        """Record a round."""
        self.at = tally.at
        self.rounds += 1
        self._note("round", tally.at, (tally.granted, tally.refused, tally.failed))

    def note_split(self, at: float) -> None:
        """Record a split vote: no contender can win a quorum."""
        self.splits += 1
        self._note("split", at)

    def begin_waiting(self) -> None:
        """Record that the acquire waits for others."""
        self.waiting = True
        self._all_waiting.add(self)

    def end_waiting(self) -> None:
        """Record that the acquire no longer waits."""
        self._all_waiting.discard(self)

    def note_sleep(self, at: float, *, queued: bool) -> None:
        """Record a sleep between two rounds, and once, if `queued`, that it has places in the nodes' queues."""
        self.begin_waiting()
        if queued and not self._queued:
            self._queued = True
            self._note("queued", at)

    def note_woken(self, at: float) -> None:
        """Record that nodes ended a sleep."""
        self._note("woken", at)

    def note_handed_over(self, at: float) -> None:
        """Record that nodes handed the claim over."""
        self.at = at
        self.hand_overs += 1
        self._note("handed over", at)

    def _note(self, what: str, at: float, votes: tuple[int, int, int] | None = None) -> None:
        if len(self.steps) < _MOST_STEPS:
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
        how: "released" by its owner, or "given back" by the client: for an owner that ended, or when the client closes.
    """

    hold: HoldState
    how: Literal["released", "given back"]


class HoldsRenewed(NamedTuple):
    """The client asked the nodes to renew holds.

    Attributes:
        confirmed: The holds that a quorum confirmed.
        left: The share of the lease that each of these had left when the answers came.
    """

    confirmed: tuple[HoldState, ...]
    left: tuple[float, ...]


class WatchdogWoke(NamedTuple):
    """The watchdog woke up, as something was due.

    Attributes:
        lag: The delay after the planned instant, in seconds.
    """

    lag: float


Detail: TypeAlias = AcquireEnded | HoldEnded | HoldsRenewed | WatchdogWoke


class ObserverSubscription:
    """The channel from one client to one observer.

    Attributes:
        nodes: The addresses of the client's nodes.
        hear: Called with each event, in the thread or task in which it happens.
        took: For each node, the seconds until each reply that a round waited for; the observer removes them.
        failed: Failed votes, each as the node's address and the reason in words; the observer removes them.

    Args:
        replies: The most round trips per node, and failed votes, kept until the observer removes them.
    """

    __slots__ = ("failed", "hear", "nodes", "took")

    def __init__(
        self,
        nodes: Sequence[str],
        hear: Callable[[Event | Detail], object],
        *,
        replies: int = _MOST_REPLIES,
    ) -> None:
        self.nodes: Final = tuple(nodes)
        self.hear: Final = hear
        self.took: tuple[deque[float], ...] = tuple(deque(maxlen=replies) for _ in nodes)
        self.failed: deque[tuple[str, str]] = deque(maxlen=replies)

    def note_votes(self, tally: Tally) -> None:
        """Record the failed votes of a round."""
        for node, choice in enumerate(tally.choices):
            if choice is not None and choice.value == "failed":
                self.failed.append((self.nodes[node], str(tally.replies[node])))


def noting_of(subscriptions: Sequence[ObserverSubscription]) -> tuple[Callable[[float], None], ...]:
    """Return for each node what notes the time that a reply took, for all of these ears."""
    per_node = zip(*(subscription.took for subscription in subscriptions), strict=True)
    return tuple(_for_all([took.append for took in each]) for each in per_node)


def _for_all(notes: Sequence[Callable[[float], None]]) -> Callable[[float], None]:
    def note(took: float) -> None:
        for each in notes:
            each(took)

    # Called for each reply: the usual one observer needs no function of ours in between.
    return notes[0] if len(notes) == 1 else note


class Observer(ABC):
    """A listener that gets every report; pass it to a client as one of its `listeners`."""

    @abstractmethod
    def listen(self, nodes: Sequence[str], now: Callable[[], float]) -> ObserverSubscription:
        """Return the subscription of a client with these nodes and this clock; called once, before all else."""

    def attach(self, client: Any) -> None:  # noqa: B027  (not all observers need it)
        """Begin to observe a client, and to query its nodes and waiters; must not keep the client alive."""

    def __call__(self, event: Event) -> None:  # noqa: ARG002  (a listener takes it)
        """Fit the type of a listener; the client never calls this, but the subscription."""
        raise AssertionError("a client calls the observer's subscription")
