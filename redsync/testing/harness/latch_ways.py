"""An owner's actions on count-down latches: set, delete, count down, look and wait."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redsync.exceptions import AcquireTimeout
from redsync.testing.harness.journal import nanoseconds
from redsync.testing.harness.lock_ways import LockWays, Turn
from redsync.testing.harness.tasks import Task

__all__ = ["LatchWays"]


class LatchWays(LockWays):
    """An owner's actions on latches."""

    async def fight(self, name: str, task: Task) -> None:
        """Look or wait; in a process that does not only watch, also set and count down."""
        draw = self._rng.random()
        if draw < 0.2:
            await self.look(name)
        elif draw < 0.6 or task.way == "watch":
            await self.wait(name, task.timeout)
        elif draw < 0.9:
            await self.insist(name, self._rng.randint(1, 2), 1.0, tries=2)
        else:
            await self.set(name, self._rng.randint(1, self._order.limit))

    async def last(self, name: str, timeout: float) -> None:
        """Count down what is left until the latch is open; others may set it meanwhile."""
        until = self._now() + nanoseconds(timeout)
        while not await self.wait(name, 0.1):
            if self._now() > until:
                raise AcquireTimeout(name, timeout)
            if left := await self.look(name):
                await self.count_down(name, left, timeout)

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
        turn = self.turn(name, Task(about.get("timeout"), 0.0, way=how))
        turn.note("asks", how=how, **about)
        return turn

    def _options(self, task: Task, _note: Any) -> dict[str, Any]:
        return {"timeout": task.timeout} if task.way == "count down" else {}

    def _pick(self, name: str, _mode: str, options: dict[str, Any]) -> Any:
        # An object sends its knowledge to nodes, so use new objects, and old ones whose knowledge is outdated.
        latch = self._make(name, keep=self._order.keep, **options)
        return latch if options or self._rng.random() < 0.3 else self._kept.setdefault(name, latch)
