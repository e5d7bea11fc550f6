"""Shrinking: which slots below the limit are reserved for those beyond it, whatever nodes report."""

import random

import pytest

from redsync._protocols.shrinking import bits_of, first_in, reserved


def reserved_for(slots, permits):
    return set(first_in(reserved(bits_of(slots), permits), 0, permits))


def test_first_slots_are_found_cyclically():
    slots = bits_of([0, 3, 7, 9])
    assert first_in(slots, 3, 2) == [3, 7]
    assert first_in(slots, 8, 9) == [9, 0, 3, 7]
    assert first_in(slots, 10, 1) == [0]
    assert first_in(slots, 3, 0) == first_in(0, 3, 2) == []


def test_one_free_slot_is_reserved_for_each_beyond_the_limit_from_the_top():
    assert reserved_for({7, 8}, 3) == {1, 2}
    assert reserved_for({7, 2, 8}, 3) == {0, 1}
    assert reserved_for({0, 1, 2}, 3) == reserved_for({0, 1}, 9) == reserved_for((), 3) == set()


@pytest.mark.parametrize("permits", [1, 3, 8, 9])
def test_more_taken_slots_leave_fewer_to_win(permits, seed):
    """The basis of the proof: one more slot fills one more place, and frees none."""
    rng = random.Random(seed)

    def filled(slots):
        return {slot for slot in slots if slot < permits} | reserved_for(slots, permits)

    for _ in range(300):
        slots = set(rng.sample(range(20), rng.randint(0, 12)))
        before, after = filled(slots), filled(slots | {rng.randrange(20)})
        assert before <= after
        assert len(before) == min(len(slots), permits)
