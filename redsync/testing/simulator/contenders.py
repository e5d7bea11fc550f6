"""Workers that contend for a synchronizer: each chooses among the actions of an owner of the fault harness."""

from __future__ import annotations

import random
from typing import Any, Final

from redsync.testing.harness.tasks import Task
from redsync.testing.simulator.workers import Way, Worker

__all__ = ["LockWorker", "PermitWorker", "RateWorker", "ReadWriteWorker"]

_READERS: Final = 0.65
"""The share of readers among the workers that ask for one of the two locks of a read-write lock."""


class LockWorker(Worker):
    """Acquires locks in all possible ways, and releases them or not."""

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        return [self._acquire, self._acquire, self._enter, self._enter, self._nest, self._leave_it]

    async def _acquire(self, name: str) -> None:
        mode, timeout, lease = self._mode(), self._timeout(), self._lease()
        await self._take(name, timeout, lease=lease, mode=mode, way="acquire", extends=0.2)

    async def _enter(self, name: str) -> None:
        timeout, lease = self._time_to_enter(), self._lease()
        await self._take(name, timeout, lease=lease, mode=self._mode())

    async def _nest(self, name: str) -> None:
        await self._take(name, 3.0, mode=self._mode(), levels=2, waits=self._wait_again)

    def _wait_again(self, rng: random.Random) -> dict[str, Any]:
        return {"timeout": rng.random(), "lease": self._lease()}

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: the client releases what this task has, or the worker does later."""
        await self._take(name, 1.0, mode=self._mode(), way="leave")

    def _mode(self) -> str:
        return ""

    async def _give_back_rest(self, name: str) -> None:
        await self._ways.give_back_rest(name)

    def _tell(self, what: str, name: str, **about: Any) -> None:
        super()._tell(what, name, owner=str(self._client.runner.owner()), **about)


class ReadWriteWorker(LockWorker):
    """Acquires read-write locks: reads, writes, downgrades, or asks for a refused upgrade."""

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        return [*super().ways, self._downgrade, self._downgrade, self._read_inside, self._upgrade, self._ways.look]

    async def _downgrade(self, name: str) -> None:
        lease = self._lease()
        task = Task(2.0, self._seconds, lease, way="downgrade", waits=lambda rng: {"timeout": rng.random()})
        await self._ways.downgrade(name, task)

    async def _read_inside(self, name: str) -> None:
        await self._ways.read_inside(name, Task(2.0, self._seconds))

    async def _upgrade(self, name: str) -> None:
        await self._ways.upgrade(name, Task(2.0, self._seconds, waits=self._wait_to_write))

    def _wait_to_write(self, _rng: random.Random) -> dict[str, Any]:
        return Task(self._timeout(), 0.0, way="acquire").how

    def _mode(self) -> str:
        return "read" if self._rng.random() < _READERS else "write"

    def _note(self, event: str, **fields: Any) -> None:
        if event == "refused":
            assert fields["asked"] == self._world.now(), "the refusal comes at once"
        super()._note(event, **fields)


class PermitWorker(Worker):
    """Acquires one or several permits of a semaphore.

    A permit that may never be returned has a `max_hold`, so that it ends automatically and no waiter waits forever.
    """

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        often = [*3 * [self._acquire], *3 * [self._enter]]
        return [*often, *often, self._leave_it, self._ways.look, *([self._resize] if self._workload.resizes else [])]

    async def _acquire(self, name: str) -> None:
        max_hold = self._workload.lease * self._rng.uniform(0.5, 3.0)
        timeout, lease, n = self._timeout(), self._lease(), self._wish()
        await self._take(name, timeout, lease=lease, n=n, max_hold=max_hold, way="acquire", extends=0.2)

    async def _enter(self, name: str) -> None:
        timeout, lease = self._time_to_enter(), self._lease()
        await self._take(name, timeout, lease=lease)

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: permits belong to no task, so the client keeps it."""
        max_hold, n = self._workload.lease * self._rng.random() + 0.1, self._wish()
        await self._ways.take(name, Task(1.0, 0.0, way="leave", n=n, max_hold=max_hold))

    async def _resize(self, name: str) -> None:
        await self._ways.resize(name, self._rng.randint(1, self._workload.permits + 2))


class RateWorker(Worker):
    """Asks a rate limiter for successes."""

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        return [*3 * [self._acquire], *2 * [self._enter], self._ask_when, self._ways.look]

    async def _acquire(self, name: str) -> None:
        timeout, n = self._timeout(), self._wish()
        await self._take(name, timeout, n=n, way="acquire")

    async def _enter(self, name: str) -> None:
        await self._take(name, self._time_to_enter())

    async def _ask_when(self, name: str) -> None:
        await self._ways.ask_when(name, self._wish())
