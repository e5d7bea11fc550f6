"""Cohorts: the holds that the watchdog looks at together, in the order in which they are due."""

import math

import pytest

from redsync._core.claims import ClaimKind
from redsync._core.cohorts import MOST, soon
from redsync._core.holds import HoldTable
from tests.support.hold_states import LEASE, new_state

MUTEX = ClaimKind.of("mutex", b"string")


@pytest.fixture
def schedule():
    return HoldTable(lambda: None)


@pytest.fixture
def add(schedule):
    """Add a hold that is due at an instant, 110 by default."""

    def add(name=b"x", renew_at=110.0, **fields):
        state = new_state(name, renew_at=renew_at)
        for field, value in fields.items():
            setattr(state, field, value)
        schedule.add(state)
        return state

    return add


def cohorts(schedule):
    """Return the holds by cohort, in the order in which they are due; the schedule does not change."""
    schedule.first()
    return [list(cohort.holds) for _, _, cohort in sorted(schedule._heap) if cohort.holds]


def renew(schedule, at):
    """Renew the first cohort as a whole, at that instant."""
    cohort = schedule.first()
    for state in cohort.holds:
        state.renew_at, state.valid_until = at + LEASE / 3, at + LEASE
    schedule.put(cohort)
    return cohort


# Joining.


def test_nothing_is_first_without_holds(schedule):
    assert schedule.first() is None


def test_holds_that_are_due_at_about_the_same_time_are_one_cohort(schedule, add):
    window = soon(LEASE)
    late, early, next_one = add(renew_at=110.0 + window), add(renew_at=110.0), add(renew_at=110.1 + window)
    assert cohorts(schedule) == [[early, late], [next_one]]
    assert (schedule.first().due, schedule.first().lease) == (110.0, LEASE)
    assert early.cohort is late.cohort is schedule.first()


@pytest.mark.parametrize(
    "fields", [{"kind": MUTEX}, {"lease": LEASE + 1}, {"renew_at": math.inf, "valid_until": 110.0}]
)
def test_holds_of_another_kind_or_lease_are_another_cohort(schedule, add, fields):
    one, other, same = add(), add(**fields), add()
    assert cohorts(schedule) == [[one, same], [other]]


def test_cohort_has_no_more_holds_than_fit_into_one_command(schedule, add):
    for i in range(2 * MOST + 1):
        add(b"%d" % i)
    assert [len(holds) for holds in cohorts(schedule)] == [MOST, MOST, 1]


def test_cohort_is_ordered_by_its_earliest_hold(schedule, add):
    add(valid_until=105.0)
    assert schedule.first().due == 105.0
    filled = add(fill_at=100.5)
    assert schedule.first().due == 100.5
    assert list(schedule.first().holds) == [filled]


def test_hold_lost_before_the_first_look_joins_no_cohort(schedule, add):
    lost, kept = add(lost="a reason"), add()
    assert cohorts(schedule) == [[kept]]
    assert lost.cohort is None


# Leaving.


def test_released_hold_leaves_its_cohort_at_once(schedule, add):
    fresh, one, other = add(), add(), add()
    schedule.remove(fresh)
    assert cohorts(schedule) == [[one, other]]
    schedule.remove(one)
    schedule.remove(one)
    assert one.cohort is None
    assert cohorts(schedule) == [[other]]
    schedule.remove(other)
    assert schedule.first() is None


def test_lost_hold_leaves_its_cohort_with_the_next_look(schedule, add):
    lost, kept = add(), add()
    schedule.first()
    assert lost.cohort is kept.cohort
    lost.lost = "a reason"
    renew(schedule, 110.0)
    assert cohorts(schedule) == [[kept]]
    assert lost.cohort is None


def test_cohort_of_lost_holds_only_is_forgotten(schedule, add):
    add()
    first = schedule.first()
    for state in first.holds:
        state.lost = "a reason"
    schedule.put(first)
    assert schedule.first() is None


def test_hold_that_ended_in_an_interrupted_step_joins_no_cohort(schedule, add):
    """Such a hold may still be among the fresh ones, and would stay due forever."""
    state = add()
    state.live = False
    assert schedule.first() is None
    assert cohorts(schedule) == []


def test_hold_left_behind_by_an_interrupted_step_counts_once(schedule, add):
    state, other = add(b"a"), add(b"b")
    first = schedule.first()
    schedule.add(state)  # As in `hasten`, interrupted before the hold leaves the former cohort.
    schedule.first()
    renew(schedule, 110.0)
    assert cohorts(schedule) == [[state], [other]]
    assert state.cohort is not first


# Looking.


def test_cohort_that_was_renewed_stays_together(schedule, add):
    add(b"a"), add(b"b", renew_at=111.0), add(b"c", renew_at=114.0)
    first = renew(schedule, 110.0)
    assert schedule.first() is not first
    assert schedule.first().due == 114.0
    assert (first.due, len(first.holds)) == (120.0, 2)


def test_put_moves_away_holds_that_are_due_much_later(schedule, add):
    """A member that was not renewed is tried again by itself, without the others."""
    states = [add(b"%d" % i) for i in range(5)]
    cohort = schedule.first()
    for state in states:
        state.renew_at = 120.0
    states[2].renew_at = 111.0
    schedule.put(cohort)
    assert cohorts(schedule) == [[states[2]], [*states[:2], *states[3:]]]
    assert [state.due for state in states] == [state.cohort.due for state in states]


def test_hold_that_is_due_earlier_is_looked_at_earlier(schedule, add):
    one, other = add(b"a"), add(b"b")
    schedule.first()
    other.fill_at = 101.0
    schedule.hasten(other)
    assert cohorts(schedule) == [[other], [one]]
    schedule.hasten(other)
    other.fill_at = math.inf
    schedule.hasten(other)
    assert cohorts(schedule) == [[other], [one]]


def test_cohort_whose_holds_are_aligned_is_put_back_without_a_look_at_each_hold(schedule, add, monkeypatch):
    state, other = add(b"a"), add(b"b", renew_at=113.0)
    cohort = schedule.first()
    assert schedule.ended(129.9) == []
    state.renew_at, state.valid_until = 120.0, 140.0
    cohort.align(120.0, 140.0)
    with monkeypatch.context() as patch:
        patch.delattr(type(state), "due")
        schedule.put(cohort)
    assert cohorts(schedule) == [[other], [state]]
    assert (cohort.due, cohort.ends_at) == (120.0, 140.0)
    renew(schedule, 113.0)
    state.fill_at = 121.0
    schedule.put(schedule.first())
    assert cohort.due == 120.0
    state.renew_at = 125.0
    schedule.put(schedule.first())
    assert cohort.due == 121.0, "alignment is for one `put` only"


def test_aligned_cohort_that_was_not_put_back_hides_no_hold(schedule, add):
    """An interruption may strike in between."""
    state, other = add(b"a"), add(b"b", renew_at=113.0)
    cohort = schedule.first()
    state.renew_at = 120.0
    cohort.align(120.0, 140.0)
    assert list(schedule.first().holds) == [other]
    renew(schedule, 113.0)
    state.renew_at = 122.0
    schedule.put(schedule.first())
    assert cohort.due == 122.0


def test_put_is_only_for_the_first_cohort(schedule, add):
    add()
    later = add(renew_at=120.0)
    schedule.first()
    with pytest.raises(AssertionError):
        schedule.put(later.cohort)


def test_failed_look_is_repeated(schedule, add):
    """A watchdog that failed has not put the cohort back."""
    add()
    first = schedule.first()
    assert schedule.first() is first


# Ending.


def test_ended_are_the_holds_whose_validity_is_over_until_they_are_lost(schedule, add):
    early, late, released = (add(b"x", valid_until=end) for end in (105.0, 108.0, 105.0))
    assert schedule.ended(104.9) == []
    schedule.remove(released)
    assert schedule.ended(105.0) == [early]
    assert schedule.ended(105.0) == [early], "a watchdog that failed has not reported it"
    early.lost = "a reason"
    assert schedule.ended(107.9) == []
    assert schedule.ended(108.0) == [late]


def test_ended_hold_is_found_wherever_it_is_and_before_all_that_is_due(schedule, add):
    renewed = [add(b"%d" % i, renew_at=100.0) for i in range(MOST)]
    unrenewed = add(renew_at=math.inf, valid_until=101.0)
    fresh_one = add(valid_until=101.5)
    assert schedule.ended(101.5) == [unrenewed, fresh_one]
    assert list(schedule.first().holds) == renewed


def test_renewed_hold_no_longer_ends_at_its_former_end(schedule, add):
    states = [add(b"%d" % i, valid_until=130.0) for i in range(3)]
    schedule.first()
    renew(schedule, 110.0)
    assert schedule.ended(130.0) == []
    assert schedule.ended(139.9) == []
    assert schedule.ended(140.0) == states


# Gathering.


def test_gather_takes_holds_that_are_due_soon_and_fit(schedule, add):
    first = add(b"a", renew_at=110.0)
    schedule.first()
    soon_due, late, later = add(b"b", renew_at=111.0), add(b"c", renew_at=113.0), add(b"d", renew_at=116.0)
    mutex = add(b"e", renew_at=111.0, kind=MUTEX)
    cohort = schedule.first()
    schedule.gather(cohort, 112.5)
    assert list(cohort.holds) == [first, soon_due]
    assert soon_due.cohort is cohort
    renew(schedule, 110.0)
    assert cohorts(schedule) == [[late], [mutex], [later], [first, soon_due]]


def test_gather_takes_from_the_earliest_as_long_as_they_fit(schedule, add):
    def fill(count, renew_at):
        states = [add(b"%d" % i, renew_at=renew_at) for i in range(count)]
        schedule.first()
        return states

    ours, much, little = fill(MOST - 10, 110.0), fill(11, 110.5), fill(10, 111.0)
    cohort = schedule.first()
    schedule.gather(cohort, 112.5)
    assert list(cohort.holds) == [*ours, *little]
    schedule.gather(cohort, 112.5)
    assert len(cohort.holds) == MOST
    assert cohorts(schedule)[1] == much


def test_gather_leaves_holds_that_are_due_for_another_reason(schedule, add):
    add(b"a", renew_at=110.0)
    schedule.first()
    bare = add(b"b", renew_at=118.0, fill_at=110.5)
    cohort = schedule.first()
    schedule.gather(cohort, 112.5)
    assert bare not in cohort.holds


# Cost.


def test_schedule_drops_empty_cohorts(schedule, add):
    """Thousands of locks, each held until the watchdog has looked, and no longer."""
    kept = [add(b"%d" % i, renew_at=500.0 + 10 * i, valid_until=math.inf) for i in range(10)]
    for i in range(1000):
        state = add(b"x", renew_at=1000.0 + 10 * i, valid_until=math.inf)
        schedule.first()
        schedule.remove(state)
    assert len(schedule._heap) <= 64
    assert cohorts(schedule) == [[state] for state in kept]


def test_wake_up_looks_only_at_due_holds(schedule, add, monkeypatch):
    """Ten thousand other holds are untouched."""
    first = add(b"a", renew_at=100.0)
    for i in range(3 * MOST):
        add(b"%d" % i, renew_at=110.0 + i)
    schedule.first()
    looked_at = []
    due = type(first).due.fget
    monkeypatch.setattr(type(first), "due", property(lambda state: looked_at.append(state) or due(state)))
    assert list(renew(schedule, 100.0).holds) == [first]
    assert set(looked_at) == {first}
