"""`with lock` in generators: closed, dropped or ended, in any thread."""

import gc
import sys
from contextlib import ExitStack, closing, contextmanager

import pytest

from redsync import LeaseLostError, NotOwnedError
from tests.support.kinds import KINDS, each_entered
from tests.support.locks import lose


@pytest.fixture
def is_free(make_client):
    """Return a function that returns True if another client gets it at once."""
    other = make_client()

    def ask(kind="lock"):
        lock = KINDS[kind](other)
        return bool(lock.acquire(False)) and lock.release() is None

    return ask


@pytest.fixture
def unraisable(monkeypatch):
    """Errors that no code could catch."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: found.append(args.exc_value))
    return found


def rows(lock):
    with lock:
        yield from range(9)


def begun(lock):
    stream = rows(lock)
    assert next(stream) == 0
    return stream


@each_entered
def test_closed_generator_releases_its_lock(client, is_free, kind):
    lock = KINDS[kind](client)
    with closing(begun(lock)) as stream:
        assert next(stream) == 1
    assert is_free(kind)
    assert not lock._entered


@each_entered
def test_generator_ended_by_another_thread_releases_its_lock(client, is_free, other, kind):
    """Closed, dropped, or run to its end, like a streaming response in a server's thread pool."""
    lock = KINDS[kind](client)
    other.do(begun(lock).close)
    assert is_free(kind)
    assert other.do(list, begun(lock)) == list(range(1, 9))
    assert is_free(kind)
    streams = [begun(lock)]
    other.do(streams.clear)
    gc.collect()
    assert is_free(kind)
    assert not lock._entered


def test_generator_closed_by_another_thread_releases_its_entered_permit(client, is_free, other):
    other.do(begun(client.get_semaphore("x", 1).acquire()).close)
    assert is_free("semaphore")


def test_generator_closed_by_another_thread_releases_its_context_managers_locks(client, is_free, other):
    @contextmanager
    def guarded():
        with client.get_lock("x"):
            yield

    def stream():
        with guarded(), ExitStack() as stack:
            stack.enter_context(client.get_mutex("x too"))
            yield 1

    generator = stream()
    next(generator)
    other.do(generator.close)
    assert is_free("multi")


def test_generator_closed_by_another_thread_leaves_that_threads_own_hold(client, other):
    lock = client.get_read_write_lock("x").read_lock

    def close(stream):
        with lock as own:
            stream.close()
            own.check()
            return lock.hold_count()

    stream = begun(lock)
    assert other.do(close, stream) == 1
    assert lock.hold_count() == 0


def test_generators_closed_in_the_wrong_order_release_each_its_own(client):
    semaphore, permits = client.get_semaphore("x", 2), []

    def stream():
        with semaphore as permit:
            permits.append(permit)
            yield

    first, second = stream(), stream()
    next(first)
    next(second)
    first.close()
    permits[1].check()
    with pytest.raises(NotOwnedError):
        permits[0].check()
    second.close()
    assert semaphore.available() == 2


def test_exit_stack_that_is_handed_on_releases_where_it_is_closed(client, is_free):
    def enter(stack):
        with stack:
            stack.enter_context(client.get_lock("x"))
            yield stack.pop_all()

    (stack,) = enter(ExitStack())
    stack.close()
    assert is_free()


def test_condition_in_a_generator_goes_on_with_the_hold(client, is_free, other):
    lock = client.get_lock("x")

    def stream():
        with lock as hold:
            lock._acquire_restore(lock._release_save())
            yield hold

    generator = stream()
    next(generator).check()
    other.do(generator.close)
    assert is_free()


def test_close_of_the_generator_raises_a_loss(client):
    stream = begun(client.get_lock("x"))
    lose(client)
    with pytest.raises(LeaseLostError):
        stream.close()


def test_close_of_the_generator_raises_a_failed_release(client, other):
    lock = client.get_lock("x")
    stream = begun(lock)
    lock._entered.clear()  # as if it were entered without a trace
    with pytest.raises(NotOwnedError, match="this thread"):
        other.do(stream.close)
    stream.close()
    lock.release()


def test_generator_is_silent_about_a_lock_released_before(client, unraisable):
    lock = client.get_lock("x")
    stream = begun(lock)
    lock.release()
    stream.close()
    left = begun(lock)
    client.close()
    del left
    gc.collect()
    assert unraisable == []
