"""The keys under which nodes keep slots."""

import pytest
from redis.crc import key_slot

from redsync._core.keys import LockKeys
from redsync._core.slots import SlotKeys


@pytest.mark.parametrize(("name", "ours"), [(b"x", b"{redsync:x}"), (b"{x}", b":redsync:{x}")])
def test_keys_of_a_semaphore_extend_those_of_a_lock(name, ours):
    lock, keys = LockKeys.of(b"redsync:", name), SlotKeys.of(b"redsync:", name)
    assert (keys.lock, keys.queue, keys.places) == lock.all == keys.all[:3]
    assert keys.all[3:] == (keys.slots, keys.taken, keys.limit)
    assert keys.all[3:] == (b"redsync_slots:" + ours, b"redsync_taken:" + ours, b"redsync_limit:" + ours)
    assert keys.held == (keys.lock, keys.slots, keys.taken, keys.queue, keys.places, keys.limit)
    assert len({key_slot(key) for key in keys.all}) == 1
