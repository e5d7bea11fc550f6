"""Workers that use count-down latches: they set them, count them down, look at them and wait for them.

At the end finishers count down what is left, so that no waiter waits forever. Checkers get an owner's records about
latches, each with the name of the `client`. An owner's `found` is the checkers' `looked`; a waiter also reports its
`owner` as nodes store it; and a call whose client was closed meanwhile is `closed`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from redsync.exceptions import ClientClosedError
from redsync.testing.simulator.workers import Way, Worker

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.runner import SimulatedClient
    from redsync.testing.simulator.workload import Workload

__all__ = ["LatchWorker"]

_PATIENT = 20
"""How often a finisher fails to learn whether the latch is set before it sets it."""


class LatchWorker(Worker):
    """Uses latches."""

    def __init__(
        self, workload: Workload, machine: Machine, client: SimulatedClient, who: str, kind: str = "count_down_latch"
    ) -> None:
        super().__init__(workload, machine, client, who, kind)
        self._client_name = next(runner.name for runner in machine.runners if runner.client_id == client.id)
        self._failures: Counter[str] = Counter()

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        often = 2 * [self._set, self._count_down, self._count_down, self._wait, self._wait]
        return [*often, *self._some, self._visit, *([self._ways.delete] if self._workload.deletes else [])]

    @property
    def _some(self) -> list[Way]:
        return [self._set, self._count_down, self._wait, self._ways.look]

    async def finish(self, names: Iterable[str], working: Sequence[asyncio.Task[None]]) -> None:
        """Count down what is left at the end, until the other workers have ended."""
        while not all(task.done() for task in working):
            await asyncio.sleep(0.3)
            for name in names if self._workload.over else ():
                await self._try(self._finish_off, name)

    async def _try(self, way: Way, name: str) -> None:
        try:
            await super()._try(way, name)
        except ClientClosedError:
            self._tell("closed", name)

    async def _set(self, name: str) -> None:
        await self._ways.set(name, self._rng.choice([1, 1, 2, 3, 5]))

    async def _count_down(self, name: str) -> None:
        n, timeout = self._rng.choice([1, 1, 1, 2]), self._rng.choice([0.0, 0.3, 1.0, 10.0])
        await self._ways.insist(name, n, timeout, self._rng.choice([1, 2, 5]))

    async def _wait(self, name: str) -> None:
        timeout = self._rng.choice([None, 0.0, 3 * self._rng.random(), 3 * self._rng.random()])
        await self._ways.wait(name, timeout)

    async def _visit(self, name: str) -> None:
        """Use a latch with a new client, and close that client, perhaps in the middle of it."""
        client = self._workload.client(self._machine, self._workload.lease)
        visitor = LatchWorker(self._workload, self._machine, client, f"{self._who}'s visitor")
        visit = asyncio.get_running_loop().create_task(visitor._try(self._rng.choice(visitor._some), name))
        try:
            await asyncio.wait([visit], timeout=3 * self._rng.random())
        finally:
            await client.close()
        await visit

    async def _finish_off(self, name: str) -> None:
        if self._failures[name] >= _PATIENT:
            await self._ways.set(name, 1)
        self._failures[name] += 1
        left = await self._ways.look(name)
        if left is not None:
            self._failures[name] = 0
        if left:
            await self._ways.count_down(name, left, 10.0)

    def _tell(self, what: str, name: str, **about: Any) -> None:
        if about.get("how") == "wait":
            about["owner"] = self._client.runner.owner().wire.decode()
        super()._tell("looked" if what == "found" else what, name, client=self._client_name, **about)
