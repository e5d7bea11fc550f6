"""Owners of the fault harness on virtual machines: the checkers get their records, see `Did`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from redsync.testing.harness.journal import nanoseconds
from redsync.testing.harness.owner import World

if TYPE_CHECKING:
    from redsync.testing.simulator.client import SimulatedClient
    from redsync.testing.simulator.machines import Machine

__all__ = ["world_of"]


def world_of(machine: Machine, client: SimulatedClient, note: Callable[..., None]) -> World:
    """Return the world of an owner on a machine; its instants are of true time."""

    def now() -> int:
        return nanoseconds(machine.sim.now)

    def instant(seconds: float) -> int:
        return nanoseconds(machine.sim.now + seconds - machine.clock.now())

    return World(client, note, asyncio.sleep, now, instant)
