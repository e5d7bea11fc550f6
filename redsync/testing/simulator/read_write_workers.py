"""Workers that contend for read-write locks: they read, write, go on reading when they have written, or ask too much.

They do with either lock what `lock_workers` do. Besides the words of those, which here tell the `mode` too, "read" or
"write", they say:

| word | means | about |
|---|---|---|
| `refused` | it read and asked to write, and was told at once that it must not | name, owner |
| `looked` | it asked whether anybody reads, or writes | name, owner, reads, writes |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redsync.exceptions import UpgradeError
from redsync.testing.simulator.lock_workers import LockWorker
from redsync.testing.simulator.workers import Way

if TYPE_CHECKING:
    from redsync.read_write_lock import AsyncReadWriteLock
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.workload import Workload

__all__ = ["ReadWriteWorker"]

_READERS = 0.65
"""How many of those who want one of the two locks want to read."""


class ReadWriteWorker(LockWorker):
    """Takes read-write locks."""

    def __init__(self, workload: Workload, machine: Machine, client: SimulatedClient, who: str) -> None:
        super().__init__(workload, machine, client, who, client.get_read_write_lock)
        self._mode = ""

    @property
    def ways(self) -> list[Way]:
        """What it does."""
        return [*super().ways, self._downgrade, self._downgrade, self._read_inside, self._upgrade, self._look]

    async def _downgrade(self, name: str) -> None:
        """Write, read as well, and go on reading when the write lock was given back."""
        lease = self._workload.own_lease(self._luck)
        pair = self._make_lock(name, lease=lease)
        self._mode = "write"
        self._tell("asks", name, how="downgrade", timeout=2.0, lease=lease)
        if not await pair.write_lock.acquire(timeout=2.0):
            self._tell("busy", name)
            return
        self._note(pair.write_lock, name)
        await self._hold()
        self._mode = "read"
        if await pair.read_lock.acquire(timeout=self._luck.random()):
            self._note(pair.read_lock, name)
            self._mode = "write"
            await self._release(pair.write_lock, name)
            await self._hold()
            self._mode = "read"
            await self._release(pair.read_lock, name)
        else:
            self._tell("busy", name)
            self._mode = "write"
            await self._release(pair.write_lock, name)

    async def _read_inside(self, name: str) -> None:
        """Read while writing; each is given back for itself."""
        pair = self._make_lock(name, timeout=2.0)
        self._mode = "write"
        self._tell("asks", name, how="read inside", timeout=2.0)
        async with pair.write_lock:
            self._note(pair.write_lock, name)
            await self._hold()
            async with pair.read_lock:
                self._mode = "read"
                self._note(pair.read_lock, name)
                await self._hold()
            self._tell("released", name)
            await self._hold()
        self._mode = "write"
        self._tell("released", name)

    async def _upgrade(self, name: str) -> None:
        """Read and ask to write, which would wait for itself."""
        pair = self._make_lock(name, timeout=2.0)
        self._mode = "read"
        self._tell("asks", name, how="upgrade", timeout=2.0)
        async with pair.read_lock:
            self._note(pair.read_lock, name)
            await self._hold()
            await self._expect_refusal(pair, name)
            await self._hold()
        self._tell("released", name)

    async def _expect_refusal(self, pair: AsyncReadWriteLock, name: str) -> None:
        asked_at = self._machine.clock.now()
        try:
            await pair.write_lock.acquire(**self._patience())
        except UpgradeError:
            assert self._machine.clock.now() == asked_at, "it is refused at once"
            self._tell("refused", name)
        else:
            raise AssertionError("a reader can't become a writer")

    async def _look(self, name: str) -> None:
        pair = self._make_lock(name)
        reads, writes = await pair.read_lock.locked(), await pair.write_lock.locked()
        self._tell("looked", name, reads=reads, writes=writes)

    async def _give_back_rest(self, name: str) -> None:
        pair = self._make_lock(name)
        self._mode = "write"
        await self._give_back_all(pair.write_lock, name)
        self._mode = "read"
        await self._give_back_all(pair.read_lock, name)

    def _lock(self, name: str, **options: Any) -> Any:
        """Return one of the two locks of that name."""
        pair = super()._lock(name, **options)
        self._mode = "read" if self._luck.random() < _READERS else "write"
        return pair.read_lock if self._mode == "read" else pair.write_lock

    def _tell(self, what: str, name: str, **about: Any) -> None:
        super()._tell(what, name, mode=self._mode, **about)
