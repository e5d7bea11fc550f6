"""The programs of a run by seed: on several machines, workers contend for a few synchronizers or await each other."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from redsync._kinds import KINDS
from redsync.testing.simulator.workers import (
    LatchWorker,
    LockWorker,
    PermitWorker,
    RateWorker,
    ReadWriteWorker,
    Worker,
)

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.runner import SimulatedClient
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["SIMULATED", "Workload"]

_WORKERS: Final[dict[str, type[Worker]]] = {
    "lock": LockWorker,
    "read-write": ReadWriteWorker,
    "semaphore": PermitWorker,
    "limiter": RateWorker,
    "latch": LatchWorker,
}
"""The class of workers for each kind that others are like."""

SIMULATED: Final = tuple(word for word, kind in KINDS.items() if kind.like in _WORKERS)
"""The kinds that workers of a run by seed may use."""

_UNLIKE_FROM = 1_000
"""The seed from which programs with a rate limiter have different `node_timeout`."""


class Workload:
    """Workers on several machines that contend for a few synchronizers.

    Args:
        sim: The simulation.
        kind: The kind of synchronizer they contend for: one of `SIMULATED`.
        until: The instant of true time after which workers begin nothing new.
        lease: The longest lease that workers ask for, in seconds.
        pace: The factor by which workers pause, hold and wait longer than usual.
        reuses: True if each worker is always the same owner.

    Attributes:
        permits: The number of permits that programs believe each semaphore has.
        resizes: True if they change that number.
        rate: The successes that a rate limiter allows in each window.
        per: Its window in seconds.
        keep: The seconds for which nodes keep a latch after its last use.
        deletes: True if programs delete latches.
        acquisitions: The number of acquisitions.
        losses: The number of losses that workers learned of.
    """

    def __init__(
        self,
        sim: Simulation,
        kind: str = "lock",
        *,
        until: float,
        lease: float,
        pace: float = 1.0,
        reuses: bool = False,
    ) -> None:
        self._sim: Final = sim
        self.kind: Final = kind
        self.until: Final = until
        self.lease: Final = lease
        self.pace: Final = pace
        self.reuses: Final = reuses
        self._rng: Final = sim.random_for("workload")
        names = self._rng.choice([1, 2, 2])
        # Long queues test the order; few permits to share test a bound. Each success tests a limiter's bound.
        in_long_queues = KINDS[kind].waits == "order" and kind != "limiter"
        self._names: Final = ["x", "y"][: 1 if in_long_queues else names]
        counted = sim.random_for("counted")
        self.permits: Final = counted.choice([1, 2, 2, 3, 3, 4])
        self.resizes: Final = counted.random() < 0.5
        self.rate: Final = counted.choice([1, 2, 3, 5])
        self.per: Final = lease * counted.choice([0.1, 0.3, 1.0, 1.0, 1.5])
        latches = sim.random_for("latches")
        self.keep: Final = latches.choice([86400.0, 86400.0, lease * latches.uniform(2.0, 4.0)])
        self.deletes: Final = latches.random() < 0.2
        self._unlike: Final = sim.random_for("unlike programs")
        self.acquisitions = self.losses = 0

    def start(self) -> None:
        """Start machines and workers."""
        rng, kind = self._rng, KINDS[self.kind]
        make = _WORKERS[kind.like]
        for number in range(rng.choice([2, 2, 2, 3, 4])):
            machine = self._sim.machine("abcd"[number])
            client = self.client(machine, self.lease * rng.choice([1.0, 1.0, 0.7]))
            # Several readers may hold at a time.
            count = rng.choice([1, 1, 1, 2, 3]) + (self.kind == "read-write")
            workers = [make(self, machine, client, f"worker-{n + 1}", kind.noun) for n in range(count)]
            if kind.like != "lock":
                machine.start(self._serve(machine, client, workers), name="workers")
            else:
                for serial, worker in enumerate(workers):
                    machine.start(worker.work(), name=f"worker-{serial + 1}")

    async def _serve(self, machine: Machine, client: SimulatedClient, workers: list[Worker]) -> None:
        """Let workers work, on some machines later than on others; then perhaps close their client."""
        await asyncio.sleep(max(machine.random.uniform(-self.until, self.until / 2), 0.0))
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(worker.work()) for worker in workers]
            if self.kind == "latch":
                group.create_task(LatchWorker(self, machine, client, "finisher").finish(self._names, working))
        if machine.random.random() < 0.5:
            await client.close()

    def client(self, machine: Machine, lease: float) -> SimulatedClient:
        """Return a new client for programs on a machine."""
        options = {}
        if self.kind == "limiter" and self._sim.seed >= _UNLIKE_FROM:
            # Programs need not wait for nodes equally long.
            options["node_timeout"] = self._unlike.choice([0.05, 0.25, 2.0])
        return machine.client(lease=lease, restart_guard=self.lease, **options)

    @property
    def limit(self) -> int:
        """The number of permits of a semaphore, or of successes that a rate limiter allows in each window."""
        return self.rate if self.kind == "limiter" else self.permits

    @property
    def over(self) -> bool:
        """True once workers must begin nothing new."""
        return self._sim.now >= self.until

    def name(self, rng: random.Random) -> str:
        """Return the name of a thing."""
        return rng.choice(self._names)
