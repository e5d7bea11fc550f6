"""The table of holds: which are believed, until when, and when the watchdog has to look."""

import math
import weakref

import pytest

from redsync._core.holds import HoldTable, Owner
from redsync._core.observing import HoldLost
from tests.support.hold_states import new_state


class Alarm:
    rung = 0

    def __call__(self):
        self.rung += 1


@pytest.fixture
def alarm():
    return Alarm()


@pytest.fixture
def table(alarm):
    return HoldTable(alarm)


# One hold.


@pytest.mark.parametrize(
    ("changes", "at", "valid", "ended"),
    [
        ({}, 129.999, True, False),
        ({}, 130.0, False, True),
        ({}, math.inf, False, True),
        ({"lost": "reason"}, 100.0, False, True),
        ({"live": False}, 100.0, False, False),
        pytest.param({"live": False}, 130.0, False, False, id="released in time"),
        ({"live": False, "lost": "reason"}, 100.0, False, True),
    ],
)
def test_hold_is_valid_until_its_end_its_loss_or_its_release_and_has_ended_by_the_first_two(changes, at, valid, ended):
    state = new_state(valid_until=130.0)
    for name, value in changes.items():
        setattr(state, name, value)
    assert (state.valid(at), state.ended(at)) == (valid, ended)


def test_event_of_a_loss_is_short_in_a_log():
    state = new_state()
    state.on_lost.append(print)
    told = repr(HoldLost("x", "client:1", "its lease ended", state))
    assert len(told) < 160
    assert "print" not in told


# The table.


def test_table_separates_holds_of_several_owners(table):
    ours, theirs = new_state(), new_state(owner=Owner("c", 2))
    table.add(ours)
    table.add(theirs)
    assert list(table) == [ours, theirs]
    assert (ours.owner.holds, theirs.owner.holds) == ({ours.keys.lock: ours}, {theirs.keys.lock: theirs})
    for _ in range(2):
        table.remove(ours)
        assert (ours.owner.holds, theirs.owner.holds) == ({}, {theirs.keys.lock: theirs})
        assert list(table) == [theirs]
        assert len(table) == 1
    assert (ours.live, theirs.live) == (False, True)


def test_table_may_change_while_it_is_iterated(table):
    for name in (b"a", b"b", b"c"):
        table.add(new_state(name))
    for state in table:
        table.remove(state)
        table.add(new_state(state.name + b"2"))
    assert sorted(state.name for state in table) == [b"a2", b"b2", b"c2"]


def test_clear_leaves_no_hold_believed(table):
    states = [new_state(name) for name in (b"a", b"b")]
    for state in states:
        table.add(state)
    table.clear()
    assert len(table) == 0
    assert not any(state.valid(0.0) or state.live for state in states)
    assert all(state.lost for state in states)


def test_with_is_open_while_its_context_manager_lives():
    state, managers = new_state(), [HoldTable(lambda: None) for _ in range(2)]
    for manager in managers:
        state.entered[object()] = weakref.ref(manager)
    assert state.open_withs == 2
    del managers[0], manager
    assert state.open_withs == 1


# When the watchdog looks.


def test_alarm_rings_if_a_hold_is_due_before_the_watchdog_looks(table, alarm):
    def rings_for(**times):
        rung = alarm.rung
        table.add(new_state(**times))
        return alarm.rung - rung

    assert rings_for(renew_at=115.0) == 1
    assert [rings_for(renew_at=115.0), rings_for(renew_at=116.0), rings_for(renew_at=114.0)] == [0, 0, 1]
    assert rings_for(renew_at=math.inf, valid_until=113.0) == 1, "its end counts too"
    assert table.next_due() == 113.0


def test_lock_acquired_again_and_again_rings_once_per_period(table, alarm):
    for i in range(100):
        state = new_state(renew_at=110.0 + i / 1000)
        table.add(state)
        table.remove(state)
    assert alarm.rung == 1
    assert table.next_due() == 110.0
    assert (table.due(110.0, 110.0), table.take_ended(110.0)) == ([], [])
    assert table.next_due() == 130.0, "the end of the last one, which is gone"
    table.add(new_state(renew_at=121.0))
    assert alarm.rung == 2


def test_watchdog_never_sleeps_through_a_hold_that_came_while_it_worked(table):
    renewed = new_state(b"a", renew_at=110.0)
    table.add(renewed)
    (batch,) = table.due(110.0, 110.0)
    table.add(new_state(b"b", renew_at=112.0))
    renewed.renew_at = 120.0
    table.put(batch)
    assert table.next_due() == 112.0


# Owners.


@pytest.mark.parametrize("lost", [None, "reason"])
def test_ended_owner_wakes_the_watchdog_if_it_holds_anything(table, alarm, lost):
    """Even a lost hold: nothing else would ever remove it from the table."""
    state = new_state()
    table.add(state)
    state.lost = lost
    rung = alarm.rung
    table.orphan(state.owner)
    assert list(table.orphans) == [state.owner]
    assert alarm.rung == rung + 1


def test_ended_owner_without_holds_sets_off_no_alarm(table, alarm):
    """Most threads end so, and the client may be long gone."""
    released = new_state()
    table.add(released)
    table.remove(released)
    rung = alarm.rung
    table.orphan(released.owner)
    assert released.owner.is_gone
    assert not table.orphans
    assert alarm.rung == rung


def test_owner_is_written_as_redisson_does():
    owner = Owner("285475da-9152-4c83-822a-67ee2f116a79", 52)
    assert owner.wire.decode() == str(owner) == "285475da-9152-4c83-822a-67ee2f116a79:52"
