"""Workers that use count-down latches: they set them, count them down, look at them and wait for them.

What is left at the end is counted down by finishers, so that nobody waits for ever. Besides the words of all workers
(see `workers`) they say, each with the name of their `client`:

| word | means | about |
|---|---|---|
| `asks` | it wants something: `how` is set, delete, count down, look or wait | name, how, n, timeout, owner |
| `set` | it has set the latch | name, n |
| `not set` | the latch is set, and not open | name |
| `deleted` | it has deleted the latch | name |
| `counted` | it has counted down | name, n |
| `looked` | it was told how much is left | name, left |
| `opened` | it waited, and was told that the latch is open | name |
| `busy` | it waited until its time was up | name |
| `closed` | its client was closed meanwhile | name |
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redsync.exceptions import AcquireTimeout, ClientClosedError, QuorumError
from redsync.testing.simulator.workers import Way, Worker

if TYPE_CHECKING:
    from redsync._facades.latch import AsyncCountDownLatch
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.workload import Workload

__all__ = ["LatchWorker"]

_PATIENT = 20
"""How often a finisher is told that nobody can know whether the latch is set, before it sets it."""


class LatchWorker(Worker):
    """Uses latches."""

    def __init__(
        self, workload: Workload, machine: Machine, client: SimulatedClient, who: str, kind: str = "count_down_latch"
    ) -> None:
        super().__init__(workload, machine, client, who, kind)
        self._client_name = next(runner.name for runner in machine.runners if runner.client_id == client.id)
        self._kept: dict[str, AsyncCountDownLatch] = {}
        self._failures: Counter[str] = Counter()

    @property
    def ways(self) -> list[Way]:
        """What it does."""
        often = 2 * [self._set, self._count_down, self._count_down, self._wait, self._wait]
        return [*often, *self._some, self._visit, *([self._delete] if self._workload.deletes else [])]

    @property
    def _some(self) -> list[Way]:
        return [self._set, self._count_down, self._wait, self._look]

    async def finish(self, names: Iterable[str], working: Sequence[asyncio.Task[None]]) -> None:
        """Count down what is left when all is over, until the other workers have ended."""
        while not all(task.done() for task in working):
            await asyncio.sleep(0.3)
            for name in names if self._workload.over else ():
                await self._try(self._finish_off, name)

    async def _try(self, way: Way, name: str) -> None:
        try:
            await super()._try(way, name)
        except AcquireTimeout:
            self._tell("busy", name)
        except QuorumError:
            self._tell("no quorum", name)
        except ClientClosedError:
            self._tell("closed", name)

    async def _set(self, name: str, n: int | None = None) -> None:
        n = n or self._luck.choice([1, 1, 2, 3, 5])
        self._tell("asks", name, how="set", n=n)
        # That others set it all the time says nothing of whether it is open: "busy" would.
        with suppress(AcquireTimeout):
            if await self._latch(name).try_set_count(n):
                self._tell("set", name, n=n)
                return
        self._tell("not set", name)

    async def _delete(self, name: str) -> None:
        self._tell("asks", name, how="delete")
        with suppress(AcquireTimeout):
            await self._latch(name).delete()
            self._tell("deleted", name)
            return
        self._tell("not deleted", name)

    async def _count_down(self, name: str) -> None:
        """Count down; call again now and then if that fails."""
        n, timeout = self._luck.choice([1, 1, 1, 2]), self._luck.choice([0.0, 0.3, 1.0, 10.0])
        for _ in range(self._luck.choice([1, 2, 5])):
            try:
                await self._count(name, n, timeout)
                return
            except QuorumError:
                self._tell("no quorum", name)
            await asyncio.sleep(self._luck.random())

    async def _count(self, name: str, n: int, timeout: float) -> None:
        self._tell("asks", name, how="count down", n=n, timeout=timeout)
        await self._latch(name, timeout=timeout).count_down(n)
        self._tell("counted", name, n=n)

    async def _look(self, name: str) -> None:
        await self._look_at(name)

    async def _look_at(self, name: str) -> int:
        self._tell("asks", name, how="look")
        left = await self._latch(name).count()
        self._tell("looked", name, left=left)
        return left

    async def _wait(self, name: str) -> None:
        await self._wait_for(name, self._luck.choice([None, 0.0, 3 * self._luck.random(), 3 * self._luck.random()]))

    async def _wait_for(self, name: str, timeout: float | None) -> None:
        owner = self._client.runner.owner().wire
        self._tell("asks", name, how="wait", timeout=timeout, owner=owner.decode())
        if await self._latch(name).wait(timeout):
            self._workload.acquisitions += 1
            self._tell("opened", name)
        else:
            self._tell("busy", name)

    async def _visit(self, name: str) -> None:
        """Do something with a client that is new, and close that, perhaps in the middle of it."""
        client = self._workload.client(self._machine, self._workload.lease)
        visitor = LatchWorker(self._workload, self._machine, client, f"{self._who}'s visitor")
        visit = asyncio.get_running_loop().create_task(visitor._try(self._luck.choice(visitor._some), name))
        try:
            await asyncio.wait([visit], timeout=3 * self._luck.random())
        finally:
            await client.close()
        await visit

    async def _finish_off(self, name: str) -> None:
        if self._failures[name] >= _PATIENT:
            await self._set(name, 1)
        self._failures[name] += 1
        left = await self._look_at(name)
        self._failures[name] = 0
        if left:
            await self._count(name, left, 10.0)

    def _latch(self, name: str, **options: Any) -> AsyncCountDownLatch:
        # An object tells nodes what it knows, so there are new ones, and old ones that know what is long past.
        latch = self._client.get_count_down_latch(name, keep=self._workload.keep, **options)
        return latch if options or self._luck.random() < 0.3 else self._kept.setdefault(name, latch)

    def _tell(self, what: str, name: str, **about: Any) -> None:
        super()._tell(what, name, client=self._client_name, **about)
