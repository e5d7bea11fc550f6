"""The mutex, redlock-py and pottery on the same five nodes exclude each other.

With `prefix=""` a mutex uses their keys: the name itself for redlock-py, `redlock:<name>` for pottery. They publish
nothing, so a waiter for their locks polls; and so do they.
"""

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redlock

from redsync import NotOwnedError

pytestmark = pytest.mark.usefixtures("all_nodes_met")

SHORT = 0.3
"""A lease in seconds that a test can wait for."""


@pytest.fixture(scope="module")
def pottery():
    """The library, without its patch of `json.dumps` for the whole process."""
    dumps = json.dumps
    import pottery

    json.dumps = dumps
    return pottery


class RedlockPyLock:
    """A lock of redlock-py."""

    key = "x"

    def __init__(self, masters, _):
        self._masters = masters
        self._lock = None

    def acquire(self, lease=20.0, timeout=0.0):
        tries = 1 + int(timeout / 0.02)
        taken = redlock.Redlock(self._masters, tries, 0.02).lock(self.key, int(lease * 1000))
        self._lock = taken or self._lock
        return bool(taken)

    def release(self):
        redlock.Redlock(self._masters).unlock(self._lock)


class PotteryLock:
    """A lock of pottery, whose calls leave threads behind that finish the work it did not wait for."""

    key = "redlock:x"

    def __init__(self, masters, library):
        self._masters = masters
        self._library = library
        self._lock = None

    def acquire(self, lease=20.0, timeout=0.0):
        lock = self._library.Redlock(key="x", masters=set(self._masters), auto_release_time=lease)
        taken = self._finish(lambda: lock.acquire(timeout=timeout) if timeout else lock.acquire(blocking=False))
        self._lock = lock if taken else self._lock
        return taken

    def release(self):
        try:
            self._finish(self._lock.release)
        except self._library.ReleaseUnlockedLock:
            assert self._finish(self._lock.locked) == 0

    @staticmethod
    def _finish(call):
        before = set(threading.enumerate())
        try:
            return call()
        finally:
            for thread in set(threading.enumerate()) - before:
                with contextlib.suppress(RuntimeError):  # A thread that has not started is another's.
                    thread.join()


@pytest.fixture(params=[RedlockPyLock, PotteryLock])
def make_theirs(request, raw, pottery):
    return lambda: request.param(raw, pottery)


@pytest.fixture
def theirs(make_theirs):
    return make_theirs()


@pytest.fixture
def make_ours(make_client, theirs):
    return lambda **options: make_client(prefix="", **options).get_mutex(theirs.key)


@pytest.fixture
def ours(make_ours):
    return make_ours()


def stored(raw, key):
    """Return the one value that all nodes store."""
    (value,) = {node.get(key) for node in raw}
    return value


# Theirs is held


def test_ours_is_refused_while_theirs_is_held(ours, theirs, raw, eventually):
    assert theirs.acquire()
    value = stored(raw, theirs.key)
    assert value is not None
    assert ours.acquire(False) is False
    assert ours.acquire(timeout=0.1) is False
    assert ours.locked()
    assert not ours.owned()
    with pytest.raises(NotOwnedError):
        ours.release()
    eventually(lambda: raw.keys() == [{theirs.key.encode()}] * 5, within=4.0)
    assert stored(raw, theirs.key) == value
    assert all(10_000 < node.pttl(theirs.key) <= 20_000 for node in raw)


def test_ours_waits_for_their_release_by_polling(make_client, theirs, other, raw, eventually):
    client = make_client(prefix="")
    ours = client.get_mutex(theirs.key)
    theirs.acquire()
    waiter = other.start(ours.acquire)
    eventually(lambda: client.inspect(theirs.key).waiters)
    released_at = time.monotonic()
    theirs.release()
    # No message wakes it, and their lease is long: it looks again within 1.5 s.
    assert waiter.result(20) is True
    assert time.monotonic() - released_at < 15
    eventually(lambda: set().union(*raw.keys()) <= {theirs.key.encode()})
    assert not theirs.acquire()
    ours.release()


def test_ours_gets_it_when_their_lease_ends(ours, theirs, raw, eventually):
    started = time.monotonic()
    eventually(lambda: theirs.acquire(lease=SHORT))  # on a machine that stalls it takes too long
    assert ours.acquire(timeout=20) is True
    assert time.monotonic() - started > SHORT * 0.9
    theirs.release()
    ours.extend()
    eventually(lambda: raw.count(theirs.key) == 5)


# Ours is held


def test_theirs_is_refused_while_ours_is_held(ours, theirs, raw, other, eventually):
    with ours as hold:
        eventually(lambda: raw.count(theirs.key) == 5)
        for _ in range(3):
            assert theirs.acquire() is False
        assert stored(raw, theirs.key) == hold.owner.encode()
        assert all(25_000 < node.pttl(theirs.key) <= 30_000 for node in raw)
        hold.extend()
        waiter = other.start(theirs.acquire, timeout=20)
        with pytest.raises(TimeoutError):
            waiter.result(0.1)
    assert waiter.result(20) is True
    assert not ours.acquire(False)
    assert ours.force_release() is True
    eventually(lambda: raw.count(theirs.key) == 0)


# Both at once


def test_no_update_is_lost_among_threads_of_both(make_theirs, make_ours, raw):
    counter, rounds = 0, 5
    mine = [make_ours(), make_ours()]

    def count(acquire, release):
        nonlocal counter
        for _ in range(rounds):
            assert acquire(timeout=20)
            value = counter
            time.sleep(0.001)
            counter = value + 1
            release()

    # Before any of them works: a thread of pottery waits for all threads started since.
    with ThreadPoolExecutor(4) as threads:
        ready = threading.Barrier(4)
        for task in [threads.submit(ready.wait) for _ in range(4)]:
            task.result(20)
        pairs = [(each.acquire, each.release) for each in (*mine, make_theirs(), make_theirs())]
        for task in [threads.submit(count, *pair) for pair in pairs]:
            task.result(60)
    assert counter == 4 * rounds
