"""The driver for threads: runs protocols in their callers' threads.

* **Effects** are performed in the calling thread. It borrows a set of links for its rounds (`pool`), and returns it
  before it sleeps or calls the application.
* **Steps are atomic**: one lock per client is held while a protocol's own code runs, and never while an effect is
  performed, except that a renewal is made and sent in one step. A signal's handler or a finalizer may interrupt a step,
  or a thread with the client's mutex, and must not wait for their end; a finalizer may run in the maintenance's thread,
  which must not wait for itself. There the maintenance performs its releases a moment later, and its other calls raise
  `ReentrantCallError`. Anywhere else a handler or finalizer is an ordinary caller.
* **Owners are threads**, numbered per process. Numbers are never reused; a thread's number lives in a
  `threading.local`.
* **Interruptions** are thrown into the protocol; the driver then performs its clean-up effects to the end.
* **One more thread** per client does the work that no caller waits for, see `maintenance`.
* **A process has its own life of a client** (`Life`): identity, holds, connections, see `any_runner`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, assert_never

from redsync._core.effects import Broadcast, Effect, Notify, Reply, Signal, Steps, Tell, Wait, Wakeup
from redsync._core.holds import HoldTable, Owner
from redsync._core.quorum import Tally
from redsync._drivers.any_runner import AnyLife, AnyRunner, all_runners
from redsync._drivers.environment import at_exit, forked
from redsync._drivers.link_sets import LinkSet
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.nodes import Node
from redsync._drivers.notifier import EventThread, note_exit
from redsync._drivers.pending_releases import keep_behind
from redsync._drivers.pool import Pool
from redsync._drivers.requests import Request, Waitable
from redsync._signal_safe import SafeEvent, SafeLock
from redsync.exceptions import ClientClosedError, RedsyncError, ReentrantCallError

__all__ = ["Call", "Life", "OwnCall", "Tag", "ThreadRunner"]

T = TypeVar("T")

log = logging.getLogger("redsync")

_MOMENT = 0.0002
"""Seconds until a thread looks again whether another has ended its step: a step takes some tens of microseconds."""

_LONGEST_SLEEP: Final = 1.0
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
        stepping: True while it runs a protocol's own code or starts the maintenance, or waits for that.
        tag: Its owner; set once it has asked.
    """

    stepping = False
    tag: Tag


class Life(AnyLife):
    """A client in one process.

    Attributes:
        monitor: Held while a protocol's own code runs. A thread that waits for a lock in line gets the lock first, and
            then waits for the GIL, while all others wait for both: in a process whose threads compute, that is a queue
            that never ends. So a thread that finds it held looks again a moment later.
        ours: The running thread's state.
        active: The calls that are inside `run`, each with its thread.
        deferred: Protocols that the maintenance is to run: releases by handlers that interrupted a step.
        maintenance: The thread that keeps it alive; None before the first use.
        pool: The sets for callers; there is one from the first use on.
        closing: True once sleeps must end.
        left: Set once a closing client has released all holds.
    """

    maintenance: Maintenance | None

    def __init__(self, runner: ThreadRunner) -> None:
        super().__init__(runner)
        self.monitor = SafeLock(threading.Lock())
        self.ours: Final = _OfThread()
        self.active: Final[dict[Call, int]] = {}
        self.left: Final = SafeEvent()
        self.deferred: Final[deque[Steps[None]]] = deque()
        self.closing = False
        self._opening = SafeLock(threading.RLock())
        self._mutex_check: Final = threading.Condition(self.mutex.lock)
        self._asleep: Final[set[Waitable]] = set()
        self.events: Final = EventThread(runner.notifier.announce)
        self.on_event = self.events.post
        self.pool: Pool

    def note_lag(self, node: Node) -> None:
        if self.maintenance is not None:
            self.maintenance.note_lag(node)

    def alarm(self) -> None:
        if self.maintenance is not None:
            self.maintenance.alarm()

    def begin(self) -> Maintenance:
        """Start the maintenance, unless that was done: at the first use, because a daemon closes all descriptors."""
        if self.maintenance is None:
            try:
                self.ours.stepping = True  # A handler's call in between would start another.
                with self._opening:
                    if self.maintenance is None:
                        self._start()
            finally:
                self.ours.stepping = False
            at_exit(_close_all)
        assert self.maintenance is not None, "it was started"
        return self.maintenance

    def _start(self) -> None:
        runner = self.runner
        runner.require_open()
        self.require_process()
        maintenance = Maintenance(self)
        on_invalidated = partial(maintenance.post, maintenance.end_torn)
        self.pool = maintenance.pool = Pool(self, maintenance.connect, on_invalidated, runner.max_connections)
        self.releases.others = self.pool.sets
        try:
            maintenance.start()
            self.maintenance = maintenance
            runner.require_open()  # Again: a thread that closed the client meanwhile found nothing to stop.
        except BaseException:
            # A later call begins again: nothing was started that another call could use.
            self.maintenance = None
            maintenance.stop()
            maintenance.join()
            raise

    @property
    def may_wait(self) -> bool:
        """False where the running thread would wait for itself: within a step, with the mutex, in the maintenance."""
        maintenance = self.maintenance
        return not (self.ours.stepping or (maintenance is not None and maintenance.is_current()) or self._has_mutex())

    def _has_mutex(self) -> bool:
        """Return whether the running thread has the mutex: a handler or a finalizer has interrupted it there."""
        try:
            self._mutex_check.notify()  # Only a thread that has a condition's lock may do that.
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise  # a signal handler's
            return False
        return True

    def require_process(self) -> None:
        """Raise if this is the child of a fork within a call, which continues in the parent alone."""
        if os.getpid() != self.process:
            raise forked()

    def send(self, request: Request, link_set: LinkSet) -> None:
        """Send a request over a set, and see to it that a release is not overtaken by what other sets have sent."""
        link_set.send(request)
        if request.effect.deliver_to and self.maintenance is not None:
            keep_behind(request, link_set, self, self.maintenance.own)

    def send_told(self, request: Request, maintenance: Maintenance) -> None:
        """Send a command without a round over the maintenance's set, and wake the caller."""
        try:
            self.send(request, maintenance.own)
        finally:
            request.finish()

    def sleep(self, waitable: Waitable, until: float) -> None:
        """Return when the waitable is done, at the instant, or when the client closes: that ends no round."""
        is_round = isinstance(waitable, Request)
        while not waitable.done and (is_round or not self.closing) and (left := until - self.clock()) > 0:
            gate = threading.Lock()
            gate.acquire()
            try:
                waitable.waker = gate.release
                self._asleep.add(waitable)
                # Only now: else it might be done, or the client close, in between.
                if not waitable.done and (is_round or not self.closing):
                    gate.acquire(timeout=min(left, _LONGEST_SLEEP))
            finally:
                waitable.waker = None
                self._asleep.discard(waitable)
            self.require_process()

    def forget(self) -> None:
        # A thread that does not exist here may have had any of them.
        self.monitor, self._opening = SafeLock(threading.Lock()), SafeLock(threading.RLock())
        self.mutex = self.wakeups.mutex = self.releases.mutex = SafeLock(threading.RLock())
        super().forget()

    def end_sleeps(self) -> None:
        """Wake all sleepers, and let none sleep again."""
        self.closing = True
        with self.mutex:
            for waitable in list(self._asleep):
                waitable.wake()


class Call:
    """One run of a protocol: what it has borrowed, and must return.

    Attributes:
        life: The client in this process.
        sets: A list of the set that it has borrowed, empty if it has none; see `pool`.
        subscribed: The keys to whose wake-ups it subscribes.
        by_maintenance: True once the maintenance sends its commands, because no set was free, or an exception struck in
            a round: it sends what follows too, behind these, and after it has ended the set.
    """

    __slots__ = ("by_maintenance", "life", "sets", "subscribed")

    def __init__(self, life: Life) -> None:
        self.life = life
        self.sets: Final[list[LinkSet]] = []
        self.subscribed: set[bytes] = set()
        self.by_maintenance = False

    def borrow(self) -> LinkSet | None:
        """Return a set of links; None if the maintenance must send the command, and those behind it until a sleep."""
        if not (self.sets or self.by_maintenance):
            self.life.pool.borrow(self.sets)
        self.by_maintenance = not self.sets
        return self.sets[0] if self.sets else None

    def return_set(self) -> None:
        """Return the set."""
        if not self.sets:
            return
        try:
            self.life.pool.take_back(self.sets)
        except BaseException:
            self.throw_away()
            raise

    def throw_away(self) -> None:
        """Give up the set: an exception struck while it was in use."""
        self.by_maintenance = True
        self.life.pool.throw_away(self.sets)

    def end(self) -> None:
        """Return everything."""
        self.return_set()
        for key in self.subscribed:
            self.life.wakeups.unsubscribe(key)


class OwnCall(Call):
    """A run by the maintenance: it keeps the maintenance's set, and an error in it ends that set's links."""

    __slots__ = ()

    def __init__(self, life: Life, maintenance: Maintenance) -> None:
        super().__init__(life)
        self.sets.append(maintenance.own)

    def throw_away(self) -> None:
        pass


Perform: TypeAlias = Callable[[Effect, Call], Reply]


class ThreadRunner(AnyRunner[Life]):
    """Runs the protocols of one client in the calling threads."""

    def __init__(self, *, max_connections: int = 16, **settings: Any) -> None:
        """Make a runner, without connecting; settings as for `AnyRunner`.

        `max_connections` is the most connections per node for the callers' rounds.
        """
        self.max_connections: Final = max_connections
        super().__init__(**settings)

    def _make_life(self) -> Life:
        return Life(self)

    # The methods that facades use.

    @property
    def usable(self) -> bool:
        """True while another user may share this client."""
        return not self.closed

    def connect(self) -> None:
        """Start the maintenance and wait briefly for the first connections, unless that was done before.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: Two nodes are the same server.
        """
        self.require_open()
        self.life.begin().await_begun(None)

    def owner(self) -> Owner:
        """Return the calling thread's owner."""
        life = self.life
        try:
            return life.ours.tag.owner
        except AttributeError:
            life.ours.tag = tag = Tag(life.session.holds, self.new_owner())
            return tag.owner

    def task(self) -> weakref.ReferenceType[asyncio.Task[object]] | None:
        """Return the asyncio task in whose step the calling thread is, as a weak reference; None outside of tasks."""
        try:
            task = asyncio.current_task()
        except RuntimeError as error:  # No loop runs in this thread.
            if type(error) is not RuntimeError:
                raise  # a signal handler's
            return None
        return None if task is None else weakref.ref(task)

    def run(self, steps: Steps[T]) -> T:
        """Perform the protocol's effects until it returns; return its result or raise its error."""
        life = self.life
        if not life.may_wait:
            self.require_open()
            raise ReentrantCallError
        call = Call(life)
        try:
            # Counted before `closed` is read: close() sets that first, and the maintenance waits for the counted calls.
            life.active[call] = threading.get_ident()
            if self.closed or life.maintenance is None:
                self.require_open()
                life.begin()
            result = self.drive(steps, call, self._perform)
        finally:
            try:
                # Again, for an exception that struck as a step ended.
                life.ours.stepping = False
                if call.sets or call.subscribed:
                    call.end()
                # Only now: a client that closes before that would throw the set away.
                life.active.pop(call, None)
            finally:
                # Again, for an exception that struck before the first time: nothing else would return the set.
                if call.sets:
                    call.throw_away()
                life.active.pop(call, None)
        life.require_process()  # Its last reply may have been the parent's.
        return result

    def _contain(self, error: BaseException) -> bool:
        """Log that a callback exits, if it runs in the client's own thread: the others are called, too."""
        if not self.life.events.is_current():
            return False
        note_exit(error)
        return True

    def give_back(self, steps: Steps[None]) -> None:
        """Run a protocol that releases something; where the thread may not wait, leave it to the maintenance."""
        life = self.life
        if life.may_wait:
            try:
                self.run(steps)
            except BaseException:
                if inspect.getgeneratorstate(steps) == inspect.GEN_CREATED:
                    # Interrupted before the first step. Report only that, as if a step had been interrupted.
                    with suppress(RedsyncError):
                        self.run(steps)
                raise
            return
        self.require_open()
        life.deferred.append(steps)
        life.alarm()

    # Driving.

    def drive(self, steps: Steps[T], call: Call, perform: Perform) -> T:
        """Perform the protocol's effects; an error of an effect is thrown into the protocol, which cleans up."""
        life, ours = call.life, call.life.ours
        reply: Reply = None
        interruption: BaseException | None = None
        while True:
            try:
                while True:  # Within the `try`: an interruption can come where a loop repeats.
                    try:
                        ours.stepping = True
                        while life.monitor.lock.locked():
                            time.sleep(_MOMENT)  # not in line, see `Life.monitor`
                        with life.monitor:
                            effect = steps.send(reply) if interruption is None else steps.throw(interruption)
                    finally:
                        ours.stepping = False
                    interruption = None
                    reply = perform(effect, call)
            except BaseException as error:
                state = inspect.getgeneratorstate(steps)
                # Else a StopIteration came from a signal handler.
                if state == inspect.GEN_CLOSED and isinstance(error, StopIteration):
                    result: T = error.value
                    return result
                if state != inspect.GEN_SUSPENDED:
                    # The protocol raised it and has ended, or it has not begun. Drop the reference, or this frame and
                    # the error would keep each other alive.
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
                call.return_set()
                call.by_maintenance = False
                return self._wait(effect, call)
            case Signal(key):
                life.wakeups.signal(key)
                return None
            case Notify(event):
                call.return_set()
                self.notifier.announce(event)
                return None
            case _:
                assert_never(effect)

    def _check(self, effect: Broadcast | Tell, call: Call) -> None:
        """Raise if the effect belongs to another process: no child of a fork acts for its parent."""
        owner, life = effect.owner, call.life
        if life.process != os.getpid() or (owner is not None and owner.client_id != life.client_id):
            raise forked()

    def _broadcast(self, effect: Broadcast, call: Call) -> Tally:
        life, clock = call.life, self.clock
        self._check(effect, call)
        if effect.subscribe is not None:
            life.wakeups.subscribe(effect.subscribe, effect.guard)
            call.subscribed.add(effect.subscribe)
        tally = effect.tally(self._addresses)
        # First: that waits for the first connections, and the command may name the processes to which they lead.
        link_set = self._borrow(effect, call)
        try:
            request = self._send(effect, tally, link_set, life)
            until = clock() + effect.timeout
            if link_set is None:
                self._await_maintenance(request, until, life)
            elif not (request.done or link_set.wait(request, until)):
                link_set.close_round(request, f"no answer within {effect.timeout:g} s")
        except BaseException:
            call.throw_away()
            raise
        self.notifier.note_round(tally)
        tally.at = clock()
        return tally

    def _borrow(self, effect: Broadcast, call: Call) -> LinkSet | None:
        """Return a set of links for a round; None if the maintenance must send the command."""
        if not call.sets:
            maintenance = call.life.begin()
            if not maintenance.begun.is_set():
                maintenance.await_begun(effect.patience)
        return call.borrow()

    def _send(self, effect: Broadcast, tally: Tally, link_set: LinkSet | None, life: Life) -> Request:
        """Send the command of a round over a set, or by the maintenance; return its request."""
        request = Request(effect, tally)
        if request.data:
            self._send_made(request, tally, link_set, life)
            return request
        # It is made of the holds that live now, and sent in the same step: else a release of one of them, over another
        # set, could come in between, and nodes would execute it first.
        try:
            life.ours.stepping = True
            with life.monitor:
                if request.make():
                    self._send_made(request, tally, link_set, life)
                else:
                    tally.close("nothing to send")
                    request.finish()
        finally:
            life.ours.stepping = False
        return request

    def _send_made(self, request: Request, tally: Tally, link_set: LinkSet | None, life: Life) -> None:
        tally.sent_at = self.clock()
        if link_set is None:
            maintenance = life.begin()
            maintenance.post(partial(life.send, request, maintenance.own))
        else:
            life.send(request, link_set)

    def _await_maintenance(self, request: Request, until: float, life: Life) -> None:
        """Wait for the votes on a request that the maintenance sends."""
        maintenance = life.begin()
        while True:
            life.sleep(request, until)
            if request.done:
                break
            maintenance.post(partial(maintenance.give_up, request))
            until = self.clock() + _LONGEST_SLEEP

    def _tell(self, effect: Tell, call: Call) -> None:
        self._check(effect, call)
        life = call.life
        request = Request(effect, None)
        link_set = call.borrow() if call.sets or not life.closing else None
        if link_set is None:
            maintenance = life.begin()
            maintenance.post(partial(life.send_told, request, maintenance))
            # A later call may use a set at once, and must find this command sent: `keep_behind` knows no others.
            life.sleep(request, self.clock() + _LONGEST_SLEEP)
            return
        try:
            life.send(request, link_set)
        except BaseException:
            call.throw_away()
            raise

    def _wait(self, effect: Wait, call: Call) -> Wakeup:
        life = call.life
        waits = life.wakeups.waits(effect)
        try:
            while True:
                try:
                    waitable, until = next(waits)
                except StopIteration as stop:
                    if self.closed:
                        raise ClientClosedError from None
                    return Wakeup(self.clock(), *stop.value)
                life.sleep(waitable, until)
        finally:
            waits.close()

    # By the maintenance.

    def watch(self, life: Life, maintenance: Maintenance) -> None:
        """Run the watchdog; the maintenance runs this."""
        life.events.start()
        self._drive_own(self.watchdog(life.session, self.clock()), life, maintenance)

    def _drive_own(self, steps: Steps[None], life: Life, maintenance: Maintenance, *, may_wait: bool = True) -> None:
        """Drive a protocol by the maintenance, over its own links; the application's code runs elsewhere."""

        def perform(effect: Effect, call: Call) -> Reply:
            match effect:
                case Wait() if not may_wait:
                    raise ReentrantCallError("it can't wait for min_hold: the lock is free once its lease ends")
                case Wait():
                    while life.deferred:
                        self._perform_deferred(life.deferred.popleft(), life, maintenance)
                    maintenance.sleep(effect.until)
                    return Wakeup(self.clock(), 0)
                case Notify(event):
                    life.events.post(event)
                    return None
                case _:
                    return self._perform(effect, call)

        self.drive(steps, OwnCall(life, maintenance), perform)

    def _perform_deferred(self, steps: Steps[None], life: Life, maintenance: Maintenance) -> None:
        try:
            self._drive_own(steps, life, maintenance, may_wait=False)
        except RedsyncError as error:
            life.events.log(log.warning, "a release by a signal handler or finalizer failed: %s", error)

    # The end.

    def close(self) -> None:
        """Let the maintenance close the client, and wait for it; idempotent.

        So an interruption only ends the wait. A handler that interrupts a call waits until all holds are released; the
        call continues afterwards, and the maintenance still carries what it gives up. A handler or a finalizer that
        interrupts a step does not wait at all, and neither does a callback in one of the client's own threads.
        """
        life = self.life
        self.closed = True
        maintenance = life.maintenance
        if maintenance is None:
            return
        maintenance.stop()
        if life.may_wait and not life.events.is_current():
            maintenance.join(life.left if threading.get_ident() in list(life.active.values()) else None)

    def leave(self, life: Life, maintenance: Maintenance) -> None:
        """Wake waiters, release all holds, and wait for calls that still run; the maintenance runs this.

        A handler may have interrupted one for long. It then gives up what it asked for, which ends with its lease.
        """
        if life.maintenance is not maintenance:
            return  # Its start was interrupted, so no call has used it.
        self.closed = life.session.holds.closed = True
        try:
            life.end_sleeps()
            self._drive_own(self.shutdown(life.session, self.clock()), life, maintenance)
            life.left.set()
            deadline = self.clock() + self.timing.node_timeout + self.timing.lease
            while life.active and (now := self.clock()) < deadline:
                maintenance.serve(now + 0.005)
        finally:
            life.left.set()
            life.events.close()

    def abandon(self) -> None:
        """Let the maintenance thread close; safe in a finalizer, which may interrupt anything."""
        self.closed = True
        life = self._lives.get(os.getpid())
        if life is not None and life.maintenance is not None:
            life.maintenance.stop()


def _close_all() -> None:
    for runner in all_runners():
        if isinstance(runner, ThreadRunner):
            runner.close()
