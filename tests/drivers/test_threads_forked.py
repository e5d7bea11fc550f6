"""Forks inside a call, by a signal's handler: the call continues in the parent, and ends in the child with an error."""

import faulthandler
import os
import signal
import threading
from contextlib import contextmanager, nullcontext

import pytest

from redsync import ClientClosedError, NotOwnedError
from tests.support.injection import inject
from tests.support.leftovers import claims
from tests.support.locks import PATIENCE

# From Python 3.12 on, each fork in a process with threads warns.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

STEP = 15

ENDED, OWN, NOT_OWNED, LATE, BROKEN, STRANGE = 3, 4, 5, 6, 7, 8
"""How the call ends in the child: with the error of such a fork, as a new call, for want of a hold, because it was over
when the process forked, with another error because the child drops the table of holds, or otherwise."""


class Fork:
    """Forks where it is called.

    Attributes:
        end: How the call ends in the child; None until then.
    """

    def __init__(self, leave):
        self._leave = leave
        self._is_child = False
        self.end = None

    def __call__(self):
        pid = os.fork()
        if pid:
            self.end = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._is_child = not pid

    def run(self, call):
        """Call; the child leaves with the result."""
        end = OWN
        try:
            call()
        except BaseException as error:
            if not self._is_child:
                raise
            end = {ClientClosedError: ENDED, NotOwnedError: NOT_OWNED}.get(type(error), BROKEN)
        if self._is_child:
            try:
                self._leave(end)
            finally:
                os._exit(STRANGE)


def is_over(where):
    """Return whether the call was over there: that fork is one of any program after a call."""
    file, function = where.split(":")[0], where.split()[-1]
    at_the_end = {"run", "end", "give_back", "return_set", "take_back", "require_process", "_note_success"}
    return function in at_the_end or (file, function) in {("hold.py", "__init__"), ("any_client.py", "runner")}


def forks(leave, call, seed):
    """Fork at each `STEP`-th point of the call in turn; yield each place, and how the child's call ended."""
    point = 1 + seed % STEP
    while True:
        fork = Fork(leave)
        where = inject(point, lambda fork=fork: fork.run(call), handler=fork)
        if where is None:
            break
        yield where, fork.end
        point += STEP
    assert point > STEP


def test_acquire_continues_in_the_parent_alone(make_lasting, raw, seed, eventually):
    client, other = make_lasting(node_timeout=5.0), make_lasting(node_timeout=5.0)
    lock = client.get_lock("x")
    with client.get_lock("y"):
        pass

    def leave(end):
        if end == OWN and not lock.owned():
            end = LATE
        assert lock.owned() == (end == OWN)
        # The new connections get the pending releases of their nodes.
        assert client.get_lock("z").acquire(timeout=20)
        client.close()
        os._exit(end)

    ends = []
    for where, end in forks(leave, lock.acquire, seed):
        ends.append(end)
        assert end in {ENDED, OWN} or (end == LATE and is_over(where)), where
        assert lock.owned(), where
        assert not other.get_lock("x").acquire(blocking=False), where
        lock.release()
        eventually(lambda: not any(claims(node) for node in raw))
    assert ends.count(ENDED) > len(ends) / 2, ends


def test_release_continues_in_the_parent_alone(make_lasting, raw, seed):
    client = make_lasting(node_timeout=5.0)
    lock = client.get_lock("x")
    lock.acquire()

    def leave(end):
        assert not lock.owned()
        client.close()
        os._exit(end)

    ends = []
    for where, end in forks(leave, lock.release, seed):
        ends.append(end)
        assert end in {ENDED, NOT_OWNED, BROKEN} or (end == OWN and is_over(where)), where
        assert not lock.owned(), where
        lock.acquire()
    assert ends.count(ENDED) > len(ends) / 2, ends


@contextmanager
def held_by_another_thread(lock):
    is_held, gate = threading.Event(), threading.Lock()

    def hold():
        with lock:
            is_held.set()
            gate.acquire(timeout=PATIENCE)

    gate.acquire()
    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert is_held.wait(PATIENCE)
    yield
    gate.release()
    thread.join()


@pytest.mark.parametrize("held", [None, "monitor", "mutex"])
def test_wait_continues_in_the_parent_alone(make_lasting, eventually, held):
    """Whatever lock of the client another thread has during the fork: that thread does not exist in the child."""
    client, other = make_lasting(), make_lasting()
    other.get_lock("x").acquire()
    lock = client.get_lock("x")

    def leave(end):
        client.close()
        os._exit(end)

    def disturb():
        eventually(lambda: client.runner.life._asleep)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        eventually(lambda: fork.end is not None)
        other.close()

    def handle(*_):
        with held_by_another_thread(getattr(client.runner.life, held)) if held else nullcontext():
            fork()
            if fork.end is None:
                faulthandler.dump_traceback_later(PATIENCE, exit=True)  # ends a child that hangs

    fork = Fork(leave)
    thread = threading.Thread(target=disturb)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        thread.start()
        fork.run(lambda: lock.acquire(timeout=20))
        assert lock.owned()
        lock.release()
        assert fork.end == ENDED
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
