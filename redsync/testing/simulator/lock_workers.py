"""Workers that contend for locks: they take them in all the ways there are, and give them back or not.

Besides the words of all workers (see `workers`) they say:

| word | means | about |
|---|---|---|
| `acquired` | it has the lock | name, owner, count |
| `extended` | it lengthened its hold | name, owner |
| `released` | it gave one acquisition back | name, owner |
| `leaves` | it ends without giving back what it holds | name, owner |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redsync.exceptions import LeaseLostError, NotOwnedError
from redsync.testing.simulator.workers import Way, Worker

if TYPE_CHECKING:
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.workload import Workload

__all__ = ["LockWorker"]


class LockWorker(Worker):
    """Takes locks; `make_lock` makes them by their names."""

    def __init__(
        self, workload: Workload, machine: Machine, client: SimulatedClient, who: str, make_lock: Callable[..., Any]
    ) -> None:
        super().__init__(workload, machine, client, who)
        self._make_lock = make_lock
        self._kept: dict[str, Any] = {}

    @property
    def ways(self) -> list[Way]:
        """What it does."""
        return [self._acquire, self._acquire, self._enter, self._enter, self._nest, self._leave_it]

    async def _acquire(self, name: str) -> None:
        luck = self._luck
        lock = self._lock(name)
        how = self._patience()
        lease = self._workload.own_lease(luck)
        self._tell("asks", name, how="acquire", **how, lease=lease)
        if not await lock.acquire(**how, lease=lease):
            self._tell("busy", name)
            return
        self._note(lock, name)
        await self._hold()
        if luck.random() < 0.2:
            await lock.extend()
            self._tell("extended", name)
        await self._release(lock, name)

    async def _enter(self, name: str) -> None:
        luck = self._luck
        timeout = luck.choice([None, 2 * luck.random()])
        lease = self._workload.own_lease(luck)
        lock = self._lock(name, timeout=timeout, lease=lease)
        self._tell("asks", name, how="enter", timeout=timeout, lease=lease)
        async with lock:
            self._note(lock, name)
            await self._hold()
        self._tell("released", name)

    async def _nest(self, name: str) -> None:
        lock = self._lock(name, timeout=3.0)
        self._tell("asks", name, how="nest", timeout=3.0)
        async with lock:
            self._note(lock, name)
            await self._hold()
            if await lock.acquire(timeout=self._luck.random(), lease=self._workload.own_lease(self._luck)):
                self._note(lock, name)
                await self._hold()
                await self._release(lock, name)
            else:
                self._tell("busy", name)
        self._tell("released", name)

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: the client gives back what this task has, or the worker does later."""
        lock = self._lock(name)
        self._tell("asks", name, how="leave", timeout=1.0)
        if await lock.acquire(timeout=1.0):
            self._note(lock, name)
            await self._hold()
            self._tell("leaves", name)
        else:
            self._tell("busy", name)

    def _lock(self, name: str, **options: Any) -> Any:
        # A lock object knows whether the last to use it had to wait, so now and then one is used again.
        lock = self._make_lock(name, **options)
        return lock if options else self._kept.setdefault(name, lock)

    def _note(self, lock: Any, name: str) -> None:
        self._workload.acquisitions += 1
        self._tell("acquired", name, count=lock.hold_count())

    async def _release(self, lock: Any, name: str) -> None:
        await lock.release()
        self._tell("released", name)

    async def _give_back_rest(self, name: str) -> None:
        await self._give_back_all(self._make_lock(name), name)

    async def _give_back_all(self, lock: Any, name: str) -> None:
        while True:
            try:
                await self._release(lock, name)
            except LeaseLostError:
                self._workload.losses += 1
                self._tell("lost", name)
            except NotOwnedError:
                return

    def _tell(self, what: str, name: str, **about: Any) -> None:
        super()._tell(what, name, owner=str(self._client.runner.owner()), **about)
