"""Shrinking: which slots below the limit are reserved for those beyond it, whatever nodes report; and bit maps."""

import random

import pytest

from redsync._protocols.shrinking import MOST_BYTES, bits_of, first_in, read_bits, reserved


def reserved_for(slots, permits):
    return set(first_in(reserved(bits_of(slots), permits), 0, permits))


def test_bit_map_begins_with_slot_0():
    assert read_bits(b"") == 0
    assert read_bits(bytes([0b1000_0001, 0b0100_0000])) == bits_of([0, 7, 9])
    assert read_bits(bytes(MOST_BYTES)) == 0


def test_bit_map_of_absurd_size_is_refused():
    with pytest.raises(ValueError, match="no semaphore has that many slots"):
        read_bits(bytes(MOST_BYTES + 1))


def test_slot_of_absurd_size_takes_no_memory():
    assert bits_of([3, 1 << 60]) == 1 << 3


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


def test_nothing_is_left_to_reserve_if_all_slots_below_the_limit_are_taken():
    assert reserved_for({0, 1, 2, 3, 9}, 3) == set()


@pytest.mark.parametrize("permits", [1, 3, 8, 9])
def test_more_taken_slots_leave_fewer_to_win(permits):
    """The basis of the proof: one more slot fills one more place, and frees none."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)

    def filled(slots):
        return {slot for slot in slots if slot < permits} | reserved_for(slots, permits)

    for _ in range(300):
        slots = set(rng.sample(range(20), rng.randint(0, 12)))
        before, after = filled(slots), filled(slots | {rng.randrange(20)})
        assert before <= after
        assert len(before) == min(len(slots), permits)
