"""A majority of nodes goes away: a holder learns its loss in time, and all recovers automatically.

`tests/kinds` and `test_bounded_waiting` have the errors that callers get meanwhile.
"""

import pytest

from redsync import LeaseLostError
from redsync._drivers.environment import clock


@pytest.mark.usefixtures("all_nodes_met")
def test_hold_is_lost_loudly_when_majority_is_away(make_client, nodes, eventually):
    told = []
    lock = make_client(lease=1.5).get_lock("x", on_lost=lambda hold: told.append(hold.lost))
    hold = lock.__enter__()
    hold_state = lock._state()
    nodes.kill(0)
    nodes.pause(1)
    nodes.kill(2)

    def is_lost():
        valid_until, now = hold_state.valid_until, clock()
        if not lock.owned():
            return True
        # A renewal that was under way may have extended it once more.
        assert now <= max(valid_until, hold_state.valid_until), "it is owned for longer than it is valid"
        return False

    eventually(is_lost)
    assert hold.wait_lost(0)
    assert lock.hold_count() == 0
    assert lock.remaining() == 0.0
    with pytest.raises(LeaseLostError):
        lock.acquire(blocking=False)
    eventually(lambda: told)
    with pytest.raises(LeaseLostError, match="lost"):
        lock.release()
    assert told == [True]
    # It is not won back, and nothing prevents acquiring the lock again.
    nodes.restart(0)
    nodes.resume(1)
    nodes.restart(2)
    assert lock.acquire(timeout=60.0)
    lock.release()
