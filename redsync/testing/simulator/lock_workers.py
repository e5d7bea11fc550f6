"""Workers that contend for locks: they take them in all the ways there are, and give them back or not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from redsync.testing.harness.orders import Order
from redsync.testing.harness.owner import Owner
from redsync.testing.harness.tasks import Task
from redsync.testing.simulator.owners import world_of
from redsync.testing.simulator.workers import Way, Worker

if TYPE_CHECKING:
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.workload import Workload

__all__ = ["LockWorker"]

_TOLD: Final = {"re-entered": "acquired", "left": "released"}
"""How checkers call what the journal calls otherwise."""

_UNTOLD: Final = {"done", "looked", "told", "writes"}
"""Of no interest to checkers, and no answer to who asks."""

_ABOUT: Final = ("how", "blocking", "timeout", "lease", "mode", "count", "n", "permit", "reads", "writes")


class LockWorker(Worker):
    """Takes locks."""

    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str, kind: str) -> None:
        super().__init__(workload, machine, client, who)
        order = Order(
            urls=(), names=(), directory="", journal="", first=0, owners=1, seed="", lease=workload.lease,
            on_lost=False, look=float("inf"), limit=workload.permits, per=workload.per,
        )  # fmt: skip
        self._world = world_of(machine, client, self._note)
        self._ways = Owner(0, order, self._world, self._luck).ways(kind)

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

    def _note(self, event: str, **fields: Any) -> None:
        """Tell what an owner writes down."""
        if event in _UNTOLD:
            return
        what = _TOLD.get(event, event)
        self._workload.acquisitions += what == "acquired"
        self._workload.losses += what == "lost"
        self._tell(what, fields["name"], **{word: fields[word] for word in _ABOUT if word in fields})

    def _tell(self, what: str, name: str, **about: Any) -> None:
        super()._tell(what, name, owner=str(self._client.runner.owner()), **about)
