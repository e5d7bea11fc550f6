"""`threading.Condition` over a redsync lock: what the standard library promises holds, with the lock on the nodes."""

import threading
import time
from collections import deque

import pytest

from redsync import LeaseLostError


@pytest.fixture
def condition(lock):
    return threading.Condition(lock)


def waiting(lock, condition):
    """Whether somebody waits for the condition; taken under the lock, so that waiter has let go of it."""
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
    assert waiter.result(5) == 0
    assert log == [True, 1]
    eventually(lambda: raw.keys() == [set()] * 5)
    assert lock.acquire(False)


def test_wait_returns_false_after_its_timeout_and_holds_the_lock_again(lock, condition, other, raw, eventually):
    with condition:
        started = time.monotonic()
        assert condition.wait(0.2) is False
        assert time.monotonic() - started >= 0.2
        assert lock.hold_count() == 1
        assert not other.do(lock.acquire, False)
    assert lock.hold_count() == 0
    eventually(lambda: raw.keys() == [set()] * 5)


def test_wait_restores_nested_holds(lock, condition, other, raw, eventually):
    counts = []

    def wait():
        with condition, lock:
            lock.acquire()
            condition.wait(10)
            counts.append(lock.hold_count())
            lock.release()
            counts.append(lock.hold_count())
        counts.append(lock.hold_count())

    waiter = other.start(wait)
    eventually(lambda: waiting(lock, condition))
    with condition:
        condition.notify_all()
    waiter.result(5)
    assert counts == [3, 2, 0]
    eventually(lambda: raw.keys() == [set()] * 5)


def test_wait_and_notify_raise_when_the_lock_is_not_held(lock, condition, other):
    other.do(lock.acquire)
    for call in (condition.wait, condition.notify, condition.notify_all):
        with pytest.raises(RuntimeError):
            call()
    assert other.do(lock.owned)


def test_notify_all_wakes_every_waiter(lock, condition, make_worker, eventually):
    ready = False

    def wait():
        with condition:
            return condition.wait_for(lambda: ready, timeout=10)

    waiters = [make_worker().start(wait) for _ in range(4)]
    eventually(lambda: len(condition._waiters) == 4)
    with condition:
        ready = True
        condition.notify_all()
    assert [waiter.result(10) for waiter in waiters] == [True] * 4
    assert not lock.locked()


def test_producers_and_consumers_pass_everything_on(condition, make_worker):
    items, room = deque(), 2

    def produce(numbers):
        for number in numbers:
            with condition:
                condition.wait_for(lambda: len(items) < room)
                items.append(number)
                condition.notify_all()

    def consume(count):
        got = []
        for _ in range(count):
            with condition:
                condition.wait_for(lambda: items)
                got.append(items.popleft())
                condition.notify_all()
        return got

    consumers = [make_worker().start(consume, 10) for _ in range(2)]
    producers = [make_worker().start(produce, range(start, start + 10)) for start in (0, 10)]
    for producer in producers:
        producer.result(15)
    assert sorted(consumers[0].result(15) + consumers[1].result(15)) == list(range(20))


def test_wait_in_a_with_of_the_lock_holds_a_new_hold(lock, condition, other, eventually):
    def wait():
        with lock as hold:
            condition.wait(10)
            assert lock.owned()
            assert hold.lost is False
        assert not lock.owned()

    waiter = other.start(wait)
    eventually(lambda: waiting(lock, condition))
    with condition:
        condition.notify()
    waiter.result(5)
    assert not lock.locked()


def test_wait_raises_when_the_hold_was_lost(lock, condition, raw):
    with pytest.raises(LeaseLostError), condition:  # noqa: PT012  # the body of the lock
        for node in raw:
            node.flushall()
        condition.wait(0.05)
    assert lock.acquire(False)
