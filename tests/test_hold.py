"""Holds from `with lock as hold`: to inspect, to pass on, and reports of a loss."""

import time

import pytest

from redsync import HoldLost, LeaseLostError
from tests.support.locks import PATIENCE, SHORT, claims, flush, lose, timed

pytestmark = pytest.mark.usefixtures("both_flavours")

# Holds


def test_lost_hold_still_reports_it_after_a_failed_release(lock, raw):
    hold = lock.__enter__()
    lose(raw, lock)
    with pytest.raises(LeaseLostError):
        hold.release()
    assert hold.lost is True
    assert hold.wait_lost(5) is True
    with lock:
        assert hold.lost is True
        assert hold.remaining() == 0.0


def test_inner_hold_leaves_the_outer_one_valid(lock):
    with lock as outer:
        with lock as inner:
            assert inner.owner == outer.owner
        outer.check()
        assert outer.remaining() > 25
        assert lock.owned()


def test_wait_lost_returns_false_when_only_the_inner_hold_was_released(lock, other, eventually):
    with lock:
        with lock as inner:
            watcher = other.start(inner.wait_lost, 60)
            eventually(watcher.running)
        result, seconds = timed(inner.wait_lost, 60)
        assert result is False
        assert seconds < PATIENCE
        assert watcher.result(20) is False


# Reports of a loss


def test_on_lost_is_not_called_for_released_acquisitions(client, raw):
    calls = []
    lock = client.get_lock("x", on_lost=calls.append)
    with lock:
        pass
    lock.acquire()
    with lock:
        pass
    lose(raw, lock)
    assert len(calls) == 1


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


def test_forgetful_majority_is_reported_before_the_lease_ends(make_client, raw, caplog, eventually):
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


def test_hold_survives_a_rolling_restart_of_all_nodes(make_client, nodes, raw, eventually):
    client = make_client(lease=0.9)
    with client.get_lock("x") as hold:
        for i in range(5):
            nodes.restart(i)
            eventually(lambda: claims([raw[i]]) == [{hold.owner.encode(): b"1"}])  # noqa: B023  # called now
        hold.check()


@pytest.mark.parametrize("noticed", [True, False])
def test_reentry_raises_after_a_loss_and_never_wins_the_lock_back(lock, raw, other, eventually, noticed):
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
