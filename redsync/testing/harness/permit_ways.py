"""What an owner does with the permits of a semaphore."""

from __future__ import annotations

from typing import Any

from redsync.testing.harness.lock_ways import LockWays, Turn

__all__ = ["PermitWays"]


class PermitWays(LockWays):
    """What an owner does with semaphores."""

    _COUNTS = False

    def _pick(self, name: str, _mode: str, options: dict[str, Any]) -> Any:
        return self._make(name, self._order.limit, **options)

    def _held(self, turn: Turn) -> dict[str, Any]:
        return {"permit": turn.hold.id}
