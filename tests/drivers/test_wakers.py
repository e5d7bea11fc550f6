import select
import threading

import pytest

from redsync._drivers.wakers import Waker


@pytest.fixture
def waker():
    waker = Waker()
    yield waker
    waker.close()


def is_readable(waker):
    return bool(select.select([waker.fileno], [], [], 0)[0])


def test_waker_is_readable_from_wake_to_drain(waker):
    assert not is_readable(waker)
    waker.wake()
    waker.wake()
    assert is_readable(waker)
    waker.drain()
    assert not is_readable(waker)
    waker.drain()


def test_wake_never_blocks_without_a_drain(waker):
    for _ in range(70_000):
        waker.wake()
    assert is_readable(waker)
    waker.drain()
    assert not is_readable(waker)


def test_wake_reaches_a_sleeping_thread(waker):
    timer = threading.Timer(0.02, waker.wake)
    timer.start()
    try:
        assert select.select([waker.fileno], [], [], 5.0)[0]
    finally:
        timer.join()


def test_wake_does_nothing_after_close(waker):
    waker.close()
    waker.wake()
