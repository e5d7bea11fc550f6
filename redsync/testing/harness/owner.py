"""What one owner does: it takes things and gives them back again and again, and notes in the journal what happened.

Under each exclusive hold it reads a counter, works for a while, looks at the hold, acquires it again, and writes the
counter back unless the hold has become too old for that. Trouble is noted and survived, as a real program would have
to: too few nodes, a timeout, a lost hold. Anything else is a bug, and comes out.

The code is that of an asyncio task; `blocking` makes it that of a thread. A `World` says where it runs: in a process
with a real clock, or on a virtual machine of the simulator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from redsync.exceptions import AcquireTimeout, LeaseLostError, QuorumError
from redsync.testing.harness.journal import nanoseconds, now_ns
from redsync.testing.harness.ledger import Ledger
from redsync.testing.harness.orders import Order
from redsync.testing.harness.tasks import WORK, Task

__all__ = ["Owner", "World"]

Note: TypeAlias = Callable[..., None]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]

_MARGIN: Final = 0.1
"""Share of the lease that must be left when the counter is written."""

_LAST_PATIENCE: Final = 30.0
"""Seconds to wait for each thing when the faults are over."""

_REENTRANT: Final = ("lock", "fair_lock", "fenced_lock", "spin_lock")


@dataclass(frozen=True)
class World:
    """Where an owner lives.

    Attributes:
        client: An `AsyncClient`, or `Blocking` with a client for threads.
        note: Writes a line to the journal; as `Journal.note`.
        sleep: Waits for so many seconds.
        now: Returns the instant in ns, on the clock that all owners share.
        instant: Returns an instant of the client's clock, in seconds, as one of `now`.
    """

    client: Any
    note: Note
    sleep: Sleep
    now: Callable[[], int] = now_ns
    instant: Callable[[float], int] = nanoseconds


@dataclass(frozen=True)
class _Turn:
    """One acquisition while it lasts."""

    name: str
    mode: str
    task: Task
    note: Note
    lock: Any
    hold: Any
    granted: int


class Owner:
    """One thread, or one task; all its choices are made from the order's seed and its number."""

    def __init__(self, number: int, order: Order, world: World) -> None:
        """Make an owner.

        Args:
            number: Who it is, counted over all processes of the run.
            order: What its process is to do.
            world: Where it lives.
        """
        self._number, self._order, self._client = number, order, world.client
        self._sleep, self._now, self._instant = world.sleep, world.now, world.instant
        self._note = partial(world.note, worker=number)
        self._chance = random.Random(f"{order.seed} {number}")
        self._choose = WORK[order.work]
        own = order.names[number % len(order.names)]
        self._contested = [own] if order.work == "steady" else order.names
        directory = Path(order.directory)
        self._ledgers = {name: Ledger(directory, index, name) for index, name in enumerate(order.names)}
        self._attempts = 0

    async def fight(self, left: Callable[[], float]) -> None:
        """Take things until no seconds are left."""
        while (seconds := left()) > 0:
            name, task = self._chance.choice(self._contested), self._choose(self._chance, self._order.lease)
            timeout = seconds if math.isinf(task.timeout) else task.timeout
            if name.startswith("rate_limiter:"):
                await self._succeed(name, timeout)
            else:
                await self._attempt(name, task, timeout)
            if task.rest:
                await self._sleep(task.rest)

    async def finish(self) -> None:
        """Take everything once more, now that nothing is in trouble."""
        for name in self._order.names:
            asked = self._now()
            lock, _ = self._pick(name, timeout=_LAST_PATIENCE, on_lost=partial(self._told, self._note))
            try:
                async with lock:
                    self._note("last", name=name, asked=asked, got=True)
            except (AcquireTimeout, QuorumError, LeaseLostError) as error:
                self._note("last", name=name, asked=asked, got=False, why=repr(error))

    def close(self) -> None:
        """Close the ledgers."""
        for ledger in self._ledgers.values():
            ledger.close()

    def _pick(self, name: str, **options: Any) -> tuple[Any, str]:
        """Return what to enter to have the thing of that name, and of a read-write lock in which mode."""
        kind = name.partition(":")[0]
        make = getattr(self._client, f"get_{kind}")
        if kind == "semaphore":
            return make(name, self._order.limit, **options), ""
        if kind == "read_write_lock":
            mode = "write" if self._chance.random() < 0.4 else "read"
            return getattr(make(name, **options), f"{mode}_lock"), mode
        return make(name, **options), ""

    async def _succeed(self, name: str, timeout: float) -> None:
        limiter = self._client.get_rate_limiter(name, self._order.limit, self._order.per)
        try:
            allowed = await limiter.acquire(timeout=timeout)
        except QuorumError:
            allowed = False
        if allowed:
            self._note("success", name=name)

    async def _attempt(self, name: str, task: Task, timeout: float) -> None:
        note = self._next()
        lock, mode = self._pick(name, timeout=timeout, lease=task.lease, on_lost=partial(self._told, note))
        asked, stage = self._now(), "asking"
        reading: tuple[Any, Note] | None = None
        try:
            async with lock as hold:
                stage = "inside"
                turn = _Turn(name, mode, task, note, lock, hold, self._now())
                self._note_acquired(
                    note, hold._state, name=name, asked=asked, granted=turn.granted, task=task, mode=mode
                )
                try:
                    await self._work(turn)
                    if mode == "write" and self._chance.random() < 0.3:
                        reading = await self._read_as_well(name, task)
                finally:
                    # In this order: a hold that is valid after the instant was valid at it.
                    ended = self._now()
                    note("done", at=ended, kept=hold.remaining() > 0, until=self._until(hold))
                stage = "leaving"
        except (AcquireTimeout, QuorumError) as error:
            if stage != "asking":
                raise AssertionError(f"an error of acquiring came out of a hold ({stage})") from error
            note("busy" if isinstance(error, AcquireTimeout) else "no quorum", name=name, asked=asked)
        except LeaseLostError:
            note("lost", inside=stage == "inside")
        else:
            note("released")
        if reading is not None:
            await self._read_on(*reading, task)

    def _next(self) -> Note:
        self._attempts += 1
        return partial(self._note, number=self._attempts)

    async def _work(self, turn: _Turn) -> None:
        """Do what only one may do at a time, unless others may have the same."""
        if turn.mode == "read" or turn.name.startswith("semaphore:"):
            await self._look(turn, turn.task.seconds)
            return
        ledger, hold = self._ledgers[turn.name], turn.hold
        begun = ledger.begin(self._number, turn.granted)
        value = ledger.read_counter()
        if turn.task.extends:
            await self._extend(turn)
        await self._nest(turn, turn.task.levels if turn.name.startswith(_REENTRANT) else 1)
        if hold.remaining() > _MARGIN * self._order.lease:
            # Noted first: a process that is killed in between may have written.
            turn.note("writes", value=value + 1)
            ledger.write_counter(value + 1)
        if hold.remaining() > 0:
            ledger.end(begun)

    async def _extend(self, turn: _Turn) -> None:
        try:
            await turn.hold.extend()
        except QuorumError:
            turn.note("unsure", what="extend")

    async def _nest(self, turn: _Turn, levels: int) -> None:
        await self._look(turn, turn.task.seconds / turn.task.levels)
        if levels <= 1:
            return
        try:
            async with turn.lock:
                turn.note("re-entered")
                await self._nest(turn, levels - 1)
        except QuorumError:
            # Only the re-entry failed: the hold goes on, but what needs the inner one is not done.
            turn.note("unsure", what="re-entry")

    async def _look(self, turn: _Turn, seconds: float) -> None:
        """Work under a hold, and note what it says of itself meanwhile."""
        hold, pause = turn.hold, self._order.look
        ends_at = self._now() + nanoseconds(seconds)
        while (left := (ends_at - self._now()) / 1e9) > 0:
            await self._sleep(min(left, pause))
            if seconds > pause / 2:
                since, before = self._until(hold), self._now()
                remaining, lost = nanoseconds(hold.remaining()), hold.lost
                after = self._now()
                about = {"remaining": remaining, "lost": lost, "after": after, "until": self._until(hold)}
                turn.note("looked", since=since, before=before, **about)

    async def _read_as_well(self, name: str, task: Task) -> tuple[Any, Note] | None:
        """Begin to read under a write lock, in order to go on when that is given back."""
        note, asked = self._next(), self._now()
        lock = self._client.get_read_write_lock(name, on_lost=partial(self._told, note)).read_lock
        try:
            acquired = await lock.acquire(timeout=self._order.lease)
        except (QuorumError, LeaseLostError):
            acquired = False
        if not acquired:
            return None
        self._note_acquired(note, lock._state(), name=name, asked=asked, granted=self._now(), task=task, mode="read")
        return lock, note

    async def _read_on(self, lock: Any, note: Note, task: Task) -> None:
        state = lock._state()
        await self._sleep(task.seconds)
        note("done", kept=lock.remaining() > 0, until=self._instant(state.valid_until))
        try:
            await lock.release()
        except LeaseLostError:
            note("lost", inside=False)
        else:
            note("released")

    # The record of a hold is not public, but when it was believed first and last must be known exactly.

    def _until(self, hold: Any) -> int:
        return self._instant(hold._state.valid_until)

    def _note_acquired(self, note: Note, state: Any, *, granted: int, task: Task, mode: str, **about: Any) -> None:
        # The round that won it; the library forgets that when it has seen to the nodes that did not answer in time.
        since = granted if state.tally is None else min(self._instant(state.tally.at) + 1, granted)
        if state.fencing_token is not None:
            about["token"] = state.fencing_token
        if mode:
            about["mode"] = mode
        until = self._instant(state.valid_until)
        note("acquired", at=granted, since=since, until=until, owner=state.holder, lease=task.lease, **about)

    def _told(self, note: Note, hold: Any) -> None:
        note("told", lost=hold.lost, remaining=hold.remaining(), until=self._until(hold))
