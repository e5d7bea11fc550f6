"""What all workers of a run by seed have in common: they do one thing after the other, and some are cancelled in it.

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
        """Do something now and then, each time in another task."""
        luck, ways = self._luck, self.ways
        while not self._workload.over:
            await asyncio.sleep(1.5 * luck.random() ** 2)
            name = self._workload.name(luck)
            task = asyncio.get_running_loop().create_task(self._try(luck.choice(ways), name))
            if luck.random() < 0.15:
                await asyncio.wait([task], timeout=1.5 * luck.random() ** 2)
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

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
        luck = self._luck
        await asyncio.sleep(0.6 * luck.random() ** 2 if luck.random() < 0.9 else 3 * luck.random())

    def _patience(self) -> dict[str, Any]:
        """Return how to acquire: for as long as it takes, for one try, or for a while."""
        return self._luck.choice([{}, {"blocking": False}, {"timeout": 2 * self._luck.random()}])

    def _tell(self, what: str, name: str, **about: Any) -> None:
        self._machine.tell(self._who, what, name=name, **about)
