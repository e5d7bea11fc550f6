"""Hand-overs: a waiter has the lock from its release on, on real nodes, for threads and asyncio."""

import pytest

from redsync import NotOwnedError

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")

LOCK, PLACES = "redsync:x", "redsync_places:{redsync:x}"


@pytest.fixture(params=["get_lock", "get_mutex", "get_fair_lock"])
def get(request, make_client):
    """Make a lock of a kind, with its own client."""
    return lambda: getattr(make_client(), request.param)("x")


@pytest.fixture
def wait_for(make_worker, eventually, raw):
    """Make a worker wait for a lock until each node knows it; return the worker and the future result."""

    def start(lock):
        # A node that the waiter reached before the holder's claim grants all its attempts, and has no place for it.
        eventually(lambda: all(node.exists(LOCK) for node in raw))
        known = raw[0].hlen(PLACES)
        worker = make_worker()
        waiter = worker.start(lock.acquire)
        eventually(lambda: all(node.hlen(PLACES) == known + 1 for node in raw))
        return worker, waiter

    return start


@pytest.mark.asyncio_too
def test_lock_is_never_free_between_its_release_and_a_waiter(get, wait_for, make_client, raw, eventually):
    lock, heirs, newcomer = get(), get(), get()
    for free in (lock.release, lock.force_release):
        lock.acquire()
        worker, waiter = wait_for(heirs)
        free()
        assert not newcomer.acquire(False), "it came later"
        assert waiter.result(20)
        info = make_client().inspect("x")
        assert (len(info.holders), info.waiters) == (1, ())
        assert worker.do(heirs.hold_count) == 1
        worker.do(heirs.release)
        with pytest.raises(NotOwnedError):
            worker.do(heirs.release)
        eventually(lambda: raw.keys() == [set()] * 5)
