"""Simulations: programs on virtual machines, over virtual nodes and a virtual network, in virtual time, by a seed.

```python
def test_two_workers_exclude_each_other():
    with Simulation(seed=7, nodes=5) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(work(a.client(lease=2.0)))  # plain asyncio code with an AsyncClient
        b.start(work(b.client(lease=2.0)))
        sim.partition(a, 2)
        sim.run(until=5.0)
        sim.heal()
        sim.run()  # until both have ended; raises their errors
```

A run is a function of its seed: the same programs and faults with the same seed give the same trace, byte for byte.
After each step the checkers look; the run raises their findings as `SimulationError`, with the trace and the way to
replay the run.

Faults are methods: `partition`, `cut`, `heal`, `slow`, `lose`, `tear` here; `pause`, `resume`, `crash`, `drift`, `jump`
of a `Machine`; `hang`, `resume`, `crash`, `restart`, `refuse`, `ignore`, `recover`, `flush`, `forget_scripts`, `kick`,
`drift`, `jump` of a node (`sim.nodes[i]`). `faults.Nemesis` plans a random sequence of all of them.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from redsync._core.scripts import Script
from redsync.exceptions import RedsyncError
from redsync.testing.simulator.checks import ALL, Checker
from redsync.testing.simulator.checks.calm import Calm
from redsync.testing.simulator.happenings import Faulted, Handed, Happening, Stepped, Trace
from redsync.testing.simulator.letters import MAKER
from redsync.testing.simulator.loop import Host, VirtualLoop
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.network import Network
from redsync.testing.simulator.sockets import VirtualTransport
from redsync.testing.simulator.timeline import Timeline
from redsync.testing.simulator.troubles import Troubles
from redsync.testing.simulator.worlds import World, world_for

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["Simulation", "SimulationError"]

_LAST_LINES = 60

_UNTRACED: Final = {Stepped, Handed}
"""Happenings that only checkers see."""


class SimulationError(RedsyncError, AssertionError):
    """A simulation found something wrong; str() describes it, how to replay it, and the end of the trace.

    Attributes:
        complaints: The findings of the checkers.
        seed: The seed of the run.
        trace: All that happened, as text.
    """

    def __init__(self, complaints: Sequence[str], seed: int, trace: Trace, replay: str) -> None:
        self.complaints = tuple(complaints)
        self.seed = seed
        self.trace = trace.text()
        what = "\n".join(complaints)
        super().__init__(f"{what}\nreplay it with {replay}\n\nthe trace ends with\n{trace.text(_LAST_LINES)}")


class Simulation(Troubles):
    """One run, used in a `with` block: at its end the checkers look once more, unless there was an error.

    Args:
        seed: Decides every random choice.
        nodes: The number of nodes.
        replicas: The number of replicas of each node, which makes it a Sentinel group; None for single servers.
        cluster: True for nodes that are masters of a cluster, each with `replicas` replicas, by default one.
        unlisted: The number of last nodes that the clients of every other machine leave off their lists.
        sets: The number of sets of links that a client has; with several, its calls borrow them, as threads do.
        scripts: Sources that replace shipped scripts on all nodes, by name, to plant mistakes.
        checkers: The checkers to use.
        timeout: The longest time that `run` waits for programs to end, in virtual seconds.
        replay: The way to replay this run, for the error.
        **client_options: Default options of all clients. Without an `outage_timeout`, calls wait until faults end.

    Attributes:
        machines: The machines, in the order they were made.
        runners: The drivers of all clients, by the clients' names.
        world: The kind of nodes.
        nodes: The nodes; for a group, its present master.
        groups: The groups of servers with replicas, if any.
        servers: All servers: the nodes, or all members of groups.
        sentinels: All Sentinels.
        addresses: The server at each address.
        network: The network between machines and nodes.
        trace: All that happened so far.
        calm: Knows since when there are no faults.
        waived: The promises that no longer hold, each with the fault that broke its assumption.
        slowness: The probability that a process is slow or paused before it looks at the clock again; 0.0: no time
            passes while code runs.
    """

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        replicas: int | None = None,
        cluster: bool = False,
        unlisted: int = 0,
        sets: int = 1,
        scripts: Mapping[str, str] | None = None,
        checkers: Iterable[type[Checker]] = ALL,
        timeout: float = 3600.0,
        replay: str | None = None,
        **client_options: Any,
    ) -> None:
        self.seed: Final = seed
        self.timeline: Final = Timeline()
        self.trace: Final = Trace()
        self.client_options: Final = {"outage_timeout": math.inf, **client_options}
        self.unlisted: Final = unlisted
        self.sets: Final = sets
        self.slowness = 0.0
        self.machines: list[Machine] = []
        self.runners: dict[str, SimulatedRunner] = {}
        self.waived: Final[dict[str, str]] = {}
        self.random: Final = self.random_for("simulation")
        # Abstract methods raise NoRealIOError.
        self.loop: Final = VirtualLoop(self.timeline, self.random_for("scheduler").random)  # type: ignore[abstract]
        self.loop.on_step = self._look_at_step
        self.loop.on_error = self._report
        self.network = Network(self.timeline, self.random_for("network").random, self.random_for("wire").random)
        self.loop.on_connect = self._connect
        broken = {name: _replace(name, source) for name, source in (scripts or {}).items()}
        self.world: World = world_for(replicas, cluster=cluster)(self, nodes, replicas, broken)
        self.nodes, self.groups = self.world.nodes, self.world.groups
        self.servers, self.sentinels = self.world.servers, self.world.sentinels
        self.addresses = {server.name: server for server in self.servers}
        self.addresses |= {sentinel.name: sentinel for sentinel in self.sentinels}
        self._replay: Final = replay or f"Simulation(seed={seed})"
        self._timeout: Final = timeout
        self._complaints: list[str] = []
        self._transports: Final[list[VirtualTransport]] = []
        self._pending: Final[dict[asyncio.Task[Any], Machine]] = {}
        self._failed: BaseException | None = None
        self._waits = self._over = False
        self.calm: Final = Calm(self)
        self._checkers: Final = [make(self) for make in checkers]
        self._watching: Final[dict[type[Any], list[tuple[str, Callable[[Any], str | None]]]]] = {}
        for checker in self._checkers:
            for kind in checker.watches:
                self._watching.setdefault(kind, []).append((checker.name, checker.see))
            if checker.every is not None:
                self._watching.setdefault(Stepped, []).append((checker.name, checker.look_if_due))

    def random_for(self, purpose: str) -> random.Random:
        """Return a source of random numbers by the seed, independent of those for all other purposes."""
        return random.Random(f"{self.seed} {purpose}")

    @property
    def now(self) -> float:
        """The present instant of true time, in seconds since the beginning."""
        return self.timeline.now

    def machine(self, name: str) -> Machine:
        """Return a new machine."""
        assert all(machine.name != name for machine in self.machines), f"a machine {name!r} already exists"
        machine = Machine(self, name)
        self.machines.append(machine)
        return machine

    # Running.

    def run(self, until: float | None = None) -> None:
        """Run until that instant of true time, by default until all programs on live machines have ended.

        Raises:
            SimulationError: A promise was broken, or the programs do not end.
            Exception: The error that ended a program.
        """
        assert not self._over, "the simulation is over"
        self._waits = until is None
        alive = bool(self._pending) or not self._waits
        collects = gc.isenabled()
        # The seed does not decide when garbage is collected, and finalizers are code too.
        gc.disable()
        try:
            if alive:
                alive = self.loop.advance(self.now + self._timeout if until is None else until)
                if until is not None and not alive:
                    # No event is left, but time passes.
                    self.timeline.now = max(self.now, until)
                if self._waits and self._pending and self._failed is None and not self._complaints:
                    self.complain("progress", self._describe_stuck(alive))
        finally:
            if collects:
                gc.enable()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            failed.add_note(f"in a simulation: replay it with {self._replay}")
            raise failed
        self._raise_complaints()

    def check(self) -> None:
        """Let the checkers look at the end of the run.

        Raises:
            SimulationError: A promise was broken.
        """
        for checker in self._checkers:
            for text in checker.finish():
                self.complain(checker.name, text)
        self._raise_complaints()

    def close(self) -> None:
        """End everything that still runs; checkers ignore what happens from here on."""
        if self._over:
            return
        self._over = True
        for machine in self.machines:
            for runner in machine.runners:
                runner.dispose()
        for transport in self._transports:
            transport.vanish()
        self.loop.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
        finally:
            self.close()

    def _describe_stuck(self, alive: bool) -> str:
        who = ", ".join(f"{task.get_name()} on {machine.name}" for task, machine in self._pending.items())
        if not alive:
            return f"deadlock: no event is left, and {who} wait"
        return f"after {self._timeout:g} s these programs have not ended: {who}"

    # For machines.

    async def _connect(self, machine: Host, host: str, _port: int, factory: Callable[[], Any]) -> Any:
        node = self.addresses.get(host)
        if node is None:
            raise OSError(f"there is no node {host!r} here")
        transport = VirtualTransport(self.network, machine, node, self.loop)
        transport.connection.maker = MAKER.get()
        self._transports.append(transport)
        return transport, await transport.open(factory)

    def begun(self, machine: Machine, task: asyncio.Task[Any]) -> None:
        """Record a program that was started."""
        self._pending[task] = machine
        task.add_done_callback(self._end, context=self.loop.world.context)

    def ended(self, machine: Machine) -> None:
        """Record a machine whose programs will never end."""
        for task in machine.tasks:
            self._pending.pop(task, None)
        self._stop_if_done()

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._pending.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over:
            self._failed = self._failed or error
            self.loop.stop()
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if self._waits and not self._pending:
            self.loop.stop()

    # Observing.

    def saw(self, happening: Happening) -> None:
        """Record a happening, and let the checkers look."""
        if self._over:
            return
        kind = happening.__class__
        if kind not in _UNTRACED:
            self.trace.add(happening)
        if kind is Faulted:
            self.calm.stir()
        for promise, see in self._watching.get(kind, ()):
            complaint = see(happening)
            if complaint is not None:
                self.complain(promise, complaint)

    def complain(self, promise: str, text: str) -> None:
        """Stop the run because a promise was broken, unless the promise was waived."""
        if promise not in self.waived and not self._over:
            self._complaints.append(f"{promise}: {text}")
            self.loop.stop()

    def waive(self, promise: str, reason: str) -> None:
        """Stop checking a promise from now on, because a fault broke its assumption."""
        self.waived.setdefault(promise, reason)

    def waive_clocks(self, reason: str) -> None:
        """Stop checking all promises that rest on clocks from now on, because one clock is too wrong."""
        for checker in self._checkers:
            if checker.rests_on_clocks:
                self.waive(checker.name, reason)

    def _raise_complaints(self) -> None:
        if self._complaints:
            complaints, self._complaints = self._complaints, []
            raise SimulationError([self.trace.named(text) for text in complaints], self.seed, self.trace, self._replay)

    def _look_at_step(self, host: Host) -> None:
        if isinstance(host, Machine):
            self.saw(Stepped(self.now, host))

    def _report(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.complain("errors", f"{context['message']}: {error!r}" if error else context["message"])

    def look_at_rates(self) -> None:
        """Waive exclusion if the rates of clocks differ by more than clients allow for."""
        clocks = [machine.clock for machine in self.machines] + [node.clock for node in self.servers]
        rates = [clock.rate for clock in clocks]
        allowed = self.client_options.get("drift_factor", 0.01)
        if max(rates) / min(rates) - 1 > allowed:
            self.waive_clocks("clocks run at rates further apart than drift_factor")


def _replace(name: str, source: str) -> Script:
    # This raises if no such script is shipped: the name has a typo.
    Script.load(name)
    return Script(name, source.encode(), hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().encode())
