"""Shrinking: which slots below the limit are reserved for those beyond it, whatever nodes report."""

import random

import pytest

from redsync._protocols.shrinking import Taken


def bits(slots):
    text = bytearray(-(-(max(slots, default=-1) + 1) // 8))
    for slot in slots:
        text[slot // 8] |= 1 << (7 - slot % 8)
    return bytes(text)


def taken(*nodes, own=()):
    return Taken([(bits(slots), ()) for slots in nodes], own)


def test_bit_maps_of_different_lengths_are_joined():
    told = taken({0}, {9}, set())
    assert [slot for slot in range(30) if slot in told] == [0, 9]


def test_own_slots_are_left_out_each_on_the_node_that_granted_them():
    told = Taken([(bits({1, 5}), (1,)), (bits({2, 5}), (2,)), (bits({1}), (40,))])
    assert [slot for slot in range(8) if slot in told] == [1, 5], "1 belongs to another permit on the third"


def test_slots_that_a_quorum_granted_belong_to_no_other_permit():
    assert 1 not in taken({1, 5}, own={1})


def test_one_free_slot_is_reserved_for_each_beyond_the_limit_from_the_top():
    assert taken({7}, {8}).reserved(3) == {1, 2}
    assert taken({7, 2}, {8}).reserved(3) == {0, 1}
    assert taken({7, 2}, {8, 9}, {1}).reserved(3) == {0}
    assert taken({0, 1, 2}).reserved(3) == frozenset()
    assert taken({0, 1}).reserved(9) == frozenset()
    assert taken().reserved(3) == frozenset()


def test_slots_beyond_the_limit_are_counted_even_if_all_below_are_taken():
    told = taken({0, 1, 2, 3}, {9})
    assert told.beyond(3) == 2
    assert told.reserved(3) == frozenset()


@pytest.mark.parametrize("permits", [1, 3, 8, 9])
def test_more_taken_slots_leave_fewer_to_win(permits):
    """The basis of the proof: one more slot fills one more place, and frees none."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)

    def filled(slots):
        return {slot for slot in slots if slot < permits} | taken(slots).reserved(permits)

    for _ in range(300):
        slots = set(rng.sample(range(20), rng.randint(0, 12)))
        before, after = filled(slots), filled(slots | {rng.randrange(20)})
        assert before <= after
        assert len(before) == min(len(slots), permits)
