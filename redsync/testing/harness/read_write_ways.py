"""An owner's actions on read-write locks: it reads, writes, downgrades, and asks for a refused upgrade.

It uses either lock as it does other locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redsync.exceptions import QuorumError, UpgradeError
from redsync.testing.harness.lock_ways import LockWays, Turn
from redsync.testing.harness.tasks import Task

__all__ = ["ReadWriteWays"]


class ReadWriteWays(LockWays):
    """An owner's actions on read-write locks."""

    async def fight(self, name: str, task: Task) -> None:
        """Do the task, in a process that contends with others: read or write, or first write and then read."""
        draw = self._rng.random()
        if draw < 0.12:
            await self.downgrade(name, replace(task, way="downgrade"))
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
        return [self.turn(name, Task(None, 0.0, way="acquire"), mode) for mode in ("write", "read")]
