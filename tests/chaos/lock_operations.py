"""An owner's actions on locks: it acquires them in all possible ways, works under them, and releases them or not.

Under each exclusive hold it reads a counter, works for a while, looks at the hold, acquires it again, and writes the
counter back unless the hold has become too old for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redsync.exceptions import AcquireTimeout, LeaseLostError, NotOwnedError, QuorumError
from tests.chaos.history import nanoseconds
from tests.chaos.owner_work import Task

if TYPE_CHECKING:
    from tests.chaos.counters import Counter
    from tests.chaos.owner import Note, Owner

_MARGIN: Final = 0.1
"""Share of the lease that must be left when the counter is written."""


@dataclass
class Turn:
    """One attempt to acquire something, and the acquisition that follows.

    Attributes:
        name: The name of the thing.
        mode: "read" or "write" for a read-write lock; empty for others.
        task: The work to do.
        note: Writes a line about it.
        thing: The object to acquire or enter.
        asked: The instant it began, in ns.
        stage: "asking", "inside", or "leaving" once the work is done.
        hold: The object that reports on the hold while it lasts.
        state: The client's record of it.
        granted: The instant it was acquired, in ns.
    """

    name: str
    mode: str
    task: Task
    note: Note
    thing: Any
    asked: int
    stage: str = "asking"
    hold: Any = None
    state: Any = None
    granted: int = 0


More: TypeAlias = Callable[[Turn], Awaitable[None]]


class LockOperations:
    """An owner's actions on locks of one kind."""

    _COUNTS = True

    def __init__(self, owner: Owner, kind: str) -> None:
        self._owner, self._order, self._rng = owner, owner.order, owner.rng
        self._sleep, self._now, self._instant = owner.world.sleep, owner.world.now, owner.world.instant
        self._make = getattr(owner.world.client, f"get_{kind}")
        self._reenters = kind not in {"mutex", "semaphore"}
        self._kept: dict[str, Any] = {}

    async def fight(self, name: str, task: Task) -> None:
        """Do the task, in a process that contends with others."""
        await self.take(name, task)

    async def take(self, name: str, task: Task) -> None:
        """Acquire it as the task says, work under it, and release it, unless the task leaves it."""
        turn = self.turn(name, task)
        if task.operation == "enter":
            await self._enter(turn, "enter" if task.levels == 1 else "nest")
            return
        with self._survive(turn):
            self._ask(turn, task.operation)
            if await self._acquire(turn):
                await self._inside(turn)
                await self._give_back(turn)

    async def last(self, name: str, timeout: float) -> None:
        """Acquire it once more."""
        async with self.turn(name, Task(timeout, 0.0)).thing:
            pass

    async def give_back_rest(self, name: str) -> None:
        """Release what this owner still holds of that name."""
        for turn in self._all(name):
            while True:
                try:
                    await turn.thing.release()
                    turn.note("released", **self._about(turn))
                except LeaseLostError:
                    turn.note("lost", inside=False)
                except NotOwnedError:
                    break

    def turn(self, name: str, task: Task, mode: str = "") -> Turn:
        """Return an attempt that is about to begin."""
        note = self._owner.begin(name)
        options = self._options(task, note)
        mode = mode or task.mode
        return Turn(name, mode, task, note, self._pick(name, mode, options), self._now())

    def _options(self, task: Task, note: Note) -> dict[str, Any]:
        options: dict[str, Any] = {"on_lost": partial(self._told, note)} if self._order.on_lost else {}
        if task.operation in {"enter", "downgrade"}:
            options |= {"timeout": task.timeout, "lease": task.lease}
        return options if task.max_hold is None else {**options, "max_hold": task.max_hold}

    def _pick(self, name: str, _mode: str, options: dict[str, Any]) -> Any:
        # A lock object knows whether its last user had to wait, so reuse one now and then.
        thing = self._make(name, **options)
        return thing if options else self._kept.setdefault(name, thing)

    def _all(self, name: str) -> Sequence[Turn]:
        return [self.turn(name, Task(None, 0.0, operation="acquire"))]

    async def _enter(self, turn: Turn, how: str, more: More | None = None) -> None:
        with self._survive(turn):
            self._ask(turn, how)
            async with turn.thing as hold:
                self._begin(turn, hold, hold._state)
                await self._inside(turn, more)
            turn.note("released", **self._about(turn))

    @contextmanager
    def _survive(self, turn: Turn) -> Iterator[None]:
        try:
            yield
        except (AcquireTimeout, QuorumError) as error:
            if turn.stage != "asking":
                raise AssertionError(f"acquire's error was raised inside a hold ({turn.stage})") from error
            turn.note("busy" if isinstance(error, AcquireTimeout) else "no quorum", asked=turn.asked)
        except LeaseLostError:
            turn.note("lost", inside=turn.stage == "inside")

    def _ask(self, turn: Turn, how: str) -> None:
        turn.note("asks", at=turn.asked, how=how, **turn.task.how, lease=turn.task.lease, **self._about(turn))

    async def _acquire(self, turn: Turn) -> bool:
        """Acquire without entering; return whether that succeeded."""
        had = await turn.thing.acquire(**turn.task.how, lease=turn.task.lease)
        return self._begin_if(turn, turn.thing if had else None, turn.thing._state())

    def _begin_if(self, turn: Turn, hold: Any, state: Any) -> bool:
        if hold is None:
            turn.note("busy", asked=turn.asked)
            return False
        self._begin(turn, hold, state)
        return True

    def _begin(self, turn: Turn, hold: Any, state: Any) -> None:
        turn.hold, turn.state, turn.granted, turn.stage = hold, state, self._now(), "inside"
        self._note_acquired(turn)

    async def _give_back(self, turn: Turn) -> None:
        if turn.task.operation == "leave":
            turn.note("leaves")
        else:
            await turn.thing.release()
            turn.note("released", **self._about(turn))

    async def _inside(self, turn: Turn, more: More | None = None) -> None:
        """Work under a hold, and perhaps do something more."""
        try:
            await self._work(turn)
            if more is not None:
                await more(turn)
        finally:
            # In this order, because a hold that is valid after the instant was valid at it.
            ended = self._now()
            turn.note("done", at=ended, kept=turn.hold.remaining() > 0, until=self._until(turn))
        turn.stage = "leaving"

    async def _work(self, turn: Turn) -> None:
        """Do what only one owner may do at a time, unless the hold is shared."""
        counter = self._owner.counters.get(turn.name) if self._COUNTS and turn.mode != "read" else None
        if counter is None:
            await self._use(turn)
        else:
            await self._count(turn, counter)

    async def _count(self, turn: Turn, counter: Counter) -> None:
        value = counter.read()
        await self._use(turn)
        if turn.hold.remaining() > _MARGIN * self._order.lease:
            # Recorded first: a process that is killed in between may have written.
            turn.note("writes", value=value + 1)
            counter.write(value + 1)

    async def _use(self, turn: Turn) -> None:
        levels = turn.task.levels if self._reenters else 1
        await self._nest(turn, levels, levels)
        if turn.task.extends and self._rng.random() < turn.task.extends:
            try:
                await turn.hold.extend()
                turn.note("extended")
            except QuorumError:
                turn.note("unsure", what="extend")

    async def _nest(self, turn: Turn, left: int, levels: int) -> None:
        await self._look(turn, turn.task.share(self._rng, levels))
        if left <= 1:
            return
        try:
            again = await turn.thing.acquire(**turn.task.again(self._rng))
        except QuorumError:
            again = False
        if not again:
            # Only the re-entry failed: the hold remains, but the work that needs the inner one is skipped.
            turn.note("unsure", what="re-entry")
            return
        turn.note("re-entered", **self._held(turn), **self._about(turn))
        try:
            await self._nest(turn, left - 1, levels)
        except BaseException:
            if turn.state.lost is not None:
                # The lock can be acquired again only after as many releases as acquires.
                with suppress(LeaseLostError):
                    await turn.thing.release()
            raise
        await turn.thing.release()
        turn.note("left", **self._about(turn))

    async def _look(self, turn: Turn, seconds: float) -> None:
        """Work under a hold, and record now and then whether it is still believed."""
        hold, pause, left = turn.hold, self._order.look, seconds
        while left > 0:
            await self._sleep(min(left, pause))
            left -= pause
            # A lock reports less of itself than a hold.
            if seconds > pause / 2 and hold is not turn.thing:
                before = self._now()
                turn.note("looked", before=before, remaining=nanoseconds(hold.remaining()), until=self._until(turn))

    def _about(self, turn: Turn) -> dict[str, Any]:
        """Return further fields for the lines of a turn."""
        return {"mode": turn.mode} if turn.mode else {}

    def _held(self, turn: Turn) -> dict[str, Any]:
        """Return the fields that describe an acquisition."""
        return {"count": turn.thing.hold_count()}

    # The record of a hold is not public, but the last instant of belief must be known exactly.

    def _until(self, turn: Turn) -> int:
        return self._instant(turn.state.valid_until)

    def _note_acquired(self, turn: Turn) -> None:
        state, about = turn.state, self._about(turn)
        if state.fencing_token is not None:
            about["token"] = state.fencing_token
        about |= {"asked": turn.asked, "until": self._until(turn), "owner": state.holder, "lease": turn.task.lease}
        turn.note("acquired", at=turn.granted, since=turn.granted, **self._held(turn), **about)

    def _told(self, note: Note, hold: Any) -> None:
        until = self._instant(hold._state.valid_until)
        note("told", lost=hold.lost, remaining=hold.remaining(), until=until)
