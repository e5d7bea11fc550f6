"""Workers that contend for read-write locks: they read, write, go on reading after that, or ask too much."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from redsync.testing.harness.tasks import Task
from redsync.testing.simulator.lock_workers import LockWorker
from redsync.testing.simulator.workers import Way

if TYPE_CHECKING:
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.workload import Workload

__all__ = ["ReadWriteWorker"]

_READERS: Final = 0.65
"""How many of those who want one of the two locks want to read."""


class ReadWriteWorker(LockWorker):
    """Takes read-write locks."""

    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str) -> None:
        super().__init__(workload, machine, client, who, "read_write_lock")

    @property
    def ways(self) -> list[Way]:
        """What it does."""
        return [*super().ways, self._downgrade, self._downgrade, self._read_inside, self._upgrade, self._ways.look]

    async def _downgrade(self, name: str) -> None:
        lease = self._workload.own_lease(self._luck)
        task = Task(2.0, self._seconds, lease, way="downgrade", waits=lambda luck: {"timeout": luck.random()})
        await self._ways.downgrade(name, task)

    async def _read_inside(self, name: str) -> None:
        await self._ways.read_inside(name, Task(2.0, self._seconds))

    async def _upgrade(self, name: str) -> None:
        await self._ways.upgrade(name, Task(2.0, self._seconds, waits=self._wait_to_write))

    def _wait_to_write(self, _luck: random.Random) -> dict[str, Any]:
        return Task(self._timeout(), 0.0, way="acquire").how

    def _mode(self) -> str:
        return "read" if self._luck.random() < _READERS else "write"

    def _note(self, event: str, **fields: Any) -> None:
        if event == "refused":
            assert fields["asked"] == self._world.now(), "it is refused at once"
        super()._note(event, **fields)
