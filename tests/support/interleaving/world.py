"""Real threads of which exactly one runs; wherever one hands over, the search chooses which continues.

The points are: before a lock is acquired, before and after each system call, and, with `lines`, each line of the
driver. A thread that waits (for a lock, a gate, a descriptor) is not ready until that has come or its deadline is over.
Besides threads there are *events*: steps of the world, such as a node that answers. No time passes while any thread
can continue. When all wait, time jumps to the next deadline; without one, or if none was meant to come, the run fails.
"""

import math
import queue
import sys
import threading
from pathlib import Path
from typing import ClassVar

import redsync

__all__ = ["SHARED", "Boom", "Fault", "World"]

_DRIVERS = Path(redsync.__file__).parent / "_drivers"

SHARED = frozenset(
    {"connection_table", "dispatcher", "leadership", "transport", "links", "outboxes", "reentry", "wakeups"}
)
"""The modules whose lines can be points: threads share their data."""


class Boom(BaseException):
    """The exception of a signal's handler."""


class Abandoned(BaseException):
    """Ends the other threads of a run that has failed."""


class Fault(AssertionError):
    """A failure, and its schedule."""


class Event:
    """A step of the world, possible while `is_ready`."""

    def __init__(self, name, is_ready, step):
        self.name, self.is_ready, self.step = name, is_ready, step


class Thread:
    """One thread of a run.

    Attributes:
        until: The condition that it waits for; None while it can continue.
        deadline: The instant at which it continues regardless.
        strike: Called at its n-th point, as a signal's handler would be; `strike_at` is the n.
        what: Its action at its latest point; `struck`: when the signal came.
    """

    def __init__(self, world, name, program):
        self.name, self.program = name, program
        self.until, self.deadline = None, math.inf
        self.ended = False
        self.strike, self.strike_at, self.points = None, 0, 0
        self.what, self.struck = "begin", None
        self.baton = threading.Lock()
        self.baton.acquire()
        self._world = world

    def is_ready(self):
        until = self.until
        if until is None:
            return not self.ended
        return until() or self._world.now >= self.deadline

    def main(self):
        world = self._world
        self.baton.acquire()
        try:
            world.go_on_as(self)
            if world.lines:
                sys.settrace(self._trace)
            try:
                self.program()
            finally:
                sys.settrace(None)
        except Abandoned:
            pass
        except BaseException as error:
            world.fail(f"{self.name} got {error!r}", error)
        self.ended = True
        world.leave(self)

    def _trace(self, frame, event, argument):
        code = frame.f_code
        # A finalizer runs whenever Python collects garbage, so in another run at another point.
        if code.co_filename not in self._world.lines or code.co_name == "__del__":
            return None
        return self._trace_line

    def _trace_line(self, frame, event, argument):
        if event == "line":
            self._world.point(f"{Path(frame.f_code.co_filename).stem}:{frame.f_lineno}")
        return self._trace_line


class _Worker:
    """A system thread that runs one thread of a run after the other: starting one costs more than a run."""

    idle: ClassVar[list] = []

    def __init__(self):
        self._job = queue.SimpleQueue()
        threading.Thread(target=self._work, name="interleaved", daemon=True).start()

    @classmethod
    def start(cls, job):
        worker = cls.idle.pop() if cls.idle else cls()
        worker._job.put(job)

    def _work(self):
        while True:
            self._job.get()()
            self.idle.append(self)


class World:
    """One run.

    Attributes:
        now: The instant, in virtual seconds.
        lines: The files of the driver in which each line is a point, too.
        patient: True if time may jump when all wait; if False that is a deadlock, as no thread should reach its
            deadline.
        checks: Called at each point.
    """

    def __init__(self, policy, *, lines=()):
        self.now = 0.0
        self.lines = frozenset(str(_DRIVERS / f"{name}.py") for name in lines)
        self.patient = False
        self.checks = []
        self.threads = []
        self.events = []
        self.log = []
        self._policy = policy
        self._running = None
        self._over = threading.Lock()
        self.fault = None

    def clock(self):
        return self.now

    def thread(self, name, program):
        self.threads.append(Thread(self, name, program))
        return self.threads[-1]

    def event(self, name, is_ready, step):
        self.events.append(Event(name, is_ready, step))

    @property
    def running(self):
        """The thread that runs; None before and after the run."""
        return self._running

    def run(self):
        """Let all threads run to their ends.

        Raises:
            Fault: The run failed; it names the schedule.
        """
        self._over.acquire()
        for thread in self.threads:
            _Worker.start(thread.main)
        self._hand_over(None)
        assert self._over.acquire(timeout=60), "the threads do not end"
        self._running = None
        if self.fault is not None:
            raise self.fault

    # Called by threads.

    def point(self, what):
        """Let others go first, or not."""
        me = self._running
        if me is None:
            return
        if self.fault is not None:
            raise Abandoned
        me.what = what
        self.log.append((me.name, what))
        self._look()
        if not self._policy.frugal:
            others = [actor for actor in (*self.threads, *self.events) if actor is not me and actor.is_ready()]
            chosen = self._policy.choose(1, len(others)) if others else 0
            if chosen and not self._turn_to(others[chosen - 1], me):
                # An event has taken its time: now any thread may run.
                self._hand_over(me)

    def _look(self):
        try:
            for check in self.checks:
                check()
        except AssertionError as error:
            self.fail(str(error), error)
            raise Abandoned from None

    def signal(self):
        """A signal may come here: where Python checks for one."""
        me = self._running
        if me is not None and self._is_struck(me):
            self._strike(me)

    def block(self, until, deadline=math.inf):
        """Let others continue until that holds or that instant has come; return whether it holds."""
        me = self._running
        if me is None:
            assert until(), "no other thread could bring that about"
            return True
        if until():
            return True
        if self._is_struck(me):
            # The signal may come as long as it sleeps.
            me.until, me.deadline = lambda: True, deadline
            self._hand_over(me)
            me.until = None
            self._strike(me)
        me.until, me.deadline = until, deadline
        self._hand_over(me)
        me.until = None
        return until()

    def wait_for(self, condition):
        """Let a scenario's thread wait for another."""
        self.point("wait for another")
        self.block(condition)

    def _is_struck(self, me):
        me.points += 1
        return me.strike is not None and me.points == me.strike_at

    def _strike(self, me):
        strike, me.strike = me.strike, None
        me.struck = me.what
        self.log.append((me.name, "is struck"))
        strike()

    def fail(self, message, error=None):
        """End the run: only the first complaint counts."""
        if self.fault is None:
            steps = "\n".join(f"  {name}: {what}" for name, what in self.log)
            self.fault = Fault(f"{message}\nat {self.now:g} s, choices {self._policy.chosen}:\n{steps}")
            self.fault.__cause__ = error

    # Scheduling.

    def go_on_as(self, thread):
        if self.fault is not None:
            raise Abandoned
        self._running = thread

    def leave(self, me):
        """Let the next thread continue: this one has ended."""
        if self.fault is not None:
            self._dismiss()
            return
        try:
            self._hand_over(me)
        except Abandoned:
            self._dismiss()

    def _dismiss(self):
        """Let all threads find out that the run has failed, one after the other."""
        for thread in self.threads:
            if not thread.ended:
                thread.until = None
                thread.baton.release()
                return
        self._over.release()

    def _hand_over(self, me):
        """Choose which thread continues when `me` can't, or has ended; return when it is its turn again."""
        while True:
            if all(thread.ended for thread in self.threads):
                self._over.release()
                return
            ready = [thread for thread in self.threads if thread.is_ready()]
            events = [event for event in self.events if event.is_ready()]
            # While a thread can continue, an event that comes first costs as much as a preemption.
            free, dear = (ready, events) if ready else (events, [])
            if not free:
                self._jump_in_need()
                continue
            options = [*free, *dear]
            if self._turn_to(options[self._policy.choose(len(free), len(dear))], me):
                return

    def _turn_to(self, actor, me):
        """Let that one continue; return True if it is this thread's turn again, False if an event had it."""
        if isinstance(actor, Event):
            self.log.append((actor.name, ""))
            actor.step()
            return False
        if actor is me:
            return True
        actor.baton.release()
        if me is not None and not me.ended:
            me.baton.acquire()
            self.go_on_as(me)
        return True

    # Time.

    def _next_deadline(self):
        later = (each.deadline for each in self.threads if each.until is not None and each.deadline > self.now)
        return min(later, default=math.inf)

    def hurry(self):
        """Let time also jump while others could continue: they are slow."""
        self.patient = True
        self.event("time", lambda: self._next_deadline() < math.inf, self._jump)

    def _jump(self):
        self.now = self._next_deadline()

    def _jump_in_need(self):
        if self._next_deadline() == math.inf or not self.patient:
            waiting = ", ".join(thread.name for thread in self.threads if not thread.ended)
            self.fail(f"deadlock: {waiting} wait for something that never comes")
            raise Abandoned
        self.log.append(("time", f"jumps to {self._next_deadline():g} s"))
        self._jump()
