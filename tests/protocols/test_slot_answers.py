"""Replies to an acquire of slots: each known shape is read, and everything else is refused."""

import pytest

from redsync._core.permits import SlotGrant
from redsync._protocols.answers import FOREIGN
from redsync._protocols.shrinking import MOST_BYTES
from redsync._protocols.slot_answers import SlotRefusal, read_of_slots
from tests.protocols.conftest import GARBAGE


def slots(reply, wanted=2, *, start=5, tells=False):
    return read_of_slots(reply, wanted, 8, start=start, tells=tells)


def test_slots_are_granted_or_refused_for_a_reason():
    assert slots(b"3,0") == SlotGrant((3, 0))
    assert slots([b"3,0", b"\xf0"], tells=True) == SlotGrant((3, 0), b"\xf0")
    assert slots(0) is FOREIGN
    assert slots([20, b"full", 7, 3, b"", 8]) == SlotRefusal(20, b"full", 7, 3)
    assert slots([20, b"taken", 7, 3, b"\xf0", 8]) == SlotRefusal(20, b"taken", 7, 3, b"\xf0")
    told = slots([-1, b"limit", 0, 0, b"17 9", 9])
    assert (told.limit.version, told.limit.permits) == (17, 9)
    assert slots([-1, b"limit", 0, 0, b"", 9]).limit is None
    assert not told


def test_one_slot_may_be_told_by_how_far_from_the_start_it_is():
    found = [slots(reply, 1) for reply in (2, 4, 5, 9)]
    assert found == [SlotGrant((5,)), SlotGrant((7,)), SlotGrant((0,)), SlotGrant((4,))]
    ours = ({"wanted": 2}, {"start": None}, {"tells": True})
    for reply, options in ((1, {}), (10, {}), (-1, {}), (True, {}), *((2, option) for option in ours)):
        with pytest.raises(ValueError, match=r"the start|the reply"):
            slots(reply, **{"wanted": 1, **options})


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        *GARBAGE,
        1,
        b"3",
        [b"3,0"],
        [b"3", b"\xf0"],
        [b"3,0", bytes(MOST_BYTES + 1)],
        [20, b"full", 7, 3, b""],
        [20, b"taken", 7, 3, bytes(MOST_BYTES + 1), 8],
        [-1, b"limit", 0, 0, b"x", 9],
    ],
)
def test_garbage_is_not_an_answer_about_slots(reply, tells):
    with pytest.raises((ValueError, TypeError)):
        slots(reply, tells=tells)


def test_grant_has_the_taken_slots_if_requested_and_only_then():
    for reply, tells in ((b"3,0", True), ([b"3,0", b"\xf0"], False), ([b"3,9", b"\xf0"], True)):
        with pytest.raises(ValueError, match="slots"):
            slots(reply, tells=tells)
