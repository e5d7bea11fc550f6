"""Holds: what `with lock as hold` gives, to look at and to hand on, and how its holder is told of a loss."""

import time

import pytest

from redsync import (
    Hold,
    HoldLost,
    LeaseLostError,
    NotOwnedError,
)
from tests.support.locks import PATIENCE, SHORT, claims, flush, lose, timed

pytestmark = pytest.mark.usefixtures("both_flavours")

# Holds


def test_hold_tells_of_itself(client, lock):
    with lock as hold:
        assert isinstance(hold, Hold)
        assert hold.name == "x"
        client_id, _, serial = hold.owner.rpartition(":")
        assert client_id == client.id
        assert serial.isdigit()
        assert 25 < hold.remaining() <= 30 * 0.99 - 0.002
        assert hold.lost is False
        assert hold.fencing_token is None
        assert hold.check() is None
        assert "'x'" in repr(hold)


def test_released_hold_is_not_lost(lock):
    with lock as hold:
        pass
    assert hold.lost is False
    assert hold.remaining() == 0.0
    assert hold.wait_lost(5) is False
    for operation in (hold.check, hold.extend, hold.release):
        with pytest.raises(NotOwnedError) as info:
            operation()
        assert not isinstance(info.value, LeaseLostError)


def test_lost_hold_says_so(lock, raw):
    hold = lock.__enter__()
    lose(raw, lock)
    assert hold.lost is True
    assert hold.remaining() == 0.0
    assert hold.wait_lost(5) is True
    for operation in (hold.check, hold.extend, hold.release):
        with pytest.raises(LeaseLostError, match="'x'"):
            operation()


def test_lost_hold_still_says_so_when_its_release_failed(lock, raw):
    hold = lock.__enter__()
    lose(raw, lock)
    with pytest.raises(LeaseLostError):
        hold.release()
    assert hold.lost is True
    assert hold.wait_lost(5) is True
    with lock:
        assert hold.lost is True
        assert hold.remaining() == 0.0


def test_hold_extends_from_another_thread(lock, other):
    lock.acquire(lease=2)
    with lock as hold:
        other.do(hold.extend, 20)
        assert 15 < lock.remaining() <= 20


def test_hold_releases_from_another_thread(lock, other, raw, eventually):
    with lock as hold:
        other.do(hold.release)
        assert not lock.owned()
        assert lock.hold_count() == 0
        assert hold.lost is False
        assert other.do(lock.acquire, False)
        other.do(lock.release)
    eventually(lambda: raw.keys() == [set()] * 5)


def test_hold_releases_once(lock, other):
    with lock, lock as inner:
        inner.release()
        with pytest.raises(NotOwnedError):
            inner.release()
        with pytest.raises(NotOwnedError):
            other.do(inner.release)
        assert lock.hold_count() == 1


def test_hold_is_released_by_one_of_many_threads(lock, make_worker):
    with lock as hold:
        results = [make_worker().start(timed, hold.release) for _ in range(6)]
        outcomes = [result.result(20)[0] for result in results]
    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, NotOwnedError) for outcome in outcomes) == 5


def test_inner_hold_leaves_the_outer_one_valid(lock):
    with lock as outer:
        with lock as inner:
            assert inner.owner == outer.owner
        outer.check()
        assert outer.remaining() > 25
        assert lock.owned()


def test_wait_lost_returns_false_after_the_timeout(lock):
    with lock as hold:
        result, seconds = timed(hold.wait_lost, 0.2)
        assert result is False
        assert 0.2 <= seconds < PATIENCE
        assert hold.wait_lost(0) is False


def test_wait_lost_returns_true_when_lost(lock, other, raw, eventually):
    hold = lock.__enter__()
    watcher = other.start(hold.wait_lost)
    eventually(watcher.running)
    lose(raw, lock)
    assert watcher.result(20) is True


def test_wait_lost_returns_true_when_the_lease_ends(lock, other):
    lock.acquire(lease=SHORT)
    with pytest.raises(LeaseLostError), lock as hold:  # noqa: PT012  # the body of the lock
        result, seconds = timed(hold.wait_lost)
        assert result is True
        assert seconds < PATIENCE


def test_wait_lost_returns_false_when_released(lock, other, eventually):
    with lock as hold:
        watcher = other.start(hold.wait_lost, 60)
        eventually(watcher.running)
    assert watcher.result(20) is False


def test_wait_lost_returns_false_when_only_the_inner_hold_was_released(lock, other, eventually):
    with lock:
        with lock as inner:
            watcher = other.start(inner.wait_lost, 60)
            eventually(watcher.running)
        result, seconds = timed(inner.wait_lost, 60)
        assert result is False
        assert seconds < PATIENCE
        assert watcher.result(20) is False


@pytest.mark.parametrize("timeout", [-2, float("nan")])
def test_wait_lost_refuses_timeout_that_is_none(lock, timeout):
    with lock as hold, pytest.raises(ValueError, match="timeout"):
        hold.wait_lost(timeout)


# Being told of a loss


def test_on_lost_is_called_once_with_the_hold(client, raw):
    calls = []
    lock = client.get_lock("x", on_lost=calls.append)
    hold = lock.__enter__()
    lose(raw, lock)
    assert len(calls) == 1
    assert isinstance(calls[0], Hold)
    assert calls[0].name == "x"
    assert calls[0].owner == hold.owner
    with pytest.raises(LeaseLostError):
        calls[0].check()
    with pytest.raises(LeaseLostError):
        lock.acquire()
    with pytest.raises(LeaseLostError):
        hold.release()
    assert len(calls) == 1


def test_on_lost_sees_a_lost_hold(client, raw):
    seen = []
    lock = client.get_lock("x", on_lost=lambda hold: seen.append((hold.lost, hold.remaining())))
    lock.acquire()
    lose(raw, lock)
    assert seen == [(True, 0.0)]


def test_on_lost_is_called_when_the_lease_ends(client, eventually):
    lost_at = []
    lock = client.get_lock("x", on_lost=lambda hold: lost_at.append(time.monotonic()), lease=SHORT)
    started = time.monotonic()
    lock.acquire()
    ends = time.monotonic() + lock.remaining()
    eventually(lambda: lost_at)
    assert started + SHORT * 0.9 < lost_at[0] < ends + PATIENCE


def test_on_lost_is_not_called_for_acquisitions_that_were_released(client, raw):
    calls = []
    lock = client.get_lock("x", on_lost=calls.append)
    with lock:
        pass
    lock.acquire()
    with lock:
        pass
    lose(raw, lock)
    assert len(calls) == 1


def test_on_lost_is_not_called_when_all_goes_well(make_client):
    calls = []
    client = make_client()
    with client.get_lock("x", on_lost=calls.append):
        pass
    client.get_lock("x", on_lost=calls.append).acquire()
    client.close()
    assert calls == []


@pytest.mark.asyncio_in_sweeps
def test_on_lost_that_raises_breaks_nothing(make_client, raw, caplog):
    events = []

    def fail(what):
        raise KeyError(what)

    client = make_client(lease=SHORT, listeners=[fail, events.append])
    kept, lost = client.get_lock("kept"), client.get_lock("lost", on_lost=fail)
    kept.acquire()
    lost.acquire()
    for node in raw:
        node.delete("redsync:lost")
    with pytest.raises(LeaseLostError):
        lost.extend()
    until = time.monotonic() + 2 * SHORT
    while time.monotonic() < until:
        assert kept.owned()
        time.sleep(0.01)
    assert [event.name for event in events if isinstance(event, HoldLost)] == ["lost"]
    assert [record.name for record in caplog.records if record.exc_info].count("redsync") == 2
    with pytest.raises(LeaseLostError):
        lost.release()


def test_listener_gets_the_loss(make_client, raw):
    events = []
    client = make_client(listeners=[events.append])
    lock = client.get_lock("x")
    hold = lock.__enter__()
    lose(raw, lock)
    lost = [event for event in events if isinstance(event, HoldLost)]
    assert [(event.name, event.owner) for event in lost] == [("x", hold.owner)]
    assert lost[0].reason


@pytest.mark.asyncio_in_sweeps
def test_majority_that_forgets_is_told_before_the_lease_ends(make_client, raw, caplog, eventually):
    client = make_client(lease=3.0)
    lost = []
    with pytest.raises(LeaseLostError), client.get_lock("x", on_lost=lost.append) as hold:  # noqa: PT012  # its body
        ends = time.monotonic() + hold.remaining()
        eventually(lambda: raw.count("redsync:x") == 5)
        flush(raw, 3)
        assert hold.wait_lost(5)
        assert time.monotonic() < ends - 0.3
        eventually(lambda: lost)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.name for record in errors] == ["redsync.watchdog"]
    assert "'x'" in errors[0].getMessage()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_minority_that_forgets_is_healed(make_client, raw, caplog, eventually):
    client = make_client(lease=SHORT)
    with client.get_lock("x") as hold:
        flush(raw, 2)
        eventually(lambda: claims(raw) == [{hold.owner.encode(): b"1"}] * 5)
        assert not hold.lost
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.asyncio_in_sweeps
def test_hold_survives_a_rolling_restart_of_all_nodes(make_client, nodes, raw, eventually):
    client = make_client(lease=0.9)
    with client.get_lock("x") as hold:
        for i in range(5):
            nodes.restart(i)
            eventually(lambda: claims([raw[i]]) == [{hold.owner.encode(): b"1"}])  # noqa: B023  # called now
        hold.check()


@pytest.mark.parametrize("noticed", [True, False])
def test_reentry_says_that_the_lock_was_lost_and_never_wins_it_back(lock, raw, other, eventually, noticed):
    hold = lock.__enter__()
    flush(raw)
    if noticed:
        with pytest.raises(LeaseLostError):
            hold.extend()
    for arguments in ((), (False,), (True, 0.2)):
        with pytest.raises(LeaseLostError, match="'x'"):
            lock.acquire(*arguments)
    with pytest.raises(LeaseLostError), lock:
        pytest.fail("ran without the lock")
    assert hold.lost
    eventually(lambda: raw.keys() == [set()] * 5)
    assert other.do(lock.acquire, False)
    with pytest.raises(LeaseLostError):
        lock.acquire(False)
    other.do(lock.release)
    with pytest.raises(LeaseLostError):
        hold.release()
    assert lock.acquire(False)


def test_reentry_works_while_a_minority_forgot_the_claim(lock, raw):
    lock.acquire()
    flush(raw, 2)
    assert lock.acquire(False)
    assert lock.hold_count() == 2


@pytest.mark.asyncio_in_sweeps
def test_max_hold_ends_a_hold_that_is_renewed(make_client, other, eventually):
    client = make_client(lease=SHORT)
    lost = []
    lock = client.get_lock("x", max_hold=2 * SHORT, on_lost=lost.append)
    started = time.monotonic()
    lock.acquire()
    while time.monotonic() < started + 1.5 * SHORT:
        assert lock.owned()
        time.sleep(0.01)
    eventually(lambda: not lock.owned())
    assert time.monotonic() - started >= 2 * SHORT * 0.9
    assert other.do(lock.acquire, timeout=20)
    eventually(lambda: len(lost) == 1)
    with pytest.raises(LeaseLostError, match="max_hold"):
        lock.release()


def test_max_hold_bounds_what_remains(client):
    with client.get_lock("x", max_hold=2.0) as hold:
        assert 0 < hold.remaining() <= 2.0
        hold.extend(20)
        assert hold.remaining() <= 2.0
