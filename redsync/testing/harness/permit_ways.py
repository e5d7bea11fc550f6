"""An owner's actions on the permits of a semaphore: it acquires one or several, and returns them in all ways.

If owners of a client share permits (see `Order.shares`), each may return what another acquired.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redsync.exceptions import ConfigurationError, NotOwnedError, OverReleaseError
from redsync.testing.harness.lock_ways import LockWays, Turn
from redsync.testing.harness.tasks import Task

__all__ = ["PermitWays"]


class PermitWays(LockWays):
    """An owner's actions on semaphores."""

    _COUNTS = False

    async def resize(self, name: str, permits: int) -> None:
        """Change the number of permits."""
        turn = self.turn(name, Task(None, 0.0, way="acquire"))
        with self._survive(turn):
            turn.note("resizes", permits=permits)
            await turn.thing.resize(permits)
            turn.note("resized", permits=permits)

    async def look(self, name: str) -> None:
        """Ask how many permits are left, and who has the others."""
        turn = self.turn(name, Task(None, 0.0, way="acquire"))
        with self._survive(turn):
            available, holders = await turn.thing.available(), await turn.thing.holders()
            turn.note("found", available=available, holders=len(holders))

    @contextmanager
    def _survive(self, turn: Turn) -> Iterator[None]:
        try:
            with super()._survive(turn):
                yield
        except (NotOwnedError, OverReleaseError):
            if not self._order.shares:
                raise
            turn.note("forestalled")
        except (ConfigurationError, ValueError):
            # One permit always exists.
            if turn.task.n == 1:
                raise
            turn.note("too many")

    async def _acquire(self, turn: Turn) -> bool:
        permit = await turn.thing.acquire(**turn.task.how, n=turn.task.n, lease=turn.task.lease)
        return self._begin_if(turn, permit, permit and permit._state)

    async def _give_back(self, turn: Turn) -> None:
        if turn.task.way == "leave":
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
