"""An owner's actions on rate limiters: it asks for successes, or when there is room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from redsync.testing.harness.lock_ways import LockWays, Turn
from redsync.testing.harness.tasks import Task

__all__ = ["RateWays"]


class RateWays(LockWays):
    """An owner's actions on rate limiters."""

    async def fight(self, name: str, task: Task) -> None:
        """Ask for a success, in a process that contends with others."""
        await self.take(name, replace(task, way="acquire"))

    async def take(self, name: str, task: Task) -> None:
        """Ask for one or more successes."""
        turn = self.turn(name, task)
        with self._survive(turn):
            self._ask(turn, task.way)
            if task.way != "enter":
                await self._acquire(turn)
                return
            async with turn.thing:
                self._succeed(turn)
                await self._sleep(task.share(self._rng, 1))

    async def ask_when(self, name: str, n: int) -> None:
        """Ask when there is room, wait until then, and try once."""
        turn = self.turn(name, Task(0.0, 0.0, n=n, way="acquire"))
        with self._survive(turn):
            turn.note("wonders", n=n)
            seconds = await turn.thing.retry_after(n)
            turn.note("room", n=n, seconds=seconds)
            await self._sleep(seconds)
            self._ask(turn, "told")
            await self._acquire(turn)

    async def look(self, name: str) -> None:
        """Ask how many successes are left."""
        turn = self.turn(name, Task(None, 0.0, way="acquire"))
        with self._survive(turn):
            turn.note("found", available=await turn.thing.available())

    async def _acquire(self, turn: Turn) -> bool:
        if await turn.thing.acquire(**turn.task.how, n=turn.task.n):
            self._succeed(turn)
            return True
        turn.note("busy", asked=turn.asked)
        return False

    def _succeed(self, turn: Turn) -> None:
        turn.stage = "inside"
        turn.note("success", n=turn.task.n, rate=self._order.limit, per=self._order.per)

    def _options(self, task: Task, _note: Any) -> dict[str, Any]:
        return {"timeout": task.timeout} if task.way == "enter" else {}

    def _pick(self, name: str, _mode: str, options: dict[str, Any]) -> Any:
        # An object remembers how long rounds took; a new one does not.
        limiter = self._make(name, self._order.limit, self._order.per, **options)
        return limiter if options else self._kept.setdefault(name, limiter)

    def _about(self, turn: Turn) -> dict[str, Any]:
        return {"n": turn.task.n}
