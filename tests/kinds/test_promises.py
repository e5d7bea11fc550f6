"""The promises of all kinds of locks, the same for each kind: on real nodes, for threads and for asyncio.

Every promise has one test here, for every kind. Each kind's own promises have tests in its module; `tests/protocols`
and `tests/core` test step by step that the promises hold when nodes fail.
"""

import contextlib
import gc
import pickle
import time
import weakref
from dataclasses import dataclass

import pytest

from redsync import AcquireTimeout, KeyTypeError, NotOwnedError
from redsync._kinds import KINDS
from tests.support.kinds import LOCKS, each_facade, each_kind, each_kind_of, each_kind_once, family, waits_in_line
from tests.support.locks import PATIENCE, timed

# Holding it.


@each_kind
def test_lock_is_held_by_one_and_then_by_the_other(lock, theirs, nothing_of, is_free):
    assert repr(lock).startswith(f"<{lock.__class__.__name__} 'x'")
    assert nothing_of(lock)
    assert not lock.locked()
    assert lock.acquire() is True
    assert lock.owned()
    assert lock.hold_count() == 1
    assert 25 < lock.remaining() <= 30
    assert lock.locked()
    assert theirs.acquire(False) is False
    assert nothing_of(theirs)
    assert lock.release() is None
    assert nothing_of(lock)
    assert theirs.acquire(False) is True
    assert lock.acquire(timeout=0) is False
    theirs.release()
    is_free()


@each_kind_of(sorted(set(LOCKS) - {"mutex", "multi"}))
def test_nested_acquisitions_are_counted_and_released_one_by_one(lock, theirs, is_free):
    counts = []
    for _ in range(3):
        assert lock.acquire(False)
        counts.append(lock.hold_count())
    for _ in range(3):
        assert not theirs.acquire(False)
        lock.release()
        counts.append(lock.hold_count())
    assert counts == [1, 2, 3, 2, 1, 0]
    assert theirs.acquire(False)
    theirs.release()
    is_free()


@each_facade
def test_release_and_extend_without_a_hold_are_refused(lock, theirs, other, kind, nothing_of, *, not_held):
    for call in (lock.release, lock.extend):
        not_held(call)
    with lock as hold:
        not_held(theirs.release)
        if kind not in {"mutex", "multi"}:  # a mutex belongs to its object, in all threads
            not_held(lambda: other.do(lock.release))
            assert other.do(nothing_of, lock)
        hold.check()
    not_held(lock.release)


@each_kind_of(sorted(set(LOCKS) - {"read"}))
def test_update_is_not_lost_among_threads_of_two_clients(client, make_client, make_worker, kind):
    counter = 0

    def count(lock):
        nonlocal counter
        for _ in range(4):
            with lock:
                value = counter
                time.sleep(0.001)
                counter = value + 1

    locks = [LOCKS[kind](client), LOCKS[kind](make_client())]
    for task in [make_worker().start(count, lock) for lock in locks for _ in range(2)]:
        task.result(2 * PATIENCE)
    assert counter == 16


@each_kind_once
def test_kinds_of_one_name_exclude_each_other_or_are_refused(lock, kind, make_client):
    client = make_client()
    with lock:
        for second in sorted(set(LOCKS) - {"multi"}):
            theirs = LOCKS[second](client)
            if family(second) != family(kind):
                with pytest.raises(KeyTypeError, match="'x'"):
                    theirs.acquire(False)
            elif kind == second == "read":
                assert theirs.acquire(False)
                theirs.release()
            else:
                assert not theirs.acquire(False)


# Waiting.


@each_kind
def test_timeout_is_kept_and_leaves_no_place_in_a_queue(client, kind, theirs, raw, eventually):
    with theirs as hold:
        eventually(lambda: raw.count("redsync:x") == 5)
        held = raw.keys()
        for timeout in (0.0, 0.3):
            result, seconds = timed(LOCKS[kind](client).acquire, timeout=timeout)
            assert result is False
            assert timeout <= seconds < PATIENCE
        with pytest.raises(AcquireTimeout, match="'x'") as info, LOCKS[kind](client, timeout=0.3):
            pytest.fail("ran without the lock")
        assert (info.value.name, info.value.timeout) == ("x", 0.3)
        if kind in KINDS and kind != "multi":
            assert info.value.holder == hold.owner
            assert f"{KINDS[kind].noun.replace('_', ' ')} 'x' was still held by {hold.owner}" in str(info.value)
        assert client.inspect("x").waiters == ()
        eventually(lambda: raw.keys() == held)


@each_kind
def test_waiter_gets_it_once_it_is_free(client, lock, theirs, other, kind, *, eventually, is_free):
    for free in (lock.release, lock.force_release):
        lock.acquire()
        waiter = other.start(theirs.acquire)
        if waits_in_line(kind):
            eventually(lambda: client.inspect("x").waiters)
        free()
        assert waiter.result(PATIENCE) is True
        other.do(theirs.release)
        is_free()


ARGUMENTS = [
    {"blocking": False, "timeout": 1},
    *({"timeout": timeout} for timeout in (-2, float("nan"), float("inf"))),
    *({"lease": lease} for lease in (0, -1, float("inf"), float("nan"), 0.002)),
]


@each_facade
def test_invalid_arguments_are_refused(client, lock, kind, raw):
    for arguments in ARGUMENTS:
        with pytest.raises(ValueError, match=r"timeout|lease"):
            lock.acquire(**arguments)
    for options in ARGUMENTS[1:]:
        with pytest.raises(ValueError, match=r"timeout|lease"):
            LOCKS[kind](client, **options)
    with pytest.raises(ValueError, match="max_hold"):
        LOCKS[kind](client, max_hold=0)
    with pytest.raises(
        TypeError,
        match=r"unexpected keyword argument 'tomeout'" if kind in {"lock", "multi"} else "has no option tomeout",
    ):
        LOCKS[kind](client, tomeout=1)
    with pytest.raises(TypeError, match=r"timeout must be a number of seconds.*not '3'"):
        LOCKS[kind](client, timeout="3")
    for name in ("", "x" * 513):
        with pytest.raises(ValueError, match="1 to 512 bytes"):
            LOCKS[kind](client, name)
    assert raw.keys() == [set()] * 5


# `with`, and its hold.


@dataclass(frozen=True)
class Frozen(Exception):
    """It takes no notes."""

    result: None


@each_facade
def test_with_releases_its_acquisition_no_matter_what_its_body_does(lock, theirs, nothing_of, is_free):
    with pytest.raises(KeyError) as info, lock:
        raise KeyError
    assert not hasattr(info.value, "__notes__")
    with pytest.raises(NotOwnedError), lock:
        lock.release()
    with pytest.raises(Frozen), lock:
        raise Frozen(lock.release())
    with lock:
        lock.release()
        assert lock.acquire(False)
    with contextlib.ExitStack() as stack:
        assert lock.acquire(timeout=PATIENCE)
        stack.push(lock)
        assert not theirs.acquire(False)
    assert nothing_of(lock)
    assert theirs.acquire(False)
    theirs.release()
    is_free()


@each_facade
def test_hold_shows_its_state_until_it_is_released(client, lock, not_held):
    with lock as hold:
        assert hold.name == lock.name
        owners = [hold.owner] if isinstance(hold.owner, str) else hold.owner
        assert all(owner.startswith(client.id) for owner in owners)
        assert 25 < hold.remaining() <= 30 * 0.99 - 0.002
        assert (hold.lost, hold.check(), hold.wait_lost(0)) == (False, None, False)
        assert "'x'" in repr(hold)
        hold.extend(60)
        assert hold.remaining() > 50
    assert (hold.lost, hold.remaining(), hold.wait_lost(PATIENCE)) == (False, 0.0, False)
    for call in (hold.check, hold.extend, hold.release):
        not_held(call)


@each_facade
def test_hold_is_released_once_by_any_thread(lock, theirs, other, nothing_of, not_held):
    with lock as hold:
        other.do(hold.extend, 60)
        assert hold.remaining() > 50
        other.do(hold.release)
        assert nothing_of(lock)
        not_held(hold.release)
        assert theirs.acquire(False)
    assert theirs.owned()


@each_facade
def test_wait_for_a_loss_ends_with_the_hold_or_at_its_timeout(lock, other, eventually):
    with lock as hold:
        result, seconds = timed(hold.wait_lost, 0.05)
        assert result is False
        assert 0.05 <= seconds < PATIENCE
        with pytest.raises(ValueError, match="timeout"):
            hold.wait_lost(-2)
        watcher = other.start(hold.wait_lost)
        eventually(watcher.running)
    assert watcher.result(PATIENCE) is False


# Objects.


@each_kind_once
def test_pickled_lock_has_its_options_and_no_hold(client, kind, theirs):
    lock = LOCKS[kind](client, timeout=0.3, lease=15, max_hold=10)
    for protocol in (0, pickle.HIGHEST_PROTOCOL):
        with lock as hold:
            pickled = pickle.dumps(lock, protocol)
            assert not any(owner.encode() in pickled for owner in [hold.owner, *hold.owner] if len(owner) > 20)
            with pytest.raises(TypeError):
                pickle.dumps(hold, protocol)
        twin = pickle.loads(pickled)
        assert (type(twin), twin.name) == (type(lock), lock.name)
        with twin as hold:
            assert 5 < hold.remaining() <= 10
        with theirs, pytest.raises(AcquireTimeout, match=r"0\.3 s"), twin:
            pytest.fail("ran without the lock")


@each_kind_once
def test_dropped_lock_is_garbage_collected(client, kind):
    lock = LOCKS[kind](client)
    with lock as hold:
        refs = [weakref.ref(lock), weakref.ref(hold)]
    assert not lock._entered
    del lock, hold
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
