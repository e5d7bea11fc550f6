"""What all workers of a run by seed have in common: they do one thing after the other, and some are cancelled in it.

In some runs each worker is one task, so one owner, that takes the same things again and again; in the others it does
each thing in a task of its own.

Each worker tells what it does, see `Did`. The words of all, with what goes along:

| word | means | about |
|---|---|---|
| `asks` | it wants something | name, how, timeout |
| `acquired` | it has it | name |
| `busy` | others had it all the time | name |
| `no quorum` | too few nodes answered | name |
| `lost` | it was told that what it held was lost | name |
| `cancelled` | it was cancelled meanwhile | name |
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from redsync.exceptions import AcquireTimeout, LeaseLostError, QuorumError

if TYPE_CHECKING:
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.workload import Workload

__all__ = ["Way", "Worker"]

Way: TypeAlias = Callable[[str], Awaitable[None]]
"""One of the things that a worker can do with what has that name."""


class Worker(ABC):
    """One worker; what it does is its `ways`, each as likely as it is often in there."""

    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str) -> None:
        self._workload = workload
        self._machine = machine
        self._client = client
        self._who = who
        self._luck = random.Random(machine.random.getrandbits(64))

    @property
    @abstractmethod
    def ways(self) -> list[Way]:
        """What it does."""

    async def work(self) -> None:
        """Do something now and then."""
        luck, ways = self._luck, self.ways
        while not self._workload.over:
            await asyncio.sleep(self._pause())
            name = self._workload.name(luck)
            way = luck.choice(ways)
            patience = self._pause() if luck.random() < 0.15 else None
            do = self._do_as_ever if self._workload.reuses else self._do_as_another
            await do(way, name, patience)

    def _pause(self) -> float:
        return self._workload.pace * 1.5 * self._luck.random() ** 2

    async def _do_as_another(self, way: Way, name: str, patience: float | None) -> None:
        """Do it in a task of its own, which gives back what it still holds when it ends; cancelled after `patience`."""
        task = asyncio.get_running_loop().create_task(self._try(way, name))
        if patience is not None:
            await asyncio.wait([task], timeout=patience)
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _do_as_ever(self, way: Way, name: str, patience: float | None) -> None:
        """Do it in this task, so as the owner that the worker always is."""
        try:
            async with asyncio.timeout(patience):
                await self._try(way, name)
        except TimeoutError:
            pass
        await self._give_back_rest(name)

    async def _give_back_rest(self, name: str) -> None:  # noqa: B027  (most have nothing to give back)
        """Give back what this task still holds of that name."""

    async def _try(self, way: Way, name: str) -> None:
        try:
            await way(name)
        except asyncio.CancelledError:
            self._tell("cancelled", name)
            raise
        except AcquireTimeout:
            self._tell("busy", name)
        except QuorumError:
            self._tell("no quorum", name)
        except LeaseLostError:
            self._workload.losses += 1
            self._tell("lost", name)

    async def _hold(self) -> None:
        await asyncio.sleep(self._seconds(self._luck))

    def _seconds(self, luck: random.Random) -> float:
        """Return for how long to hold something."""
        return self._workload.pace * (0.6 * luck.random() ** 2 if luck.random() < 0.9 else 3 * luck.random())

    def _timeout(self) -> float | None:
        """Return how long to wait: for as long as it takes, for one try, or for a while."""
        return self._luck.choice([None, 0.0, 2 * self._workload.pace * self._luck.random()])

    def _patience(self) -> dict[str, Any]:
        """Return how to acquire: for as long as it takes, for one try, or for a while."""
        return self._luck.choice([{}, {"blocking": False}, {"timeout": 2 * self._workload.pace * self._luck.random()}])

    def _tell(self, what: str, name: str, **about: Any) -> None:
        self._machine.tell(self._who, what, name=name, **about)
