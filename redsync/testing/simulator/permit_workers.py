"""Workers that contend for the permits of a semaphore: one or several at once, given back in all the ways there are.

What is not given back in any case has a `max_hold`, so that it comes back at last and nobody waits for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redsync.testing.harness.tasks import Task
from redsync.testing.simulator.workers import Way, Worker

if TYPE_CHECKING:
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.workload import Workload

__all__ = ["PermitWorker"]


class PermitWorker(Worker):
    """Takes permits."""

    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str) -> None:
        super().__init__(workload, machine, client, who, "semaphore")

    @property
    def ways(self) -> list[Way]:
        """What it does."""
        often = [self._acquire, self._acquire, self._acquire, self._enter, self._enter, self._enter]
        resize = [self._resize] if self._workload.resizes else []
        return [*often, *often, self._leave_it, self._ways.look, *resize]

    async def _acquire(self, name: str) -> None:
        max_hold = self._workload.lease * self._luck.uniform(0.5, 3.0)
        timeout, lease, n = self._timeout(), self._workload.own_lease(self._luck), self._wish(self._workload.permits)
        task = Task(timeout, self._seconds, lease, way="acquire", n=n, max_hold=max_hold, extends=0.2)
        await self._ways.take(name, task)

    async def _enter(self, name: str) -> None:
        timeout = self._luck.choice([None, 2 * self._luck.random()])
        await self._ways.take(name, Task(timeout, self._seconds, self._workload.own_lease(self._luck)))

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: permits belong to no task, so the client goes on to have it."""
        max_hold = self._workload.lease * self._luck.random() + 0.1
        n = self._wish(self._workload.permits)
        await self._ways.take(name, Task(1.0, 0.0, way="leave", n=n, max_hold=max_hold))

    async def _resize(self, name: str) -> None:
        await self._ways.resize(name, self._luck.randint(1, self._workload.permits + 2))
