"""`threading.Condition` over a redsync lock keeps the standard library's promises."""

import gc
import threading
import time

import pytest

from redsync import KeyTypeError, LeaseLostError, NotOwnedError

KINDS = {
    "lock": lambda client: client.get_lock("x"),
    "mutex": lambda client: client.get_mutex("x"),
    "multi": lambda client: client.get_multi_lock(
        client.get_lock("x"),
        client.get_mutex("m"),
        client.get_read_write_lock("r").read_lock,
    ),
    "multi of reentrant ones": lambda client: client.get_multi_lock(client.get_lock("x"), client.get_fenced_lock("a")),
}
"""One for each way to release all and acquire it again; other kinds do it like the lock."""


@pytest.fixture(params=KINDS)
def lock(request, client):
    return KINDS[request.param](client)


reentrant = pytest.mark.parametrize("lock", ["lock", "multi of reentrant ones"], indirect=True)
once = pytest.mark.parametrize("lock", ["lock"], indirect=True)


@pytest.fixture
def condition(lock):
    return threading.Condition(lock)


def free(raw):
    """Return True if no node keeps a claim; tokens outlive claims."""
    return not any(key for keys in raw.keys() for key in keys if not key.startswith(b"redsync_token"))  # noqa: SIM118


def waiting(lock, condition):
    """Return True if a waiter has released the lock and waits; acquires the lock to find out."""
    with lock:
        return bool(condition._waiters)


def test_wait_releases_lock_and_notify_wakes(lock, condition, other, raw, eventually):
    log = []

    def wait():
        with condition:
            log.append(condition.wait(10))
            log.append(lock.hold_count())
        return lock.hold_count()

    waiter = other.start(wait)
    eventually(lambda: waiting(lock, condition))
    assert not lock.locked()
    with condition:
        condition.notify()
        assert log == []
    assert waiter.result(20) == 0
    assert log == [True, 1]
    eventually(lambda: free(raw))
    assert lock.acquire(False)


def test_wait_returns_false_after_its_timeout_and_holds_the_lock_again(lock, condition, other, raw, eventually):
    assert lock.acquire(lease=20)
    started = time.monotonic()
    assert condition.wait(0.2) is False
    assert time.monotonic() - started >= 0.2
    assert lock.hold_count() == 1
    assert not other.do(lock.acquire, False)
    assert 15 < lock.remaining() < 20, "with the same lease"
    lock.release()
    eventually(lambda: free(raw))


def test_holds_of_withs_go_on_after_a_wait_and_a_fenced_lock_has_a_new_token(client, raw, eventually):
    fenced = client.get_fenced_lock("a")
    for lock in (fenced, client.get_multi_lock(fenced, client.get_lock("x"))):
        condition = threading.Condition(lock)
        with fenced as part, condition as hold:
            before = part.fencing_token
            assert condition.wait(0.01) is False
            for each in part, hold:
                each.check()
                each.extend()
                assert each.remaining() > 0
            assert part.fencing_token > before
    eventually(lambda: free(raw))


@once
def test_notify_all_wakes_every_waiter(lock, condition, make_worker, eventually):
    ready = False

    def wait():
        with condition:
            return condition.wait_for(lambda: ready, timeout=20)

    waiters = [make_worker().start(wait) for _ in range(4)]
    eventually(lambda: len(condition._waiters) == 4)
    with condition:
        ready = True
        condition.notify_all()
    assert [waiter.result(20) for waiter in waiters] == [True] * 4
    assert not lock.locked()


@pytest.mark.parametrize("known", [False, True])
@reentrant
def test_wait_raises_when_the_hold_was_lost_and_leaves_no_waiter_if_that_is_known(lock, condition, raw, known):
    with pytest.raises(LeaseLostError), condition:  # noqa: PT012  # the body of the lock
        for node in raw:
            node.flushall()
        if known:
            with pytest.raises(LeaseLostError):
                lock.extend()
        condition.wait(0.05)
    assert not (known and condition._waiters)
    assert lock.acquire(False)


def test_loss_after_a_wait_in_a_nested_with_is_told(client, raw, eventually):
    told = []
    outer, inner = client.get_lock("x", on_lost=told.append), client.get_lock("x", on_lost=str)
    with pytest.raises(LeaseLostError), outer:  # noqa: PT012  # the body of the lock
        for lock in outer, inner:
            condition = threading.Condition(lock)
            with condition:
                condition.wait(0.01)
        for node in raw:
            node.flushall()
        with pytest.raises(LeaseLostError):
            outer.extend()
        eventually(lambda: told)


def test_holds_of_other_objects_of_the_lock_go_on_after_a_wait(client):
    condition = threading.Condition(client.get_lock("x"))
    with client.get_lock("x") as hold, condition:
        condition.wait(0.01)
        hold.check()
        hold.extend()


# Multi-locks

multi = pytest.mark.parametrize("lock", ["multi of reentrant ones"], indirect=True)


@multi
def test_wait_restores_each_locks_count_in_a_multi_lock(lock, condition, client, other, eventually):
    """One of its locks was acquired more often than the others: all acquisitions are released, and made again."""
    single = client.get_lock("x")

    def wait():
        with lock, lock, single:
            condition.wait(10)
            counts = single.hold_count(), client.get_fenced_lock("a").hold_count(), lock.hold_count()
        return counts, single.owned()

    waiter = other.start(wait)
    eventually(lambda: waiting(lock, condition))
    assert not single.locked()
    with condition:
        condition.notify()
    assert waiter.result(20) == ((3, 2, 2), False)


@multi
def test_wait_and_notify_raise_without_all_locks_and_release_nothing(lock, condition, client):
    single = client.get_lock("x")
    for held in (False, True):
        assert not held or single.acquire()
        for call in (condition.wait, condition.notify, condition.notify_all):
            with pytest.raises(RuntimeError, match="un-acquired"):
                call()
        assert single.owned() is held
    with pytest.raises(NotOwnedError):
        lock._release_save()
    assert single.owned()


@multi
def test_locks_of_a_multi_lock_are_acquired_again_all_or_none(lock, client, raw, eventually):
    lock.acquire()
    saved = lock._release_save()
    eventually(lambda: free(raw))
    for node in raw:
        node.rpush("redsync:x", "theirs")
    with pytest.raises(KeyTypeError):
        lock._acquire_restore(saved)
    assert not client.get_fenced_lock("a").owned()
    eventually(lambda: raw.count("redsync:a") == 0)


@multi
def test_wait_of_a_multi_lock_that_lost_one_releases_the_others(lock, condition, client, raw, eventually):
    lock.acquire()
    eventually(lambda: raw.count("redsync:a") == 5)
    for node in raw:
        node.delete("redsync:a")
    with pytest.raises(LeaseLostError, match="'a'"):
        condition.wait(10)
    assert not client.get_lock("x").locked()
    assert not client.get_lock("x").owned()


@once
def test_with_statement_that_the_collector_ends_does_not_disturb_a_wait(lock):
    """Python 3.11 may collect garbage wherever it allocates: here as the wait restores the open `with` statements."""

    def held():
        with lock:
            yield

    thresholds = gc.get_threshold()
    try:
        for allocations in range(1, 20):
            gc.set_threshold(0)
            with lock as hold:
                dropped = [held(), held()]
                for generator in dropped:
                    next(generator)
                dropped.append(dropped)
                saved = lock._save()
                del generator, dropped
                kept = [(each, each) for each in range(3000)]  # No free tuple is left to use again.
                gc.set_threshold(gc.get_count()[0] + allocations)
                lock._restore(saved, hold)
                gc.collect()
                del kept
    finally:
        gc.set_threshold(*thresholds)
    assert not lock.locked()
