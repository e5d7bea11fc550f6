"""What facades and protocols see of the world that runs them.

A facade holds a `Runner` and a `Session` and never a driver; which driver it is, only `client.py` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from redsync._core.effects import Steps
from redsync._core.holds import HoldTable
from redsync._core.ownership import Owner
from redsync._core.timing import Timing

__all__ = ["Host", "Runner", "Session"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """What all synchronizers of one client share.

    Attributes:
        nodes: How many nodes are configured.
        timing: The client's time settings.
        holds: What the client believes to hold.
        luck: Returns a random number in [0, 1), for delays that spread contenders.
        record_key: Where the nodes keep the record of this client.
        record: The record, see `ClientRecord`; empty for a client that keeps none.
    """

    nodes: int
    timing: Timing
    holds: HoldTable
    luck: Callable[[], float]
    record_key: bytes = b""
    record: bytes = b""

    @property
    def quorum(self) -> int:
        """How many nodes must grant."""
        return self.nodes // 2 + 1

    @property
    def all_nodes(self) -> int:
        """Bit set of all nodes."""
        return (1 << self.nodes) - 1


class Runner(Protocol):
    """Runs protocols for the callers of one client, in threads.

    Attributes:
        session: What the client's synchronizers share; a forked child has another.
    """

    @property
    def session(self) -> Session: ...

    def owner(self) -> Owner:
        """Return the calling thread's owner."""
        ...

    def new_owner(self) -> Owner:
        """Return an owner that nobody has been before, for what is not owned by a thread."""
        ...

    def now(self) -> float:
        """Return the instant, in seconds on this runner's clock."""
        ...

    def require_open(self) -> None:
        """Return if the client is open, else raise `ClientClosedError`."""
        ...

    def run(self, steps: Steps[T]) -> T:
        """Perform the protocol's effects until it returns; its errors come out."""
        ...


class Host(Protocol):
    """What a facade knows of the client that made it. Picklable if the client is.

    Attributes:
        prefix: What all keys begin with.
        runner: Runs the facade's protocols.
    """

    @property
    def prefix(self) -> bytes: ...

    @property
    def runner(self) -> Runner: ...
