"""Workers that contend for locks: they take them in all the ways there are, and give them back or not."""

from __future__ import annotations

import random
from typing import Any

from redsync.testing.harness.tasks import Task
from redsync.testing.simulator.workers import Way, Worker

__all__ = ["LockWorker"]


class LockWorker(Worker):
    """Takes locks."""

    @property
    def ways(self) -> list[Way]:
        """What it does."""
        return [self._acquire, self._acquire, self._enter, self._enter, self._nest, self._leave_it]

    async def _acquire(self, name: str) -> None:
        mode, timeout, lease = self._mode(), self._timeout(), self._workload.own_lease(self._luck)
        await self._take(name, timeout, lease=lease, mode=mode, way="acquire", extends=0.2)

    async def _enter(self, name: str) -> None:
        timeout = self._luck.choice([None, 2 * self._luck.random()])
        lease = self._workload.own_lease(self._luck)
        await self._take(name, timeout, lease=lease, mode=self._mode())

    async def _nest(self, name: str) -> None:
        await self._take(name, 3.0, mode=self._mode(), levels=2, waits=self._wait_again)

    def _wait_again(self, luck: random.Random) -> dict[str, Any]:
        return {"timeout": luck.random(), "lease": self._workload.own_lease(luck)}

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: the client gives back what this task has, or the worker does later."""
        await self._take(name, 1.0, mode=self._mode(), way="leave")

    async def _take(self, name: str, timeout: float | None, **how: Any) -> None:
        await self._ways.take(name, Task(timeout, self._seconds, **how))

    def _mode(self) -> str:
        return ""

    async def _give_back_rest(self, name: str) -> None:
        await self._ways.give_back_rest(name)

    def _tell(self, what: str, name: str, **about: Any) -> None:
        super()._tell(what, name, owner=str(self._client.runner.owner()), **about)
