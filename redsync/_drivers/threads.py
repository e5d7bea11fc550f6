"""The driver for threads: runs protocols in their callers' threads.

* **Effects** are performed in the calling thread. It borrows a set of links for its rounds (`pool`), and returns it
  before it sleeps or calls the application.
* **Steps are atomic**: one lock per client is held while a protocol's own code runs, and never while an effect is
  performed. A signal's handler or a finalizer may interrupt a step, and must not wait for its end. So the maintenance
  does what it releases, and all its other calls raise `ReentrantCallError`. Anywhere else it is an ordinary caller.
* **Owners are threads**, numbered per process. Numbers are never reused; a thread's number lives in a
  `threading.local`.
* **Interruptions** are thrown into the protocol; the driver then performs its clean-up effects to the end.
* **One more thread** per client does the work that no caller waits for, see `maintenance`.
* **A process has its own life of a client** (`Life`): identity, holds, connections. Every use looks up the life of the
  process in which it runs. So the child of a fork finds none and begins one, whatever happened to it before: it holds
  nothing, and never writes to its parent's connections.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar, assert_never

from redsync._core.effects import Broadcast, Effect, Notify, Reply, Signal, Steps, Tell, Wait, Wakeup
from redsync._core.events import Event
from redsync._core.holds import HoldTable
from redsync._core.keys import client_key
from redsync._core.memory import Processes
from redsync._core.observing import journal_of, noting_of
from redsync._core.ownership import Owner
from redsync._core.presence import digests_of
from redsync._core.quorum import Tally
from redsync._core.runner import Session
from redsync._core.timing import Timing
from redsync._drivers.link_sets import LinkSet, Shared
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.nodes import Node, NodeStatus
from redsync._drivers.notifier import EventThread, Notifier, quietly
from redsync._drivers.owing import Owing
from redsync._drivers.pending_releases import PendingReleases
from redsync._drivers.pool import Pool
from redsync._drivers.process import Surroundings, at_exit, forked
from redsync._drivers.requests import Request, Retry, Sleeper
from redsync._drivers.wakeups import Wakeups
from redsync.exceptions import ClientClosedError, RedsyncError, ReentrantCallError

__all__ = ["ThreadRunner"]

T = TypeVar("T")

log = logging.getLogger("redsync")

_serials = itertools.count(1)
_MOMENT = 0.0002
"""Seconds until a thread looks again whether another has ended its step: a step takes some tens of microseconds."""

_LONGEST_SLEEP = 1.0
"""Seconds after which a sleeper looks at the clock, which continues while the machine is suspended."""

_CLOSE_TIMEOUT = 2.0
"""Seconds that `close` waits for other threads to end their calls."""


class _Tag:
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
    tag: _Tag


class Life:
    """A client in one process.

    Attributes:
        client_id: The UUID under which this process's holds are kept.
        session: The state that the client's synchronizers share.
        monitor: Held while a protocol's own code runs. A thread that waits for a lock in line gets the lock first, and
            then waits for the GIL, while all others wait for both: in a process whose threads compute, that is a queue
            that never ends. So a thread that finds it held looks again a moment later.
        ours: The running thread's state.
        active: The calls that are inside `run`.
        deferred: Protocols that the maintenance is to run: releases by handlers that interrupted a step.
        owing: The sets whose nodes owed their borrowers replies.
        closing: True once sleeps must end.
    """

    def __init__(self, runner: ThreadRunner) -> None:
        self.process: Final = os.getpid()
        self.runner: Final = runner
        surroundings, nodes = runner.surroundings, runner.nodes
        self.client_id: Final = surroundings.new_id()
        self.monitor: Final = threading.Lock()
        self.ours: Final = _OfThread()
        self.active: Final[set[Call]] = set()
        self.deferred: Final[deque[Steps[None]]] = deque()
        self.closing = self.started = False
        self._opening: Final = threading.RLock()
        # Reentrant: a finalizer may come in between. Guards wake-ups, sleepers, pending releases and the pool's line.
        self.guard: Final = threading.RLock()
        self._asleep: Final[set[Sleeper]] = set()
        ears = runner.notifier.ears
        self.events: Final = EventThread(runner.notifier.announce)
        self.wakeups: Final = Wakeups(self.guard, runner.clock, Sleeper.wake)
        releases = PendingReleases(len(nodes), self.guard)
        self._numbers: Final = itertools.count(1)
        self.owing: Final = Owing(self._numbers.__next__)
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
        processes = Processes()
        client = surroundings.describe()._replace(nodes=digests_of(runner.homes))
        self.session: Final = Session(
            len(nodes),
            runner.timing,
            HoldTable(self.alarm),
            surroundings.random,
            record_key=client_key(self.client_id),
            record=client.pack(),
            processes=processes,
            observed=bool(ears),
            journal=journal_of(ears),
            client=client,
            epoch=client.since - runner.clock(),
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
                maintenance.wake,
                clock=runner.clock,
                limit=runner.max_connections,
                quorum=self.session.quorum,
                guard=self.guard,
            )
            self.owing.own = maintenance.own
            maintenance.on_abandoned = runner.close_here
            maintenance.is_dropped = lambda: runner.client() is None
            self.maintenance = maintenance
            try:
                runner.require_open()
                maintenance.start(self._watch)
            except BaseException:
                # A later call begins again: nothing was started that another call could use.
                self.maintenance = None
                maintenance.stop()
                raise
            self.started = True
        at_exit(_close_all)
        return maintenance

    def _make_set(self, on_dropped: Callable[[LinkSet], None]) -> LinkSet:
        return LinkSet(self.shared, on_dropped)

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
                gate.acquire(timeout=min(left, _LONGEST_SLEEP))
            finally:
                sleeper.gate = None
                self._asleep.discard(sleeper)
            if os.getpid() != self.process:
                raise forked()

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


Perform: TypeAlias = Callable[[Effect, Call], Reply]


class ThreadRunner:
    """Runs the protocols of one client in the calling threads.

    Attributes:
        nodes: The configured nodes.
        homes: Where each of them keeps its keys.
        closed: True once the client was closed.
        client: Returns the client object; None once it was dropped.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[Node],
        timing: Timing,
        listeners: Sequence[Callable[[Event], object]],
        watchdog: Callable[[Session, float], Steps[None]],
        farewell: Callable[[Session], Steps[None]],
        surroundings: Surroundings,
        max_connections: int = 16,
    ) -> None:
        """Make a runner, without connecting.

        Args:
            nodes: The configured nodes.
            timing: The client's time settings.
            listeners: Called with each event.
            watchdog: The protocol that the maintenance runs for as long as the client lives.
            farewell: The protocol that releases all holds when the client is closed.
            surroundings: Clock, random numbers and identity.
            max_connections: The most connections per node for the callers' rounds.
        """
        self.nodes: Final = tuple(nodes)
        self.homes: Final = tuple(node.home for node in nodes)
        self.timing: Final = timing
        self.surroundings: Final = surroundings
        self.clock: Final = surroundings.clock
        self.watchdog: Final = watchdog
        self.max_connections: Final = max_connections
        self._farewell: Final = farewell
        self._addresses: Final = [node.address for node in nodes]
        self.notifier: Final = Notifier(listeners, None, self._addresses, self.clock)
        self.closed = False
        self.client: Callable[[], object] = lambda: self
        self._lives: Final[dict[int, Life]] = {}
        _runners[id(self)] = self

    @property
    def life(self) -> Life:
        """The client in this process."""
        life = self._lives.get(os.getpid())
        return life if life is not None else self._new_life()

    def _new_life(self) -> Life:
        # One step: of two threads that begin at once, both get the same.
        life = self._lives.setdefault(os.getpid(), Life(self))
        for process, former in list(self._lives.items()):
            if process != life.process and self._lives.pop(process, None) is not None:
                former.forget(close=False)
                for node in self.nodes:
                    node.forget()
        return life

    # The methods that facades use.

    @property
    def client_id(self) -> str:
        """The UUID under which this process's holds are kept; a forked child has another."""
        return self.life.client_id

    @property
    def session(self) -> Session:
        """The state that the client's synchronizers share."""
        return self.life.session

    @property
    def usable(self) -> bool:
        """True while another user may share this client."""
        return not self.closed

    def now(self) -> float:
        """Return the current instant in seconds; in the child of a fork, first end what the parent held."""
        if os.getpid() not in self._lives:
            self._new_life()
        return self.clock()

    def connect(self) -> None:
        """Start the maintenance and wait briefly for the first connections, unless that was done before.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: Two nodes are the same server.
        """
        self.require_open()
        life = self.life
        maintenance = life.begin()
        try:
            maintenance.await_begun(maintenance.patience)
            # The first set, so that the first round need not wait for it.
            first: list[LinkSet] = []
            life.pool.borrow(first, self.clock() + maintenance.connect_timeout)
            if first:
                life.pool.give_back(first)
        except BaseException:
            self.close()
            raise

    def owner(self) -> Owner:
        """Return the calling thread's owner."""
        life = self.life
        try:
            return life.ours.owner
        except AttributeError:
            owner = self.new_owner()
            life.ours.tag = _Tag(life.session.holds, owner)
            life.ours.owner = owner
            return owner

    def new_owner(self) -> Owner:
        """Return a new, unique owner."""
        return Owner(self.life.client_id, next(_serials))

    def require_open(self) -> None:
        """Raise `ClientClosedError` if the client was closed."""
        if self.closed:
            raise ClientClosedError

    def run(self, steps: Steps[T]) -> T:
        """Perform the protocol's effects until it returns; return its result or raise its error."""
        life = self.life
        if life.ours.stepping:
            self.require_open()
            raise ReentrantCallError
        call = Call(life)
        try:
            # Counted before `closed` is read: close() sets that first, then waits for the counted threads.
            life.active.add(call)
            if self.closed or not life.started:
                self.require_open()
                life.begin()
            return self.drive(steps, call, self._perform)
        finally:
            life.active.discard(call)
            # Again, for an exception that struck as a step ended.
            life.ours.stepping = False
            if call.sets or call.subscribed:
                call.end()

    def give_back(self, steps: Steps[None]) -> None:
        """Run a protocol that releases something; leave it to the maintenance if this interrupts a step."""
        life = self.life
        if not life.ours.stepping:
            self.run(steps)
            return
        self.require_open()
        life.deferred.append(steps)
        life.alarm()

    def servers(self) -> frozenset[str]:
        """Return the connected servers and databases, by their own identities."""
        return frozenset(server for node in self.nodes if (server := node.server) is not None)

    def close_copies(self) -> None:
        """In the child of a fork, right after it: close the copies of the parent's sockets."""
        for process, life in list(self._lives.items()):
            if process != os.getpid():
                life.forget(close=True)

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        maintenance = self.life.maintenance
        if maintenance is not None:
            return maintenance.statuses()
        return [node.status(self.clock(), suspect=False, guard=self.timing.restart_guard) for node in self.nodes]

    # Driving.

    def drive(self, steps: Steps[T], call: Call, perform: Perform) -> T:
        """Perform the protocol's effects; an error of an effect is thrown into the protocol, which cleans up."""
        monitor, ours = call.life.monitor, call.life.ours
        reply: Reply = None
        interruption: BaseException | None = None
        while True:
            try:
                while True:  # Within the `try`: an interruption can come where a loop repeats.
                    try:
                        ours.stepping = True
                        while monitor.locked():
                            time.sleep(_MOMENT)  # not in line, see `Life.monitor`
                        with monitor:
                            effect = steps.send(reply) if interruption is None else steps.throw(interruption)
                    finally:
                        ours.stepping = False
                    interruption = None
                    reply = perform(effect, call)
            except StopIteration as stop:
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                    result: T = stop.value
                    return result
                # The StopIteration came from a signal handler.
                interruption = stop
            except BaseException as error:
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                    # The protocol raised it and has ended. Drop the reference, or this frame and the error would keep
                    # each other alive.
                    interruption = None
                    raise
                # The protocol cleans up, no matter whether an effect or the lines above raised the error.
                interruption = error

    def _perform(self, effect: Effect, call: Call) -> Reply:
        life = call.life
        match effect:
            case Broadcast():
                return self._broadcast(effect, call)
            case Tell():
                self._tell(effect, call)
                return None
            case Wait():
                call.give_back()
                return self._wait(effect, call)
            case Signal(key):
                life.wakeups.ring(key)
                return None
            case Notify(event):
                call.give_back()
                self.notifier.announce(event)
                return None
            case _:
                assert_never(effect)

    def _check(self, effect: Broadcast | Tell, call: Call) -> None:
        """Raise if the effect belongs to another process: no child of a fork acts for its parent."""
        owner, life = effect.owner, call.life
        if life.process != os.getpid() or (owner is not None and owner.client_id != life.client_id):
            raise forked()
        call.owner = owner

    def _request(self, effect: Broadcast, tally: Tally, life: Life) -> Request:
        request = Request(effect, tally)
        if not request.data:
            # It is made of the holds that live now, in one step with the choice.
            try:
                life.ours.stepping = True
                with life.monitor:
                    if not request.make():
                        tally.close("nothing to send")
                        request.finish()
            finally:
                life.ours.stepping = False
        return request

    def _broadcast(self, effect: Broadcast, call: Call) -> Tally:
        life, clock = call.life, self.clock
        self._check(effect, call)
        if effect.subscribe is not None:
            life.wakeups.subscribe(effect.subscribe, effect.guard)
            call.subscribed.add(effect.subscribe)
        tally = effect.tally(self._addresses)
        request = self._request(effect, tally, life)
        if not request.done:
            link_set = self._borrow(effect, call)
            tally.sent_at = sent_at = clock()
            if effect.owed_to and life.owing.some() and life.owing.follow(request, link_set):
                life.wake()
            if link_set is None:
                self._carry_otherwise(request, tally, effect, life)
            else:
                try:
                    link_set.send(request)
                    if not (request.done or link_set.wait(request, sent_at + effect.timeout)):
                        link_set.close_round(request, f"no answer within {effect.timeout:g} s")
                    if effect.lingers and tally.open:
                        link_set.linger(request, tally, effect.lingers_until(sent_at, clock()))
                except BaseException:
                    call.throw_away()
                    raise
        if tally.failed and self.notifier.ears:
            self.notifier.note_votes(tally)
        tally.at = clock()
        return tally

    def _borrow(self, effect: Broadcast, call: Call) -> LinkSet | None:
        """Return a set of links for a round; None if the maintenance must carry it, or none came free in time."""
        if call.sets:
            return call.sets[0]
        life = call.life
        maintenance = life.begin()
        if not maintenance.begun.is_set():
            maintenance.await_begun(maintenance.patience if effect.patience is None else effect.patience)
        if effect.owed_to:
            # A release: it waits for no set.
            if not call.torn:
                life.pool.borrow_free(call.sets)
        else:
            patience = maintenance.patience if effect.patience is None else effect.patience
            life.pool.borrow(call.sets, self.clock() + patience)
        return call.sets[0] if call.sets else None

    def _carry_otherwise(self, request: Request, tally: Tally, effect: Broadcast, life: Life) -> None:
        if not effect.owed_to:
            most = self.max_connections
            tally.close(f"all {most} connections of this client were in use: Client(max_connections={most})")
            return
        gate = threading.Lock()
        gate.acquire()
        if not request.done:
            request.gate = gate
        life.begin().post(request, self.clock() + effect.timeout)
        if not request.done:
            gate.acquire()

    def _tell(self, effect: Tell, call: Call) -> None:
        self._check(effect, call)
        life = call.life
        request = Request(effect, None)
        if not (call.sets or call.torn or life.closing):
            life.pool.borrow_free(call.sets)
        link_set = call.sets[0] if call.sets else None
        if life.owing.some() and life.owing.follow(request, link_set):
            life.wake()
        if link_set is None:
            life.begin().post(request)
            return
        try:
            link_set.send(request)
        except BaseException:
            call.throw_away()
            raise

    def _wait(self, effect: Wait, call: Call) -> Wakeup:
        life = call.life
        retry = next((kept for kept in call.subscribed if isinstance(kept, Retry)), None)
        if retry is None and effect.retry_at is not None:
            retry = Retry()
            # Before it joins the queue of retries, so that the end of the run removes it from there.
            call.subscribed.add(retry)
        waits = life.wakeups.waits(effect, retry)
        try:
            while True:
                try:
                    sleeper, until = next(waits)
                except StopIteration as stop:
                    if self.closed:
                        raise ClientClosedError from None
                    return Wakeup(self.clock(), *stop.value)
                life.sleep(sleeper, until)
        finally:
            waits.close()

    def perform_by_maintenance(self, effect: Effect, call: Call) -> Reply:
        """Perform an effect for the maintenance, with its own links; the application's code runs elsewhere."""
        life = call.life
        maintenance = life.maintenance
        assert maintenance is not None, "it runs this"
        match effect:
            case Broadcast():
                tally = effect.tally(self._addresses)
                request = self._request(effect, tally, life)
                tally.sent_at = sent_at = self.clock()
                if not request.done:
                    if effect.owed_to:
                        life.owing.follow(request, maintenance.own)
                    maintenance.own.send(request)
                    reason = f"no answer within {effect.timeout:g} s"
                    maintenance.carry(request, sent_at + effect.timeout, reason)
                if effect.lingers and tally.open:
                    request.done = False
                    maintenance.carry(request, effect.lingers_until(sent_at, self.clock()), "")
                    tally.freeze()
                if tally.failed and self.notifier.ears:
                    self.notifier.note_votes(tally)
                tally.at = self.clock()
                return tally
            case Tell():
                request = Request(effect, None)
                life.owing.follow(request, maintenance.own)
                maintenance.own.send(request)
                return None
            case Wait():
                while life.deferred:
                    self._perform_deferred(life.deferred.popleft(), life)
                maintenance.sleep(effect.until)
                return Wakeup(self.clock(), 0)
            case Notify(event):
                life.events.post(event)
                return None
            case Signal(key):
                life.wakeups.ring(key)
                return None
            case _:
                assert_never(effect)

    def _perform_deferred(self, steps: Steps[None], life: Life) -> None:
        try:
            self.drive(steps, Call(life), self.perform_by_maintenance)
        except RedsyncError as error:
            quietly(log.warning, "a release by a signal handler or finalizer failed: %s", error)

    # The end.

    def close(self) -> None:
        """Wake waiters, run the farewell protocol, stop the maintenance, end the connections; idempotent.

        Never waits for a call that the calling thread itself has begun: where a handler or a finalizer interrupts a
        step, the maintenance does the whole close. So it does for a callback of the client's own threads.
        """
        life = self.life
        maintenance = life.maintenance
        own = life.events.is_current() or (maintenance is not None and maintenance.is_current())
        if life.ours.stepping or own:
            self.closed = True
            self.abandon()
        else:
            self.close_here()

    def close_here(self) -> None:
        """Close the client in the calling thread."""
        life = self.life
        first, self.closed = not self.closed, True
        maintenance = life.maintenance
        if maintenance is None:
            return
        try:
            life.end_sleeps()
            if not first and not maintenance.is_current():
                # Another thread is closing it; wait, because at the interpreter's exit no thread continues after us.
                maintenance.join(2 * _CLOSE_TIMEOUT)
            deadline = self.clock() + _CLOSE_TIMEOUT
            while life.active and not maintenance.is_current() and self.clock() < deadline:
                time.sleep(0.001)
        finally:
            # Even after an interruption: a later call finds the client closed, so no other call would do this.
            try:
                by = self.perform_by_maintenance if maintenance.is_current() else self._perform
                call = Call(life)
                try:
                    self.drive(self._farewell(life.session), call, by)
                finally:
                    call.give_back()
            finally:
                try:
                    maintenance.stop()
                finally:
                    life.events.close()

    def abandon(self) -> None:
        """Let the maintenance thread close; safe in a finalizer, which may interrupt anything."""
        life = self._lives.get(os.getpid())
        if life is not None and life.maintenance is not None:
            life.maintenance.abandon()
        else:
            self.closed = True


_runners: weakref.WeakValueDictionary[int, ThreadRunner] = weakref.WeakValueDictionary()


def _close_all() -> None:
    # A list, because a runner that a daemon makes meanwhile ends the iteration of a weak collection with an error.
    for reference in _runners.valuerefs():
        if (runner := reference()) is not None:
            runner.close()


def _after_fork_in_child() -> None:
    # Nothing depends on it: a child that never gets here only keeps the copies open.
    for reference in _runners.valuerefs():
        if (runner := reference()) is not None:
            runner.close_copies()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
