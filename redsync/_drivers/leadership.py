"""Leadership: of the threads that wait for replies, one at a time leads: it reads for all.

The others follow: each sleeps on its own gate until its wait is over or it gets the lead. A leader whose own wait is
over passes the lead to the follower that has waited longest. Without waiting threads, no thread leads.

The mutex, shared with the transport, guards everything here; `lead` is called without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from redsync._drivers.reentry import BUSY, Doing
from redsync._drivers.requests import Gate, Sleeper
from redsync._drivers.wakers import Waker

__all__ = ["Leadership"]


class Leadership:
    """The waiting threads, and the one that leads.

    Attributes:
        closed: True once sleeps must end; only a sleeper that `lasts` sleeps on.
        leading: True while a thread leads; guarded by the mutex.
        followers: The sleepers that follow, in the order in which they get the lead; guarded by the mutex.
    """

    def __init__(
        self,
        mutex: threading.Lock,
        clock: Callable[[], float],
        waker: Waker,
        lead: Callable[[Sleeper, float], None],
        doing: Doing,
        *,
        make_lock: Callable[[], threading.Lock],
    ) -> None:
        """Make it without waiting threads.

        Args:
            mutex: Guards everything here.
            clock: Returns the current instant in seconds.
            waker: Interrupts the leader's poll.
            lead: Reads for all until the sleeper is done or the instant has come; called by one thread at a time.
                Returns early if the sleeper no longer leads.
            doing: Records that a thread sleeps here.
            make_lock: Returns a new lock, for a gate.
        """
        self._mutex: Final = mutex
        self._make_lock: Final = make_lock
        self._clock: Final = clock
        self._waker: Final = waker
        self._lead: Final = lead
        self._doing: Final = doing
        self.closed = False
        self.leading = False
        self.followers: Final[dict[Sleeper, None]] = {}  # an ordered set

    def wait(self, sleeper: Sleeper, deadline: float) -> None:
        """Return when the sleeper is done, at the deadline, or when the transport closes; lead if no thread does."""
        sleeper.rest = self.rest
        try:
            while not sleeper.done and (sleeper.lasts or not self.closed):
                left = deadline - self._clock()
                if left <= 0:
                    return
                gate = None
                with self._mutex:
                    if sleeper.done or (self.closed and not sleeper.lasts):
                        return
                    if not self.leading:
                        self.leading = sleeper.leads = True
                    if not sleeper.leads:
                        gate = sleeper.gate = self._make_lock()
                        gate.acquire()
                        self.followers[sleeper] = None
                if gate is None:
                    self._lead(sleeper, deadline)
                else:
                    self._doing.what = sleeper
                    try:
                        gate.acquire(timeout=min(left, threading.TIMEOUT_MAX))
                    finally:
                        self._doing.what = BUSY
        finally:
            try:
                self.leave(sleeper)
            except BaseException:
                # A thread can be interrupted while it waits for the mutex too; then its lead would never end.
                try:
                    self.leave(sleeper)
                finally:
                    # Interrupted twice: without a call. Followers get the lead from the next thread that leaves.
                    if sleeper.leads:
                        sleeper.leads = self.leading = False
                raise

    def try_lead(self, sleeper: Sleeper) -> bool:
        """Take the lead if no thread has it; `leave` returns it."""
        with self._mutex:
            if not self.leading:
                self.leading = sleeper.leads = True
        return sleeper.leads

    def rest(self, sleeper: Sleeper) -> Callable[[], None]:
        """Make a sleeper neither lead nor follow while its own thread does something else.

        Returns a function that makes it check again whether it is done, and who leads.
        """
        gate = self.leave(sleeper)
        # The wake-up ends the poll of a thread that was polling, which no longer leads.
        return self._waker.wake if gate is None else gate.release

    def leave(self, sleeper: Sleeper) -> Gate | None:
        """Make a sleeper neither lead nor follow; after an interruption, call it again.

        Returns the gate that nothing else will release; None if it was released or there was none.
        """
        with self._mutex:
            gate, sleeper.gate = sleeper.gate, None
            if self.followers:
                self.followers.pop(sleeper, None)
            while sleeper.leads and self.followers:
                heir = next(iter(self.followers))
                if heir.done:
                    # Not woken yet, if an interruption came right before that.
                    heir.wake()
                    del self.followers[heir]
                    continue
                # Wake the heir first: after an interruption here it finds that this thread leads, and follows again.
                heir.wake()
                # No call in between: one of the two has the lead.
                del self.followers[heir]
                heir.leads, sleeper.leads = True, False
            if sleeper.leads:
                sleeper.leads = self.leading = False
        return gate

    def awaken(self, sleeper: Sleeper) -> None:
        """Wake a thread, which may be the polling leader, to look again; with the mutex held."""
        if sleeper.leads:
            self._waker.wake()
        sleeper.wake()

    def close(self) -> None:
        """End all sleeps, except those of sleepers that `lasts`."""
        with self._mutex:
            self.closed = True
            for follower in list(self.followers):
                follower.wake()
        self._waker.wake()
