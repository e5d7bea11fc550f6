"""Owners: each is one thread or one task that acquires and releases synchronizers again and again.

`lock_ways` and `ways` hold its actions, and what it writes to the journal. An owner records trouble and survives it, as
a real program must: too few nodes, a timeout, a lost hold. Any other error is a bug, and is raised.

The code is that of an asyncio task; `blocking` makes it that of a thread. A `World` says where it runs: in a process
with a real clock, or on a virtual machine of the simulator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from redsync.exceptions import AcquireTimeout, LeaseLostError, QuorumError
from redsync.testing.harness.journal import nanoseconds, now_ns
from redsync.testing.harness.ledger import Ledger
from redsync.testing.harness.lock_ways import LockWays
from redsync.testing.harness.orders import Order
from redsync.testing.harness.tasks import WORK
from redsync.testing.harness.ways import LatchWays, PermitWays, RateWays, ReadWriteWays

__all__ = ["Owner", "World"]

Note: TypeAlias = Callable[..., None]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]

_END_TIMEOUT: Final = 30.0
"""Seconds to wait for each synchronizer when the faults are over."""

_WAYS: Final[dict[str, type[LockWays]]] = {
    "read_write_lock": ReadWriteWays,
    "semaphore": PermitWays,
    "rate_limiter": RateWays,
    "count_down_latch": LatchWays,
}


@dataclass(frozen=True)
class World:
    """The environment of an owner.

    Attributes:
        client: An `AsyncClient`, or `Blocking` with a client for threads.
        note: Writes a line to the journal; as `Journal.note`.
        sleep: Waits for the given number of seconds.
        now: Returns the instant in ns, on the clock that all owners share.
        instant: Converts an instant of the client's clock, in seconds, to one of `now`.
    """

    client: Any
    note: Note
    sleep: Sleep
    now: Callable[[], int] = now_ns
    instant: Callable[[float], int] = nanoseconds


class Owner:
    """One thread, or one task.

    Attributes:
        number: Its number, counted over all processes of the run.
        order: The order of its process.
        world: Its environment.
        rng: The source of all its choices, seeded by default with the order's seed and its number.
        ledgers: The ledgers of the synchronizers it contends for; none if they have no directory.
    """

    def __init__(self, number: int, order: Order, world: World, rng: random.Random | None = None) -> None:
        self.number: Final = number
        self.order: Final = order
        self.world: Final = world
        self.rng: Final = rng or random.Random(f"{order.seed} {number}")
        names = order.names if order.directory else ()
        self.ledgers: Final = {name: Ledger(Path(order.directory), i, name) for i, name in enumerate(names)}
        self._note = partial(world.note, worker=number)
        self._choose = WORK[order.work]
        self._ways: dict[str, LockWays] = {}
        self._attempts = 0

    async def fight(self, left: Callable[[], float]) -> None:
        """Acquire synchronizers until no seconds are left."""
        names = self.order.names
        contested = [names[self.number % len(names)]] if self.order.work == "steady" else names
        while (seconds := left()) > 0:
            name, task = self.rng.choice(contested), self._choose(self.rng, self.order.lease)
            if task.timeout == math.inf:
                task = replace(task, timeout=seconds)
            await self.ways(name.partition(":")[0]).fight(name, task)
            if task.rest:
                await self.world.sleep(task.rest)

    async def finish(self) -> None:
        """Acquire everything once more, now that all faults are over."""
        for name in self.order.names:
            note = partial(self._note, "last", name=name, asked=self.world.now())
            try:
                await self.ways(name.partition(":")[0]).last(name, _END_TIMEOUT)
                note(got=True)
            except (AcquireTimeout, QuorumError, LeaseLostError) as error:
                note(got=False, why=repr(error))

    def close(self) -> None:
        """Close the ledgers."""
        for ledger in self.ledgers.values():
            ledger.close()

    def ways(self, kind: str) -> Any:
        """Return its actions on synchronizers of that kind; the client's `get_<kind>` makes them."""
        if kind not in self._ways:
            self._ways[kind] = _WAYS.get(kind, LockWays)(self, kind)
        return self._ways[kind]

    def begin(self, name: str) -> Note:
        """Return the function that writes lines about a new attempt."""
        self._attempts += 1
        return partial(self._note, number=self._attempts, name=name)
