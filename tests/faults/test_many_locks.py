"""One client holds a thousand locks: few commands renew them all, on one thread, and none is lost."""

import threading
import time

from tests.support.locks import PATIENCE, calls

LOCKS = 1000
LEASE = 4.0
PERIODS = 2
KEYS = LOCKS + 2  # and the records of the client and of the node's birth


def test_watchdog_keeps_many_locks_with_few_commands(make_client, raw, nothing_left, eventually):
    lost = []
    client = make_client(lease=LEASE, listeners=[lost.append])
    locks = [client.get_lock(str(i)) for i in range(LOCKS)]
    for lock in locks:
        assert lock.acquire(timeout=PATIENCE)  # a busy machine may lose a round: nodes have 75 ms to answer
    eventually(lambda: all(node.dbsize() == KEYS for node in raw))
    before = [calls(node) for node in raw]
    ends_at = time.monotonic() + PERIODS * LEASE / 3
    while time.monotonic() < ends_at:
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("redsync")]
        # On a busy machine a node may be late, which is reported.
        assert [name for name in ours if name != "redsync-events"] == ["redsync-maintenance"]
        assert all(node.dbsize() == KEYS for node in raw)
        time.sleep(0.05)
    counts = [calls(node) - earlier for node, earlier in zip(raw, before, strict=True)]
    print(f"renewal commands by node in {PERIODS} periods: {counts}")
    # 5 batches of 200 make 1,000; locks that were acquired at different times fill more of them.
    assert all(3 <= count / PERIODS <= 20 for count in counts)
    assert all(lock.owned() for lock in locks)
    for lock in locks:
        lock.release()
    assert [event for event in lost if type(event).__name__ == "HoldLost"] == []
    nothing_left()
