"""Knowledge of a latch, and the count-downs of one client."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redsync._core.latches import Arrivals, LatchState
from tests.support.injection import inject_at_calls as inject

A, B = b"client-a", b"client-b"

states = st.builds(
    lambda generation, arrivals: LatchState(generation, 3 * (generation > 0), arrivals if generation else {}),
    st.integers(0, 2),
    st.dictionaries(st.sampled_from([A, B]), st.integers(1, 3)),
)


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (LatchState(), 0),
        (LatchState(7, 3), 3),
        (LatchState(7, 3, {A: 1, B: 1}), 1),
        (LatchState(7, 3, {A: 2, B: 2}), 0),
        (LatchState(7, 0), 0),
    ],
)
def test_count_is_the_remainder(state, left):
    assert state.count == left


@given(states, states, states)
@settings(derandomize=True)
def test_states_are_joined_in_any_order_and_any_number_of_times(one, other, third):
    for states in itertools.permutations([one, other, third]):
        first, second, last = states
        assert first.join(second).join(last) == one.join(other).join(third)
    joined = one.join(other)
    assert joined.join(one) == joined
    assert joined.covers(one)
    assert one.covers(other) == (joined == one), "it adds nothing"


def test_later_generation_replaces_an_earlier_one():
    assert LatchState(8, 2).join(LatchState(7, 3, {A: 3})) == LatchState(8, 2)


@given(states)
@settings(derandomize=True)
def test_words_are_a_nodes_reply(state):
    assert LatchState.read(list(state.words())) == state


def test_node_that_does_not_vouch_says_since_when_it_remembers():
    for reply, state in ([7, 3, A, 1], LatchState(7, 3, {A: 1})), ([0, 0], LatchState()):
        assert LatchState.read(reply) == LatchState.read([*reply, 1234]) == state
        assert (bool(LatchState.read(reply)), bool(LatchState.read([*reply, 1234]))) == (True, False)


@pytest.mark.parametrize(
    "reply",
    [1, b"", [], [1], [1, 2, A], [1, 2, A, b"1"], [1, 2, 3, 4], [1.0, 2], [True, 2], None, [1, 2, A, True], [2**53, 2]],
)
def test_anything_but_a_state_is_an_error(reply):
    with pytest.raises((TypeError, ValueError)):
        LatchState.read(reply)


# One client's count-downs.


def test_calls_of_all_threads_and_what_nodes_know_already_count():
    arrivals, state = Arrivals(), LatchState(7, 9, {A: 4, B: 2})
    assert [arrivals.begin(state, A, 1), arrivals.begin(state, A, 2)] == [5, 7]


def test_call_that_failed_is_repeated_by_the_next():
    arrivals, state = Arrivals(), LatchState(7, 9)
    arrivals.begin(state, A, 2)
    arrivals.fail(7, 2)
    assert arrivals.doubt == 2
    assert arrivals.begin(state, A, 1) == 2, "part of it"
    assert arrivals.begin(state, A, 2) == 3, "the rest of it, and one more"
    assert arrivals.doubt == 0


def test_call_that_is_interrupted_before_it_counts_leaves_the_doubt_to_the_next():
    state, point, struck = LatchState(7, 9), 0, True
    while struck:
        point += 1
        arrivals = Arrivals()
        arrivals.begin(state, A, 1)
        arrivals.fail(7, 1)
        struck = inject(point, lambda arrivals=arrivals: arrivals.begin(state, A, 1))
        if struck:
            assert arrivals.begin(state, A, 1) == 1, struck
    assert point > 3


def test_new_generation_starts_over_and_late_calls_of_the_old_one_have_no_effect():
    arrivals = Arrivals()
    arrivals.begin(LatchState(7, 9), A, 3)
    assert arrivals.begin(LatchState(8, 9), A, 1) == 1
    assert arrivals.begin(LatchState(7, 9), A, 1) is None
    arrivals.fail(7, 3)
    assert arrivals.doubt == 0
