"""Owners: each is one thread or one task that acquires and releases synchronizers again and again.

`lock_operations` and `operations` hold its actions, and what it writes to the history. An owner records trouble and
survives it, as a real program must: too few nodes, a timeout, a lost hold. Any other error is a bug, and is raised.

The code is that of an asyncio task; `blocking` makes it that of a thread. A `World` says where it runs: in a process
with a real clock, or on a virtual machine of the simulator.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from redsync.exceptions import AcquireTimeout, LeaseLostError, QuorumError
from tests.chaos.counters import Counter
from tests.chaos.history import nanoseconds, now_ns
from tests.chaos.jobs import Job
from tests.chaos.lock_operations import LockOperations
from tests.chaos.operations import LatchOperations, PermitOperations, RateOperations, ReadWriteOperations
from tests.chaos.owner_work import WORK

Note: TypeAlias = Callable[..., None]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]

_END_TIMEOUT: Final = 30.0
"""Seconds to wait for each synchronizer when the faults are over."""

_WAYS: Final[dict[str, type[LockOperations]]] = {
    "read_write_lock": ReadWriteOperations,
    "semaphore": PermitOperations,
    "rate_limiter": RateOperations,
    "count_down_latch": LatchOperations,
}


@dataclass(frozen=True)
class World:
    """The environment of an owner.

    Attributes:
        client: An `AsyncClient`, or `Blocking` with a client for threads.
        note: Writes a line to the history; as `History.note`.
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
        counters: The counters of the synchronizers it contends for; none if they have no directory.
    """

    def __init__(self, number: int, order: Job, world: World, rng: random.Random | None = None) -> None:
        self.number: Final = number
        self.order: Final = order
        self.world: Final = world
        self.rng: Final = rng or random.Random(f"{order.seed} {number}")
        names = order.names if order.directory else ()
        self.counters: Final = {name: Counter(Path(order.directory), i) for i, name in enumerate(names)}
        self._note = partial(world.note, worker=number)
        self._choose = WORK[order.work]
        self._operations: dict[str, LockOperations] = {}
        self._attempts = 0

    async def fight(self, over: Callable[[], bool]) -> None:
        """Acquire synchronizers until it is over."""
        while not over():
            name, task = self.rng.choice(self.order.names), self._choose(self.rng, self.order.lease)
            await self.operations(name.partition(":")[0]).fight(name, task)
            if task.rest:
                await self.world.sleep(task.rest)

    async def finish(self) -> None:
        """Acquire everything once more, now that all faults are over."""
        for name in self.order.names:
            note = partial(self._note, "last", name=name, asked=self.world.now())
            try:
                await self.operations(name.partition(":")[0]).last(name, _END_TIMEOUT)
                note(got=True)
            except (AcquireTimeout, QuorumError, LeaseLostError) as error:
                note(got=False, why=repr(error))

    def close(self) -> None:
        """Close the counters."""
        for counter in self.counters.values():
            counter.close()

    def operations(self, kind: str) -> Any:
        """Return its actions on synchronizers of that kind; the client's `get_<kind>` makes them."""
        if kind not in self._operations:
            self._operations[kind] = _WAYS.get(kind, LockOperations)(self, kind)
        return self._operations[kind]

    def begin(self, name: str) -> Note:
        """Return the function that writes lines about a new attempt."""
        self._attempts += 1
        return partial(self._note, number=self._attempts, name=name)
