"""Machines: programs run on them, each machine with its own clock, any number of clients, and faults.

A machine runs the tasks passed to `start`. These may start others; all of them stop when the machine pauses or crashes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redsync.testing.simulator.loop import Clock, Host
from redsync.testing.simulator.trace_events import Did, Faulted, Stepped

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync.testing.simulator.runner import SimulatedClient, SimulatedRunner
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Machine"]

T = TypeVar("T")


class Machine(Host):
    """One machine of a simulation, made by `Simulation.machine`.

    Attributes:
        sim: The simulation.
        random: A source of random numbers for the programs here, by the seed.
        tasks: The programs started here.
        runners: The drivers of the clients made here; `runner.session.holds` has the holds that a client believes in.
    """

    def __init__(self, sim: Simulation, name: str) -> None:
        rng = random.Random(f"{sim.seed} machine {name}")
        super().__init__(name, Clock(sim.timeline, rng.uniform(1000.0, 2000.0)))
        self.sim: Final = sim
        self.random: Final = rng
        self.tasks: Final[list[asyncio.Task[Any]]] = []
        self.runners: Final[list[SimulatedRunner]] = []
        self.clients: Final[list[SimulatedClient]] = []

    def client(self, **options: Any) -> SimulatedClient:
        """Return a client of all nodes, for the programs on this machine; options as for `AsyncClient`."""
        from redsync.testing.simulator.runner import SimulatedClient

        client = SimulatedClient(self, **self.sim.client_options | options)
        # Kept, because the seed does not decide when garbage collection finds a forgotten client.
        self.clients.append(client)
        return client

    def start(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a program; `Simulation.run` raises its error, if it ends with one."""
        number = len(self.tasks) + 1
        task = self.sim.loop.create_task(coro, name=name or f"program-{number}", context=self.context.copy())
        self.tasks.append(task)
        self.sim.begun(self, task)
        return task

    def tell(self, who: str, what: str, **about: Any) -> None:
        """Record a program's action in the trace, and show it to the checkers."""
        self.sim.saw(Did(self.sim.now, self, who, what, about))

    def holds(self) -> Iterator[HoldState]:
        """Yield the holds that its clients know, lost or not."""
        for runner in self.runners:
            if len(runner.session.holds):
                yield from runner.session.holds

    # Faults.

    def pause(self) -> None:
        """Pause all programs, as in a long garbage collection or after SIGSTOP; the clock continues."""
        if not self.paused and not self.crashed:
            self._note("pause", "pauses")
            self.sim.loop.pause(self)

    def resume(self) -> None:
        """Continue after `pause`."""
        if self.paused and not self.crashed:
            self._note("resume", "resumes")
            self.sim.loop.resume(self)

    def crash(self, *, dark: bool = False) -> None:
        """End all programs at once and permanently; if `dark`, their connections are not closed."""
        if self.crashed:
            return
        self._note("crash", "crashes and is dark" if dark else "crashes")
        self.sim.loop.crash(self)
        self.sim.network.leave(self, dark=dark)
        self.sim.ended(self)

    def drift(self, rate: float) -> None:
        """Let the clock count that many seconds per second."""
        self._note("drift", f"changes its clock rate to {rate:.4f}")
        self.clock.change(rate=rate)
        self.sim.loop.retime(self)
        self.sim.look_at_rates()

    def jump(self, seconds: float) -> None:
        """Let the clock jump; a jump back breaks what some promises assume of clocks."""
        self._note("jump", f"jumps its clock by {seconds:+.3f} s")
        self.clock.change(jump=seconds)
        self.sim.loop.retime(self)
        if seconds < 0:
            self.sim.waive_clocks(f"the clock of {self.name} jumped back")
        self.sim.show(Stepped(self.sim.now, self))

    def _note(self, kind: str, text: str) -> None:
        self.sim.saw(Faulted(self.sim.now, f"machine {kind}", f"{self.name} {text}"))

    def __repr__(self) -> str:
        return f"<Machine {self.name}>"
