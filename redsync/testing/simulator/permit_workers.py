"""Workers that contend for the permits of a semaphore: one or several at once, given back in all the ways there are.

What is not given back in any case has a `max_hold`, so that it comes back at last and nobody waits for ever. Besides
the words of all workers (see `workers`) they say:

| word | means | about |
|---|---|---|
| `acquired` | it has permits | name, n, permit |
| `extended` | it lengthened its permit | name |
| `released` | it gave permits back | name, n |
| `leaves` | it ends without giving back what it has | name |
| `forestalled` | another task of its client gave its permit back | name |
| `too many` | the semaphore was resized, and has not so many permits | name |
| `resized` | it changed the number of permits | name, permits |
| `looked` | it looked at the semaphore | name, available, holders |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redsync.exceptions import ConfigurationError, NotOwnedError, OverReleaseError
from redsync.testing.simulator.workers import Way, Worker

if TYPE_CHECKING:
    from redsync.permit import AsyncPermit
    from redsync.semaphore import AsyncSemaphore

__all__ = ["PermitWorker"]


class PermitWorker(Worker):
    """Takes permits."""

    _wanted = 1

    @property
    def ways(self) -> list[Way]:
        """What it does."""
        often = [self._acquire, self._acquire, self._acquire, self._enter, self._enter, self._enter]
        resize = [self._resize] if self._workload.resizes else []
        return [*often, *often, self._leave_it, self._look, *resize]

    async def _try(self, way: Way, name: str) -> None:
        self._wanted = 1
        try:
            await super()._try(way, name)
        except (NotOwnedError, OverReleaseError):
            self._tell("forestalled", name)
        except (ConfigurationError, ValueError):
            # One there always is.
            if self._wanted == 1:
                raise
            self._tell("too many", name)

    async def _acquire(self, name: str) -> None:
        luck = self._luck
        semaphore = self._semaphore(name, max_hold=self._workload.lease * luck.uniform(0.5, 3.0))
        how, lease, wanted = self._patience(), self._workload.own_lease(luck), self._wish()
        self._tell("asks", name, how="acquire", n=wanted, **how, lease=lease)
        permit = await semaphore.acquire(**how, n=wanted, lease=lease)
        if permit is None:
            self._tell("busy", name)
            return
        self._note(permit, name)
        await self._hold()
        if luck.random() < 0.2:
            await permit.extend()
            self._tell("extended", name)
        await self._give_back(semaphore, permit, name)

    async def _give_back(self, semaphore: AsyncSemaphore, permit: AsyncPermit, name: str) -> None:
        if self._luck.random() < 0.5:
            await permit.release()
            self._tell("released", name, n=self._wanted)
            return
        # The latest of this client, whosever they are, in several steps.
        left = self._wanted
        while left:
            share = self._luck.randint(1, left)
            left -= share
            await semaphore.release(share)
            self._tell("released", name, n=share)
            await self._hold()

    async def _enter(self, name: str) -> None:
        luck = self._luck
        timeout = luck.choice([None, 2 * luck.random()])
        lease = self._workload.own_lease(luck)
        self._tell("asks", name, how="enter", n=1, timeout=timeout, lease=lease)
        async with self._semaphore(name, timeout=timeout, lease=lease) as permit:
            self._note(permit, name)
            await self._hold()
        self._tell("released", name, n=1)

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: permits belong to no task, so the client goes on to have it."""
        semaphore = self._semaphore(name, max_hold=self._workload.lease * self._luck.random() + 0.1)
        wanted = self._wish()
        self._tell("asks", name, how="leave", n=wanted, timeout=1.0)
        permit = await semaphore.acquire(timeout=1.0, n=wanted)
        if permit is None:
            self._tell("busy", name)
        else:
            self._note(permit, name)
            self._tell("leaves", name)

    async def _resize(self, name: str) -> None:
        permits = self._luck.randint(1, self._workload.permits + 2)
        self._tell("resizes", name, permits=permits)
        await self._semaphore(name).resize(permits)
        self._tell("resized", name, permits=permits)

    async def _look(self, name: str) -> None:
        semaphore = self._semaphore(name)
        available, holders = await semaphore.available(), await semaphore.holders()
        self._tell("looked", name, available=available, holders=len(holders))

    def _semaphore(self, name: str, **options: Any) -> AsyncSemaphore:
        # Each object knows the limit by what it has heard itself, so there are new ones and old ones.
        if not options:
            options = {"timeout": 1.0}
        return self._client.get_semaphore(name, self._workload.permits, **options)

    def _wish(self) -> int:
        self._wanted = self._luck.choice([1, 1, self._luck.randint(1, self._workload.permits)])
        return self._wanted

    def _note(self, permit: AsyncPermit, name: str) -> None:
        self._workload.acquisitions += 1
        self._tell("acquired", name, n=self._wanted, permit=permit.id)
