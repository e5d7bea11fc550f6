"""The `Job` of a client process, sent on its standard input before the times to begin and to end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work of a client process.

    Attributes:
        urls: The nodes, as this client reaches them.
        names: The contended synchronizers, each as "kind:name"; `Client.get_<kind>` makes it.
        directory: The directory of the counters; empty for none.
        history: The file to write.
        first: The number of its first owner, counted over all processes of the run.
        owners: The number of its owners.
        seed: The seed of all its choices.
        work: Which tasks it has, see `tasks.WORK`.
        flavour: "threads" or "asyncio".
        lease: The client's lease in seconds.
        restart_guard: The client's restart guard in seconds; None for the default.
        warm: The seconds to wait for a first lock before it is ready; 0.0 to be ready at once.
        last: True if each owner acquires each thing once more in the end; not for rate limiters.
        on_lost: True to call `on_lost` when a hold is lost; if False, the loss cancels the work under it.
        shares: True if the owners of a client return each other's permits.
        look: Seconds between two looks at a hold.
        limit: The permits of a semaphore, the successes that a rate limiter allows, the value that a latch is set to.
        per: The rate limiter's period in seconds.
        rates: Its further rates, each with its period.
        keep: The seconds for which nodes keep a latch after its last use.
    """

    urls: Sequence[str] = ()
    names: Sequence[str] = ()
    directory: str = ""
    history: str = ""
    first: int = 0
    owners: int = 1
    seed: str = ""
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
    rates: Sequence[tuple[int, float]] = ()
    keep: float = 86400.0

    def line(self) -> bytes:
        """Return the order as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Job:
        """Return the order in such a line."""
        return cls(**json.loads(line))
