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
The checkers look on, and the run raises what they find as `SimulationError`, with the trace and the way to
replay the run.

Faults are methods: `partition`, `cut`, `heal`, `slow`, `lose`, `tear` here; `pause`, `resume`, `crash`, `drift`, `jump`
of a `Machine`; `hang`, `resume`, `crash`, `restart`, `refuse`, `ignore`, `recover`, `flush`, `forget_scripts`, `kick`,
`drift`, `jump` of a node (`sim.nodes[i]`). `faults.Nemesis` plans a random sequence of all of them.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from redsync.exceptions import RedsyncError
from redsync.testing.simulator.loop import Host, Timeline, VirtualLoop
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.network import Network, Route, Server, VirtualTransport
from redsync.testing.simulator.runner import SimulatedRunner
from redsync.testing.simulator.trace_events import Faulted, Stepped, Trace, TraceEvent
from redsync.testing.simulator.virtual_nodes import VirtualNode

__all__ = ["Checker", "Simulation", "SimulationError"]

_LAST_LINES = 60


class Checker:
    """Watches one run for the breach of one promise.

    It may read everything: `sim.machines`, `sim.nodes` and their `store`, `sim.now`. It changes nothing.

    Attributes:
        name: The name of the promise, as for `Simulation.waive`.
        watches: The classes of events that `see` gets, each at once.
        every: The least seconds between two calls of `look`, which come after steps of redsync; None for none.
        rests_on_clocks: True if the promise is void when a clock is wrong by more than clients allow for.
        sim: The simulation.
    """

    name: ClassVar[str]
    watches: ClassVar[tuple[type[Any], ...]] = ()
    every: ClassVar[float | None] = None
    rests_on_clocks: ClassVar[bool] = False

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._looked = 0.0

    def see(self, event: Any) -> str | None:  # noqa: ARG002  (for those that watch)
        """Look at an event; return a complaint, or None."""
        return None

    def look(self) -> Iterable[str]:
        """Look at the present state; return complaints."""
        return ()

    def finish(self) -> Iterable[str]:
        """Look at the end of the run; return complaints."""
        return self.look()

    def look_if_due(self, stepped: Stepped) -> str | None:
        """Look after a step if `every` seconds have passed; return a complaint, or None."""
        if self.every is None or stepped.at < self._looked + self.every:
            return None
        self._looked = stepped.at
        return next(iter(self.look()), None)


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


class Simulation:
    """One run, used in a `with` block: at its end the checkers look once more, unless there was an error.

    Args:
        seed: Decides every random choice.
        nodes: The number of nodes.
        checkers: The checkers to use, each a class derived from `redsync.testing.simulator.Checker`.
        timeout: The longest time that `run` waits for programs to end, in virtual seconds.
        replay: The way to replay this run, for the error.
        **client_options: Default options of all clients. Without an `outage_timeout`, calls wait until faults end.

    Attributes:
        machines: The machines, in the order they were made.
        runners: The drivers of all clients, by the clients' names.
        nodes: The nodes.
        servers: All servers that can be a node; here they are the nodes.
        ends: All servers that a machine may connect to.
        addresses: The server at each address.
        network: The network between machines and nodes; its attributes are settings, too.
        trace: All that happened so far.
        waived: The promises that no longer hold, each with the fault that broke its assumption.
    """

    # tests/simulation replaces this, `_make_servers`, `servers_of` and `urls_for`: there a node may be several servers.
    RUNNER: ClassVar[type[SimulatedRunner]] = SimulatedRunner
    nodes: list[VirtualNode]
    servers: Sequence[VirtualNode]
    ends: Sequence[Server]

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        checkers: Iterable[type[Checker]] = (),
        timeout: float = 3600.0,
        replay: str | None = None,
        **client_options: Any,
    ) -> None:
        self.seed: Final = seed
        self.timeline: Final = Timeline()
        self.trace: Final = Trace()
        self.client_options: Final = {"outage_timeout": math.inf, **client_options}
        self.machines: list[Machine] = []
        self.runners: dict[str, SimulatedRunner] = {}
        self.waived: Final[dict[str, str]] = {}
        # Abstract methods raise NoRealIOError.
        self.loop: Final = VirtualLoop(self.timeline, self.random_for("scheduler").random)  # type: ignore[abstract]
        self.loop.on_step = self._look_at_step
        self.loop.on_error = self._report
        self.network = Network(self.timeline, self.random_for("network").random, self.random_for("wire").random)
        self.loop.on_connect = self._connect
        self._make_servers(nodes)
        self.addresses: Final[dict[str, Server]] = {end.name: end for end in self.ends}
        self._replay: Final = replay or f"Simulation(seed={seed})"
        self._timeout: Final = timeout
        self._complaints: list[str] = []
        self._transports: Final[list[VirtualTransport]] = []
        self._pending: Final[dict[asyncio.Task[Any], Machine]] = {}
        self._failed: BaseException | None = None
        self._waits = self._over = False
        self._checkers: Final = [make(self) for make in checkers]
        self._watching: Final[dict[type[Any], list[tuple[str, Callable[[Any], str | None]]]]] = {}
        for checker in self._checkers:
            for kind in checker.watches:
                self._watching.setdefault(kind, []).append((checker.name, checker.see))
            if checker.every is not None:
                self._watching.setdefault(Stepped, []).append((checker.name, checker.look_if_due))

    def _make_servers(self, nodes: int) -> None:
        """Make the servers for that many nodes."""
        self.ends = self.servers = self.nodes = [VirtualNode(self, i) for i in range(nodes)]

    def servers_of(self, index: int) -> Sequence[VirtualNode]:
        """Return the servers that can be the node with that index; here one."""
        return [self.nodes[index]]

    def urls_for(self, _machine: Machine) -> list[str]:
        """Return the URLs of the nodes for a client on a machine."""
        return [f"redis://{node.name}" for node in self.nodes]

    def random_for(self, purpose: str) -> random.Random:
        """Return a source of random numbers by the seed, independent of those for all other purposes."""
        return random.Random(f"{self.seed} {purpose}")

    @property
    def now(self) -> float:
        """The present instant of true time, in seconds since the beginning."""
        return self.timeline.now

    def machine(self, name: str) -> Machine:
        """Return a new machine."""
        if any(machine.name == name for machine in self.machines):
            raise ValueError(f"a machine {name!r} already exists")
        machine = Machine(self, name)
        self.machines.append(machine)
        return machine

    # Running.

    def run(self, until: float | None = None) -> None:
        """Run until that instant of true time, by default until all programs on live machines have ended.

        Raises:
            SimulationError: A promise was broken, or the programs do not end.
            RuntimeError: An event loop runs in this thread.
            Exception: The error that ended a program.
        """
        if self._over:
            raise RuntimeError("the simulation is over: create another one")
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
                runner.closed = True  # protocols that still run end without performing their effects
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

    # Faults of the network.

    def partition(self, machine: Machine, *nodes: int) -> None:
        """Let no packets through between a machine and nodes (indices; all if none is given)."""
        self.cut(machine, *nodes, there=True, back=True)

    def cut(self, machine: Machine, *nodes: int, there: bool = False, back: bool = False) -> None:
        """Let no packets through from a machine to nodes (`there`), or from nodes to a machine (`back`)."""
        for node, route in self._routes(machine, nodes):
            arrow = "<->" if there and back else "->" if there else "<-"
            self._note("partition", f"nothing gets through {machine.name} {arrow} {node.name}")
            route.there.blocked |= there
            route.back.blocked |= back

    def heal(self, machine: Machine | None = None, *nodes: int) -> None:
        """End partitions, slowness and loss between a machine (all if none is given) and nodes."""
        for each in self.machines if machine is None else [machine]:
            for node, route in self._routes(each, nodes):
                if route.troubled:
                    self._note("heal", f"everything gets through again {each.name} <-> {node.name}")
                    self.network.heal(route)

    def slow(self, machine: Machine, *nodes: int, seconds: float) -> None:
        """Let packets between a machine and nodes take up to that much longer."""
        for node, route in self._routes(machine, nodes):
            self._note("delay", f"packets {machine.name} <-> {node.name} take up to {seconds:.3f} s longer")
            route.there.delay = route.back.delay = seconds

    def delay_pushes(self, machine: Machine, *nodes: int, seconds: float = 0.0) -> None:
        """Let wake-ups and hand-overs from nodes to a machine take up to that much longer; replies do not."""
        for node, route in self._routes(machine, nodes):
            self._note("late pushes", f"pushes {machine.name} <- {node.name} take up to {seconds:.3f} s longer")
            route.back.push_delay = seconds

    def lose(self, machine: Machine, *nodes: int, there: float = 0.0, back: float = 0.0) -> None:
        """Let packets be lost with that probability; each lost packet ends its connection."""
        for node, route in self._routes(machine, nodes):
            self._note(
                "loss", f"{there:.0%} of requests, {back:.0%} of replies are lost {machine.name} <-> {node.name}"
            )
            route.there.loss, route.back.loss = there, back

    def tear(self, machine: Machine, *nodes: int, there: float = 0.0, back: float = 0.0) -> None:
        """Let connections end, with that probability, in the middle of a message, whose beginning arrives."""
        for node, route in self._routes(machine, nodes):
            self._note(
                "tear", f"{there:.0%} of requests, {back:.0%} of replies are cut short {machine.name} <-> {node.name}"
            )
            route.there.tears, route.back.tears = there, back

    def swap(self, one: int, other: int) -> None:
        """Swap the addresses of two nodes, as when names or services move; their connections end."""
        first, second = self.nodes[one], self.nodes[other]
        self._note("swap", f"{first.name} and {second.name} swap addresses")
        self.addresses[first.name], self.addresses[second.name] = second, first
        for machine in self.machines:
            for _, route in self._routes(machine, (one, other)):
                for connection in list(route.connections):
                    connection.reset()

    def narrow(self, room: int) -> None:
        """Limit how many bytes of a connection a machine keeps until they arrive; clients keep the rest."""
        if self.network.room != room:
            self._note("room", f"machines keep {room} bytes of a connection")
            self.network.room = room

    def _routes(self, machine: Machine, nodes: Sequence[int]) -> list[tuple[Server, Route]]:
        """Return the routes between a machine and all servers of nodes; without nodes, to all servers."""
        chosen: Sequence[Server] = [server for i in nodes for server in self.servers_of(i)] if nodes else self.ends
        return [(node, self.network.route(machine, node)) for node in chosen]

    def _note(self, kind: str, text: str) -> None:
        self.saw(Faulted(self.now, kind, text))

    # For machines.

    async def _connect(self, machine: Host, host: str, _port: int, factory: Callable[[], Any]) -> Any:
        node = self.addresses.get(host)
        if node is None:
            raise OSError(f"there is no node {host!r} here")
        transport = VirtualTransport(self.network, machine, node, self.loop)
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

    def saw(self, event: TraceEvent) -> None:
        """Record an event, and let the checkers look."""
        if not self._over:
            self.trace.add(event)
            self.show(event)

    def show(self, event: object) -> None:
        """Let the checkers look at an event that the trace need not have."""
        for promise, see in () if self._over else self._watching.get(event.__class__, ()):
            complaint = see(event)
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
            self.show(Stepped(self.now, host))

    def _report(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.complain("errors", f"{context['message']}: {error!r}" if error else context["message"])

    def look_at_rates(self) -> None:
        """Waive promises that rest on clocks if the rates of clocks differ by more than clients allow for."""
        clocks = [machine.clock for machine in self.machines] + [node.clock for node in self.servers]
        rates = [clock.rate for clock in clocks]
        allowed = self.client_options.get("drift_factor", 0.01)
        if max(rates) / min(rates) - 1 > allowed:
            self.waive_clocks("clocks run at rates further apart than drift_factor")
