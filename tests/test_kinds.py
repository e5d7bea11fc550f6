"""What all kinds of locks promise their users, each kind alike: on real nodes, for threads and for asyncio.

Every promise has one test here, for every kind. What one kind alone promises is tested in the module of that kind; how
the promises are kept when nodes fail, in `tests/protocols` and `tests/core`, step by step.
"""

import contextlib
import gc
import pickle
import time
import weakref
from functools import partial

import pytest

from redsync import (
    AcquireTimeout,
    ClientClosedError,
    HoldLost,
    KeyTypeError,
    LeaseLostError,
    NotOwnedError,
    QuorumError,
)
from tests.support.kinds import LOCKS, REENTRANT, another
from tests.support.locks import SHORT, flush, timed

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")


@pytest.fixture(params=LOCKS)
def kind(request):
    return request.param


@pytest.fixture
def make_client(make_client):
    """Make clients for which a node on a busy machine is not silent."""
    return lambda urls=None, **options: make_client(urls, **{"node_timeout": 2.0, **options})


@pytest.fixture
def lock(client, kind):
    return LOCKS[kind](client)


@pytest.fixture
def theirs(make_client, kind):
    """What somebody else, of another client, can't have meanwhile."""
    return another(kind)(make_client())


@pytest.fixture
def is_free(raw, eventually):
    """Wait until no node keeps a claim or a place in a queue; tokens outlive claims."""

    def wait():
        eventually(lambda: not [key for keys in raw.keys() for key in keys if b"token" not in key])  # noqa: SIM118

    return wait


def nothing_of(lock):
    return (lock.owned(), lock.hold_count(), lock.remaining()) == (False, 0, 0.0)


def not_held(call):
    """Check that a call is refused as one of somebody who does not hold the lock, and has not lost it."""
    with pytest.raises(NotOwnedError) as info:
        call()
    assert not isinstance(info.value, LeaseLostError)


# Having it.


def test_lock_is_had_by_one_and_then_by_the_other(lock, theirs, is_free):
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


@pytest.mark.parametrize("kind", REENTRANT, indirect=True)
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


def test_release_and_extend_are_refused_to_who_does_not_hold_it(lock, theirs, other, kind):
    for call in (lock.release, lock.extend):
        not_held(call)
    with lock as hold:
        not_held(theirs.release)
        if kind not in {"mutex", "multi"}:  # a mutex is its object's, in all threads
            not_held(lambda: other.do(lock.release))
            assert other.do(nothing_of, lock)
        hold.check()
    not_held(lock.release)


def test_update_is_not_lost_among_threads_of_two_clients(client, make_client, make_worker, kind):
    guarding = another(kind) if kind == "read" else LOCKS[kind]
    counter = 0

    def count(lock):
        nonlocal counter
        for _ in range(4):
            with lock:
                value = counter
                time.sleep(0.001)
                counter = value + 1

    locks = [guarding(client), guarding(make_client())]
    for task in [make_worker().start(count, lock) for lock in locks for _ in range(2)]:
        task.result(30)
    assert counter == 16


FAMILIES = [{"lock", "fair", "fenced", "spin", "multi"}, {"mutex"}, {"read", "write"}]
"""Kinds whose claims are of one layout; the first of a multi-lock is a lock."""


def test_kinds_of_one_name_exclude_each_other_or_are_refused(lock, kind, make_client):
    (family,) = (family for family in FAMILIES if kind in family)
    client = make_client()
    with lock:
        for second in sorted(set(LOCKS) - {"multi"}):
            theirs = LOCKS[second](client)
            if second in family:
                assert theirs.acquire(False) is (kind == second == "read")
            else:
                with pytest.raises(KeyTypeError, match="'x'"):
                    theirs.acquire(False)


# Waiting.


@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_timeout_is_kept_and_leaves_no_place_in_a_queue(client, kind, theirs, raw, timeout, *, eventually):
    with theirs:
        eventually(lambda: raw.count("redsync:x") == 5)
        held = raw.keys()
        result, seconds = timed(LOCKS[kind](client).acquire, timeout=timeout)
        assert result is False
        assert timeout <= seconds < timeout + 1
        with pytest.raises(AcquireTimeout, match="'x'") as info, LOCKS[kind](client, timeout=timeout):
            pytest.fail("ran without the lock")
        assert (info.value.name, info.value.timeout) == ("x", timeout)
        assert client.inspect("x").waiters == ()
        eventually(lambda: raw.keys() == held)


@pytest.mark.parametrize("way", ["release", "force_release"])
def test_waiter_gets_it_when_it_is_free(client, lock, theirs, other, way, *, kind, eventually, is_free):
    lock.acquire()
    waiter = other.start(theirs.acquire)
    if kind != "spin":  # which takes no place in a queue
        eventually(lambda: client.inspect("x").waiters)
    getattr(lock, way)()
    assert waiter.result(20) is True
    other.do(theirs.release)
    is_free()


ARGUMENTS = [
    {"blocking": False, "timeout": 1},
    *({"timeout": timeout} for timeout in (-2, float("nan"), float("inf"))),
    *({"lease": lease} for lease in (0, -1, float("inf"), float("nan"), 0.002)),
]


def test_arguments_that_can_not_be_are_refused(client, lock, kind, raw):
    for arguments in ARGUMENTS:
        with pytest.raises(ValueError, match=r"timeout|lease"):
            lock.acquire(**arguments)
    for options in ARGUMENTS[1:]:
        with pytest.raises(ValueError, match=r"timeout|lease"):
            LOCKS[kind](client, **options)
    with pytest.raises(ValueError, match="max_hold"):
        LOCKS[kind](client, max_hold=0)
    assert raw.keys() == [set()] * 5


# `with`, and its hold.


def test_with_gives_back_what_it_took_whatever_its_body_does(lock, theirs, is_free):
    with pytest.raises(KeyError) as info, lock:
        raise KeyError
    assert not hasattr(info.value, "__notes__")
    with pytest.raises(NotOwnedError), lock:
        lock.release()
    with lock:
        lock.release()
        assert lock.acquire(False)
    with contextlib.ExitStack() as stack:
        assert lock.acquire(timeout=1)
        stack.push(lock)
        assert not theirs.acquire(False)
    assert nothing_of(lock)
    assert theirs.acquire(False)
    theirs.release()
    is_free()


def test_hold_tells_of_itself_until_it_is_released(client, lock):
    with lock as hold:
        assert hold.name == lock.name
        owners = [hold.owner] if isinstance(hold.owner, str) else hold.owner
        assert all(owner.startswith(client.id) for owner in owners)
        assert 25 < hold.remaining() <= 30 * 0.99 - 0.002
        assert (hold.lost, hold.check(), hold.wait_lost(0)) == (False, None, False)
        assert "'x'" in repr(hold)
        hold.extend(60)
        assert hold.remaining() > 50
    assert (hold.lost, hold.remaining(), hold.wait_lost(5)) == (False, 0.0, False)
    for call in (hold.check, hold.extend, hold.release):
        not_held(call)


def test_hold_is_released_once_by_whichever_thread(lock, theirs, other):
    with lock as hold:
        other.do(hold.extend, 60)
        assert hold.remaining() > 50
        other.do(hold.release)
        assert nothing_of(lock)
        not_held(hold.release)
        assert theirs.acquire(False)
    assert theirs.owned()


def test_wait_for_a_loss_ends_with_the_hold_or_with_its_time(lock, other, eventually):
    with lock as hold:
        result, seconds = timed(hold.wait_lost, 0.2)
        assert result is False
        assert 0.2 <= seconds < 1.2
        with pytest.raises(ValueError, match="timeout"):
            hold.wait_lost(-2)
        watcher = other.start(hold.wait_lost, 30)
        eventually(watcher.running)
    assert watcher.result(10) is False


# Leases.


def test_given_lease_is_not_renewed_and_its_end_is_told_once(make_client, kind, theirs, eventually):
    told, events = [], []
    client = make_client(listeners=[events.append])
    lock = LOCKS[kind](client, on_lost=told.append, lease=20.0)
    began = time.monotonic()
    hold = lock.__enter__()
    assert 15 < hold.remaining() <= 20
    hold.release()
    assert lock.acquire(lease=SHORT)
    assert 0 < lock.remaining() <= SHORT
    assert theirs.acquire(timeout=10) is True
    assert time.monotonic() - began >= SHORT * 0.9
    assert nothing_of(lock)
    eventually(lambda: told)
    with pytest.raises(LeaseLostError):
        lock.release()
    not_held(lock.release)
    names = ["x", "x too"] if kind == "multi" else ["x"]
    assert sorted(hold.name for hold in told) == names
    assert sorted(event.name for event in events if isinstance(event, HoldLost)) == names


def test_watchdog_renews_it_for_as_long_as_it_is_held(make_client, kind, theirs, is_free):
    with LOCKS[kind](make_client(lease=SHORT)) as hold:
        until = time.monotonic() + 1.5 * SHORT
        while time.monotonic() < until:
            assert 0 < hold.remaining() <= SHORT
            assert not theirs.acquire(timeout=0.05)
    is_free()


def test_extend_lengthens_and_never_shortens(lock, raw, eventually):
    lock.acquire(lease=3)
    lock.extend(20)
    assert 15 < lock.remaining() <= 20
    lock.extend(1)
    assert lock.remaining() > 15
    with pytest.raises(ValueError, match="lease"):
        lock.extend(0)
    eventually(lambda: all(15_000 < node.pttl("redsync:x") <= 21_000 for node in raw))
    lock.release()


def test_max_hold_ends_a_hold_that_is_renewed(make_client, kind, theirs):
    lock = LOCKS[kind](make_client(lease=SHORT), max_hold=SHORT / 2)
    lock.acquire()
    lock.extend(20)
    assert lock.remaining() <= SHORT / 2
    assert theirs.acquire(timeout=10)
    with pytest.raises(LeaseLostError, match="max_hold"):
        lock.release()


def test_loss_is_told_by_whatever_the_holder_does_next(lock, raw, is_free):
    with pytest.raises(LeaseLostError, match="'x'"), lock:
        flush(raw)
    error = KeyError("mine")
    with pytest.raises(KeyError) as info, lock:  # noqa: PT012  # the body of the lock
        flush(raw)
        raise error
    assert info.value is error
    assert any("'x'" in note and "lost" in note for note in error.__notes__)
    hold = lock.__enter__()
    flush(raw)
    for call in (lock.extend, hold.check, hold.extend, lock.acquire, hold.release):
        with pytest.raises(LeaseLostError):
            call()
    assert (hold.lost, hold.remaining(), hold.wait_lost(5)) == (True, 0.0, True)
    is_free()
    assert lock.acquire(False)


def test_forced_release_takes_it_from_its_holder(lock, theirs, kind, make_client, is_free):
    operator = LOCKS[kind](make_client())
    assert operator.force_release() is False
    lock.acquire()
    assert operator.force_release() is True
    assert theirs.acquire(False)
    with pytest.raises(LeaseLostError):
        lock.release()
    assert theirs.owned()
    theirs.release()
    is_free()


# Nodes, and the end of the client.


def test_minority_of_dead_nodes_changes_nothing_and_a_majority_is_an_error(client, lock, theirs, nodes, kind):
    nodes.kill(0)
    nodes.kill(1)
    with lock as hold:
        assert not theirs.acquire(False)
        lock.extend()
        assert lock.locked()
        hold.check()
    assert not lock.locked()
    with lock as hold:
        nodes.kill(2)
        with pytest.raises(QuorumError) as info:
            lock.extend(60)
        assert len(info.value.votes) == 5
        assert 20 < hold.remaining() <= 30
    for call in (lambda: lock.acquire(False), lambda: lock.acquire(timeout=0.1), lock.locked, lock.force_release):
        with pytest.raises(QuorumError, match="'x'"):
            call()
    with pytest.raises(QuorumError), LOCKS[kind](client, timeout=0.1):
        pytest.fail("ran without the lock")
    assert nothing_of(lock)


def test_lock_works_on_a_single_node(make_client, kind):
    lock, theirs = LOCKS[kind](make_client(n=1)), another(kind)(make_client(n=1))
    with lock:
        assert not theirs.acquire(False)
    assert theirs.acquire(False)


def test_foreign_value_is_refused_and_left_as_it_is(lock, raw):
    for node in raw:
        node.rpush("redsync:x", "theirs")
    before = [node.dump("redsync:x") for node in raw]
    for refused in (lambda: lock.acquire(False), lambda: lock.acquire(timeout=5), lock.__enter__, lock.force_release):
        error, seconds = timed(refused)
        assert isinstance(error, KeyTypeError)
        assert "'x'" in str(error)
        assert seconds < 2
    assert nothing_of(lock)
    assert [node.dump("redsync:x") for node in raw] == before
    assert raw.keys() == [{b"redsync:x"}] * 5


def test_closed_client_has_given_it_back_and_says_that_it_is_closed(make_client, kind, theirs):
    client = make_client()
    lock = LOCKS[kind](client)
    hold = lock.__enter__()
    client.close()
    assert nothing_of(lock)
    assert hold.remaining() == 0.0
    calls = [lock.acquire, lambda: lock.acquire(False), lock.__enter__, lock.locked, lock.force_release, lock.extend]
    leave = partial(lock.__exit__, None, None, None)
    for call in [*calls, lock.release, hold.release, hold.extend, leave]:
        with pytest.raises(ClientClosedError):
            call()
    assert theirs.acquire(False)


# Objects.


@pytest.mark.threads_only(reason="what is pickled is the real object")
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_pickled_lock_carries_its_options_and_no_hold(client, kind, theirs, protocol):
    lock = LOCKS[kind](client, timeout=0.3, lease=5, max_hold=3)
    with lock as hold:
        pickled = pickle.dumps(lock, protocol)
        assert not any(owner.encode() in pickled for owner in [hold.owner, *hold.owner] if len(owner) > 20)
        with pytest.raises(TypeError):
            pickle.dumps(hold, protocol)
    twin = pickle.loads(pickled)
    assert (type(twin), twin.name) == (type(lock), lock.name)
    with twin as hold:
        assert 2 < hold.remaining() <= 3
    with theirs, pytest.raises(AcquireTimeout, match=r"0\.3 s"), twin:
        pytest.fail("ran without the lock")


@pytest.mark.threads_only(reason="what is referred to is the real object")
def test_lock_that_nobody_has_any_more_is_freed(client, kind):
    lock = LOCKS[kind](client)
    with lock as hold:
        refs = [weakref.ref(lock), weakref.ref(hold)]
    assert not lock._entered
    del lock, hold
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_lock_says_its_kind_and_name(lock):
    assert repr(lock).startswith(f"<{lock.__class__.__name__} 'x'")
