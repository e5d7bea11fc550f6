"""An owner's actions on synchronizers that are used differently from a lock: one class for each kind.

If owners of a client share permits (see `Job.shares`), each may return what another acquired.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from redsync.exceptions import (
    AcquireTimeout,
    ConfigurationError,
    NotOwnedError,
    OverReleaseError,
    QuorumError,
    UpgradeError,
)
from tests.chaos.lock_operations import LockOperations, Turn
from tests.chaos.owner_work import Task


class ReadWriteOperations(LockOperations):
    """An owner reads, writes, downgrades, and asks for a refused upgrade; it uses each lock as it does other locks."""

    async def fight(self, name: str, task: Task) -> None:
        """Do the task, in a process that contends with others: read or write, or first write and then read."""
        draw = self._rng.random()
        if draw < 0.12:
            await self.downgrade(name, replace(task, operation="downgrade"))
            await self.give_back_rest(name)  # what was lost before its release
        else:
            await self.take(name, replace(task, mode="write" if draw < 0.4 else "read"))

    async def downgrade(self, name: str, task: Task) -> None:
        """Write, read as well, and continue to read after the write lock is released."""
        write, read = (self.turn(name, task, mode) for mode in ("write", "read"))

        async def read_as_well(_write: Turn) -> None:
            read.asked = self._now()
            try:
                if await read.thing.acquire(**task.again(self._rng)):
                    self._begin(read, read.thing, read.thing._state())
            except QuorumError:
                read.note("no quorum", asked=read.asked)

        with self._survive(write):
            self._ask(write, "downgrade")
            if await self._acquire(write):
                await self._inside(write, read_as_well)
                await self._give_back(write)
        if read.hold is not None:
            with self._survive(read):
                await self._inside(read)
                await self._give_back(read)

    async def read_inside(self, name: str, task: Task) -> None:
        """Read while writing; each lock is released separately."""
        write = self.turn(name, task, "write")

        async def read_as_well(_write: Turn) -> None:
            read = self.turn(name, task, "read")
            with self._survive(read):
                async with read.thing as hold:
                    self._begin(read, hold, hold._state)
                    await self._inside(read)
                read.note("released", mode="read")
            await self._work(write)

        await self._enter(write, "read inside", read_as_well)

    async def upgrade(self, name: str, task: Task) -> None:
        """Read and ask to write, which would wait for itself."""
        read = self.turn(name, task, "read")

        async def expect_refusal(_read: Turn) -> None:
            asked = self._now()
            try:
                await self._make(name).write_lock.acquire(**task.again(self._rng))
            except UpgradeError:
                read.note("refused", asked=asked, mode="read")
            else:
                raise AssertionError("a reader can't become a writer")
            await self._work(read)

        await self._enter(read, "upgrade", expect_refusal)

    async def look(self, name: str) -> None:
        """Ask whether there are readers, or writers."""
        pair = self._make(name)
        turn = self.turn(name, Task(None, 0.0))
        with self._survive(turn):
            reads, writes = await pair.read_lock.locked(), await pair.write_lock.locked()
            turn.note("found", reads=reads, writes=writes)

    def _pick(self, name: str, mode: str, options: dict[str, Any]) -> Any:
        return getattr(super()._pick(name, mode, options), f"{mode or 'read'}_lock")

    def _all(self, name: str) -> Sequence[Turn]:
        return [self.turn(name, Task(None, 0.0, operation="acquire"), mode) for mode in ("write", "read")]


@contextmanager
def few(turn: Turn) -> Iterator[None]:
    """Note the error of an ask for more permits than a resize has left."""
    try:
        yield
    except (ConfigurationError, ValueError):
        # One permit always exists.
        if turn.task.n == 1:
            raise
        turn.note("too many")


class PermitOperations(LockOperations):
    """An owner acquires one permit or several, and returns them in all ways."""

    _COUNTS = False

    async def resize(self, name: str, permits: int) -> None:
        """Change the number of permits."""
        turn = self.turn(name, Task(None, 0.0, operation="acquire"))
        with self._survive(turn):
            await turn.thing.resize(permits)
            turn.note("resized", permits=permits)

    async def look(self, name: str) -> None:
        """Ask how many permits are left, and who has the others."""
        turn = self.turn(name, Task(None, 0.0, operation="acquire"))
        with self._survive(turn):
            available, holders = await turn.thing.available(), await turn.thing.holders()
            turn.note("found", available=available, holders=len(holders))

    @contextmanager
    def _survive(self, turn: Turn) -> Iterator[None]:
        try:
            with super()._survive(turn), few(turn):
                yield
        except (NotOwnedError, OverReleaseError):
            if not self._order.shares:
                raise
            turn.note("forestalled")

    async def _acquire(self, turn: Turn) -> bool:
        permit = await turn.thing.acquire(**turn.task.how, n=turn.task.n, lease=turn.task.lease)
        return self._begin_if(turn, permit, permit and permit._state)

    async def _give_back(self, turn: Turn) -> None:
        if turn.task.operation == "leave":
            turn.note("leaves")
        elif not self._order.shares or self._rng.random() < 0.5:
            await turn.hold.release()
            turn.note("released", n=turn.task.n)
        else:
            await self._give_back_latest(turn)

    async def _give_back_latest(self, turn: Turn) -> None:
        """Return this client's latest permits, whichever owner acquired them, in several steps."""
        left = turn.task.n
        while left:
            share = self._rng.randint(1, left)
            left -= share
            await turn.thing.release(share)
            turn.note("released", n=share)
            await self._sleep(turn.task.share(self._rng, 1))

    def _pick(self, name: str, _mode: str, options: dict[str, Any]) -> Any:
        # Each object knows only the limits that it has learned itself, so use new objects and old ones.
        return self._make(name, self._order.limit, **(options or {"timeout": 1.0}))

    def _about(self, turn: Turn) -> dict[str, Any]:
        return {"n": turn.task.n}

    def _held(self, turn: Turn) -> dict[str, Any]:
        return {"permit": turn.hold.id}


def ids_of(permit: Any) -> list[str]:
    """Return the ids of a success, shortest window first."""
    return [state.holder for state in reversed(permit._permits)]


class RateOperations(LockOperations):
    """An owner asks for successes, or when there is room."""

    async def fight(self, name: str, task: Task) -> None:
        """Ask for a success, in a process that contends with others."""
        await self.take(name, replace(task, operation="acquire"))

    async def take(self, name: str, task: Task) -> None:
        """Ask for one or more successes."""
        turn = self.turn(name, task)
        with self._survive(turn):
            self._ask(turn, task.operation)
            if task.operation != "enter":
                permit = await self._acquire(turn)
                if permit and task.operation == "cancel":
                    await self._sleep(task.share(self._rng, 1))
                    turn.note("cancels", permits=ids_of(permit))
                    permit.cancel()
                return
            async with turn.thing as permit:
                self._succeed(turn, permit)
                await self._sleep(task.share(self._rng, 1))

    async def ask_when(self, name: str, n: int) -> None:
        """Ask when there is room, wait until then, and try once."""
        turn = self.turn(name, Task(0.0, 0.0, n=n, operation="acquire"))
        with self._survive(turn):
            seconds = await turn.thing.retry_after(n)
            await self._sleep(seconds)
            self._ask(turn, "told")
            await self._acquire(turn)

    async def look(self, name: str) -> None:
        """Ask how many successes are left."""
        turn = self.turn(name, Task(None, 0.0, operation="acquire"))
        with self._survive(turn):
            turn.note("found", available=await turn.thing.available())

    async def resize(self, name: str, rate: int, per: float) -> None:
        """Change the rate of a window."""
        turn = self.turn(name, Task(None, 0.0, operation="acquire"))
        with self._survive(turn):
            await turn.thing.set_rate(rate, per)
            turn.note("resized", permits=rate)

    @contextmanager
    def _survive(self, turn: Turn) -> Iterator[None]:
        with super()._survive(turn), few(turn):
            yield

    async def _acquire(self, turn: Turn) -> Any:
        permit = await turn.thing.acquire_permit(**turn.task.how, n=turn.task.n)
        if permit:
            self._succeed(turn, permit)
        else:
            turn.note("busy", asked=turn.asked)
        return permit

    def _succeed(self, turn: Turn, permit: Any) -> None:
        turn.stage = "inside"
        turn.note("success", n=turn.task.n, rates=self._rates, permits=ids_of(permit))

    @property
    def _rates(self) -> list[tuple[int, float]]:
        return [(self._order.limit, self._order.per), *self._order.rates]

    def _options(self, task: Task, _note: Any) -> dict[str, Any]:
        return {"timeout": task.timeout} if task.operation == "enter" else {}

    def _pick(self, name: str, _mode: str, options: dict[str, Any]) -> Any:
        # An object remembers how long rounds took; a new one does not.
        limiter = self._make(name, self._rates, **options)
        return limiter if options else self._kept.setdefault(name, limiter)

    def _about(self, turn: Turn) -> dict[str, Any]:
        return {"n": turn.task.n}


class LatchOperations(LockOperations):
    """An owner sets latches, deletes them, counts them down, looks and waits."""

    async def set(self, name: str, n: int) -> bool:
        """Set the latch, if it is open; return whether this call certainly set it."""
        turn = self._call(name, "set", n=n)
        with self._survive(turn):
            # A timeout because others keep setting it does not say whether it is open; "busy" would.
            with suppress(AcquireTimeout):
                if await turn.thing.try_set_count(n):
                    turn.note("set", n=n)
                    return True
            turn.note("not set")
        return False

    async def delete(self, name: str) -> None:
        """Delete the latch, as if it was never set."""
        turn = self._call(name, "delete")
        with self._survive(turn):
            with suppress(AcquireTimeout):
                await turn.thing.delete()
                turn.note("deleted")
                return
            turn.note("not deleted")

    async def count_down(self, name: str, n: int, timeout: float) -> bool:
        """Count down; return whether this call certainly counted."""
        turn = self._call(name, "count down", n=n, timeout=timeout)
        with self._survive(turn):
            await turn.thing.count_down(n)
            turn.stage = "leaving"
            turn.note("counted", n=n)
        return turn.stage == "leaving"

    async def insist(self, name: str, n: int, timeout: float, tries: int) -> None:
        """Count down; call again now and then if that fails."""
        for _ in range(tries):
            if await self.count_down(name, n, timeout):
                return
            await self._sleep(self._rng.random())

    async def look(self, name: str) -> int | None:
        """Return how much is left; None if too few nodes answered."""
        turn = self._call(name, "look")
        left: int | None = None
        with self._survive(turn):
            left = await turn.thing.count()
            turn.note("found", left=left)
        return left

    async def wait(self, name: str, timeout: float | None) -> bool:
        """Wait until the latch is open; return whether the call reported that."""
        turn = self._call(name, "wait", timeout=timeout)
        opened = False
        with self._survive(turn):
            opened = bool(await turn.thing.wait(timeout))
            turn.note("opened" if opened else "busy")
        return opened

    def _call(self, name: str, how: str, **about: Any) -> Turn:
        turn = self.turn(name, Task(about.get("timeout"), 0.0, operation=how))
        turn.note("asks", how=how, **about)
        return turn

    def _options(self, task: Task, _note: Any) -> dict[str, Any]:
        return {"timeout": task.timeout} if task.operation == "count down" else {}

    def _pick(self, name: str, _mode: str, options: dict[str, Any]) -> Any:
        # An object sends its knowledge to nodes, so use new objects, and old ones whose knowledge is outdated.
        latch = self._make(name, keep=self._order.keep, **options)
        return latch if options or self._rng.random() < 0.3 else self._kept.setdefault(name, latch)
