"""The third driver: runs protocols in virtual time, over the virtual network, for tasks on one machine.

It promises what every driver promises (see `redsync._core.effects`): steps are atomic, each node executes one owner's
commands in order, interruptions are thrown in and the clean-up is performed to the end.
"""

from __future__ import annotations

import asyncio
import itertools
import traceback
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, assert_never

from redsync._core.effects import Broadcast, Command, Effect, Notify, Reply, Signal, Steps, Tell, Wait, Wakeup
from redsync._core.events import Event
from redsync._core.holds import HoldTable
from redsync._core.keys import client_key, wake_channel
from redsync._core.ownership import Owner
from redsync._core.presence import ClientRecord
from redsync._core.quorum import Tally, Verdict
from redsync._core.runner import Session, drive
from redsync._core.timing import Timing
from redsync._drivers.nodes import Node, NodeStatus
from redsync._drivers.parcels import Parcel
from redsync._drivers.tasks import TaskOwners, TaskScope
from redsync._drivers.telling import Herald
from redsync.exceptions import ClientClosedError
from redsync.testing.simulator.happenings import Decided, Sent, Told
from redsync.testing.simulator.lines import Letter, Line, finish
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.upkeep import Upkeep
from redsync.testing.simulator.wakeups import Retry, Wakeups

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["SimRunner"]

T = TypeVar("T")

_Listening: TypeAlias = set[bytes | Retry]
"""As in the driver for asyncio."""

_LAST_CHANCE = 0.03
"""As in the driver for asyncio."""

_CLOSING_PATIENCE = 2.0


class _Gate:
    """What a task sleeps on, with the method that whoever wakes it calls."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: asyncio.Future[None]) -> None:
        self._waiting = waiting

    def release(self) -> None:
        if not self._waiting.done():
            self._waiting.set_result(None)


class SimRunner:
    """Runs the protocols of one simulated client.

    Attributes:
        sim: The simulation.
        machine: Where the client lives.
        name: What the trace calls the client: its machine's name, numbered from the second client on.
        session: What the client's synchronizers share.
        client_id: The client's UUID, by the seed.
        nodes: What the client knows of the nodes.
        homes: Where each of them keeps its keys.
        channel: The channel over which nodes wake the client's waiters.
        connect_timeout: How long to wait for a connection, in seconds.
        wakeups: Where wake-ups go.
        upkeep: Keeps the client connected.
        closed: The client was closed.
    """

    def __init__(
        self,
        *,
        machine: Machine,
        nodes: Sequence[Node],
        timing: Timing,
        listeners: Sequence[Callable[[Event], object]],
        watchdog: Callable[[Session, float], Steps[None]],
        farewell: Callable[[Session], Steps[None]],
    ) -> None:
        self.sim: Final[Simulation] = machine.sim
        self.machine: Final = machine
        number = len(machine.runners) + 1
        self.name: Final = machine.name if number == 1 else f"{machine.name}.{number}"
        self.client_id: Final = str(uuid.UUID(int=machine.random.getrandbits(128), version=4))
        self.nodes: Final = tuple(nodes)
        self.channel: Final = wake_channel(self.client_id, 0)
        self.connect_timeout: Final = max(4 * timing.node_timeout, 1.0)
        self.session: Final = Session(
            len(nodes),
            timing,
            HoldTable(self._alarm),
            machine.random.random,
            client_key(self.client_id),
            ClientRecord(machine.name, number, "simulation", self.sim.now).pack(),
        )
        self.owner: Final = TaskOwners(self.new_owner, self.session.holds.orphan)
        self.now: Final = machine.clock.now
        self.wakeups: Final = Wakeups(self)
        self.closed = False
        self._addresses: Final = tuple(node.address for node in nodes)
        self.homes: Final = tuple(node.home for node in nodes)
        self._herald: Final = Herald(listeners)
        self._watchdog: Final = watchdog
        self._farewell: Final = farewell
        self._serials: Final = itertools.count(1)
        self._numbers: Final = itertools.count(1)
        self._lines: Final = [Line(self, node, self.sim.nodes[node.index]) for node in nodes]
        self.upkeep: Final = Upkeep(self, self._lines)
        self._living: asyncio.Task[None] | None = None
        self._begun: Final = asyncio.Event()
        self._active = 0
        machine.runners.append(self)
        self.sim.trace.names[self.client_id] = self.name

    # What facades and the client see.

    @property
    def usable(self) -> bool:
        """Whether another user may share this client now."""
        return not self.closed

    def new_owner(self) -> Owner:
        """Return an owner that nobody has been before."""
        return Owner.of(self.client_id, next(self._serials))

    def require_open(self) -> None:
        """Return if the client is open, else raise `ClientClosedError`."""
        if self.closed:
            raise ClientClosedError

    def scope(self) -> TaskScope:
        """Open a scope around what the running task does from now on."""
        return TaskScope()

    def servers(self) -> frozenset[str]:
        """Return which servers and databases are connected, by what they say they are."""
        return frozenset(server for node in self.nodes if (server := node.server) is not None)

    def statuses(self) -> list[NodeStatus]:
        """Return the state of every node."""
        now, guard = self.now(), self.session.timing.restart_guard
        return [line.node.status(now, line.suspect, guard) for line in self._lines]

    async def connect(self) -> None:
        """Begin to connect, if that has not been done, and give the first connections a moment."""
        self._begin()
        await self._begun.wait()

    def _begin(self) -> None:
        self.require_open()
        assert self.sim.loop.current is self.machine, "a client is used on its own machine"
        if self._living is None:
            self._living = self.sim.loop.create_task(self._live(), name=f"{self.name}-maintenance")

    async def run(self, steps: Steps[T]) -> T:
        """Perform the protocol's effects until it returns; its errors come out."""
        self._begin()
        listening: _Listening = set()
        self._active += 1
        try:
            return await drive(steps, partial(self._perform, listening))
        finally:
            self._active -= 1
            self.machine.stepped = True
            for kept in listening:
                self.wakeups.deafen(kept)

    def run_at_once(self, steps: Steps[T]) -> T:
        """Perform a protocol that waits for nothing."""
        driving = drive(steps, partial(self._perform, set()))
        try:
            driving.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            self.machine.stepped = True
        raise AssertionError("a protocol that waits for nothing has waited")

    async def close(self) -> None:
        """Let waiters go, give back what is held, end the connections; idempotent."""
        if self.closed:
            return
        self.closed = True
        if self._living is None:
            return
        self.wakeups.close()
        deadline = self.now() + _CLOSING_PATIENCE
        while self._active and self.now() < deadline:  # noqa: ASYNC110  (as the other drivers do)
            await asyncio.sleep(0.001)
        await drive(self._farewell(self.session), partial(self._perform, set()))
        self._living.cancel()
        deadline = self.now() + self.session.timing.node_timeout
        while any(line.pending or line.again for line in self._lines) and self.now() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        self.upkeep.stop()

    def abandon(self) -> None:
        """Do nothing: a machine keeps its clients, for no seed decides when something is collected."""

    def vanish(self, *, dark: bool) -> None:
        """Let the connections go, as the machine has crashed."""
        for line in self._lines:
            line.vanish(dark=dark)

    def dispose(self) -> None:
        """Let protocols that still run come to their end without any effect: the simulation is over."""
        self.closed = True
        self.wakeups.close()
        self.upkeep.stop()

    # Performing.

    def at(self, when: float, function: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call a function when the machine's clock shows that time."""
        return self.sim.loop.call_at(when, function, *args)

    async def _perform(self, listening: _Listening, effect: Effect) -> Reply:
        self.machine.stepped = True
        match effect:
            case Broadcast():
                return await self._broadcast(listening, effect)
            case Tell():
                self.post(Letter(effect, None))
                return None
            case Wait():
                return await self._wait(listening, effect)
            case Signal(_, key):
                self.wakeups.ring(key)
                return None
            case Notify(event):
                self.sim.saw(Told(self.sim.now, self, event))
                self._herald.announce(event)
                return None
            case _:
                assert_never(effect)

    async def _broadcast(self, listening: _Listening, effect: Broadcast) -> Tally:
        timeout = effect.timeout
        if not self._begun.is_set():
            # The first use is part of its round, as for the other driver of asyncio.
            asked_at = self.now()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._begun.wait()
            if not self._begun.is_set():
                self.upkeep.hurry()
            timeout = max(asked_at + timeout - self.now(), min(timeout, _LAST_CHANCE))
        if effect.listen is not None:
            self.wakeups.listen(effect.listen, effect.guard)
            listening.add(effect.listen)
        tally = effect.tally(self._addresses)
        parcel = Letter(effect, tally)
        tally.sent_at = self.now()
        self.post(parcel)
        if not parcel.done:
            await self.wait_for_round(parcel, timeout)
        if tally.open:
            parcel.done = False
            await self._sleep_on(parcel, effect.lingers_until(tally.sent_at, self.now()))
            tally.freeze()
        tally.at = self.now()
        if parcel.command is not None:
            self.sim.saw(Decided.of(self.sim.now, self.name, parcel.number, tally))
        return tally

    async def _wait(self, listening: _Listening, effect: Wait) -> Wakeup:
        retry = next((kept for kept in listening if isinstance(kept, Retry)), None)
        if retry is None and effect.retry_at is not None:
            retry = Retry()
            listening.add(retry)
        signals = await self.wakeups.sleep(effect, retry)
        self.require_open()
        return Wakeup(self.now(), *signals)

    async def wait_for_round(self, parcel: Parcel, timeout: float) -> None:
        """Return when the parcel's tally is decided, which it is after the timeout at the latest."""
        await self._sleep_on(parcel, self.now() + timeout)
        if not parcel.done and parcel.tally is not None:
            parcel.tally.close(f"no answer within {timeout:g} s")
            finish(parcel)

    async def _sleep_on(self, parcel: Parcel, until: float) -> None:
        waiting: asyncio.Future[None] = asyncio.Future(loop=self.sim.loop)
        parcel.gate = _Gate(waiting)
        await self.wakeups.sleep_until(waiting, until)

    def post(self, letter: Parcel) -> None:
        """Send a letter to all nodes; composed now if it is composed at all."""
        tally = letter.tally
        if not letter.make(next(self._numbers)):
            if tally is not None:
                tally.close("nothing to send")
            finish(letter)
            return
        assert isinstance(letter.command, Command), "it was made"
        now = self.now()
        script, keys, args = letter.command.script, letter.command.keys, letter.command.words
        nodes = 0
        for line in self._lines:
            if line.offer(letter, now):
                nodes |= line.node.bit
        self.sim.saw(Sent(self.sim.now, self.name, letter.number, script.name, keys, args, nodes, tally is not None))
        if tally is not None and tally.verdict is Verdict.PENDING and None not in tally.choices:
            tally.close("nobody is left to vote")
            finish(letter)

    # The watchdog.

    def _alarm(self) -> None:
        self.upkeep.alarm()

    async def _live(self) -> None:
        try:
            await self.upkeep.begin()
            self._begun.set()
            await drive(self._watchdog(self.session, self.now()), self._perform_watchdog)
        except asyncio.CancelledError:
            raise
        except Exception:
            self.sim.complain("errors", f"the watchdog of {self.name} failed: {traceback.format_exc()}")
        finally:
            self._begun.set()

    async def _perform_watchdog(self, effect: Effect) -> Reply:
        if not isinstance(effect, Wait):
            return await self._perform(set(), effect)
        self.machine.stepped = True
        await self.upkeep.sleep(effect.until)
        return Wakeup(self.now(), 0)

    def tell(self, event: Event) -> None:
        """Tell the application of a node."""
        self.sim.saw(Told(self.sim.now, self, event))
        self._herald.tell(event)
