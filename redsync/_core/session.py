"""The view that facades and protocols have of the driver that runs them.

A facade has a `Runner` and a `Session`, never a driver. Only `client.py` and `client_async.py` know which driver runs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, TypeVar
from weakref import ReferenceType

from redsync._core.client_records import ClientRecord
from redsync._core.effects import Steps
from redsync._core.holds import HoldTable, Owner
from redsync._core.latches import Arrivals
from redsync._core.local_queues import LocalQueues
from redsync._core.memory import Processes
from redsync._core.observing import AcquireRecord
from redsync._core.quorum import Tally, quorum_of
from redsync._core.timing import Timing

__all__ = ["AnyHost", "AnyRunner", "AsyncRunner", "Runner", "Scope", "Session"]

T = TypeVar("T")

_MOST_CONTENDED = 1024
"""The most entries of a table; one that is full is emptied."""


@dataclass(eq=False)
class Session:
    """The state that one client's synchronizers share.

    Attributes:
        nodes: The number of configured nodes.
        timing: The client's time settings.
        holds: The holds in which the client believes.
        random: Returns a random number in [0, 1), for delays that spread contenders.
        record_key: The key of this client's record on the nodes.
        client: The record; None for a client that keeps none.
        epoch: The offset from an instant of the driver's clock to seconds since 1970.
        ask_ids: Numbers not used before in this client; each identifies one of its asks.
        claims: Numbers of claims, not used before in this client; see `holds`.
        arrivals: The count-downs under way, by the latch's key; see `Arrivals`.
        processes: The server processes to which this client is connected.
        queues: Where this client's waiters wait in the process.
        observed: True if an observer wants everything, see `observing`.
        records: The records of the acquires under way that are observed, by their requests.
        contended: The keys of locks whose latest acquire met others: the next one asks for a place with its first try,
            because most likely it has to wait too. If not, it has only sent a longer command.
        answered: True once a quorum of nodes has answered an acquire or a wait.
        quorum: The number of nodes that must grant.
    """

    nodes: int
    timing: Timing
    holds: HoldTable
    random: Callable[[], float]
    record_key: bytes = b""
    processes: Processes = field(default_factory=Processes)
    observed: bool = False
    client: ClientRecord | None = None
    epoch: float = 0.0
    ask_ids: Iterator[int] = field(default_factory=lambda: count(1))
    claims: Iterator[int] = field(default_factory=lambda: count(1))
    arrivals: dict[bytes, Arrivals] = field(default_factory=dict)
    queues: LocalQueues = field(default_factory=LocalQueues)
    records: dict[object, AcquireRecord] = field(default_factory=dict)
    contended: set[bytes] = field(default_factory=set)
    answered: bool = False

    def __post_init__(self) -> None:
        self.quorum = quorum_of(self.nodes)

    @property
    def all_nodes(self) -> int:
        """Bit set of all nodes."""
        return (1 << self.nodes) - 1

    def note(self, request: object, what: str, at: float, tally: Tally | None = None) -> None:
        """Record a step of an acquire, if it is observed, see `AcquireRecord.note`."""
        if (record := self.records.get(request)) is not None:
            record.note(what, at, tally)

    def note_others(self, key: bytes, *, met: bool) -> None:
        """Record whether the latest acquire of a lock met others; a full table is emptied first."""
        if not met:
            self.contended.discard(key)
        else:
            if len(self.contended) >= _MOST_CONTENDED:
                self.contended.clear()
            self.contended.add(key)


class AnyRunner(Protocol):
    """Runs protocols, for callers of either flavour: what the drivers' base class of that name offers to facades.

    Attributes:
        session: State that the client's synchronizers share; a forked child has another one.
        clock: Returns the current instant; enough where the session was read before, which notices a fork.
    """

    @property
    def session(self) -> Session: ...

    @property
    def clock(self) -> Callable[[], float]: ...

    def owner(self) -> Owner:
        """Return the calling thread's or task's owner."""

    def new_owner(self) -> Owner:
        """Return a new owner, for a claim that belongs to no thread or task."""

    def now(self) -> float:
        """Return the current instant, in seconds on this runner's clock."""

    def require_open(self) -> None:
        """Return if the client is open, else raise `ClientClosedError`."""


class Runner(AnyRunner, Protocol):
    """Runs protocols for the callers of one client, in threads."""

    def run(self, steps: Steps[T]) -> T:
        """Perform the protocol's effects until it returns; raises its errors."""

    def give_back(self, steps: Steps[None]) -> None:
        """Run a protocol that releases something; never wait for an operation that the calling thread itself began.

        In a signal handler or a finalizer, another thread may run it a moment later.
        """

    def task(self) -> ReferenceType[Any] | None:
        """Return the asyncio task in whose step the calling thread is, as a weak reference; None outside of tasks."""


class Scope(Protocol):
    """Cancels the body of an `async with`, and distinguishes that cancellation from all others."""

    def is_here(self) -> bool:
        """Return whether the running task opened the scope."""

    def cancel(self) -> None:
        """Cancel the task that opened the scope, at its next await, unless the scope is closed by then."""

    def close(self, error: BaseException | None) -> bool:
        """End the scope; return whether `error` is this scope's cancellation and no other one was requested.

        A closed generator can't see what cancelled its task: there the result only says that no other cancellation was
        requested.
        """


class AsyncRunner(AnyRunner, Protocol):
    """Runs protocols for the callers of one client, in tasks."""

    async def run(self, steps: Steps[T]) -> T:
        """Perform the protocol's effects until it returns; raises its errors."""

    def run_at_once(self, steps: Steps[T]) -> T:
        """Run a protocol that waits for nothing: it neither broadcasts nor sleeps."""

    def scope(self) -> Scope:
        """Open a scope around the running task's code from now on."""

    def begin(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run an action that releases something, up to its first wait; in another thread, leave it to the loop."""

    def leave_to_loop(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let the client's loop run an action that releases something; finalizers may call this, in any thread."""


RunnerT_co = TypeVar("RunnerT_co", bound=AnyRunner, covariant=True)


class AnyHost(Protocol[RunnerT_co]):
    """A facade's view of the client that made it. Picklable if the client is.

    Attributes:
        prefix: The prefix of all keys.
        runner: Runs the facade's protocols.
    """

    @property
    def prefix(self) -> bytes: ...

    @property
    def runner(self) -> RunnerT_co: ...
