"""Crowds: only the first waiters ask; the others follow in order, one for each that leaves."""

import pytest

from redsync._core.crowds import _MOST_EXPECTED, FRONT, Crowds

X, Y = b"redsync:x", b"redsync:y"


def names(*numbers):
    return [b"%d" % number for number in numbers]


@pytest.fixture
def crowds():
    return Crowds()


@pytest.fixture
def full(crowds):
    """A crowd whose front is full, with three behind."""
    for waiter in names(*range(FRONT + 3)):
        crowds.enter(X, waiter)
    return crowds


def test_the_first_are_in_front_and_the_others_behind(crowds):
    entered = [crowds.enter(X, waiter) for waiter in names(*range(FRONT + 3))]
    assert entered == [True] * FRONT + [False] * 3
    assert crowds.is_in_front(X, b"0")
    assert not crowds.is_in_front(X, b"%d" % FRONT)


def test_each_that_leaves_the_front_lets_the_next_in(full):
    followers = [full.leave(X, waiter) for waiter in names(5, 0, 7, 3)]
    assert followers == [*names(FRONT, FRONT + 1, FRONT + 2), None]
    assert all(full.is_in_front(X, follower) for follower in followers[:3])


def test_waiter_that_leaves_from_behind_lets_no_other_in(full):
    assert full.leave(X, b"%d" % (FRONT + 1)) is None
    assert [full.leave(X, waiter) for waiter in names(0, 1, 2)] == [*names(FRONT, FRONT + 2), None]


def test_newcomer_is_behind_earlier_waiters(full):
    full.leave(X, b"0")
    assert not full.enter(X, b"new")
    assert [full.leave(X, waiter) for waiter in names(1, 2, 3)] == [*names(FRONT + 1, FRONT + 2), b"new"]


def test_crowds_of_different_locks_are_independent(full):
    assert full.enter(Y, b"0")
    assert full.leave(Y, b"0") is None


def test_leaving_twice_or_without_having_entered_does_nothing(full):
    assert full.leave(X, b"0") == b"%d" % FRONT
    assert full.leave(X, b"0") is None
    assert full.leave(Y, b"never") is None


def test_entering_twice_counts_once(crowds):
    for waiter in [b"a"] * 2 + names(*range(FRONT)):
        crowds.enter(X, waiter)
    assert crowds.leave(X, b"a") == b"%d" % (FRONT - 1)
    assert crowds.leave(X, b"0") is None


def test_one_in_front_stays_there_if_it_enters_again(full):
    assert full.enter(X, b"0")
    assert full.leave(X, b"0") == b"%d" % FRONT
    assert not full.is_in_front(X, b"0")


def test_empty_crowd_leaves_nothing_behind(full):
    full.note(X, 5.0)
    for waiter in names(*range(FRONT + 3)):
        full.leave(X, waiter)
    assert (full._front, full._behind, full.mute) == ({}, {}, {})
    full.note(X, 6.0)
    assert full.mute == {}


def test_waiters_behind_know_whether_the_front_finds_a_quorum(full):
    full.note(X, 5.0)
    full.note(X, 6.0)
    assert full.mute == {X: 6.0}
    full.note(X, None)
    assert X not in full.mute


def test_waiter_half_let_in_by_an_interrupted_leave_is_in_front_and_leaves_as_usual(full):
    full._front[X].discard(b"0")
    full._front[X].add(b"%d" % FRONT)
    assert full.is_in_front(X, b"%d" % FRONT)
    assert full.leave(X, b"%d" % FRONT) == b"%d" % (FRONT + 1)


def test_others_are_expected_at_a_lock_until_an_acquire_meets_none(crowds):
    crowds.expect(X, others=True)
    crowds.expect(Y, others=False)
    assert list(crowds.expected) == [X]
    crowds.expect(X, others=False)
    assert not crowds.expected


def test_lock_expected_longest_ago_is_forgotten_first(crowds):
    locks = names(*range(_MOST_EXPECTED))
    for lock in (*locks, locks[0], X):
        crowds.expect(lock, others=True)
    assert list(crowds.expected) == [*locks[2:], locks[0], X]
