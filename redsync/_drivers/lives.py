"""A client in one process: its identity, its holds, its sets of links, and the calls that use them.

The child of a fork has another life of the client. It shares nothing with its parent's: see `threads`.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from redsync._core.effects import Steps
from redsync._core.holds import HoldTable
from redsync._core.observing import noting_of
from redsync._core.ownership import Owner
from redsync._drivers.link_sets import LinkSet, Shared
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.nodes import Node
from redsync._drivers.notifier import EventThread
from redsync._drivers.owing import Owing
from redsync._drivers.pending_releases import PendingReleases
from redsync._drivers.pool import Pool
from redsync._drivers.process import forked, new_session
from redsync._drivers.requests import Retry, Sleeper
from redsync._drivers.wakeups import Wakeups

if TYPE_CHECKING:
    from redsync._drivers.threads import ThreadRunner

__all__ = ["LONGEST_SLEEP", "Call", "Life", "Tag"]

LONGEST_SLEEP: Final = 1.0
"""Seconds after which a sleeper looks at the clock, which continues while the machine is suspended."""


class Tag:
    """Ends with its thread, and then tells the watchdog that the thread's holds are orphaned."""

    __slots__ = ("_holds", "_owner")

    def __init__(self, holds: HoldTable, owner: Owner) -> None:
        self._owner = owner
        self._holds = holds

    def __del__(self) -> None:
        # An interruption may have come before `__init__` ended.
        if hasattr(self, "_holds"):
            self._holds.orphan(self._owner)


class _OfThread(threading.local):
    """The state of one thread in one life of a client.

    Attributes:
        stepping: True while it runs a protocol's own code, or waits for that.
        owner: Its owner; set once it has asked.
        tag: Ends with the thread.
    """

    stepping = False
    owner: Owner
    tag: Tag


class Life:
    """A client in one process.

    Attributes:
        client_id: The UUID under which this process's holds are kept.
        session: The state that the client's synchronizers share.
        monitor: Held while a protocol's own code runs. A thread that waits for a lock in line gets the lock first, and
            then waits for the GIL, while all others wait for both: in a process whose threads compute, that is a queue
            that never ends. So a thread that finds it held looks again a moment later.
        ours: The running thread's state.
        active: The calls that are inside `run`, each with its thread.
        deferred: Protocols that the maintenance is to run: releases by handlers that interrupted a step.
        owing: The sets whose nodes owed their borrowers replies.
        closing: True once sleeps must end.
        left: Set once a closing client has released all holds.
    """

    def __init__(self, runner: ThreadRunner) -> None:
        self.process: Final = os.getpid()
        self.runner: Final = runner
        surroundings, nodes = runner.surroundings, runner.nodes
        self.client_id: Final = surroundings.new_id()
        self.monitor: Final = threading.Lock()
        self.ours: Final = _OfThread()
        self.active: Final[dict[Call, int]] = {}
        self.left: Final = threading.Event()
        self.deferred: Final[deque[Steps[None]]] = deque()
        self.closing = self.started = False
        self._opening: Final = threading.RLock()
        # Reentrant: a finalizer may come in between. Guards wake-ups, sleepers, pending releases and the pool's line.
        self.guard: Final = threading.RLock()
        self._if_guarded: Final = threading.Condition(self.guard)
        self._asleep: Final[set[Sleeper]] = set()
        ears = runner.notifier.ears
        self.events: Final = EventThread(runner.notifier.announce)
        self.wakeups: Final = Wakeups(self.guard, runner.clock, Sleeper.wake)
        releases = PendingReleases(len(nodes), self.guard)
        self._numbers: Final = itertools.count(1)
        self.owing: Final = Owing(self._numbers.__next__, self.guard)
        self.shared: Final = Shared(
            nodes,
            runner.clock,
            runner.timing.node_timeout,
            releases,
            self.wakeups,
            self._numbers.__next__,
            noting_of(ears),
            self.wake,
            self._note_lag,
        )
        self.session: Final = new_session(
            surroundings, self.client_id, homes=runner.homes, timing=runner.timing, ears=ears, alarm=self.alarm
        )
        self.maintenance: Maintenance | None = None
        self.pool: Pool

    def wake(self) -> None:
        """Make the maintenance look; callable in any thread, never blocks."""
        if self.maintenance is not None:
            self.maintenance.wake()

    def _note_lag(self, node: Node) -> None:
        if self.maintenance is not None:
            self.maintenance.note_lag(node)

    def alarm(self) -> None:
        """Make the watchdog look; callable in any thread, never blocks."""
        if self.maintenance is not None:
            self.maintenance.alarm()

    def begin(self) -> Maintenance:
        """Start the maintenance, unless that was done: at the first use, because a daemon closes all descriptors."""
        maintenance = self.maintenance
        if self.started and maintenance is not None:
            return maintenance
        with self._opening:
            if self.started and self.maintenance is not None:
                return self.maintenance
            runner = self.runner
            maintenance = Maintenance(
                shared=self.shared,
                client_id=self.client_id,
                random=runner.surroundings.random,
                timing=runner.timing,
                processes=self.session.processes,
                tell=self.events.post,
            )
            self.pool = maintenance.pool = Pool(
                self._make_set,
                maintenance.connect,
                maintenance.note_torn,
                clock=runner.clock,
                limit=runner.max_connections,
                quorum=self.session.quorum,
                guard=self.guard,
            )
            self.owing.own = maintenance.own
            maintenance.on_abandoned = partial(runner.leave, self, maintenance)
            maintenance.is_dropped = lambda: runner.client() is None
            self.maintenance = maintenance
            try:
                runner.require_open()
                self.require_process()
                maintenance.start(self._watch)
            except BaseException:
                # A later call begins again: nothing was started that another call could use.
                self.maintenance = None
                maintenance.stop()
                raise
            self.started = True
        runner.note_begun()
        return maintenance

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

    def _watch(self) -> None:
        runner = self.runner
        call = Call(self)
        runner.drive(runner.watchdog(self.session, runner.clock()), call, runner.perform_by_maintenance)

    def sleep(self, sleeper: Sleeper, until: float) -> None:
        """Return when the sleeper is done, at the instant, or when the client closes."""
        clock = self.runner.clock
        while not (sleeper.done or self.closing) and (left := until - clock()) > 0:
            gate = threading.Lock()
            gate.acquire()
            try:
                with self.guard:
                    if sleeper.done or self.closing:
                        return
                    sleeper.gate = gate
                    self._asleep.add(sleeper)
                gate.acquire(timeout=min(left, LONGEST_SLEEP))
            finally:
                sleeper.gate = None
                self._asleep.discard(sleeper)
            self.require_process()

    def end_sleeps(self) -> None:
        """Wake all sleepers, and let none sleep again."""
        self.closing = True
        with self.guard:
            for sleeper in list(self._asleep):
                sleeper.wake()

    def forget(self, *, close: bool) -> None:
        """In the child of a fork: hold nothing, and drop the copies of the parent's sockets, closed or left open."""
        self.session.holds.clear()
        self.closing = True
        if self.maintenance is not None:
            maintenance, self.maintenance = self.maintenance, None
            maintenance.forget(close=close)


class Call:
    """One run of a protocol: what it has borrowed, and must return.

    Attributes:
        life: The client in this process.
        sets: The set that it has borrowed, if it has one.
        owner: The owner of its latest command.
        subscribed: Its subscriptions to keys' wake-ups, and its turn to repeat a round.
        torn: True once an exception cost it a set: the maintenance ends that set first, so it sends what follows.
    """

    __slots__ = ("life", "owner", "sets", "subscribed", "torn")

    def __init__(self, life: Life) -> None:
        self.life = life
        self.sets: Final[list[LinkSet]] = []
        self.owner: Owner | None = None
        self.subscribed: set[bytes | Retry] = set()
        self.torn = False

    def give_back(self) -> None:
        """Return the set."""
        if self.sets:
            self._finish()
            self.life.pool.give_back(self.sets)

    def _finish(self) -> None:
        """Send what must follow over this set, and remember that its nodes owe replies to this owner."""
        link_set, owner = self.sets[0], self.owner
        if owner is not None and link_set.owes:
            self.life.owing.note(owner, link_set)
        if link_set.following:
            try:
                link_set.follow(self.life.runner.clock())
            except BaseException:
                self.throw_away()
                raise

    def throw_away(self) -> None:
        """Give up the set: an exception struck while it was in use."""
        self.torn = True
        self.life.pool.throw_away(self.sets)

    def end(self) -> None:
        """Return everything."""
        self.give_back()
        for kept in self.subscribed:
            self.life.wakeups.unsubscribe(kept)
