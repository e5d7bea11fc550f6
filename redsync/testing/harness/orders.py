"""What a client process is told to do: an `Order`, and then when to begin and to end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["Order"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a client process is to do.

    Attributes:
        urls: The nodes, as this client reaches them.
        names: What is fought over, each as "kind:name"; `Client.get_<kind>` makes it.
        directory: Where the ledgers are; empty for none.
        journal: The file to write.
        first: The number of its first owner, counted over all processes of the run.
        owners: How many owners it has.
        seed: The seed of all its choices.
        work: What kind of tasks it has, see `tasks.WORK`; with "steady" ones each owner fights over one thing only.
        flavour: "threads" or "asyncio".
        lease: The client's lease in seconds.
        restart_guard: The client's restart guard in seconds; None for the default.
        warm: For how many seconds to wait for a first lock of its own before it is ready; 0.0 to be ready at once.
        last: Whether each owner takes each thing, or opens each latch, once more in the end; not for rate limiters.
        on_lost: Whether owners are called back when a hold is lost; else what they do under it is cancelled.
        shares: Whether the owners of a client give back each other's permits.
        look: Seconds between two looks at a hold.
        limit: How many permits a semaphore has, how many successes a rate limiter allows, how much a latch is set to.
        per: In what time, in seconds.
        keep: For how many seconds nodes keep a latch after its last use.
    """

    urls: Sequence[str]
    names: Sequence[str]
    directory: str
    journal: str
    first: int
    owners: int
    seed: str
    work: str = "mixed"
    flavour: str = "threads"
    lease: float = 2.0
    restart_guard: float | None = None
    warm: float = 0.0
    last: bool = False
    on_lost: bool = True
    shares: bool = False
    look: float = 0.05
    limit: int = 3
    per: float = 1.0
    keep: float = 86400.0

    def line(self) -> bytes:
        """Return the order as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Order:
        """Return what such a line says."""
        return cls(**json.loads(line))
