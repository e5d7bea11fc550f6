"""The public contract of the mutex, on real nodes, in threads.

It has the contract of `threading.Lock`; its owner is the object.
"""

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from redsync import LeaseLostError, NotOwnedError
from tests.support.locks import flush, values

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


def test_release_works_in_any_thread_and_once(plain, other):
    plain.acquire()
    other.do(plain.release)
    for release in (plain.release, lambda: other.do(plain.release)):
        with pytest.raises(RuntimeError):
            release()
    assert other.do(plain.acquire, False)
    plain.release()


# Owned by the object


def test_objects_of_one_name_exclude_each_other_in_one_thread(client, mutex, raw, eventually):
    twin = client.get_mutex("x")
    with mutex:
        gc.collect()  # the hold of a `with` keeps its object alive
        eventually(lambda: raw.count("redsync:x") == 5)
        before = values(raw)
        assert not twin.acquire(False)
        assert twin.locked()
        assert (twin.owned(), twin.hold_count(), twin.remaining()) == (False, 0, 0.0)
        for operation in (twin.release, twin.extend):
            with pytest.raises(NotOwnedError, match="'x'"):
                operation()
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


# Lost holds


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


def test_object_dropped_while_held_is_released_with_a_warning(client, raw, other, caplog, eventually):
    """Even with an on_lost callback."""
    with client.get_mutex("released"):
        pass
    mutex, theirs = client.get_mutex("x", on_lost=print), client.get_mutex("x")
    mutex.acquire()
    waiter = other.start(theirs.acquire)
    eventually(lambda: client.inspect("x").waiters)
    gone = weakref.ref(mutex)
    del mutex
    gc.collect()
    assert gone() is None
    assert waiter.result(20)
    warned = eventually(lambda: [record for record in caplog.records if record.name == "redsync.watchdog"])
    assert [(record.levelname, record.args[0]) for record in warned] == [("WARNING", "x")]
    theirs.release()
    eventually(lambda: raw.keys() == [set()] * 5)


@pytest.mark.threads_only
def test_object_that_outlives_the_modules_of_its_process_is_dropped_silently(nodes):
    program = f"""
import sys
from redsync import Client
mutex = Client({nodes.urls}, restart_guard=0).get_mutex("x")
mutex.acquire()
sys.excepthook = lambda *_: mutex
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
