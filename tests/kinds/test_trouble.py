"""The promises of all kinds of locks when a hold ends early: with its lease, its nodes or its client."""

from contextlib import suppress
from functools import partial

import pytest

from redsync import ClientClosedError, HoldLost, KeyTypeError, LeaseLostError, QuorumError
from tests.support.kinds import LOCKS, another, each_facade, each_kind
from tests.support.locks import PATIENCE, SHORT, flush, timed

# Leases.


@each_kind
def test_given_lease_is_not_renewed_and_its_end_is_reported_once(
    make_client, kind, theirs, nothing_of, not_held, *, eventually
):
    told, events = [], []
    client = make_client(listeners=[events.append])
    lock = LOCKS[kind](client, on_lost=lambda hold: told.append((hold.name, hold.lost)), lease=20.0)
    with lock as hold:
        assert 15 < hold.remaining() <= 20
    assert lock.acquire(lease=SHORT)
    assert lock.remaining() <= SHORT
    assert theirs.acquire(timeout=PATIENCE) is True
    assert nothing_of(lock)
    names = ["x", "x too"] if kind == "multi" else ["x"]
    eventually(lambda: sorted(told) == [(name, True) for name in names])
    with pytest.raises(LeaseLostError):
        lock.release()
    not_held(lock.release)
    assert len(told) == len(names)
    assert sorted(event.name for event in events if isinstance(event, HoldLost)) == names


@each_kind
def test_watchdog_renews_it_for_as_long_as_it_is_held(make_client, kind, theirs, eventually):
    lock = LOCKS[kind](make_client(lease=SHORT))

    def outlives_its_lease():
        """A machine that stalls for a lease makes one try fail, a bug makes all of them fail."""
        try:
            with lock as hold:
                assert hold.remaining() <= SHORT
                result, seconds = timed(hold.wait_lost, SHORT * 1.1)
                locked = lock.locked()
                hold.check()
        except LeaseLostError:
            return False
        return locked and result is False and seconds > SHORT

    eventually(outlives_its_lease)
    assert theirs.acquire(timeout=PATIENCE)


@each_facade
def test_extend_never_shortens(lock, raw, eventually):
    lock.acquire(lease=100)
    lock.extend(200)
    assert 150 < lock.remaining() <= 200
    lock.extend(60)  # a round may take a share of the lease, and a machine pauses
    assert lock.remaining() > 150
    with pytest.raises(ValueError, match="lease"):
        lock.extend(0)
    eventually(lambda: all(150_000 < node.pttl("redsync:x") <= 210_000 for node in raw))
    lock.release()


@each_facade
def test_max_hold_ends_a_renewed_hold(client, kind, theirs):
    with LOCKS[kind](client, max_hold=15) as hold:
        hold.extend(60)
        assert hold.remaining() <= 15
    lock = LOCKS[kind](client, max_hold=SHORT)
    hold = lock.__enter__()
    assert hold.wait_lost(PATIENCE) is True  # less than the lease
    assert theirs.acquire(timeout=PATIENCE)
    with pytest.raises(LeaseLostError, match="max_hold"):
        lock.release()


# Loss.


@each_facade
def test_loss_is_reported_by_the_holders_next_call(lock, raw, is_free):
    with pytest.raises(LeaseLostError, match="'x'"), lock:
        flush(raw)
    error = KeyError("mine")
    with pytest.raises(KeyError) as info, lock:  # noqa: PT012  # the body of the lock
        flush(raw)
        raise error
    assert info.value is error
    assert any("'x'" in note and "lost" in note for note in error.__notes__)
    with pytest.raises(LeaseLostError) as info, lock as hold:  # noqa: PT012  # the body of the lock
        flush(raw)
        hold.check()
    assert not any(str(info.value) in note for note in getattr(info.value, "__notes__", ()))
    hold = lock.__enter__()
    flush(raw)
    for call in (lock.extend, hold.check, hold.extend, lock.acquire, hold.release):
        with pytest.raises(LeaseLostError):
            call()
    assert (hold.lost, hold.remaining(), hold.wait_lost(PATIENCE)) == (True, 0.0, True)
    is_free()
    assert lock.acquire(False)


def give_up(hold):
    with suppress(LeaseLostError):
        hold.release()


@pytest.mark.parametrize("kind", LOCKS)
def test_loss_is_raised_by_the_with_even_if_its_callback_has_released_the_hold(client, kind, raw, eventually):
    told = []
    lock = LOCKS[kind](client, on_lost=lambda hold: told.append(give_up(hold)))
    with pytest.raises(LeaseLostError), lock as hold:  # noqa: PT012  # the body of the lock
        flush(raw)
        with pytest.raises(LeaseLostError):
            hold.extend()
        eventually(lambda: told)


@each_facade
def test_lost_hold_that_another_thread_has_released_says_so(lock, raw, other):
    with suppress(LeaseLostError), lock as hold:  # With asyncio its end raises it: the loss has cancelled the body.
        flush(raw)
        with pytest.raises(LeaseLostError):
            hold.extend()
        other.do(give_up, hold)
        assert hold.lost
        for call in hold.check, hold.extend:
            with pytest.raises(LeaseLostError):
                call()


@each_kind
def test_force_release_takes_it_from_its_holder(lock, theirs, kind, make_client, is_free):
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


@each_facade
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
    assert not lock.owned()


@each_facade
def test_lock_works_on_a_single_node(make_client, kind):
    lock, theirs = LOCKS[kind](make_client(n=1)), another(kind)(make_client(n=1))
    with lock:
        assert not theirs.acquire(False)
    assert theirs.acquire(False)


@each_facade
def test_foreign_value_is_refused_and_stays_unchanged(lock, raw, nothing_of):
    for node in raw:
        node.rpush("redsync:x", "theirs")
    before = [node.dump("redsync:x") for node in raw]
    for refused in (lambda: lock.acquire(False), lambda: lock.acquire(timeout=60), lock.__enter__, lock.force_release):
        error, seconds = timed(refused)
        assert isinstance(error, KeyTypeError)
        assert "'x'" in str(error)
        assert seconds < PATIENCE
    assert nothing_of(lock)
    assert [node.dump("redsync:x") for node in raw] == before
    assert raw.keys() == [{b"redsync:x"}] * 5


@each_facade
def test_closed_client_has_released_it_and_says_that_it_is_closed(make_client, kind, theirs, nothing_of):
    client = make_client()
    lock = LOCKS[kind](client)
    hold = lock.__enter__()
    client.close()
    assert nothing_of(lock)
    assert (hold.remaining(), "released" in repr(hold)) == (0.0, True)
    calls = [lock.acquire, lambda: lock.acquire(False), lock.__enter__, lock.locked, lock.force_release, lock.extend]
    calls.append(client.__enter__)
    leave = partial(lock.__exit__, None, None, None)
    for call in [*calls, lock.release, hold.check, hold.release, hold.extend, leave]:
        with pytest.raises(ClientClosedError):
            call()
    assert theirs.acquire(False)
