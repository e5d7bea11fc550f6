"""No exception of a signal handler leaves a safe lock or event locked, wherever it strikes."""

import signal
import threading

import pytest

from redsync._signal_safe import SafeEvent, SafeLock
from tests.support.injection import Interruption
from tests.support.locks import PATIENCE


@pytest.fixture
def strike():
    """Let a signal handler raise an exception, `after` some seconds."""

    def handle(*_):
        raise Interruption

    before = signal.signal(signal.SIGALRM, handle)
    yield lambda after: signal.setitimer(signal.ITIMER_REAL, after)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_safe_lock_is_free_whenever_a_signal_handler_has_raised(strike):
    """Python 3.14 leaves a plain lock locked in every second case."""
    safe = SafeLock(threading.Lock())
    for _ in range(2000):
        with pytest.raises(Interruption):  # noqa: PT012
            strike(20e-6)
            while True:
                with safe:
                    pass
        assert not safe.lock.locked()


def test_safe_lock_is_not_taken_if_a_signal_handler_raised_while_it_waited(strike):
    safe = SafeLock(threading.Lock())
    with safe:
        strike(0.02)
        with pytest.raises(Interruption), safe:
            raise AssertionError("it was taken")
        assert safe.lock.locked(), "by the outer block"
    assert not safe.lock.locked()


def test_event_can_be_set_whenever_a_signal_handler_has_raised_in_a_wait(strike):
    """One wait in a thousand leaves a `threading.Event` locked."""
    event = SafeEvent()
    for _ in range(2000):
        with pytest.raises(Interruption):  # noqa: PT012
            strike(20e-6)
            while True:
                event.wait(0.0)
    assert not event.is_set()
    threads = [threading.Thread(target=event.wait, args=(30,)), threading.Thread(target=event.set)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    event.set()
    event.wait(1e6)
    assert event.is_set()


def test_event_can_be_awaited_for_longer_than_a_lock_of_python(other, eventually):
    event = SafeEvent()
    waiting = other.start(event.wait, 1e12)
    eventually(lambda: event._gates or waiting.done())
    event.set()
    waiting.result(PATIENCE)
