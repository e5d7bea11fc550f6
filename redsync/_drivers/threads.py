"""The driver for threads: runs protocols in their callers' threads.

* **Effects** are performed in the calling thread. It borrows a set of links for its rounds (`pool`), and returns it
  before it sleeps or calls the application.
* **Steps are atomic**: one lock per client is held while a protocol's own code runs, and never while an effect is
  performed. A signal's handler or a finalizer may interrupt a step, and must not wait for its end; a finalizer may run
  in the maintenance's thread, which must not wait for itself. There the maintenance does later what it releases, and
  all its other calls raise `ReentrantCallError`. Anywhere else it is an ordinary caller.
* **Owners are threads**, numbered per process. Numbers are never reused; a thread's number lives in a
  `threading.local`.
* **Interruptions** are thrown into the protocol; the driver then performs its clean-up effects to the end.
* **One more thread** per client does the work that no caller waits for, see `maintenance`.
* **A process has its own life of a client** (`Life`): identity, holds, connections. Every use looks up the life of the
  process in which it runs. So the child of a fork finds none and begins one, whatever happened to it before: it holds
  nothing, and never writes to its parent's connections.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar, assert_never

from redsync._core.effects import Broadcast, Effect, Notify, Reply, Signal, Steps, Tell, Wait, Wakeup
from redsync._core.events import Event
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally
from redsync._core.runner import Session
from redsync._core.timing import Timing
from redsync._drivers.link_sets import LinkSet
from redsync._drivers.lives import LONGEST_SLEEP, Call, Life, Tag
from redsync._drivers.maintenance import Maintenance
from redsync._drivers.nodes import Node, NodeStatus
from redsync._drivers.notifier import Notifier, quietly
from redsync._drivers.process import Surroundings, at_exit, forked
from redsync._drivers.requests import Request, Retry
from redsync.exceptions import ClientClosedError, RedsyncError, ReentrantCallError

__all__ = ["ThreadRunner"]

T = TypeVar("T")

log = logging.getLogger("redsync")

_serials = itertools.count(1)
_MOMENT = 0.0002
"""Seconds until a thread looks again whether another has ended its step: a step takes some tens of microseconds."""

_CLOSE_TIMEOUT = 2.0
"""Seconds that `close` waits for other threads to end their calls."""


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
        self.notifier: Final = Notifier(listeners, self._contain, self._addresses, self.clock)
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
        try:
            maintenance = life.begin()  # an interruption may follow its start
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
            life.ours.tag = Tag(life.session.holds, owner)
            life.ours.owner = owner
            return owner

    def task(self) -> weakref.ReferenceType[asyncio.Task[object]] | None:
        """Return the asyncio task in whose step the calling thread is, as a weak reference; None outside of tasks."""
        try:
            task = asyncio.current_task()
        except RuntimeError as error:  # No loop runs in this thread.
            if type(error) is not RuntimeError:
                raise  # a signal handler's
            return None
        return None if task is None else weakref.ref(task)

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
        if not life.may_wait:
            self.require_open()
            raise ReentrantCallError
        call = Call(life)
        try:
            # Counted before `closed` is read: close() sets that first, then waits for the counted threads.
            life.active[call] = threading.get_ident()
            if self.closed or not life.started:
                self.require_open()
                life.begin()
            result = self.drive(steps, call, self._perform)
        finally:
            try:
                life.active.pop(call, None)
                # Again, for an exception that struck as a step ended.
                life.ours.stepping = False
                if call.sets or call.subscribed:
                    call.end()
            finally:
                # Again, for an exception that struck before the first time: the call would stay there, with its set.
                life.active.pop(call, None)
        life.require_process()  # Its last reply may have been the parent's.
        return result

    def _contain(self, error: BaseException) -> bool:
        """Log that a callback exits, if it runs in the client's own thread: the others are called, too."""
        if not self.life.events.is_current():
            return False
        quietly(log.error, "a callback raised %r in the client's own thread, which continues", error)
        return True

    def give_back(self, steps: Steps[None]) -> None:
        """Run a protocol that releases something; where the thread may not wait, leave it to the maintenance."""
        life = self.life
        if life.may_wait:
            self.run(steps)
            return
        self.require_open()
        life.deferred.append(steps)
        life.alarm()

    def note_begun(self) -> None:
        """Close all clients at the process's end, now that one has begun."""
        at_exit(_close_all)

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
            if effect.owed_to and life.owing.follow(request, link_set):
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
            now, patience = self.clock(), effect.patience
            if patience is None:
                # A call that does not wait: its one round may wait in line as long as for nodes.
                life.pool.borrow(call.sets, now + maintenance.patience, now + effect.timeout)
            else:
                life.pool.borrow(call.sets, now + patience)
        return call.sets[0] if call.sets else None

    def _carry_otherwise(self, request: Request, tally: Tally, effect: Broadcast, life: Life) -> None:
        if not effect.owed_to:
            most = self.max_connections
            tally.close(f"all {most} connections of this client were in use: Client(max_connections={most})")
            return
        if life.has_guard():
            # The maintenance needs it before it can send this, and so would never answer.
            tally.close("an interrupted thread can't wait for the nodes: they get it in a moment")
            life.begin().post(Request(effect, None))
            return
        gate = threading.Lock()
        gate.acquire()
        if not request.done:
            request.gate = gate
        life.begin().post(request, self.clock() + effect.timeout)
        while not request.done:
            gate.acquire(timeout=LONGEST_SLEEP)
            life.require_process()

    def _tell(self, effect: Tell, call: Call) -> None:
        self._check(effect, call)
        life = call.life
        request = Request(effect, None)
        if not (call.sets or call.torn or life.closing):
            life.pool.borrow_free(call.sets)
        link_set = call.sets[0] if call.sets else None
        if life.owing.follow(request, link_set):
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
        """Wake waiters, wait briefly for other threads' calls, and for the maintenance, which closes; idempotent.

        So an interruption only ends the wait. A handler that interrupts a call waits until all holds are released; the
        call continues afterwards, and the maintenance still carries what it gives up. A handler or a finalizer that
        interrupts a step does not wait at all, and neither does a callback in one of the client's own threads.
        """
        life, me = self.life, threading.get_ident()
        self.closed = True
        maintenance = life.maintenance
        if maintenance is None:
            return
        waits = life.may_wait and not life.events.is_current()
        try:
            life.end_sleeps()
            deadline = self.clock() + _CLOSE_TIMEOUT
            while waits and any(thread != me for thread in list(life.active.values())) and self.clock() < deadline:
                time.sleep(0.001)
        finally:
            maintenance.abandon()
        if waits and me in list(life.active.values()):
            maintenance.join(life.left)
        elif waits:
            maintenance.join()

    def leave(self, life: Life, maintenance: Maintenance) -> None:
        """Close the client; the maintenance runs this."""
        self.closed = True
        try:
            life.end_sleeps()
            self.drive(self._farewell(life.session), Call(life), self.perform_by_maintenance)
            life.left.set()
            deadline = self.clock() + _CLOSE_TIMEOUT
            while life.active and (now := self.clock()) < deadline:
                maintenance.serve(now + 0.001)
            if life.session.holds:
                self.drive(self._farewell(life.session), Call(life), self.perform_by_maintenance)
        finally:
            life.left.set()
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
