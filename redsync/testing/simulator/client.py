"""The client of a simulation: an `AsyncClient` whose driver reports its events to the simulation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import redis.asyncio

from redsync._core.events import Event
from redsync._core.timing import Timing
from redsync._drivers.nodes import Node
from redsync.client_async import AsyncClient
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["SimulatedClient"]


class _Redis(redis.asyncio.Redis):
    """Has the address of a node, and never connects. Cached by URL, because making one is slow."""

    @classmethod
    @functools.cache
    def from_url(cls, url: str, **options: Any) -> Any:
        """Return the instance for that URL."""
        return super().from_url(url, **options)


class SimulatedClient(AsyncClient):
    """Makes synchronizers over the virtual nodes of a simulation, for programs on one machine of it.

    Made by `Machine.client`; it can do all that an `AsyncClient` can.
    """

    _REDIS = _Redis

    def __init__(self, machine: Machine, **options: Any) -> None:
        self._machine = machine
        sim = machine.sim
        urls = sim.world.urls
        if sim.machines.index(machine) % 2:
            urls = urls[: len(urls) - sim.unlisted]
        super().__init__(urls, **options)
        # A machine keeps its clients, so none is forgotten; and the finalizer's arguments would keep the machine alive.
        self._finalizer.detach()

    def _make_runner(self, nodes: list[Node], timing: Timing, listeners: Sequence[Callable[[Event], object]]) -> Any:
        return SimulatedRunner(
            self._machine,
            nodes=nodes,
            timing=timing,
            listeners=listeners,
            watchdog=self._WATCHDOG,
            farewell=self._FAREWELL,
        )
