"""Workers that contend for the successes of a rate limiter.

Besides the words of all workers (see `workers`) they say:

| word | means | about |
|---|---|---|
| `acquired` | it had a success, or several | name, n, rate, per |
| `wonders` | it asks when there is room for so many | name, n |
| `told` | it was told, and waits for so long | name, n, seconds |
| `looked` | it looked at the limiter | name, available |

Who was told says so when it asks again: `asks` with `how="told"`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redsync.testing.simulator.workers import Way, Worker

if TYPE_CHECKING:
    from redsync.rate_limiter import AsyncRateLimiter
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.workload import Workload

__all__ = ["RateWorker"]


class RateWorker(Worker):
    """Asks for successes."""

    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str) -> None:
        super().__init__(workload, machine, client, who)
        self._kept: dict[str, AsyncRateLimiter] = {}

    @property
    def ways(self) -> list[Way]:
        """What it does."""
        return [self._acquire, self._acquire, self._acquire, self._enter, self._enter, self._ask_when, self._look]

    async def _acquire(self, name: str) -> None:
        how, wanted = self._patience(), self._wish()
        self._tell("asks", name, how="acquire", n=wanted, **how)
        if await self._limiter(name).acquire(**how, n=wanted):
            self._note(name, wanted)
        else:
            self._tell("busy", name)

    async def _enter(self, name: str) -> None:
        timeout = self._luck.choice([None, 2 * self._luck.random()])
        self._tell("asks", name, how="enter", n=1, timeout=timeout)
        async with self._limiter(name, timeout=timeout):
            self._note(name, 1)
            await self._hold()

    async def _ask_when(self, name: str) -> None:
        """Ask when there is room, wait for so long, and try once."""
        limiter, wanted = self._limiter(name), self._wish()
        self._tell("wonders", name, n=wanted)
        seconds = await limiter.retry_after(wanted)
        self._tell("told", name, n=wanted, seconds=seconds)
        await asyncio.sleep(seconds)
        self._tell("asks", name, how="told", n=wanted, blocking=False)
        if await limiter.acquire(False, n=wanted):
            self._note(name, wanted)
        else:
            self._tell("busy", name)

    async def _look(self, name: str) -> None:
        self._tell("looked", name, available=await self._limiter(name).available())

    def _limiter(self, name: str, **options: Any) -> AsyncRateLimiter:
        # An object knows how long rounds have taken; each one that is new begins anew.
        limiter = self._client.get_rate_limiter(name, self._workload.rate, self._workload.per, **options)
        return limiter if options else self._kept.setdefault(name, limiter)

    def _wish(self) -> int:
        return self._luck.choice([1, 1, self._luck.randint(1, self._workload.rate)])

    def _note(self, name: str, count: int) -> None:
        self._workload.acquisitions += 1
        self._tell("acquired", name, n=count, rate=self._workload.rate, per=self._workload.per)
