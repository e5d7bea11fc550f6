"""A minority of nodes hangs: nobody waits for it, and nothing of what reaches it late outlives its release."""

import pytest

LEASE = 2.0
PAIRS = 200


@pytest.fixture
def client(make_client):
    return make_client(lease=LEASE, node_timeout=0.25)


@pytest.fixture
def lock(client):
    lock = client.get_lock("x")
    with lock:  # everything is connected, and every script is loaded
        pass
    return lock


def states(client):
    return [node.state for node in client.nodes()]


def pairs(lock, watch, n=PAIRS):
    """Return the seconds that each acquire with its release took, sorted."""
    taken = []
    for _ in range(n):
        elapsed = watch()
        assert lock.acquire(blocking=False)
        lock.release()
        taken.append(elapsed())
    return sorted(taken)


@pytest.fixture
def quiet(admin, eventually):
    """Return a function that waits until nodes execute nothing more, so that nothing comes late any more."""

    def quiet(indices):
        before = {}

        def nothing_new():
            calls = [admin.calls(i) for i in indices]
            same = before.get("calls") == calls
            before["calls"] = calls
            return same

        eventually(nothing_new)

    return quiet


@pytest.mark.parametrize("hung", [[2], [0, 4]], ids=["one", "two"])
def test_hung_nodes_delay_nobody_and_keep_no_zombie(hung, nodes, client, lock, *, admin, eventually, watch, quiet):
    for i in hung:
        nodes.pause(i)
    elapsed = watch()
    taken = pairs(lock, watch)
    assert taken[PAIRS * 9 // 10] < 0.02
    assert elapsed() < 3.0
    suspects = ["suspect" if i in hung else "up" for i in range(5)]
    eventually(lambda: states(client) == suspects, within=1.0)
    assert all("owes" in client.nodes()[i].last_error for i in hung)
    # Now their votes fail at once, and they get nothing new.
    taken = pairs(lock, watch)
    assert taken[PAIRS * 9 // 10] < 0.02

    for i in hung:
        nodes.resume(i)
    eventually(lambda: states(client) == ["up"] * 5, within=1.0)
    quiet(hung)
    assert admin.keys() == []
    assert all(admin.calls(i) >= 2 for i in hung)
    pairs(lock, watch)
    quiet(range(5))
    assert admin.keys() == []


def test_hung_node_executes_each_late_acquire_before_its_release(nodes, client, lock, admin, eventually):
    before = admin.calls(1)
    nodes.pause(1)
    for _ in range(5):
        assert lock.acquire(blocking=False)
        lock.release()
    nodes.resume(1)
    eventually(lambda: admin.calls(1) == before + 10)
    assert admin.keys() == []


def test_hung_node_gets_releases_of_locks_that_it_still_keeps(nodes, client, admin, eventually, quiet):
    locks = [client.get_lock(f"held {i}", lease=60.0) for i in range(20)]
    for lock in locks:
        assert lock.acquire(blocking=False)
    eventually(lambda: len(admin.keys()) == 100)
    nodes.pause(3)
    for lock in locks[:10]:
        lock.release()
    eventually(lambda: states(client)[3] == "suspect")
    for lock in locks[10:]:
        lock.release()
    nodes.resume(3)
    # Long before the lease would end them.
    eventually(lambda: admin.keys() == [], within=2.0)
    quiet([3])
    assert admin.keys() == []


def test_hung_node_does_not_keep_hold_from_being_renewed(nodes, client, admin, eventually, watch):
    lock = client.get_lock("kept")
    with lock as hold:
        nodes.pause(0)
        nodes.pause(4)
        elapsed = watch()
        while elapsed() < 1.1 * LEASE:
            assert hold.remaining() > 0.3 * LEASE
            assert not hold.wait_lost(0.05)
        nodes.resume(0)
        nodes.resume(4)
        # What they forgot meanwhile, the next renewals tell them.
        eventually(lambda: all(admin.time_left(i, "kept") > 0 for i in range(5)), within=LEASE)
        hold.check()
    eventually(lambda: admin.keys() == [], within=1.0)


def test_hung_node_keeps_nothing_when_client_is_closed_meanwhile(nodes, client, admin, eventually, watch):
    for i in range(20):
        assert client.get_lock(f"held {i}").acquire(blocking=False)
    eventually(lambda: len(admin.keys()) == 100)
    nodes.pause(1)
    elapsed = watch()
    client.close()
    assert elapsed() < 2.0
    assert admin.keys([0, 2, 3, 4]) == []
    nodes.resume(1)
    eventually(lambda: admin.keys() == [], within=LEASE + 0.5)


def test_hung_node_keeps_nothing_when_suspected_and_client_is_closed(nodes, client, admin, eventually, quiet):
    for i in range(20):
        assert client.get_lock(f"held {i}", lease=60.0).acquire(blocking=False)
    eventually(lambda: len(admin.keys()) == 100)
    nodes.pause(1)
    eventually(lambda: client.get_lock("x").locked() is False and states(client)[1] == "suspect")
    client.close()
    nodes.resume(1)
    # Its releases were on their way, so this takes no lease.
    eventually(lambda: admin.keys() == [], within=2.0)
    quiet([1])
    assert admin.keys() == []


def test_waiter_gets_lock_that_was_released_while_node_hangs(nodes, client, make_client, watch):
    other = make_client(lease=LEASE)
    lock = client.get_lock("x")
    assert other.get_lock("x").acquire(blocking=False)
    nodes.pause(2)
    other.get_lock("x").release()
    elapsed = watch()
    assert lock.acquire(timeout=5.0)
    assert elapsed() < 1.0
    lock.release()
    nodes.resume(2)
