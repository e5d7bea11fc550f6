"""The base of all workers of a run by seed: each does one thing after the other, and some of these are cancelled.

In some runs each worker is one task, so one owner, that acquires the same synchronizers again and again; in the others
each of its actions is a new task.

An owner of the fault harness does the work and records it (see `redsync.testing.harness.journal`). The checkers get its
records (see `Did`) in these words:

| word | meaning | fields |
|---|---|---|
| `asks` | it asks for something | name, how, n, timeout or blocking, lease |
| `acquired` | it succeeded, or re-entered | name, n, count, permit, rate, per |
| `extended` | it extended its hold | name |
| `released` | it released one acquisition | name, n |
| `leaves` | it ends without releasing | name |
| `busy` | others held it all the time | name |
| `no quorum`, `unsure` | too few nodes answered, on its first request or a later one | name |
| `lost` | it learned that its hold was lost | name |
| `cancelled` | it was cancelled meanwhile | name |
| `told` | it learned when a limiter has room | name, n, seconds |

Lines about locks also have the `owner`, and those about read-write locks the `mode`.
"""

from __future__ import annotations

import asyncio
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redsync.testing.harness.journal import nanoseconds
from redsync.testing.harness.orders import Order
from redsync.testing.harness.owner import Owner, World
from redsync.testing.harness.tasks import Task

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.runner import SimulatedClient
    from redsync.testing.simulator.workload import Workload

__all__ = ["Way", "Worker", "world_of"]

_TOLD: Final = {"re-entered": "acquired", "left": "released", "success": "acquired", "room": "told"}
"""The checkers' words for words of the journal."""

_UNTOLD: Final = {"done", "looked", "told", "writes"}
"""Words of the journal that checkers ignore, and that are not outcomes of a request."""

_ABOUT: Final = (
    *("how", "n", "blocking", "timeout", "lease", "mode", "count", "permit", "permits", "rate", "per", "seconds"),
    *("reads", "writes", "available", "holders", "left"),
)

Way: TypeAlias = Callable[[str], Awaitable[None]]
"""One of the things that a worker can do with the synchronizer of that name."""


def world_of(machine: Machine, client: SimulatedClient, note: Callable[..., None]) -> World:
    """Return the world of an owner on a machine; its instants are of true time."""

    def now() -> int:
        return nanoseconds(machine.sim.now)

    def instant(seconds: float) -> int:
        return nanoseconds(machine.sim.now + seconds - machine.clock.now())

    return World(client, note, asyncio.sleep, now, instant)


class Worker(ABC):
    """A worker that chooses among its `ways`; one that is listed n times is n times as likely."""

    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str, kind: str) -> None:
        self._workload = workload
        self._machine = machine
        self._client = client
        self._who = who
        self._rng = random.Random(machine.random.getrandbits(64))
        order = Order(
            lease=workload.lease, on_lost=False, shares=True, look=math.inf, limit=workload.limit, per=workload.per,
            keep=workload.keep,
        )  # fmt: skip
        self._world = world_of(machine, client, self._note)
        self._ways = Owner(0, order, self._world, self._rng).ways(kind)

    @property
    @abstractmethod
    def ways(self) -> list[Way]:
        """The worker's possible actions."""

    async def work(self) -> None:
        """Do something now and then."""
        rng, ways = self._rng, self.ways
        while not self._workload.over:
            await asyncio.sleep(self._pause())
            name = self._workload.name(rng)
            way = rng.choice(ways)
            timeout = self._pause() if rng.random() < 0.15 else None
            do = self._do_as_ever if self._workload.reuses else self._do_as_another
            await do(way, name, timeout)

    def _pause(self) -> float:
        return self._workload.pace * 1.5 * self._rng.random() ** 2

    async def _do_as_another(self, way: Way, name: str, timeout: float | None) -> None:
        """Do it in a new task, cancelled after `timeout` seconds; at its end the task releases what it still holds."""
        task = asyncio.get_running_loop().create_task(self._try(way, name))
        if timeout is not None:
            await asyncio.wait([task], timeout=timeout)
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _do_as_ever(self, way: Way, name: str, timeout: float | None) -> None:
        """Do it in this task, so that the worker is the same owner each time."""
        try:
            async with asyncio.timeout(timeout):
                await self._try(way, name)
        except TimeoutError:
            pass
        await self._give_back_rest(name)

    async def _give_back_rest(self, name: str) -> None:  # noqa: B027  (most have nothing to release)
        """Release what this task still holds of that name."""

    async def _try(self, way: Way, name: str) -> None:
        try:
            await way(name)
        except asyncio.CancelledError:
            self._tell("cancelled", name)
            raise

    def _seconds(self, rng: random.Random) -> float:
        """Return how many seconds to hold something."""
        return self._workload.pace * (0.6 * rng.random() ** 2 if rng.random() < 0.9 else 3 * rng.random())

    def _timeout(self) -> float | None:
        """Return how long to wait: without limit, for one try, or for a while."""
        return self._rng.choice([None, 0.0, 2 * self._workload.pace * self._rng.random()])

    def _time_to_enter(self) -> float | None:
        """Return how long to wait before something is entered."""
        return self._rng.choice([None, 2 * self._rng.random()])

    def _lease(self) -> float | None:
        """Return a lease for one acquisition; None for one that is renewed."""
        return None if self._rng.random() < 0.6 else self._workload.lease * self._rng.uniform(0.3, 1.0)

    def _wish(self) -> int:
        """Return how many to ask for at once."""
        return self._rng.choice([1, 1, self._rng.randint(1, self._workload.limit)])

    async def _take(self, name: str, timeout: float | None, **how: Any) -> None:
        await self._ways.take(name, Task(timeout, self._seconds, **how))

    def _note(self, event: str, **fields: Any) -> None:
        """Pass an owner's record to the checkers."""
        if event in _UNTOLD:
            return
        what = _TOLD.get(event, event)
        self._workload.acquisitions += what in {"acquired", "opened"}
        self._workload.losses += what == "lost"
        self._tell(what, fields["name"], **{word: fields[word] for word in _ABOUT if word in fields})

    def _tell(self, what: str, name: str, **about: Any) -> None:
        self._machine.tell(self._who, what, name=name, **about)
