"""The table of holds: which are believed, until when, and when the watchdog has to look."""

import itertools
import math
import pickle
import threading
import weakref

import pytest

from redsync._core.holds import HoldTable, Owner
from redsync._core.keys import wake_channel
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


def test_lengthen_moves_forward_only():
    state = new_state(valid_until=130.0)
    state.lengthen(129.0)
    assert state.valid_until == 130.0
    state.lengthen(140.0)
    assert state.valid_until == 140.0


def test_max_hold_caps_validity_on_lengthening():
    state = new_state(valid_until=110.0, ends_at=120.0)
    state.lengthen(500.0)
    assert state.valid_until == 120.0


def test_hold_with_its_own_lease_is_not_renewed():
    assert not new_state(renew_at=math.inf).renewed
    assert new_state(renew_at=110.0).renewed


def test_note_sent_adds_nodes_and_never_shortens():
    state = new_state(valid_until=130.0)
    assert (state.may_keep, state.kept_until) == (0b111, 130.0)
    state.note_sent(0b1001, 125.0)
    assert (state.may_keep, state.kept_until) == (0b1111, 130.0)
    state.note_sent(0, 140.0)
    assert (state.may_keep, state.kept_until) == (0b1111, 140.0)


def test_end_keys_of_different_holds_differ():
    states = [new_state(name, owner) for name in (b"x", b"y") for owner in (Owner("c", 1), Owner("c", 2))]
    assert len({state.end_key for state in states}) == 4


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


# Owners that have ended.


@pytest.mark.parametrize("lost", [None, "reason"])
def test_orphan_is_recorded_and_wakes_the_watchdog_if_it_holds_anything(table, alarm, lost):
    """Even a lost hold: nothing else would ever remove it from the table."""
    state = new_state()
    table.add(state)
    state.lost = lost
    rung = alarm.rung
    table.orphan(state.owner)
    assert list(table.orphans) == [state.owner]
    assert alarm.rung == rung + 1


def test_ended_owner_is_gone_even_without_holds(table):
    owner = new_state().owner
    assert not owner.is_gone
    table.orphan(owner)
    assert owner.is_gone


def test_with_is_open_while_its_context_manager_lives():
    state, managers = new_state(), [HoldTable(lambda: None) for _ in range(2)]
    for manager in managers:
        state.entered[object()] = weakref.ref(manager)
    assert state.open_withs == 2
    del managers[0], manager
    assert state.open_withs == 1


def test_orphan_without_holds_sets_off_no_alarm(table, alarm):
    """Most threads end so, and the client may be long gone."""
    table.add(new_state())
    released = new_state(b"y")
    table.add(released)
    table.remove(released)
    rung = alarm.rung
    table.orphan(released.owner)
    assert not table.orphans
    assert alarm.rung == rung


def test_orphan_is_recorded_while_other_threads_change_the_table(table):
    """A finalizer runs in any thread at any point. A dict that changes during iteration would raise."""
    owner, done = Owner("c", 1), threading.Event()
    table.add(new_state(owner=owner))

    def change():
        for i in itertools.count():
            state = new_state(b"%d" % i, owner)
            table.add(state)
            table.remove(state)
            if done.is_set():
                return

    threads = [threading.Thread(target=change) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(500):
            table.orphan(owner)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert len(table.orphans) == 500


# When the watchdog looks.


def look(table, now):
    """Look at all holds that are due, as the watchdog does; return when it must look next."""
    batch = table.take_due(now, now)
    for state in batch:
        state.renew_at = now + 10.0
    table.put(batch)
    assert table.take_ended(now) == []
    return table.next_due()


def test_next_due_is_the_earliest_of_all_holds_that_are_not_lost(table):
    assert table.next_due() == math.inf
    late, early, lost = new_state(b"a", renew_at=115.0), new_state(b"b", renew_at=110.0), new_state(b"c", renew_at=1.0)
    for state in (late, early, lost):
        table.add(state)
    lost.lost = "reason"
    assert look(table, 100.0) == 110.0
    table.remove(early)
    assert look(table, 110.0) == 115.0


def test_watchdog_no_longer_looks_at_a_lost_hold(table):
    state = new_state(renew_at=110.0, valid_until=130.0)
    table.add(state)
    assert table.next_due() == 110.0
    state.lost = "reason"
    look(table, 110.0)
    assert look(table, 130.0) == math.inf
    assert list(table) == [state], "its owner does not know yet"


def test_add_rings_the_alarm_only_if_it_is_due_before_the_watchdog_looks(table, alarm):
    table.add(new_state(b"a", renew_at=110.0))
    assert alarm.rung == 1
    table.add(new_state(b"b", renew_at=110.0))
    table.add(new_state(b"c", renew_at=111.0))
    assert alarm.rung == 1
    table.add(new_state(b"d", renew_at=109.0))
    assert alarm.rung == 2
    assert table.watched_until == 109.0


def test_add_rings_the_alarm_for_the_end_of_an_unrenewed_hold(table, alarm):
    table.watched_until = 120.0
    table.add(new_state(renew_at=math.inf, valid_until=119.0))
    assert alarm.rung == 1
    assert table.watched_until == 119.0


def test_lock_acquired_again_and_again_rings_once_per_period(table, alarm):
    for i in range(100):
        state = new_state(renew_at=110.0 + i / 1000)
        table.add(state)
        table.remove(state)
    assert alarm.rung == 1
    assert table.watch_next(100.5) == 110.0
    look(table, 110.0)
    assert table.watch_next(110.0) == 130.0, "the end of the last one, which is gone"
    table.add(new_state(renew_at=121.0))
    assert alarm.rung == 2


def test_watch_next_never_sleeps_through_a_hold_added_while_it_worked(table, alarm):
    renewed = new_state(b"a", renew_at=110.0)
    table.add(renewed)
    table.watch_next(100.0)
    now = 110.0  # The watchdog wakes and renews a. Meanwhile b comes, due before a is again.
    batch = table.take_due(now, now)
    table.add(new_state(b"b", renew_at=112.0))
    renewed.renew_at = 120.0
    table.put(batch)
    assert table.watch_next(now) == 112.0


def test_watch_rings_after_a_due_has_come_closer(table, alarm):
    state = new_state(renew_at=110.0)
    table.add(state)
    table.watch_next(100.0)
    rung = alarm.rung
    state.renew_at = 105.0
    table.watch(state)
    assert alarm.rung == rung + 1
    assert table.watch_next(100.0) == 105.0


# Owners.


def test_owner_is_written_as_redisson_does():
    owner = Owner("285475da-9152-4c83-822a-67ee2f116a79", 52)
    assert owner.wire == b"285475da-9152-4c83-822a-67ee2f116a79:52"
    assert str(owner) == "285475da-9152-4c83-822a-67ee2f116a79:52"
    assert (owner.client_id, owner.serial) == ("285475da-9152-4c83-822a-67ee2f116a79", 52)


def test_owner_is_woken_over_its_clients_channel():
    assert Owner("c", 7).channel == wake_channel("c")


def test_owners_are_compared_by_identity():
    one, other = Owner("c", 1), Owner("c", 1)
    assert one == one  # noqa: PLR0124 - the point of the test
    assert one != other
    assert len({one, other}) == 2
    assert {one: "found"}.get(other) is None


def test_wire_forms_of_different_owners_differ():
    owners = [Owner(client, serial) for client in ("a", "a:1", "b") for serial in (1, 11, 111)]
    assert len({owner.wire for owner in owners}) == len(owners)


def test_pickled_owner_has_its_identity():
    assert str(pickle.loads(pickle.dumps(Owner("c", 1)))) == "c:1"
