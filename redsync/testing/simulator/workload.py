"""What the programs of a run by seed do: they take a few locks in all the ways there are, and give them back or not.

Each worker tells what it does, see `Did`. Its words, with what goes along:

| word | means | about |
|---|---|---|
| `asks` | it wants a lock | name, how, timeout, lease |
| `acquired` | it has it | name, owner, count |
| `busy` | others held it all the time | name |
| `no quorum` | too few nodes answered | name |
| `extended` | it lengthened its hold | name |
| `released` | it gave one acquisition back | name, owner |
| `lost` | it was told that its hold was lost | name, owner |
| `cancelled` | it was cancelled meanwhile | name |
| `leaves` | it ends without giving back what it holds | name, owner |
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from redsync.exceptions import AcquireTimeout, LeaseLostError, QuorumError

if TYPE_CHECKING:
    from redsync.testing.simulator.client import Kind, SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Workload"]


class Workload:
    """Workers on several machines that contend for a few locks.

    Args:
        sim: The simulation.
        kind: Which locks.
        until: The instant of true time after which no worker begins anything new.
        lease: The longest lease that anybody asks for, in seconds.

    Attributes:
        kind: As given.
        until: As given.
        acquisitions: How often a lock was acquired.
        losses: How often a worker was told that it lost one.
    """

    def __init__(self, sim: Simulation, kind: Kind = "lock", *, until: float, lease: float) -> None:
        self._sim: Final = sim
        self.kind: Final = kind
        self.until: Final = until
        self._lease: Final = lease
        self._luck: Final = sim.luck("workload")
        names = self._luck.choice([1, 2, 2])
        # It is in long queues that the order matters.
        self._names: Final = ["x", "y"][: 1 if kind == "fair" else names]
        self.acquisitions = self.losses = 0

    def start(self) -> None:
        """Start machines and workers."""
        luck = self._luck
        for number in range(luck.choice([2, 2, 2, 3, 4])):
            machine = self._sim.machine("abcd"[number])
            client = machine.client(lease=self._lease * luck.choice([1.0, 1.0, 0.7]), restart_guard=self._lease)
            for serial in range(luck.choice([1, 1, 1, 2, 3])):
                machine.start(
                    _Worker(self, machine, client, f"worker-{serial + 1}").work(), name=f"worker-{serial + 1}"
                )

    @property
    def over(self) -> bool:
        """Whether nothing new is to be begun."""
        return self._sim.now >= self.until

    def name(self, luck: random.Random) -> str:
        """Return the name of a lock."""
        return luck.choice(self._names)

    def own_lease(self, luck: random.Random) -> float | None:
        """Return a lease for one acquisition; None for one that is renewed."""
        return None if luck.random() < 0.6 else self._lease * luck.uniform(0.3, 1.0)


async def _serve(workload: Workload, machine: Machine, client: SimulatedClient, workers: int) -> None:
    """Let workers work, some machines later than others; then perhaps close their client."""
    await asyncio.sleep(max(machine.random.uniform(-workload.until, workload.until / 2), 0.0))
    async with asyncio.TaskGroup() as group:
        for number in range(workers):
            group.create_task(_Worker(workload, machine, client, f"worker-{number + 1}").work())
    if machine.random.random() < 0.5:
        await client.close()


class _Worker:
    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str) -> None:
        self._workload = workload
        self._machine = machine
        self._client = client
        self._who = who
        self._make_lock = client.locks(workload.kind)
        self._kept: dict[str, Any] = {}
        self._luck = random.Random(machine.random.getrandbits(64))
        self._ways: list[Callable[[str], Awaitable[None]]] = [
            self._acquire,
            self._acquire,
            self._enter,
            self._enter,
            self._nest,
            self._leave_it,
        ]

    async def work(self) -> None:
        """Take a lock now and then, each time as another owner."""
        luck = self._luck
        while not self._workload.over:
            await asyncio.sleep(1.5 * luck.random() ** 2)
            name = self._workload.name(luck)
            task = asyncio.get_running_loop().create_task(self._try(luck.choice(self._ways), name))
            if luck.random() < 0.15:
                await asyncio.wait([task], timeout=1.5 * luck.random() ** 2)
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def _try(self, way: Callable[[str], Awaitable[None]], name: str) -> None:
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

    # The ways.

    async def _acquire(self, name: str) -> None:
        luck = self._luck
        lock = self._lock(name)
        how: dict[str, Any] = luck.choice([{}, {"blocking": False}, {"timeout": 2 * luck.random()}])
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
        """Acquire and end: the client gives back what this task has."""
        lock = self._lock(name)
        self._tell("asks", name, how="leave", timeout=1.0)
        if await lock.acquire(timeout=1.0):
            self._note(lock, name)
            await self._hold()
            self._tell("leaves", name)
        else:
            self._tell("busy", name)

    # Steps.

    def _lock(self, name: str, **options: Any) -> Any:
        # A lock object knows whether the last to use it had to wait, so now and then one is used again.
        lock = self._make_lock(name, **options)
        return lock if options else self._kept.setdefault(name, lock)

    async def _hold(self) -> None:
        luck = self._luck
        await asyncio.sleep(0.6 * luck.random() ** 2 if luck.random() < 0.9 else 3 * luck.random())

    def _note(self, lock: Any, name: str) -> None:
        self._workload.acquisitions += 1
        self._tell("acquired", name, count=lock.hold_count())

    async def _release(self, lock: Any, name: str) -> None:
        await lock.release()
        self._tell("released", name)

    def _tell(self, what: str, name: str, **about: Any) -> None:
        self._machine.tell(self._who, what, name=name, owner=str(self._client.runner.owner()), **about)
