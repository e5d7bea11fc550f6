"""Mutex failures: lost holds, dropped objects, other processes, values of other types, missing nodes."""

import copy
import gc
import weakref

import pytest

from redsync import LeaseLostError, NotOwnedError
from tests.support.locks import flush, values

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")


# Lost holds


@pytest.mark.parametrize("noticed", [True, False])
def test_second_acquire_raises_after_a_loss_until_it_is_released(noticed, client, mutex, other, raw, *, eventually):
    mutex.acquire(lease=0.3)
    if noticed:
        flush(raw)
        with pytest.raises(LeaseLostError):
            mutex.extend()
    eventually(lambda: not mutex.owned())
    for acquire in (lambda: mutex.acquire(False), lambda: other.do(mutex.acquire, timeout=5), mutex.__enter__):
        with pytest.raises(LeaseLostError, match="'x'"):
            acquire()
    with client.get_mutex("x"):
        with pytest.raises(LeaseLostError):
            mutex.acquire(False)
        with pytest.raises(LeaseLostError):
            mutex.release()
        with pytest.raises(NotOwnedError) as info:
            mutex.release()
        assert not isinstance(info.value, LeaseLostError)
        assert mutex.acquire(False) is False


def test_with_after_a_loss_releases_only_its_own_hold(mutex, other, raw, eventually):
    with pytest.raises(NotOwnedError, match="'x'"), mutex as hold:  # noqa: PT012  # the body of the mutex
        flush(raw)
        with pytest.raises(LeaseLostError):
            other.do(mutex.release)
        assert hold.lost
        with pytest.raises(LeaseLostError):
            hold.check()
        assert other.do(mutex.acquire, False)
        eventually(lambda: raw.count("redsync:x") == 5)
        before = values(raw)
        assert hold.owner.encode() not in before
    assert hold.lost
    assert mutex.owned()
    assert values(raw) == before
    mutex.release()


# Dropped objects

WARNED = ("redsync.watchdog", "WARNING")


def test_object_dropped_while_held_is_released_with_a_warning(client, raw, other, caplog, eventually):
    """Even with an on_lost callback."""
    mutex, theirs = client.get_mutex("x", on_lost=print), client.get_mutex("x")
    mutex.acquire()
    waiter = other.start(theirs.acquire)
    eventually(lambda: client.inspect("x").waiters)
    gone = weakref.ref(mutex)
    del mutex
    gc.collect()
    assert gone() is None
    assert waiter.result(20)
    eventually(lambda: WARNED in [(record.name, record.levelname) for record in caplog.records])
    assert "'x'" in caplog.text
    theirs.release()
    eventually(lambda: raw.keys() == [set()] * 5)


def told(caplog):
    """Return the log records of holds; on a busy machine nodes may be suspect briefly, and that is logged too."""
    return [record for record in caplog.records if record.name != "redsync.node"]


def test_object_dropped_after_its_release_logs_nothing(client, caplog, eventually):
    for _ in range(3):
        with client.get_mutex("released"):
            pass
    client.get_mutex("held").acquire()
    gc.collect()
    eventually(lambda: told(caplog))
    assert [record.args[0] for record in told(caplog)] == ["held"]


def test_hold_of_a_with_block_keeps_the_object_alive(client):
    with client.get_mutex("x") as hold:
        gc.collect()
        assert not client.get_mutex("x").acquire(timeout=0.1)
        hold.extend()


@pytest.mark.threads_only
def test_copied_mutex_is_another_owner(mutex):
    twin = copy.copy(mutex)
    with mutex:
        assert not twin.acquire(False)
    assert twin.acquire(False)
    assert not mutex.owned()
    twin.release()
