"""Due holds: which the watchdog takes, in which order, and when it looks next."""

import math

import pytest

from redsync._core.holds import MOST, HoldTable, soon
from redsync._core.scripts import Script
from tests.support.hold_states import KIND, LEASE, new_state

PERMIT = KIND._replace(renew=Script.load("semaphore_renew"))


class Table(HoldTable):
    """A table of a client that renews one batch at a time."""

    batches = ()

    def take(self, now=110.0):
        first, *self.batches = self.due(now, now + soon(LEASE)) or self.batches or [[]]
        return first


@pytest.fixture
def table():
    return Table(lambda: None)


@pytest.fixture
def add(table):
    """Add a hold that is due at an instant, 110 by default."""

    def add(name=b"x", renew_at=110.0, **fields):
        state = new_state(name, renew_at=renew_at)
        for field, value in fields.items():
            setattr(state, field, value)
        table.add(state)
        return state

    return add


def renew(table, at=110.0):
    """Renew what is due at that instant."""
    batch = table.take(at)
    for state in batch:
        state.renew_at, state.valid_until = at + LEASE / 3, at + LEASE
    table.put(batch)
    return batch


# Renewals.


def test_holds_that_are_due_are_taken_in_the_order_in_which_they_end(table, add):
    late, early, future = add(renew_at=109.0), add(renew_at=108.0, valid_until=129.0), add(renew_at=120.0)
    assert table.take(107.0) == []
    assert table.take() == [early, late]
    assert table.take() == [], "they have been taken"
    early.renew_at = late.renew_at = 140.0
    assert table.take(120.0) == [future]


def test_renewals_due_soon_come_along_with_those_that_are_due(table, add):
    first, second, third = add(renew_at=110.0), add(renew_at=110.0 + soon(LEASE)), add(renew_at=110.1 + soon(LEASE))
    assert table.take(109.9) == []
    assert renew(table) == [first, second]
    assert table.take(115.0) == [third]


def test_holds_of_one_script_are_taken_together(table, add):
    one, permit, other = add(renew_at=108.0), add(renew_at=109.0, kind=PERMIT, valid_until=131.0), add()
    short = add(renewed=False, lease=0.1, valid_until=132.0)
    assert table.take() == [one, other]
    assert table.take() == [permit]
    assert table.take() == [short], "a short own lease does not shorten the round for the others"


def test_urgent_hold_overtakes_those_that_wait(table, add):
    """Thousands are due, and one that nodes handed over for 3 s becomes due meanwhile."""
    for i in range(3 * MOST):
        add(b"%d" % i)
    assert len(table.take()) == MOST
    urgent = add(b"urgent", renew_at=110.2, valid_until=112.0, kind=PERMIT)
    assert table.take(110.3) == [urgent]
    assert [len(table.take(110.4)) for _ in range(3)] == [MOST, MOST, MOST], "those taken were not put back"


@pytest.mark.parametrize("when", ["new", "known", "taken"])
@pytest.mark.parametrize("end", ["lost", "released", "released half-way"])
def test_hold_that_has_ended_is_not_taken(table, add, when, end):
    """One whose release was interrupted may still be in the table, and would stay due forever."""
    state, kept = add(), add()
    if when == "known":
        table.next_due()
    batch = table.take() if when == "taken" else []
    if end == "lost":
        state.lost = "a reason"
    elif end == "released":
        table.remove(state)
    else:
        state.live = False
    table.put(batch)
    assert table.take() == [kept]
    assert table.take_ended(1000.0) == [kept]
    table.remove(kept)
    assert (table.take(1e9), table.take_ended(1e9), table.next_due()) == ([], [], math.inf), "nothing is left"


# Changes.


def test_hold_that_comes_closer_is_taken_earlier_and_only_once(table, add):
    one, other = add(b"a"), add(b"b")
    table.next_due()
    other.renew_at = 101.0
    for _ in range(2):
        table.watch(other)
    assert table.next_due() == 101.0
    assert table.take(101.0) == [other]
    other.renew_at = 120.0
    table.put([other])
    assert renew(table) == [one]
    assert table.take(120.0) == [other, one]


# Ending.


def test_ended_are_the_holds_whose_validity_is_over(table, add):
    early, late, released, lost = (add(b"x", valid_until=end) for end in (105.0, 108.0, 105.0, 104.0))
    assert table.take_ended(103.9) == []
    table.remove(released)
    lost.lost = "a reason"
    assert table.take_ended(105.0) == [early]
    early.lost = "a reason"
    assert table.take_ended(107.9) == []
    assert table.take_ended(108.0) == [late]
