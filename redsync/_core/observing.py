"""What a client tells its observers: everything that metrics and traces are made of.

Ordinary listeners get an event when something goes wrong. An *observer* also learns of each acquire, hold, renewal and
reply. That is much, so the rules are strict:

* Nothing is built while nobody observes: protocols look at `Session.observed` first, or at `AcquireRequest.record`.
* Protocols write into plain records (`AcquireRecord`), or yield `Notify`. So no observer runs inside a protocol's step.
* Drivers append to the deques of an `Ear`. A deque's append is atomic, needs no lock, and runs no foreign code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from redsync._core.events import Event

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync._core.quorum import Tally

__all__ = [
    "AcquireEnded",
    "AcquireRecord",
    "Detail",
    "Ear",
    "HoldEnded",
    "HoldsRenewed",
    "Observer",
    "RetryAfterTold",
    "Step",
    "WatchdogWoke",
]

_MOST_REPLIES = 65_536
"""Round trips and failed votes kept for an observer until it fetches them; then the oldest are dropped."""

_MOST_STEPS = 128
"""Steps kept of one acquire: one that waits for hours takes thousands."""


class Step(NamedTuple):
    """One thing that happened during an acquire.

    Attributes:
        what: "round", "split", "queued", "woken" or "handed over".
        at: The instant, seconds on the driver's clock.
        votes: For a round: how many nodes granted, refused and failed.
    """

    what: str
    at: float
    votes: tuple[int, int, int] | None = None


class AcquireRecord:
    """What one acquire does, for observers; the acquire itself never reads it.

    Attributes:
        name: The synchronizer's name.
        kind: Its kind, such as "fair_lock".
        wanted: How many holds or permits it asks for.
        limit: The semaphore's number of permits; None for other kinds.
        started: When it began, seconds on the driver's clock.
        steps: What happened, the first `_MOST_STEPS` of it.
        rounds: How many rounds it took; `splits` and `hand_overs` likewise.
        waiting: Whether it has begun to wait for others.
    """

    __slots__ = (
        "_queued",
        "_round_at",
        "hand_overs",
        "kind",
        "limit",
        "name",
        "rounds",
        "splits",
        "started",
        "steps",
        "waiting",
        "wanted",
    )

    def __init__(self, name: str | bytes, kind: str, wanted: int, limit: int | None, started: float) -> None:
        self.name = name
        self.kind = kind
        self.wanted = wanted
        self.limit = limit
        self.started = started
        self.steps: list[Step] = []
        self.rounds = self.splits = self.hand_overs = 0
        self.waiting = self._queued = False
        self._round_at: float | None = None

    def note_round(self, tally: Tally) -> None:
        """Record a round, once."""
        if tally.at == self._round_at:
            return
        self._round_at = tally.at
        self.rounds += 1
        self._note("round", tally.at, (tally.granted, tally.refused, tally.failed))

    def note_split(self, at: float) -> None:
        """Record that no contender can have a quorum."""
        self.splits += 1
        self._note("split", at)

    def note_sleep(self, at: float, *, queued: bool) -> None:
        """Record that it sleeps between two rounds; `queued`: with a place in the nodes' queues, which is told once."""
        self.waiting = True
        if queued and not self._queued:
            self._queued = True
            self._note("queued", at)

    def note_woken(self, at: float) -> None:
        """Record that nodes ended its sleep."""
        self._note("woken", at)

    def note_handed_over(self, at: float) -> None:
        """Record that nodes handed the claim over."""
        self.hand_overs += 1
        self._note("handed over", at)

    def _note(self, what: str, at: float, votes: tuple[int, int, int] | None = None) -> None:
        if len(self.steps) < _MOST_STEPS:
            self.steps.append(Step(what, at, votes))


class AcquireEnded(NamedTuple):
    """An acquire ended, with success or without.

    Attributes:
        record: What it did.
        outcome: "won", "busy", "no_quorum" or "error".
        hold: The hold; None if there is none.
        error: The name of the error's class; empty if there was none.
    """

    record: AcquireRecord
    outcome: Literal["won", "busy", "no_quorum", "error"]
    hold: HoldState | None = None
    error: str = ""


class HoldEnded(NamedTuple):
    """A hold ended otherwise than by a loss that was noticed before; told again if several threads end it.

    Attributes:
        hold: The hold; `hold.lost` tells of a loss that its release found.
        how: "released", or "given back": by the client, on behalf of an owner that ended, or when it was closed.
    """

    hold: HoldState
    how: Literal["released", "given back"]


class HoldsRenewed(NamedTuple):
    """The client renewed holds, or could not.

    Attributes:
        confirmed: The holds that a quorum confirmed.
        left: Which part of its lease each of these had left when the answers came.
        doubtful: The holds of which too few nodes said anything; the client asks again.
    """

    confirmed: tuple[HoldState, ...]
    left: tuple[float, ...]
    doubtful: tuple[HoldState, ...]


class RetryAfterTold(NamedTuple):
    """A rate limiter said in how many seconds it has room.

    Attributes:
        name: The rate limiter's name.
        seconds: The answer.
    """

    name: str | bytes
    seconds: float


class WatchdogWoke(NamedTuple):
    """The watchdog woke up to do what was due.

    Attributes:
        lag: How many seconds later than planned.
    """

    lag: float


Detail: TypeAlias = AcquireEnded | HoldEnded | HoldsRenewed | RetryAfterTold | WatchdogWoke


class Ear:
    """What one client tells one observer.

    Attributes:
        nodes: The addresses of the client's nodes.
        hear: Called with each event, in the thread or task in which it happens.
        took: For each node, the seconds that it took for replies that a round waited for; the observer removes them.
        failed: Failed votes, each as the node's index and the reason in words; the observer removes them.

    Args:
        replies: How many round trips per node, and failed votes, are kept for it.
    """

    __slots__ = ("__weakref__", "failed", "hear", "nodes", "took")

    def __init__(
        self, nodes: Sequence[str], hear: Callable[[Event | Detail], object], *, replies: int = _MOST_REPLIES
    ) -> None:
        self.nodes: Final = tuple(nodes)
        self.hear: Final = hear
        self.took: Final = tuple(deque[float](maxlen=replies) for _ in nodes)
        self.failed: Final = deque[tuple[int, str]](maxlen=replies)

    def note_votes(self, tally: Tally) -> None:
        """Record the failed votes of a round."""
        for node, choice in enumerate(tally.choices):
            if choice is not None and choice.value == "failed":
                self.failed.append((node, str(tally.replies[node])))


class Observer(ABC):
    """A listener that is told everything; give it to a client as one of its `listeners`."""

    @abstractmethod
    def listen(self, nodes: Sequence[str], now: Callable[[], float]) -> Ear:
        """Return the ear for a client with these nodes and this clock; called once, before anything happens."""

    def attach(self, client: Any) -> None:  # noqa: B027  (not all observers need it)
        """Begin to observe a client whose nodes and waiters can be asked for; must not keep it alive."""

    def __call__(self, event: Event) -> None:  # noqa: ARG002  (a listener takes it)
        """Make it a listener by its type; events come to the ear."""
        raise AssertionError("a client calls the observer's ear")
