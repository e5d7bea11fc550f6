"""Workers that contend for the successes of a rate limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redsync.testing.harness.tasks import Task
from redsync.testing.simulator.workers import Way, Worker

if TYPE_CHECKING:
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.workload import Workload

__all__ = ["RateWorker"]


class RateWorker(Worker):
    """Asks for successes."""

    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str) -> None:
        super().__init__(workload, machine, client, who, "rate_limiter")

    @property
    def ways(self) -> list[Way]:
        """What it does."""
        often = [self._acquire, self._acquire, self._acquire, self._enter, self._enter]
        return [*often, self._ask_when, self._ways.look]

    async def _acquire(self, name: str) -> None:
        timeout, n = self._timeout(), self._wish(self._workload.rate)
        await self._ways.take(name, Task(timeout, 0.0, way="acquire", n=n))

    async def _enter(self, name: str) -> None:
        timeout = self._luck.choice([None, 2 * self._luck.random()])
        await self._ways.take(name, Task(timeout, self._seconds))

    async def _ask_when(self, name: str) -> None:
        await self._ways.ask_when(name, self._wish(self._workload.rate))
