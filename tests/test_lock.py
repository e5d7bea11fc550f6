"""The public contract of the reentrant lock, on real nodes, in threads."""

import _thread
import gc
import threading
import time
from functools import partial

import pytest

pytestmark = pytest.mark.usefixtures("both_flavours")

# Owners, hold counts, and the keys on the nodes


def test_objects_of_one_name_are_one_lock(client, other, raw, eventually):
    client.get_lock("ä").acquire()
    gc.collect()  # a dropped lock stays held
    lock = client.get_lock("ä".encode())
    assert lock.acquire()
    assert client.get_lock("ä").hold_count() == lock.hold_count() == 2
    lock.release()
    assert not other.do(lock.acquire, False)
    client.get_lock("ä").release()
    assert not lock.owned()
    eventually(lambda: raw.keys() == [set()] * 5)


# Compared with threading.RLock


@pytest.fixture(params=["threading.RLock", "redsync"])
def rlock(request, make_client):
    return threading.RLock() if request.param == "threading.RLock" else make_client().get_lock("like RLock")


AT_ONCE_OR_SOON = [
    *(((False,), {}), ((0,), {}), ((False, -1), {}), ((True, 0), {}), ((True, 0.1), {}), ((True,), {"timeout": 0.1})),
    *(((), {"blocking": False}), ((), {"blocking": False, "timeout": -1}), ((), {"blocking": True, "timeout": 0.1})),
]
FOR_EVER = [((), {}), ((True,), {}), ((True, -1), {}), ((True, -1.0), {})]


def test_acquire_is_true_when_free_or_owned_and_false_when_another_thread_holds_it(rlock, other):
    for args, kwargs in AT_ONCE_OR_SOON + FOR_EVER:
        assert rlock.acquire(*args, **kwargs) is True
        assert rlock.acquire(*args, **kwargs) is True
        if (args, kwargs) in AT_ONCE_OR_SOON:
            assert other.do(rlock.acquire, *args, **kwargs) is False
        rlock.release()
        rlock.release()


# Waiting


@pytest.mark.asyncio_too
def test_release_wakes_waiter_of_another_client_quickly(client, make_client, other, eventually, promptly):
    lock, theirs = client.get_lock("x"), make_client().get_lock("x")

    def hand_over():
        lock.acquire()
        waiter = other.start(lambda: theirs.acquire() and time.monotonic())
        eventually(lambda: client.inspect("x").waiters)
        released = time.monotonic()
        lock.release()
        took = waiter.result(20) - released
        other.do(theirs.release)
        return took

    # Without a wake-up the waiter would look again after 0.5 s at the earliest.
    promptly(hand_over, 0.25)


# with


@pytest.mark.threads_only
def test_with_begins_and_ends_in_a_thread_without_a_python_caller(client, eventually):
    """As an exit by `atexit` or by a program that embeds Python."""
    mutex = client.get_mutex("x")
    for call, held in ((mutex.__enter__, True), (partial(mutex.__exit__, None, None, None), False)):
        _thread.start_new_thread(call, ())
        eventually(lambda held=held: mutex.locked() is held)


def test_with_releases_only_its_own_acquisition(lock):
    lock.acquire()
    with lock as hold:
        hold.release()
    assert lock.hold_count() == 1
