"""The workers of a run by seed: each does one thing after the other, and some of these are cancelled.

In some runs each worker is one task, so one owner, that acquires the same synchronizers again and again; in the others
each of its actions is a new task.

An owner of the fault harness does the work and records it (see `redsync.testing.harness.journal`). The checkers get its
records (see `Did`) in the same words, with these exceptions: a re-entry and a success are `acquired`, the release of an
inner acquisition is `released`, and a limiter's `room` is `told`. An action that was cancelled is `cancelled`.

Lines about locks also have the `owner`, and those about read-write locks the `mode`.
"""

from __future__ import annotations

import asyncio
import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redsync.exceptions import ClientClosedError
from redsync.testing.harness.journal import nanoseconds
from redsync.testing.harness.orders import Order
from redsync.testing.harness.owner import Owner, World
from redsync.testing.harness.tasks import Task

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.runner import SimulatedClient
    from redsync.testing.simulator.workload import Workload

__all__ = ["LatchWorker", "LockWorker", "PermitWorker", "RateWorker", "ReadWriteWorker", "Way", "Worker", "world_of"]

_TOLD: Final = {"re-entered": "acquired", "left": "released", "success": "acquired", "room": "told"}
"""The checkers' words for words of the journal."""

_UNTOLD: Final = {"done", "looked", "told", "writes"}
"""Words of the journal that checkers ignore, and that are not outcomes of a request."""

_ABOUT: Final = (
    *("how", "n", "blocking", "timeout", "lease", "mode", "count", "permit", "permits", "rate", "per", "seconds"),
    *("reads", "writes", "available", "holders", "left"),
)

_READERS: Final = 0.65
"""The share of readers among the workers that ask for one of the two locks of a read-write lock."""

_PATIENT = 20
"""How often a finisher fails to learn whether the latch is set before it sets it."""

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


class LockWorker(Worker):
    """Acquires locks in all possible ways, and releases them or not."""

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        return [self._acquire, self._acquire, self._enter, self._enter, self._nest, self._leave_it]

    async def _acquire(self, name: str) -> None:
        mode, timeout, lease = self._mode(), self._timeout(), self._lease()
        await self._take(name, timeout, lease=lease, mode=mode, way="acquire", extends=0.2)

    async def _enter(self, name: str) -> None:
        timeout, lease = self._time_to_enter(), self._lease()
        await self._take(name, timeout, lease=lease, mode=self._mode())

    async def _nest(self, name: str) -> None:
        await self._take(name, 3.0, mode=self._mode(), levels=2, waits=self._wait_again)

    def _wait_again(self, rng: random.Random) -> dict[str, Any]:
        return {"timeout": rng.random(), "lease": self._lease()}

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: the client releases what this task has, or the worker does later."""
        await self._take(name, 1.0, mode=self._mode(), way="leave")

    def _mode(self) -> str:
        return ""

    async def _give_back_rest(self, name: str) -> None:
        await self._ways.give_back_rest(name)

    def _tell(self, what: str, name: str, **about: Any) -> None:
        super()._tell(what, name, owner=str(self._client.runner.owner()), **about)


class ReadWriteWorker(LockWorker):
    """Acquires read-write locks: reads, writes, downgrades, or asks for a refused upgrade."""

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        return [*super().ways, self._downgrade, self._downgrade, self._read_inside, self._upgrade, self._ways.look]

    async def _downgrade(self, name: str) -> None:
        lease = self._lease()
        task = Task(2.0, self._seconds, lease, way="downgrade", waits=lambda rng: {"timeout": rng.random()})
        await self._ways.downgrade(name, task)

    async def _read_inside(self, name: str) -> None:
        await self._ways.read_inside(name, Task(2.0, self._seconds))

    async def _upgrade(self, name: str) -> None:
        await self._ways.upgrade(name, Task(2.0, self._seconds, waits=self._wait_to_write))

    def _wait_to_write(self, _rng: random.Random) -> dict[str, Any]:
        return Task(self._timeout(), 0.0, way="acquire").how

    def _mode(self) -> str:
        return "read" if self._rng.random() < _READERS else "write"

    def _note(self, event: str, **fields: Any) -> None:
        if event == "refused":
            assert fields["asked"] == self._world.now(), "the refusal comes at once"
        super()._note(event, **fields)


class PermitWorker(Worker):
    """Acquires one or several permits of a semaphore.

    A permit that may never be returned has a `max_hold`, so that it ends automatically and no waiter waits forever.
    """

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        often = [*3 * [self._acquire], *3 * [self._enter]]
        return [*often, *often, self._leave_it, self._ways.look, *([self._resize] if self._workload.resizes else [])]

    async def _acquire(self, name: str) -> None:
        max_hold = self._workload.lease * self._rng.uniform(0.5, 3.0)
        timeout, lease, n = self._timeout(), self._lease(), self._wish()
        await self._take(name, timeout, lease=lease, n=n, max_hold=max_hold, way="acquire", extends=0.2)

    async def _enter(self, name: str) -> None:
        timeout, lease = self._time_to_enter(), self._lease()
        await self._take(name, timeout, lease=lease)

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: permits belong to no task, so the client keeps it."""
        max_hold, n = self._workload.lease * self._rng.random() + 0.1, self._wish()
        await self._ways.take(name, Task(1.0, 0.0, way="leave", n=n, max_hold=max_hold))

    async def _resize(self, name: str) -> None:
        await self._ways.resize(name, self._rng.randint(1, self._workload.permits + 2))


class RateWorker(Worker):
    """Asks a rate limiter for successes."""

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        return [*3 * [self._acquire], *2 * [self._enter], self._ask_when, self._ways.look]

    async def _acquire(self, name: str) -> None:
        timeout, n = self._timeout(), self._wish()
        await self._take(name, timeout, n=n, way="acquire")

    async def _enter(self, name: str) -> None:
        await self._take(name, self._time_to_enter())

    async def _ask_when(self, name: str) -> None:
        await self._ways.ask_when(name, self._wish())


class LatchWorker(Worker):
    """Uses latches: sets them, counts them down, looks at them and waits for them.

    At the end finishers count down what is left, so that no waiter waits forever. Checkers get an owner's records about
    latches, each with the name of the `client`. An owner's `found` is the checkers' `looked`; a waiter also reports its
    `owner` as nodes store it; and a call whose client was closed meanwhile is `closed`.
    """

    def __init__(
        self, workload: Workload, machine: Machine, client: SimulatedClient, who: str, kind: str = "count_down_latch"
    ) -> None:
        super().__init__(workload, machine, client, who, kind)
        self._client_name = next(runner.name for runner in machine.runners if runner.client_id == client.id)
        self._failures: Counter[str] = Counter()

    @property
    def ways(self) -> list[Way]:
        """The worker's possible actions."""
        often = 2 * [self._set, self._count_down, self._count_down, self._wait, self._wait]
        return [*often, *self._some, self._visit, *([self._ways.delete] if self._workload.deletes else [])]

    @property
    def _some(self) -> list[Way]:
        return [self._set, self._count_down, self._wait, self._ways.look]

    async def finish(self, names: Iterable[str], working: Sequence[asyncio.Task[None]]) -> None:
        """Count down what is left at the end, until the other workers have ended."""
        while not all(task.done() for task in working):
            await asyncio.sleep(0.3)
            for name in names if self._workload.over else ():
                await self._try(self._finish_off, name)

    async def _try(self, way: Way, name: str) -> None:
        try:
            await super()._try(way, name)
        except ClientClosedError:
            self._tell("closed", name)

    async def _set(self, name: str) -> None:
        await self._ways.set(name, self._rng.choice([1, 1, 2, 3, 5]))

    async def _count_down(self, name: str) -> None:
        n, timeout = self._rng.choice([1, 1, 1, 2]), self._rng.choice([0.0, 0.3, 1.0, 10.0])
        await self._ways.insist(name, n, timeout, self._rng.choice([1, 2, 5]))

    async def _wait(self, name: str) -> None:
        timeout = self._rng.choice([None, 0.0, 3 * self._rng.random(), 3 * self._rng.random()])
        await self._ways.wait(name, timeout)

    async def _visit(self, name: str) -> None:
        """Use a latch with a new client, and close that client, perhaps in the middle of it."""
        client = self._workload.client(self._machine, self._workload.lease)
        visitor = LatchWorker(self._workload, self._machine, client, f"{self._who}'s visitor")
        visit = asyncio.get_running_loop().create_task(visitor._try(self._rng.choice(visitor._some), name))
        try:
            await asyncio.wait([visit], timeout=3 * self._rng.random())
        finally:
            await client.close()
        await visit

    async def _finish_off(self, name: str) -> None:
        if self._failures[name] >= _PATIENT:
            await self._ways.set(name, 1)
        self._failures[name] += 1
        left = await self._ways.look(name)
        if left is not None:
            self._failures[name] = 0
        if left:
            await self._ways.count_down(name, left, 10.0)

    def _tell(self, what: str, name: str, **about: Any) -> None:
        if about.get("how") == "wait":
            about["owner"] = self._client.runner.owner().wire.decode()
        super()._tell("looked" if what == "found" else what, name, client=self._client_name, **about)
