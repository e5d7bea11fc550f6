"""`with lock` in generators: closed, dropped or ended, in any thread."""

import functools
import gc
import itertools
import sys
from contextlib import ExitStack, closing

import pytest

from redsync import HoldOrphaned, LeaseLostError, NotOwnedError
from redsync._facades.enterable import Statement
from tests.support.injection import inject_at_calls
from tests.support.kinds import KINDS, LOCKS, another, each_entered
from tests.support.locks import PATIENCE, lose


@pytest.fixture
def is_free(make_client):
    """Return a function that returns True if another client gets it at once."""
    other = make_client()

    def ask(kind="lock"):
        lock = another(kind)(other)
        return bool(lock.acquire(False)) and lock.release() is None

    return ask


@pytest.fixture
def client(make_client, events):
    """A client with a lease of a minute: what is free sooner was released."""
    return make_client(lease=60.0, listeners=[events.append])


@pytest.fixture
def in_ended_thread(client, events, make_worker, eventually):
    """Run a function in a thread that ends, and return once the client has released what that thread acquired."""

    def run(function, *args):
        worker = make_worker()
        result = worker.do(function, *args)
        worker.do(client.get_lock("acquired").acquire)
        worker.end()
        eventually(lambda: any(isinstance(event, HoldOrphaned) and event.name == "acquired" for event in events))
        return result

    return run


def rows(lock):
    with lock:
        yield from range(9)


def begun(lock):
    stream = rows(lock)
    assert next(stream) == 0
    return stream


@each_entered
def test_ended_generator_releases_its_lock(client, is_free, other, eventually, kind):
    """Closed, dropped, or run to its end, also by another thread, like a streaming response in a server's pool.

    The garbage collector may close it anywhere, even where its thread must not wait: in the middle of a step.
    """
    lock = KINDS[kind](client)
    with closing(begun(lock)) as stream:
        assert next(stream) == 1
    assert is_free(kind)
    other.do(begun(lock).close)
    assert is_free(kind)
    assert other.do(list, begun(lock)) == list(range(1, 9))
    assert is_free(kind)
    streams = [begun(lock)]
    other.do(streams.clear)
    gc.collect()
    assert is_free(kind)
    close_in_a_step(client, begun(lock))
    eventually(lambda: is_free(kind))
    assert not lock._entered


def close_in_a_step(client, generator):
    def step():
        generator.close()
        return
        yield

    client.runner.run(step())


def test_generator_that_entered_a_permit_releases_it_wherever_it_is_closed(client, is_free, other, eventually):
    semaphore = client.get_semaphore("x", 1)
    other.do(begun(semaphore.acquire()).close)
    assert is_free("semaphore")
    close_in_a_step(client, begun(semaphore.acquire()))
    eventually(lambda: is_free("semaphore"))


class Wrapped:
    """A context manager of the application around a lock."""

    def __init__(self, lock):
        self.lock = lock

    def __enter__(self):
        return self.lock.__enter__()

    def __exit__(self, *error):
        return self.lock.__exit__(*error)


@pytest.mark.parametrize("wrapped", [lambda semaphore: semaphore, Wrapped], ids=["bare", "wrapped"])
def test_request_that_ends_keeps_the_permits_of_the_others(client, other, wrapped):
    """As FastAPI runs dependencies: requests share a semaphore, and any thread of the pool may end any of them."""
    semaphore, permits = client.get_semaphore("x", 2), []

    def dependency():
        with wrapped(semaphore) as permit:
            permits.append(permit)
            yield

    first, second = dependency(), dependency()
    next(first)
    next(second)
    other.do(next, first, None)
    permits[1].check()
    with pytest.raises(NotOwnedError):
        permits[0].check()
    second.close()
    assert semaphore.available() == 2


def test_generator_that_lost_its_lock_leaves_the_holds_of_other_threads(client, is_free, other):
    """Else the body of the thread that closes it would continue without the lock."""
    lock = client.get_lock("x")
    generator = other.do(begun, lock)
    lose(client)
    client.get_lock("x").force_release()
    assert lock.acquire()
    with ExitStack() as stack:
        stack.push(lock)  # ends what this thread acquired, without a `with`
    assert is_free()
    with lock as hold:
        with pytest.raises(LeaseLostError):
            generator.close()
        hold.check()
        assert not is_free()


@pytest.mark.parametrize("kind", ["lock", "mutex"])
def test_generator_that_released_its_lock_leaves_the_hold_of_a_later_one(client, is_free, kind):
    lock = KINDS[kind](client)

    def released():
        with lock:
            lock.release()
            yield

    earlier = released()
    next(earlier)
    later = begun(lock)
    with pytest.raises(NotOwnedError):
        next(earlier)
    assert not is_free(kind)
    later.close()
    assert is_free(kind)


@each_entered
def test_with_goes_on_after_the_thread_that_began_it(client, is_free, other, in_ended_thread, kind):
    """As FastAPI runs a dependency with a `yield`: in several threads of a pool, which ends idle ones."""
    lock, holds = KINDS[kind](client), []

    def dependency():
        with lock as hold:
            holds.append(hold)
            yield

    for end in (lambda generators: other.do(next, generators[0], None), list.clear):
        generators = [dependency()]
        in_ended_thread(next, generators[0])
        assert not is_free(kind)
        hold = holds.pop()
        hold.check()
        assert not hold.lost
        hold.extend()
        end(generators)
        gc.collect()
        assert is_free(kind)
        assert not lock._entered


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
@each_entered
def test_exit_stack_closed_by_another_owner_releases(client, is_free, other, in_ended_thread, kind):
    """The thread or task that entered it lives, or has ended."""
    lock = KINDS[kind](client)
    for enter in (other.do, in_ended_thread):
        with ExitStack() as stack:
            enter(stack.enter_context, lock)
            assert not is_free(kind)
        assert is_free(kind)
        assert not lock._entered


def test_with_that_ends_otherwise_than_it_began_releases(client, is_free, make_worker):
    class Job(ExitStack):
        """Its `close` is also for others."""

        def __enter__(self):
            lock.__enter__()
            return self

        def __exit__(self, *error):
            self.end()

        def end(self):
            lock.__exit__(None, None, None)

    lock = client.get_lock("x")
    for begin, end in ((Job().__enter__, Job().__exit__), (lock.__enter__, lock.__exit__)):
        for do in (lambda function: function(), make_worker().do):
            stack = ExitStack()
            begin()
            stack.push(lambda *error, end=end: end(*error))
            do(stack.close)
            assert is_free()
            assert not lock._entered
            stack.push(end)
            begin()
            do(stack.close)
            assert is_free()
            assert not lock._entered


def test_exit_stack_closed_by_another_thread_leaves_the_permits_of_others(client, other, make_worker):
    semaphore, stack = client.get_semaphore("x", 2), ExitStack()
    filled = other.do(stack.enter_context, semaphore)
    with semaphore as permit:
        make_worker().do(stack.close)
        permit.check()
        with pytest.raises(NotOwnedError):
            filled.check()


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
@pytest.mark.parametrize("kind", ["read", "semaphore"])
def test_exit_stacks_closed_by_several_owners_at_once_release_each_hold(client, make_worker, kind):
    """As requests do that are ended by others than those that began them."""
    shared = client.get_semaphore("x", 9) if kind == "semaphore" else LOCKS[kind](client)
    stacks = [ExitStack() for _ in range(9)]
    holds = [make_worker().do(stack.enter_context, shared) for stack in stacks]
    for closed in [make_worker().start(stack.close) for stack in stacks]:
        closed.result(PATIENCE)
    for hold in holds:
        with pytest.raises(NotOwnedError):
            hold.check()
    assert not shared._entered


def test_with_that_begins_as_another_thread_closes_a_stack_of_its_own_releases_its_permit(client, other):
    """The thread closes it in the middle: after each call."""
    for n in itertools.count(1):
        semaphore, stack = client.get_semaphore("x", 3), ExitStack()
        stack.enter_context(semaphore)
        permit, bare = semaphore.acquire(), semaphore.acquire()
        enter = functools.partial(semaphore._enter, permit, Statement(None, "with"))
        struck = inject_at_calls(n, enter, lambda stack=stack: other.do(stack.close))
        semaphore.__exit__(None, None, None)
        with pytest.raises(NotOwnedError):
            permit.check()
        bare.release()
        if struck is None:
            break
    stack.close()


@pytest.mark.parametrize("outer", [0, 1])
def test_hold_released_by_another_thread_while_its_with_ends_is_released_once(client, other, outer):
    lock = client.get_lock("x")
    with ExitStack() as stack:
        if outer:
            stack.enter_context(lock)
        with lock as hold:
            looked = lock._leave_steps(hold)
            other.do(hold.release)
            for end in (looked, lock._leave_steps(hold)):
                client.runner.run(end)
        assert lock.hold_count() == outer


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
def test_ended_owner_keeps_only_what_its_open_with_releases(client, is_free, events, in_ended_thread):
    lock = client.get_lock("x")

    def stream():
        with lock:
            assert lock.acquire()
            yield

    generator = stream()
    in_ended_thread(next, generator)
    assert not is_free()
    next(generator, None)
    assert is_free()
    assert [event.name for event in events] == ["acquired"]


def test_exit_stack_that_is_dropped_after_its_thread_is_not_renewed_for_ever(make_client, other, is_free, eventually):
    """It has no finalizer: no code will ever leave its `with`."""
    client = make_client(lease=3.0)
    kept = [ExitStack()]
    other.do(lambda: kept[0].enter_context(client.get_lock("x")) is None)
    other.end()
    with client.get_lock("y") as later:
        later.extend()
    assert not is_free()
    kept.clear()
    gc.collect()
    eventually(is_free)


def test_condition_goes_on_with_the_hold_of_a_generator_that_another_thread_closes(
    client, is_free, other, in_ended_thread
):
    lock = client.get_lock("x")

    def stream():
        with lock as hold:
            lock._acquire_restore(lock._release_save())
            yield hold

    generator = stream()
    in_ended_thread(next, generator).check()
    assert not is_free()
    other.do(generator.close)
    assert is_free()


def test_generator_is_silent_about_a_lock_released_before(client, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.append(args.exc_value))
    lock = client.get_lock("x")
    stream = begun(lock)
    lock.release()
    stream.close()
    left = begun(lock)
    client.close()
    del left
    gc.collect()
    assert unraisable == []
