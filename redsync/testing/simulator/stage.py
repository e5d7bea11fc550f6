"""The stage of a scenario: its clients, each doing one thing after the other, and the faults that hit them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from redsync._core.events import Event, HoldLost
from redsync._kinds import KINDS
from redsync.exceptions import LeaseLostError, NotOwnedError, QuorumError
from redsync.testing.simulator.checks.kept import kept_at
from redsync.testing.simulator.clusters import Cluster
from redsync.testing.simulator.values import Hash

if TYPE_CHECKING:
    from redsync.testing.simulator.clusters import Shard
    from redsync.testing.simulator.replication import GroupServer
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Actor", "Stage", "UnmetError"]


class Actor:
    """One task of one client on its own machine.

    Attributes:
        name: The client's name.
        machine: The machine.
        client: The client.
        said: The outcomes of its requests, in order.
        busy: True while it performs a request.
    """

    def __init__(self, sim: Simulation, name: str, kind: str) -> None:
        self.machine: Final = sim.machine(name)
        self.client: Final = self.machine.client(listeners=[self._hear])
        self._writes: Final = self._make_writer if kind == "read-write" else KINDS[kind].maker(self.client)
        self._reads: Final[dict[str, Any]] = {}
        self.said: Final[list[str]] = []
        self.busy = False
        self.name: Final = name
        self._gives_up = False
        self._orders: Final[asyncio.Queue[tuple[Callable[..., Awaitable[None]], str, dict[str, Any]]]] = asyncio.Queue()
        self._task: Final = self.machine.start(self._work(), name=name)

    # Requests to the actor.

    def ask(self, request: Callable[..., Awaitable[None]], lock: str, **how: Any) -> None:
        """Ask for `acquire`, `read`, `release` or `extend`, once all earlier requests are done."""
        self._orders.put_nowait((request, lock, how))

    def give_up(self) -> None:
        """Cancel its current request."""
        if self.busy:
            self._gives_up = True
            self._task.cancel()

    def holds(self, lock: str) -> bool:
        """Return whether it believes that it holds a lock."""
        now = self.machine.clock.now()
        states = list(self.client.runner.session.holds)
        return not self.machine.crashed and any(state.name == lock and state.valid(now) for state in states)

    # Performing them.

    async def _work(self) -> None:
        while True:
            act, lock, how = await self._orders.get()
            self.busy = True
            try:
                await act(lock, **how)
            except QuorumError:
                self._say("no quorum for", lock)
            except LeaseLostError:
                self._say("lost", lock)
            except NotOwnedError:
                self._say("not owner of", lock)
            except asyncio.CancelledError:
                if not self._gives_up:
                    raise
                self._gives_up = False
                self._say("cancelled", lock)
            self.busy = False

    def _make_writer(self, lock: str) -> Any:
        return self.client.get_read_write_lock(lock).write_lock

    def _lock(self, lock: str) -> Any:
        return self._reads.get(lock) or self._writes(lock)

    async def acquire(self, lock: str, **how: Any) -> None:
        """Acquire a lock; options as for `AsyncLock.acquire`."""
        self._reads.pop(lock, None)
        self._say("acquired" if await self._lock(lock).acquire(**how) else "busy", lock)

    async def read(self, lock: str, **how: Any) -> None:
        """Acquire a read lock in the same way; later requests for that name use it."""
        asked = self._reads[lock] = self.client.get_read_write_lock(lock).read_lock
        self._say("acquired" if await asked.acquire(**how) else "busy", lock)

    async def release(self, lock: str) -> None:
        """Release one acquisition."""
        await self._lock(lock).release()
        self._say("released", lock)

    async def extend(self, lock: str) -> None:
        """Extend the hold."""
        await self._lock(lock).extend()
        self._say("extended", lock)

    def _hear(self, event: Event) -> None:
        if isinstance(event, HoldLost):
            self._say("told of loss of", str(event.name))

    def _say(self, what: str, lock: str) -> None:
        self.said.append(f"{what} {lock}")
        self.machine.tell(self.name, what, lock=lock)


class UnmetError(Exception):
    """An expectation is not met; str() says what is true instead."""


class Stage:
    """A running scenario, with locks of one kind: what its statements name, and what takes more than a line.

    Attributes:
        sim: The simulation.
        actors: The clients, by name.
    """

    def __init__(self, sim: Simulation, clients: list[str], kind: str) -> None:
        self.sim: Final = sim
        self.actors: Final = {name: Actor(sim, name, kind) for name in clients}

    def find(self, words: Mapping[str, str | None]) -> dict[str, Any]:
        """Return what the words of a statement name, each under its name; None and other words stay.

        Nodes and shards are numbered from 1, servers are called `1a`, `1b` ... Several nodes become indices.
        """
        return {name: _FIND[name](self, word) if word and name in _FIND else word for name, word in words.items()}

    def server(self, name: str) -> GroupServer:
        """Return a server of a group."""
        group = self.sim.groups[int(name[:-1]) - 1]
        return next(server for server in group.servers if server.name == f"node-{name}")

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        world = self.sim.world
        assert isinstance(world, Cluster), "the story has the setting: cluster yes"
        return world

    def acquire(self, who: Actor, lock: str, timeout: float | None, lease: float | None) -> None:
        """Let a client wait for a lock."""
        who.ask(who.acquire, lock, timeout=timeout, lease=lease)

    def slow(self, who: Actor, seconds: float, nodes: list[int]) -> None:
        """Let packets take longer."""
        self.sim.slow(who.machine, *nodes, seconds=seconds)

    def reset(self, nodes: list[int], seconds: float) -> None:
        """Let the Sentinels of groups forget the replicas for a while."""
        for index in nodes:
            self.sim.groups[index].reset(seconds)

    def join(self, nodes: list[int]) -> None:
        """Let all servers of groups reach each other."""
        for index in nodes:
            self.sim.groups[index].heal()

    def cut_off(self, who: Actor, servers: list[GroupServer], sentinels: str | None) -> None:
        """Let no packets through between a machine and servers of one group, and perhaps its Sentinels."""
        self.sim.cut_off(who.machine, [*servers, *(servers[0].group.sentinels if sentinels else ())])

    def move(self, slot: int, shard: Shard, pause: float | None) -> None:
        """Move the slot of a node, key by key; `pause`: seconds between two keys, at most."""
        self.cluster.move(slot, shard, pause=pause or 0.0)

    def expect_holds(self, holder: str, lock: str) -> None:
        """Check which client believes that it holds a lock."""
        holders = [name for name, actor in self.actors.items() if actor.holds(lock)]
        if holders != [name for name in [holder] if name != "nobody"]:
            raise UnmetError(f"{' and '.join(holders) or 'nobody'} does")

    def expect_waits(self, who: Actor) -> None:
        """Check that a client is busy."""
        if not who.busy:
            raise UnmetError(f"{who.name} has said {', '.join(who.said) or 'nothing'}")

    def expect_said(self, who: Actor, said: str) -> None:
        """Check the last outcomes of a client."""
        wanted = [words.strip() for words in said.split(",")]
        if who.said[-len(wanted) :] != wanted:
            raise UnmetError(f"{who.name} has said {', '.join(who.said) or 'nothing'}")

    def expect_kept(self, lock: str, owners: str) -> None:
        """Check whose claims the nodes keep."""
        found = []
        for node in self.sim.nodes:
            fields = kept_at(node, f"redsync:{lock}".encode(), Hash)
            found.append(" ".join(self.sim.trace.named(owner.decode()).partition(":")[0] for owner in fields) or "-")
        if found != owners.split():
            raise UnmetError(f"they keep {' '.join(found)}")


_FIND: Final[dict[str, Callable[[Stage, str], Any]]] = {
    "who": lambda stage, name: stage.actors[name],
    "node": lambda stage, number: stage.sim.nodes[int(number) - 1],
    "nodes": lambda _, numbers: [int(number) - 1 for number in numbers.split()],
    "server": Stage.server,
    "servers": lambda stage, names: [stage.server(name) for name in names.split()],
    "slot": lambda _, number: int(number) - 1,
    "shard": lambda stage, number: stage.cluster.groups[int(number) - 1],
    **dict.fromkeys(("seconds", "timeout", "lease", "pause"), lambda _, number: float(number)),
}
