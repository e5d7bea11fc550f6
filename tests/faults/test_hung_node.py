"""A minority of nodes hangs: no client waits for it, and late commands there leave nothing after their release."""

import pytest

pytestmark = pytest.mark.usefixtures("all_nodes_met")

LEASE = 2.0
LONG = 120.0
"""Seconds of a lease that the tests never wait for: claims that are gone sooner were released."""
PAIRS = 200


@pytest.fixture
def client(make_client):
    return make_client(lease=LONG, node_timeout=0.25)


@pytest.fixture
def lock(client):
    lock = client.get_lock("x")
    with lock:  # everything is connected, and every script is loaded
        pass
    return lock


def states(client):
    return [node.state for node in client.nodes()]


def pairs(lock):
    for _ in range(PAIRS):
        assert lock.acquire(blocking=False)
        lock.release()


@pytest.fixture
def quiet(admin, eventually):
    """Return a function that waits until nodes execute nothing more, so that nothing arrives late any more."""

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
def test_hung_nodes_delay_no_call_and_keep_no_zombie(hung, nodes, client, lock, *, admin, eventually, promptly, quiet):
    before = [admin.calls(i) for i in range(5)]
    for i in hung:
        nodes.pause(i)
    # A call that waited for a hung node would take that node's timeout.
    promptly(lambda: pairs(lock), PAIRS * 0.25 / 5)
    suspects = ["suspect" if i in hung else "up" for i in range(5)]
    eventually(lambda: states(client) == suspects)
    assert all("owes" in client.nodes()[i].last_error for i in hung)
    # Now their votes fail at once, and they get nothing new.
    promptly(lambda: pairs(lock), PAIRS * 0.25 / 5)

    for i in hung:
        nodes.resume(i)
    eventually(lambda: states(client) == ["up"] * 5)
    quiet(hung)
    assert admin.keys() == []
    assert all(admin.calls(i) >= before[i] + 2 for i in hung)
    pairs(lock)
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
    locks = [client.get_lock(f"held {i}", lease=LONG) for i in range(20)]
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
    eventually(lambda: admin.keys() == [])
    quiet([3])
    assert admin.keys() == []


def test_hung_node_keeps_nothing_when_client_is_closed_meanwhile(nodes, make_client, admin, eventually):
    client = make_client(lease=LEASE)
    for i in range(20):
        assert client.get_lock(f"held {i}").acquire(blocking=False)
    eventually(lambda: len(admin.keys()) == 100)
    nodes.pause(1)
    client.close()
    assert admin.keys([0, 2, 3, 4]) == []
    nodes.resume(1)
    eventually(lambda: admin.keys() == [])


def test_hung_node_keeps_nothing_when_suspected_and_client_is_closed(nodes, client, admin, eventually, quiet):
    for i in range(20):
        assert client.get_lock(f"held {i}", lease=LONG).acquire(blocking=False)
    eventually(lambda: len(admin.keys()) == 100)
    nodes.pause(1)
    eventually(lambda: client.get_lock("x").locked() is False and states(client)[1] == "suspect")
    client.close()
    nodes.resume(1)
    # Its releases were on their way, so this takes no lease.
    eventually(lambda: admin.keys() == [])
    quiet([1])
    assert admin.keys() == []


def test_waiter_gets_lock_that_was_released_while_node_hangs(nodes, client, make_client):
    other = make_client(lease=LONG)
    lock = client.get_lock("x")
    assert other.get_lock("x").acquire(blocking=False)
    nodes.pause(2)
    other.get_lock("x").release()
    assert lock.acquire(timeout=LONG / 2)
    lock.release()
    nodes.resume(2)
