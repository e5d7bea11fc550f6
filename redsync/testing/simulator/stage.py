"""The stage of a scenario: its clients, each doing one thing after the other, and the faults that hit them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redsync._core.events import Event, HoldLost
from redsync._kinds import KINDS
from redsync.exceptions import LeaseLostError, NotOwnedError, QuorumError
from redsync.testing.simulator.values import Hash

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Actor", "Stage", "UnmetError"]


class Actor:
    """One task of one client on its own machine.

    Attributes:
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
        self._name: Final = name
        self._gives_up = False
        self._orders: Final[asyncio.Queue[tuple[Callable[..., Awaitable[None]], str, dict[str, Any]]]] = asyncio.Queue()
        self._task: Final = self.machine.start(self._work(), name=name)

    # Requests to the actor.

    def acquire(self, lock: str, **how: Any) -> None:
        """Acquire a lock, once all earlier requests are done; options as for `AsyncLock.acquire`."""
        self._orders.put_nowait((self._acquire, lock, how))

    def read(self, lock: str, **how: Any) -> None:
        """Acquire a read lock in the same way; later requests for that name use it."""
        self._orders.put_nowait((self._read, lock, how))

    def release(self, lock: str) -> None:
        """Release one acquisition."""
        self._orders.put_nowait((self._release, lock, {}))

    def extend(self, lock: str) -> None:
        """Extend the hold."""
        self._orders.put_nowait((self._extend, lock, {}))

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

    async def _acquire(self, lock: str, **how: Any) -> None:
        self._reads.pop(lock, None)
        self._say("acquired" if await self._lock(lock).acquire(**how) else "busy", lock)

    async def _read(self, lock: str, **how: Any) -> None:
        asked = self._reads[lock] = self.client.get_read_write_lock(lock).read_lock
        self._say("acquired" if await asked.acquire(**how) else "busy", lock)

    async def _release(self, lock: str) -> None:
        await self._lock(lock).release()
        self._say("released", lock)

    async def _extend(self, lock: str) -> None:
        await self._lock(lock).extend()
        self._say("extended", lock)

    def _hear(self, event: Event) -> None:
        if isinstance(event, HoldLost):
            self._say("told of loss of", str(event.name))

    def _say(self, what: str, lock: str) -> None:
        self.said.append(f"{what} {lock}")
        self.machine.tell(self._name, what, lock=lock)


class UnmetError(Exception):
    """An expectation is not met; str() says what is true instead."""


class Stage:
    """A running scenario, with locks of one kind; one method for each kind of statement."""

    def __init__(self, sim: Simulation, clients: list[str], kind: str) -> None:
        self.sim: Final = sim
        self._actors: Final = {name: Actor(sim, name, kind) for name in clients}

    def acquire(self, who: str, lock: str, within: str | None, lease: str | None) -> None:
        """Let a client wait for a lock."""
        self._actors[who].acquire(lock, timeout=within and float(within), lease=lease and float(lease))

    def read(self, who: str, lock: str, within: str | None) -> None:
        """Let a client wait for a read lock."""
        self._actors[who].read(lock, timeout=within and float(within))

    def act(self, who: str, verb: str, lock: str) -> None:
        """Let a client do something with a lock."""
        actor = self._actors[who]
        if verb == "tries":
            actor.acquire(lock, blocking=False)
        else:
            (actor.release if verb == "releases" else actor.extend)(lock)

    def do(self, who: str, verb: str) -> None:
        """Let a client or its machine do something."""
        actor = self._actors[who]
        machine = actor.machine
        deeds: dict[str, Callable[[], None]] = {
            "gives up": actor.give_up,
            "pauses": machine.pause,
            "resumes": machine.resume,
            "crashes": machine.crash,
            "goes dark": partial(machine.crash, dark=True),
        }
        deeds[verb]()

    def do_node(self, nodes: str, verb: str) -> None:
        """Let a node do something."""
        node = self.sim.nodes[int(nodes) - 1]
        deeds: dict[str, Callable[[], None]] = {
            "hangs": node.hang,
            "resumes": node.resume,
            "crashes": node.crash,
            "goes dark": partial(node.crash, dark=True),
            "restarts": node.restart,
            "restarts empty": partial(node.restart, forget=True),
            "forgets": node.flush,
            "recovers": node.recover,
            "forgets its scripts": node.forget_scripts,
            "ends a connection": node.kick,
            "ignores new connections": node.ignore,
        }
        deeds[verb]()

    def refuse(self, nodes: str, code: str) -> None:
        """Let a node answer with errors."""
        self.sim.nodes[int(nodes) - 1].refuse(code)

    def jump(self, who: str, seconds: str) -> None:
        """Let a machine's clock jump."""
        self._actors[who].machine.jump(float(seconds))

    def restart_node_older(self, nodes: str, seconds: str) -> None:
        """Let a node come back with older data."""
        self.sim.nodes[int(nodes) - 1].restart(lost=float(seconds))

    def jump_node(self, nodes: str, seconds: str) -> None:
        """Let a node's clock jump."""
        self.sim.nodes[int(nodes) - 1].jump(float(seconds))

    def swap(self, nodes: str) -> None:
        """Swap the addresses of two nodes."""
        self.sim.swap(*_indices(nodes))

    def machine(self, who: str) -> Machine:
        """Return the machine of a client."""
        return self._actors[who].machine

    def cut_off(self, who: str, nodes: str) -> None:
        """Let no packets through between a machine and nodes."""
        self.sim.partition(self._actors[who].machine, *_indices(nodes))

    def reach(self, who: str, nodes: str) -> None:
        """Let all packets through again."""
        self.sim.heal(self._actors[who].machine, *_indices(nodes))

    def slow(self, who: str, seconds: str, nodes: str) -> None:
        """Let packets take longer."""
        self.sim.slow(self._actors[who].machine, *_indices(nodes), seconds=float(seconds))

    def lose(self, who: str, what: str, nodes: str) -> None:
        """Lose or cut short all requests, or all replies."""
        there, back = (1.0, 0.0) if what.endswith("requests to") else (0.0, 1.0)
        lose = self.sim.tear if what.startswith("ends") else self.sim.lose
        lose(self._actors[who].machine, *_indices(nodes), there=there, back=back)

    def heal(self) -> None:
        """End all network faults."""
        self.sim.heal()

    def expect_holds(self, holder: str, lock: str) -> None:
        """Check which client believes that it holds a lock."""
        holders = [name for name, actor in self._actors.items() if actor.holds(lock)]
        if holders != [name for name in [holder] if name != "nobody"]:
            raise UnmetError(f"{' and '.join(holders) or 'nobody'} does")

    def expect_waits(self, who: str) -> None:
        """Check that a client is busy."""
        if not self._actors[who].busy:
            raise UnmetError(f"{who} has said {', '.join(self._actors[who].said) or 'nothing'}")

    def expect_said(self, who: str, said: str) -> None:
        """Check the last outcomes of a client."""
        wanted = [words.strip() for words in said.split(",")]
        found = self._actors[who].said
        if found[-len(wanted) :] != wanted:
            raise UnmetError(f"{who} has said {', '.join(found) or 'nothing'}")

    def expect_kept(self, lock: str, owners: str) -> None:
        """Check whose claims the nodes keep."""
        found = []
        for node in self.sim.nodes:
            entry = node.store.peek(f"redsync:{lock}".encode())
            fields = entry[0] if entry is not None and isinstance(entry[0], Hash) else {}
            found.append(" ".join(self.sim.trace.named(owner.decode()).partition(":")[0] for owner in fields) or "-")
        if found != owners.split():
            raise UnmetError(f"they keep {' '.join(found)}")


def _indices(nodes: str) -> list[int]:
    return [int(node) - 1 for node in nodes.split()]
