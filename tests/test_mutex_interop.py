"""The mutex and redlock-py on the same five nodes exclude each other.

With `prefix=""` a mutex uses its keys, and those of all libraries that follow the page of Redlock. They publish
nothing, so a waiter for their locks polls; and so do they. `make interop` lets redsync fight with redlock-py, pottery
and others: there no update is lost, and each gets what a killed holder leaves.
"""

import time

import pytest
import redlock

from redsync import NotOwnedError

pytestmark = pytest.mark.usefixtures("all_nodes_met")

KEY = "x"


class RedlockPyLock:
    """A lock of redlock-py."""

    def __init__(self, masters):
        self._masters = masters
        self._lock = None

    def acquire(self, lease=20.0, timeout=0.0):
        tries = 1 + int(timeout / 0.02)
        taken = redlock.Redlock(self._masters, tries, 0.02).lock(KEY, int(lease * 1000))
        self._lock = taken or self._lock
        return bool(taken)

    def release(self):
        redlock.Redlock(self._masters).unlock(self._lock)


@pytest.fixture
def theirs(raw):
    return RedlockPyLock(raw)


@pytest.fixture
def ours(make_client):
    return make_client(prefix="").get_mutex(KEY)


def stored(raw):
    """Return the one value that all nodes store."""
    (value,) = {node.get(KEY) for node in raw}
    return value


def test_ours_is_refused_while_theirs_is_held(ours, theirs, raw, eventually):
    assert theirs.acquire()
    value = stored(raw)
    assert value is not None
    assert ours.acquire(False) is False
    assert ours.acquire(timeout=0.1) is False
    assert ours.locked()
    assert not ours.owned()
    with pytest.raises(NotOwnedError):
        ours.release()
    eventually(lambda: raw.keys() == [{KEY.encode()}] * 5, within=4.0)
    assert stored(raw) == value
    assert all(10_000 < node.pttl(KEY) <= 20_000 for node in raw)


def test_ours_waits_for_their_release_by_polling(ours, theirs, other, raw, eventually):
    theirs.acquire()
    waiter = other.start(ours.acquire)
    eventually(lambda: raw[0].exists("redsync_queue:{x}"))
    released_at = time.monotonic()
    theirs.release()
    # No message wakes it, and their lease is long: it looks again within 1.5 s.
    assert waiter.result(20) is True
    assert time.monotonic() - released_at < 15
    eventually(lambda: set().union(*raw.keys()) <= {KEY.encode()})
    assert not theirs.acquire()
    ours.release()


def test_theirs_is_refused_while_ours_is_held(ours, theirs, raw, other, eventually):
    with ours as hold:
        eventually(lambda: raw.count(KEY) == 5)
        for _ in range(3):
            assert theirs.acquire() is False
        assert stored(raw) == hold.owner.encode()
        assert all(25_000 < node.pttl(KEY) <= 30_000 for node in raw)
        hold.extend()
        waiter = other.start(theirs.acquire, timeout=20)
        with pytest.raises(TimeoutError):
            waiter.result(0.1)
    assert waiter.result(20) is True
    assert not ours.acquire(False)
    assert ours.force_release() is True
    eventually(lambda: raw.count(KEY) == 0)
