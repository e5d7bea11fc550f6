"""The public contract of the mutex, on real nodes, in threads.

It has the contract of `threading.Lock`; its owner is the object. `tests/test_mutex_trouble.py` tests failures.
"""

import threading

import pytest

from redsync import LeaseLostError, NotOwnedError
from tests.support.locks import values

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")

# Compared with threading.Lock


@pytest.fixture(params=["threading.Lock", "redsync"])
def plain(request, make_client):
    return threading.Lock() if request.param == "threading.Lock" else make_client().get_mutex("like Lock")


WAYS_TO_ACQUIRE = [
    *(((False,), {}), ((True, 0), {}), ((False, -1), {}), ((True, 0.1), {})),
    *(((), {"blocking": False}), ((), {"timeout": 0.1})),
]


def test_acquire_is_true_when_free_and_false_when_held_by_anyone(plain, other):
    for args, kwargs in WAYS_TO_ACQUIRE:
        assert plain.acquire(*args, **kwargs) is True
        assert plain.acquire(*args, **kwargs) is False
        assert other.do(plain.acquire, *args, **kwargs) is False
        assert plain.locked()
        plain.release()
        assert not plain.locked()


def test_second_acquire_waits_until_another_thread_releases(plain, other, eventually):
    plain.acquire()
    second = other.start(plain.acquire)
    with pytest.raises(TimeoutError):
        second.result(0.1)
    plain.release()
    assert second.result(20) is True
    assert plain.locked()
    plain.release()


def test_release_works_in_any_thread_and_once(plain, other):
    plain.acquire()
    other.do(plain.release)
    for release in (plain.release, lambda: other.do(plain.release)):
        with pytest.raises(RuntimeError):
            release()
    assert other.do(plain.acquire, False)
    plain.release()


def test_exit_works_in_another_thread_than_enter(plain, other):
    plain.__enter__()
    other.do(plain.__exit__, None, None, None)
    assert plain.acquire(False)
    plain.__exit__(None, None, None)
    assert plain.acquire(False)
    plain.release()


# Owned by the object


def test_objects_of_one_name_exclude_each_other_in_one_thread(client, mutex, raw, eventually):
    twin = client.get_mutex("x")
    with mutex:
        eventually(lambda: raw.count("redsync:x") == 5)
        before = values(raw)
        assert not twin.acquire(False)
        assert twin.locked()
        assert (twin.owned(), twin.hold_count(), twin.remaining()) == (False, 0, 0.0)
        for operation in (twin.release, twin.extend):
            with pytest.raises(NotOwnedError, match="'x'") as info:
                operation()
            assert not isinstance(info.value, LeaseLostError)
        assert values(raw) == before
    assert twin.acquire(False)
    assert not mutex.acquire(False)


def test_all_threads_see_the_same_owner(mutex, other):
    assert (mutex.owned(), mutex.hold_count(), mutex.remaining()) == (False, 0, 0.0)
    assert mutex.acquire()
    assert mutex.owned()
    assert other.do(mutex.owned)
    assert other.do(mutex.hold_count) == mutex.hold_count() == 1
    assert 25 < other.do(mutex.remaining) <= 30 * 0.99 - 0.002
    other.do(mutex.extend, 60)
    assert mutex.remaining() > 50
    other.do(mutex.release)
    assert (mutex.owned(), mutex.hold_count(), mutex.remaining()) == (False, 0, 0.0)
