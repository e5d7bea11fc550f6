"""A client in one process: its identity, its holds, its sets of links, and the calls that use them.

The child of a fork has another life of the client. It shares nothing with its parent's: see `any_runner`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from redsync._core.effects import Steps
from redsync._core.holds import HoldTable, Owner
from redsync._drivers.any_runner import AnyLife
from redsync._drivers.environment import forked
from redsync._drivers.link_sets import LinkSet
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.nodes import Node
from redsync._drivers.notifier import EventThread
from redsync._drivers.pending_releases import Owing
from redsync._drivers.pool import Pool
from redsync._drivers.requests import Waitable
from redsync._signal_safe import SafeEvent, SafeLock

if TYPE_CHECKING:
    from redsync._drivers.threads import ThreadRunner

__all__ = ["LONGEST_SLEEP", "Call", "Life", "OwnCall", "Tag"]

LONGEST_SLEEP: Final = 1.0
"""Seconds after which a sleeper looks at the clock, which continues while the machine is suspended."""


class Tag:
    """A thread's owner. It ends with its thread, and then tells the watchdog that the thread's holds are orphaned."""

    def __init__(self, holds: HoldTable, owner: Owner) -> None:
        self.owner: Final = owner
        self._holds: Final = holds

    def __del__(self) -> None:
        # An interruption may have come before `__init__` ended.
        if hasattr(self, "_holds"):
            self._holds.orphan(self.owner)


class _OfThread(threading.local):
    """The state of one thread in one life of a client.

    Attributes:
        stepping: True while it runs a protocol's own code, or waits for that.
        tag: Its owner; set once it has asked.
    """

    stepping = False
    tag: Tag


class Life(AnyLife):
    """A client in one process.

    Attributes:
        runner: Its runner.
        monitor: Held while a protocol's own code runs. A thread that waits for a lock in line gets the lock first, and
            then waits for the GIL, while all others wait for both: in a process whose threads compute, that is a queue
            that never ends. So a thread that finds it held looks again a moment later.
        ours: The running thread's state.
        active: The calls that are inside `run`, each with its thread.
        deferred: Protocols that the maintenance is to run: releases by handlers that interrupted a step.
        guard: Guards wake-ups, sleepers, pending releases and the making of sets. Reentrant, as a finalizer may come in
            between.
        owing: The sets whose nodes owed their borrowers replies.
        maintenance: The thread that keeps it alive; None before the first use.
        pool: The sets for callers; there is one from the first use on.
        closing: True once sleeps must end.
        left: Set once a closing client has released all holds.
    """

    maintenance: Maintenance | None

    def __init__(self, runner: ThreadRunner) -> None:
        super().__init__(runner)
        self.runner: Final = runner
        self.monitor: Final = SafeLock(threading.Lock())
        self.ours: Final = _OfThread()
        self.active: Final[dict[Call, int]] = {}
        self.left: Final = SafeEvent()
        self.deferred: Final[deque[Steps[None]]] = deque()
        self.closing = False
        self._opening: Final = SafeLock(threading.RLock())
        self._if_guarded: Final = threading.Condition(self.guard.lock)
        self._asleep: Final[set[Waitable]] = set()
        self.events: Final = EventThread(runner.notifier.announce)
        self.owing: Final = Owing(self.next_number)
        self.pool: Pool

    def _note_lag(self, node: Node) -> None:
        if self.maintenance is not None:
            self.maintenance.note_lag(node)

    def alarm(self) -> None:
        if self.maintenance is not None:
            self.maintenance.alarm()

    def begin(self) -> Maintenance:
        """Start the maintenance, unless that was done: at the first use, because a daemon closes all descriptors."""
        if self.maintenance is None:
            with self._opening:
                if self.maintenance is None:
                    self._start()
            self.runner.note_begun()
        assert self.maintenance is not None, "it was started"
        return self.maintenance

    def _start(self) -> None:
        runner = self.runner
        runner.require_open()
        self.require_process()
        maintenance = Maintenance(
            shared=self.shared,
            client_id=self.client_id,
            random=runner.environment.random,
            timing=runner.timing,
            processes=self.session.processes,
            tell=self.events.post,
        )
        self.pool = maintenance.pool = Pool(
            self._make_set,
            maintenance.connect,
            partial(maintenance.post, maintenance.end_torn),
            clock=runner.clock,
            limit=runner.max_connections,
            quorum=self.session.quorum,
            guard=self.guard,
        )
        self.owing.own, self.owing.sets = maintenance.own, self.pool.sets
        maintenance.is_dropped = lambda: runner.client() is None
        maintenance.on_stopped = partial(runner.leave, self, maintenance)
        try:
            maintenance.start(partial(runner.watch, self, maintenance))
            self.maintenance = maintenance
            runner.require_open()  # Again: who closed the client meanwhile found nothing to stop.
        except BaseException:
            # A later call begins again: nothing was started that another call could use.
            self.maintenance = None
            maintenance.stop()
            maintenance.join()
            raise

    def _make_set(self, on_dropped: Callable[[LinkSet], None]) -> LinkSet:
        made = LinkSet(self.shared, on_dropped)
        self.require_process()  # Afterwards: one made in the child of a fork would take that for its process.
        return made

    @property
    def may_wait(self) -> bool:
        """False where the running thread would wait for itself: within a step, and in the maintenance's thread."""
        maintenance = self.maintenance
        return not (self.ours.stepping or (maintenance is not None and maintenance.is_current()))

    def has_guard(self) -> bool:
        """Return whether the running thread has the guard: a handler or a finalizer has interrupted it there."""
        try:
            self._if_guarded.notify()  # Only a thread that has a condition's lock may do that.
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise  # a signal handler's
            return False
        return True

    def require_process(self) -> None:
        """Raise if this is the child of a fork within a call, which continues in the parent alone."""
        if os.getpid() != self.process:
            raise forked()

    def sleep(self, waitable: Waitable, until: float) -> None:
        """Return when the waitable is done, at the instant, or when the client closes."""
        clock = self.runner.clock
        while not (waitable.done or self.closing) and (left := until - clock()) > 0:
            gate = threading.Lock()
            gate.acquire()
            try:
                with self.guard:
                    if waitable.done or self.closing:
                        return
                    waitable.gate = gate.release
                    self._asleep.add(waitable)
                gate.acquire(timeout=min(left, LONGEST_SLEEP))
            finally:
                waitable.gate = None
                self._asleep.discard(waitable)
            self.require_process()

    def end_sleeps(self) -> None:
        """Wake all sleepers, and let none sleep again."""
        self.closing = True
        with self.guard:
            for waitable in list(self._asleep):
                waitable.wake()

    def forget(self) -> None:
        self.session.holds.clear()
        self.closing = True
        if self.maintenance is not None:
            maintenance, self.maintenance = self.maintenance, None
            maintenance.forget()


class Call:
    """One run of a protocol: what it has borrowed, and must return.

    Attributes:
        life: The client in this process.
        sets: The set that it has borrowed, if it has one.
        owner: The owner of its latest command.
        subscribed: The keys to whose wake-ups it subscribes.
        invalidated: True once an exception struck in a round: the maintenance sends what follows, after it has ended
            the set, or sent what it was given before.
    """

    __slots__ = ("invalidated", "life", "owner", "sets", "subscribed")

    def __init__(self, life: Life) -> None:
        self.life = life
        self.sets: Final[list[LinkSet]] = []
        self.owner: Owner | None = None
        self.subscribed: set[bytes] = set()
        self.invalidated = False

    def give_back(self) -> None:
        """Return the set, after what must follow over it; record that its nodes owe replies to this owner."""
        if not self.sets:
            return
        try:
            link_set, life = self.sets[0], self.life
            if not link_set.owes:
                link_set.owners.clear()
            elif self.owner is not None:
                link_set.owners.add(self.owner)
            if link_set.following:
                link_set.follow(life.runner.clock())
            life.pool.give_back(self.sets)
        except BaseException:
            self.throw_away()
            raise

    def throw_away(self) -> None:
        """Give up the set: an exception struck while it was in use."""
        self.invalidated = True
        self.life.pool.throw_away(self.sets)

    def end(self) -> None:
        """Return everything."""
        self.give_back()
        for key in self.subscribed:
            self.life.wakeups.unsubscribe(key)


class OwnCall(Call):
    """A run by the maintenance: it keeps the maintenance's set, and an error in it costs that its links."""

    __slots__ = ()

    def __init__(self, life: Life, maintenance: Maintenance) -> None:
        super().__init__(life)
        self.sets.append(maintenance.own)

    def give_back(self) -> None:
        pass

    def throw_away(self) -> None:
        pass
