"""The programs of a run by seed: on several machines, workers contend for a few synchronizers or await each other.

Each worker does one thing after the other, and some of these are cancelled. In some runs each worker is one task, so
one owner, that acquires the same synchronizers again and again; in the others each of its actions is a new task.

An owner of the fault harness does the work and records it (see `tests.chaos.history`). The checkers get its
records (see `Did`) in the same words. An action that was cancelled is `cancelled`.
"""

from __future__ import annotations

import asyncio
import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from redsync._kinds import KINDS
from redsync.exceptions import ClientClosedError
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.runner import SimulatedClient
from tests.chaos.history import nanoseconds
from tests.chaos.jobs import Job
from tests.chaos.owner import Owner, World
from tests.chaos.owner_work import Task
from tests.simulation.trial import Trial

_UNTOLD: Final = {"done", "looked", "told", "writes"}
"""Words of the journal that checkers ignore, and that are not outcomes of a request."""

_ABOUT: Final = (
    *("how", "n", "blocking", "timeout", "lease", "mode", "count", "permit", "permits", "rates"),
    *("reads", "writes", "available", "holders", "left"),
)

_ACQUIRED: Final = {"acquired", "re-entered", "success", "opened"}
"""Words of the journal for acquisitions."""

_READERS: Final = 0.65
"""The share of readers among the workers that ask for one of the two locks of a read-write lock."""

_PATIENT = 20
"""How often a finisher fails to learn whether the latch is set before it sets it."""

Operation: TypeAlias = Callable[[str], Awaitable[None]]
"""One of the things that a worker can do with the synchronizer of that name."""


def world_of(machine: Machine, client: SimulatedClient, note: Callable[..., None]) -> World:
    """Return the world of an owner on a machine; its instants are of true time."""

    def now() -> int:
        return nanoseconds(machine.sim.now)

    def instant(seconds: float) -> int:
        return nanoseconds(machine.sim.now + seconds - machine.clock.now())

    return World(client, note, asyncio.sleep, now, instant)


class Worker(ABC):
    """A worker that chooses among its `_choices`; one that is listed n times is n times as likely."""

    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str, kind: str) -> None:
        self._workload = workload
        self._machine = machine
        self._client = client
        self._who = who
        self._rng = random.Random(machine.random.getrandbits(64))
        order = Job(
            lease=workload.lease, on_lost=False, shares=True, look=math.inf, limit=workload.limit, per=workload.per,
            rates=workload.rates, keep=workload.keep,
        )  # fmt: skip
        self._world = world_of(machine, client, self._note)
        self._operations = Owner(0, order, self._world, self._rng).operations(kind)

    @property
    @abstractmethod
    def _choices(self) -> list[Operation]:
        """The worker's possible actions."""

    async def work(self) -> None:
        """Do something now and then."""
        rng, choices = self._rng, self._choices
        while not self._workload.over:
            await asyncio.sleep(self._pause())
            name = self._workload.name(rng)
            operation = rng.choice(choices)
            timeout = self._pause() if rng.random() < 0.15 else None
            do = self._do_as_ever if self._workload.reuses else self._do_as_another
            await do(operation, name, timeout)

    def _pause(self) -> float:
        return self._workload.pace * 1.5 * self._rng.random() ** 2

    async def _do_as_another(self, operation: Operation, name: str, timeout: float | None) -> None:
        """Do it in a new task, cancelled after `timeout` seconds; at its end the task releases what it still holds."""
        task = asyncio.get_running_loop().create_task(self._try(operation, name))
        if timeout is not None:
            await asyncio.wait([task], timeout=timeout)
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _do_as_ever(self, operation: Operation, name: str, timeout: float | None) -> None:
        """Do it in this task, so that the worker is the same owner each time."""
        try:
            async with asyncio.timeout(timeout):
                await self._try(operation, name)
        except TimeoutError:
            pass
        await self._give_back_rest(name)

    async def _give_back_rest(self, name: str) -> None:  # noqa: B027  (most have nothing to release)
        """Release what this task still holds of that name."""

    async def _try(self, operation: Operation, name: str) -> None:
        try:
            await operation(name)
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
        await self._operations.take(name, Task(timeout, self._seconds, **how))

    def _note(self, event: str, **fields: Any) -> None:
        """Pass an owner's record to the checkers."""
        if event in _UNTOLD:
            return
        self._workload.acquisitions += event in _ACQUIRED
        self._workload.losses += event == "lost"
        self._tell(event, fields["name"], **{word: fields[word] for word in _ABOUT if word in fields})

    def _tell(self, what: str, name: str, **about: Any) -> None:
        self._machine.tell(self._who, what, name=name, **about)


class LockWorker(Worker):
    """Acquires locks in all possible ways, and releases them or not."""

    @property
    def _choices(self) -> list[Operation]:
        return [self._acquire, self._acquire, self._enter, self._enter, self._nest, self._leave_it]

    async def _acquire(self, name: str) -> None:
        mode, timeout, lease = self._mode(), self._timeout(), self._lease()
        await self._take(name, timeout, lease=lease, mode=mode, operation="acquire", extends=0.2)

    async def _enter(self, name: str) -> None:
        timeout, lease = self._time_to_enter(), self._lease()
        await self._take(name, timeout, lease=lease, mode=self._mode())

    async def _nest(self, name: str) -> None:
        await self._take(name, 3.0, mode=self._mode(), levels=2, waits=self._wait_again)

    def _wait_again(self, rng: random.Random) -> dict[str, Any]:
        return {"timeout": rng.random(), "lease": self._lease()}

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: the client releases what this task has, or the worker does later."""
        await self._take(name, 1.0, mode=self._mode(), operation="leave")

    def _mode(self) -> str:
        return ""

    async def _give_back_rest(self, name: str) -> None:
        await self._operations.give_back_rest(name)


class ReadWriteWorker(LockWorker):
    """Acquires read-write locks: reads, writes, downgrades, or asks for a refused upgrade."""

    @property
    def _choices(self) -> list[Operation]:
        return [
            *super()._choices,
            self._downgrade,
            self._downgrade,
            self._read_inside,
            self._upgrade,
            self._operations.look,
        ]

    async def _downgrade(self, name: str) -> None:
        lease = self._lease()
        task = Task(2.0, self._seconds, lease, operation="downgrade", waits=lambda rng: {"timeout": rng.random()})
        await self._operations.downgrade(name, task)

    async def _read_inside(self, name: str) -> None:
        await self._operations.read_inside(name, Task(2.0, self._seconds))

    async def _upgrade(self, name: str) -> None:
        await self._operations.upgrade(name, Task(2.0, self._seconds, waits=self._wait_to_write))

    def _wait_to_write(self, _rng: random.Random) -> dict[str, Any]:
        return Task(self._timeout(), 0.0, operation="acquire").how

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
    def _choices(self) -> list[Operation]:
        often = [*3 * [self._acquire], *3 * [self._enter]]
        return [
            *often,
            *often,
            self._leave_it,
            self._operations.look,
            *([self._resize] if self._workload.resizes else []),
        ]

    async def _acquire(self, name: str) -> None:
        max_hold = self._workload.lease * self._rng.uniform(0.5, 3.0)
        timeout, lease, n = self._timeout(), self._lease(), self._wish()
        await self._take(name, timeout, lease=lease, n=n, max_hold=max_hold, operation="acquire", extends=0.2)

    async def _enter(self, name: str) -> None:
        timeout, lease = self._time_to_enter(), self._lease()
        await self._take(name, timeout, lease=lease)

    async def _leave_it(self, name: str) -> None:
        """Acquire and end: permits belong to no task, so the client keeps it."""
        max_hold, n = self._workload.lease * self._rng.random() + 0.1, self._wish()
        await self._operations.take(name, Task(1.0, 0.0, operation="leave", n=n, max_hold=max_hold))

    async def _resize(self, name: str) -> None:
        await self._operations.resize(name, self._rng.randint(1, self._workload.permits + 2))


class RateWorker(Worker):
    """Asks a rate limiter for successes."""

    @property
    def _choices(self) -> list[Operation]:
        more = [self._cancel] if self._workload.cancels else []
        more += [self._resize] if self._workload.changes_rates else []
        return [*3 * [self._acquire], *2 * [self._enter], self._ask_when, self._operations.look, *more]

    async def _acquire(self, name: str) -> None:
        timeout, n = self._timeout(), self._wish()
        await self._take(name, timeout, n=n, operation="acquire")

    async def _enter(self, name: str) -> None:
        await self._take(name, self._time_to_enter())

    async def _cancel(self, name: str) -> None:
        await self._take(name, self._timeout(), n=self._wish(), operation="cancel")

    async def _resize(self, name: str) -> None:
        rate, per = self._rng.choice([(self._workload.rate, self._workload.per), *self._workload.rates])
        await self._operations.resize(name, self._rng.randint(1, rate + 2), per)

    async def _ask_when(self, name: str) -> None:
        await self._operations.ask_when(name, self._wish())


class LatchWorker(Worker):
    """Uses latches: sets them, counts them down, looks at them and waits for them.

    At the end finishers count down what is left, so that no waiter waits forever. Checkers get an owner's records about
    latches, each with the name of the `client`. A waiter also reports its `owner` as nodes store it; and a call whose
    client was closed meanwhile is `closed`.
    """

    def __init__(
        self, workload: Workload, machine: Machine, client: SimulatedClient, who: str, kind: str = "count_down_latch"
    ) -> None:
        super().__init__(workload, machine, client, who, kind)
        self._client_name = next(runner.name for runner in machine.runners if runner.client_id == client.id)
        self._failures: Counter[str] = Counter()

    @property
    def _choices(self) -> list[Operation]:
        often = 2 * [self._set, self._count_down, self._count_down, self._wait, self._wait]
        return [*often, *self._some, self._visit, *([self._operations.delete] if self._workload.deletes else [])]

    @property
    def _some(self) -> list[Operation]:
        return [self._set, self._count_down, self._wait, self._operations.look]

    async def finish(self, names: Iterable[str], working: Sequence[asyncio.Task[None]]) -> None:
        """Count down what is left at the end, until the other workers have ended."""
        while not all(task.done() for task in working):
            await asyncio.sleep(0.3)
            for name in names if self._workload.over else ():
                await self._try(self._finish_off, name)

    async def _try(self, operation: Operation, name: str) -> None:
        try:
            await super()._try(operation, name)
        except ClientClosedError:
            self._tell("closed", name)

    async def _set(self, name: str) -> None:
        await self._operations.set(name, self._rng.choice([1, 1, 2, 3, 5]))

    async def _count_down(self, name: str) -> None:
        n, timeout = self._rng.choice([1, 1, 1, 2]), self._rng.choice([0.0, 0.3, 1.0, 10.0])
        await self._operations.insist(name, n, timeout, self._rng.choice([1, 2, 5]))

    async def _wait(self, name: str) -> None:
        timeout = self._rng.choice([None, 0.0, 3 * self._rng.random(), 3 * self._rng.random()])
        await self._operations.wait(name, timeout)

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
            await self._operations.set(name, 1)
        self._failures[name] += 1
        left = await self._operations.look(name)
        if left is not None:
            self._failures[name] = 0
        if left:
            await self._operations.count_down(name, left, 10.0)

    def _tell(self, what: str, name: str, **about: Any) -> None:
        if about.get("how") == "wait":
            about["owner"] = self._client.runner.owner().wire.decode()
        super()._tell(what, name, client=self._client_name, **about)


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
"""The seed from which programs with a rate limiter differ in `node_timeout`, have several rates, and change them."""


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
        rates: Its further rates, each with its longer window.
        cancels: True if programs return successes.
        changes_rates: True if they change rates.
        keep: The seconds for which nodes keep a latch after its last use.
        deletes: True if programs delete latches.
        acquisitions: The number of acquisitions.
        losses: The number of losses that workers learned of.
    """

    def __init__(
        self,
        sim: Trial,
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
        several = sim.random_for("several rates")
        more = several.choice([0, 0, 1, 2]) if sim.seed >= _UNLIKE_FROM else 0
        self.rates: Final = [
            (self.rate + several.randint(0, 2 * self.rate) * n, self.per * n * several.uniform(1.5, 3.0))
            for n in range(1, more + 1)
        ]
        self.cancels: Final = sim.seed >= _UNLIKE_FROM and several.random() < 0.5
        self.changes_rates: Final = sim.seed >= _UNLIKE_FROM and several.random() < 0.4
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
