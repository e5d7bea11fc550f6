"""Slots: permits as holds of them, the spelling of slots, limits, and keys."""

import pytest
from redis.crc import key_slot

from redsync._core.holds import Owner
from redsync._core.keys import LockKeys
from redsync._core.permits import Limit, PermitState, SlotKeys, next_version, read_slots, write_slots
from tests.support.hold_states import new_state


def new_permit(serial, *slots):
    state = new_state(owner=Owner("c", serial), kind=PermitState)
    state.grant(slots, Limit(9))
    state.count = len(slots)
    return state


def test_renewal_sends_the_keys_and_the_newest_limit_of_a_semaphore_once():
    permits = [new_permit(1, 3), new_permit(2, 5, 7)]
    newer = permits[1].limit
    newer.version = 2
    renewal = PermitState.renewal_of(permits, [1000, 2000])
    assert renewal.keys == permits[0].keys.all
    assert renewal.args == (1, permits[0].claim, b"3", 1000, 1, permits[1].claim, b"5,7", 2000, newer.text)


def test_slots_are_read_as_written():
    assert write_slots((3, 17, 0)) == b"3,17,0"
    assert read_slots(b"3,17,0") == (3, 17, 0)


@pytest.mark.parametrize("text", [b"", b",", b"1,", b"01", b"+1", b" 1", b"1,1", b"1_0", b"-1", b"x"])
def test_text_that_is_not_a_list_of_slots_is_refused(text):
    with pytest.raises(ValueError, match=r"list of slots|invalid literal"):
        read_slots(text)


def test_release_of_a_whole_permit_records_its_first_slot_for_the_next_acquire():
    permit = new_permit(1, 3, 5)
    permit.count = 1
    command = permit.count_command()
    assert command.args == (permit.claim, 1, b"3")
    assert not permit.limit.released
    permit.count = 0
    command = permit.count_command()
    assert command.args == (permit.claim, 0, b"")
    assert list(permit.limit.released) == [3]


# Limits: which is newer, and which is none.


NOW_MS = 1_700_000_000_000
YEAR_MS = 366 * 86_400_000


def test_version_of_a_resize_exceeds_all_before_even_forgotten_ones():
    first = next_version(0, 10_000, NOW_MS)
    assert next_version(first, 1, NOW_MS) > first
    assert next_version(0, 1, NOW_MS + 10) > first
    assert next_version(7 << 32, 1, NOW_MS) > 7 << 32, "as earlier releases made them"


def test_versions_of_resizes_at_the_same_time_differ_unless_they_want_the_same():
    versions = {next_version(5, permits, NOW_MS) for permits in range(1, 10_001)}
    assert len(versions) == 10_000
    assert next_version(5, 3, NOW_MS) == next_version(5, 3, NOW_MS)


def test_version_is_exact_as_a_float():
    assert next_version(0, 10_000, NOW_MS + 100 * YEAR_MS) < 2**53


def test_limit_is_read_as_written():
    limit = Limit(3, 60)
    limit.learn(7, 4)
    limit.learn(7, 5)
    limit.learn(6, 5)
    assert limit.text == b"7 4 60"
    read = Limit.read(limit.text)
    assert (read.version, read.permits, read.per_us) == (7, 4, 60)


@pytest.mark.parametrize("text", [b"", b"1", b"a b", b"1 0", b"1 10001", b"-1 3", b"9007199254740992 3", b"1 2 3 4"])
def test_text_of_absurd_size_or_shape_is_not_a_limit(text):
    with pytest.raises((TypeError, ValueError)):
        Limit.read(text)


# Keys.


@pytest.mark.parametrize(("name", "ours"), [(b"x", b"{redsync:x}"), (b"{x}", b":redsync:{x}")])
def test_keys_of_a_semaphore_extend_those_of_a_lock(name, ours):
    lock, keys = LockKeys.of(b"redsync:", name), SlotKeys.of(b"redsync:", name)
    assert (keys.lock, keys.queue, keys.places) == lock.all == keys.all[:3]
    assert keys.all[3:] == (keys.slots, keys.taken, keys.limit)
    assert keys.all[3:] == (b"redsync_slots:" + ours, b"redsync_taken:" + ours, b"redsync_limit:" + ours)
    assert len({key_slot(key) for key in keys.all}) == 1
