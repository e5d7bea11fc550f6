"""A majority of nodes is away: callers and holders are told in time and by name, and all heals by itself."""

import math
import threading
import time

import pytest

from redsync import LeaseLostError, QuorumError
from redsync._core.quorum import Choice

LEASE = 1.5
LONG = 120.0
"""Seconds of a lease that nobody waits for: what is gone long before was given back."""


def clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture
def client(make_client, all_nodes_met):
    client = make_client(lease=LEASE)
    with client.get_lock("x"):  # everything is connected
        pass
    return client


@pytest.fixture(params=["kill", "pause"])
def take_away(request, nodes):
    """Return a function that kills, or stops, nodes."""

    def take_away(*indices):
        for i in indices:
            getattr(nodes, request.param)(i)

    return take_away


def bring_back(nodes, *indices):
    for i in indices:
        if nodes.alive(i):
            nodes.resume(i)
        else:
            nodes.restart(i)


def check_votes(error, nodes, away):
    """Check that each node is named, and that each node that is away has a reason."""
    assert [vote.node for vote in error.votes] == [f"127.0.0.1:{port}" for port in nodes.ports]
    for i in away:
        assert error.votes[i].choice is Choice.FAILED
        assert error.votes[i].detail not in ("", "not waited for")
        assert f"{error.votes[i].node} failed: {error.votes[i].detail}" in str(error)


def test_acquire_fails_at_once_when_majority_is_away(client, nodes, take_away, promptly):
    away = (0, 2, 3)
    take_away(*away)

    def try_in_vain():
        with pytest.raises(QuorumError) as caught:
            client.get_lock("x").acquire(blocking=False)
        check_votes(caught.value, nodes, away)
        assert caught.value.name == "x"

    for _ in range(3):  # the first finds out, the next know
        promptly(try_in_vain, 1.0)


def test_acquire_fails_at_its_deadline_when_majority_is_away(client, nodes, take_away, promptly):
    away = (1, 2, 4)
    take_away(*away)

    def try_in_vain():
        with pytest.raises(QuorumError) as caught:
            client.get_lock("x").acquire(timeout=0.5)
        check_votes(caught.value, nodes, away)

    for _ in range(2):
        assert promptly(try_in_vain, 0.8) >= 0.5


def test_with_fails_at_its_deadline_when_majority_is_away(client, nodes, take_away, promptly):
    take_away(2, 3, 4)

    def try_in_vain():
        with pytest.raises(QuorumError) as caught, client.get_lock("x", timeout=0.3):
            pytest.fail("the body ran")
        check_votes(caught.value, nodes, [2, 3, 4])

    assert promptly(try_in_vain, 0.6) >= 0.3


@pytest.mark.parametrize("timeout", [0.0, 0.3])
def test_acquire_fails_in_time_when_all_nodes_are_away(client, take_away, timeout, promptly):
    take_away(*range(5))

    def try_in_vain():
        with pytest.raises(QuorumError) as caught:
            client.get_lock("x").acquire(timeout=timeout)
        assert [vote.choice for vote in caught.value.votes] == [Choice.FAILED] * 5
        # Three are enough to know that it can't be.
        assert sum(vote.detail not in ("", "not waited for") for vote in caught.value.votes) >= 3

    assert promptly(try_in_vain, timeout + 0.5) >= timeout


LOOKS = {
    "locked": lambda client: client.get_lock("x").locked(),
    "inspect": lambda client: client.inspect("x"),
    "force_release": lambda client: client.get_lock("x").force_release(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_looking_fails_in_time_when_majority_is_away(look, client, take_away, promptly):
    take_away(0, 1, 2)

    def look_in_vain():
        with pytest.raises(QuorumError):
            LOOKS[look](client)

    promptly(look_in_vain, 1.0)


def test_failed_acquire_leaves_nothing_when_nodes_are_back(client, nodes, take_away, admin, eventually):
    take_away(0, 1, 2)
    for i in range(5):
        with pytest.raises(QuorumError):
            client.get_lock(f"y{i}", lease=LONG).acquire(blocking=False)
    bring_back(nodes, 0, 1, 2)
    eventually(lambda: {node.state for node in client.nodes()} == {"up"})
    eventually(lambda: admin.keys() == [])


def test_client_recovers_by_itself_when_nodes_are_back(client, nodes, take_away, eventually):
    take_away(0, 1, 2)
    with pytest.raises(QuorumError):
        client.get_lock("x").acquire(blocking=False)
    eventually(lambda: [node.state in ("down", "suspect") for node in client.nodes()] == [True] * 3 + [False] * 2)
    bring_back(nodes, 0)  # a quorum again
    assert client.get_lock("x").acquire(timeout=60.0)
    client.get_lock("x").release()
    bring_back(nodes, 1, 2)
    eventually(lambda: {node.state for node in client.nodes()} == {"up"})


def test_waiter_gets_lock_when_nodes_come_back_meanwhile(client, nodes, take_away, watch):
    take_away(1, 3, 4)
    timer = threading.Timer(0.5, bring_back, (nodes, 1, 3, 4))
    timer.start()
    elapsed = watch()
    assert client.get_lock("x").acquire(timeout=60.0)
    assert elapsed() >= 0.5
    timer.join()
    client.get_lock("x").release()


def test_client_starts_without_any_node_and_recovers(nodes, make_client, promptly):
    for i in range(5):
        nodes.kill(i)
    clients = []

    def start():
        clients.append(make_client())
        with pytest.raises(QuorumError):
            clients[-1].get_lock("x").acquire(blocking=False)

    promptly(start, 2.0)
    for i in range(3):
        nodes.restart(i)
    lock = clients[-1].get_lock("x")
    assert lock.acquire(timeout=60.0)
    lock.release()


@pytest.mark.sweep
def test_restarted_majority_is_kept_out_for_restart_guard(nodes, make_client, eventually):
    guard = 3.0  # so that all three are noticed before the first one's is over
    client = make_client(lease=LEASE, restart_guard=guard)
    lock = client.get_lock("x")
    eventually(lambda: {node.state for node in client.nodes()} == {"up"})
    assert lock.acquire(blocking=False)
    lock.release()
    restarted_at = clock()
    for i in range(3):
        nodes.kill(i)
        nodes.restart(i)
    eventually(lambda: [node.state for node in client.nodes()] == ["quarantined"] * 3 + ["up"] * 2)

    def refused():
        """Return the votes, once the client knows for how long: it hears all nodes before that."""
        with pytest.raises(QuorumError) as caught:
            lock.acquire(blocking=False)
        check_votes(caught.value, nodes, range(3))
        return all(" again in " in vote.detail for vote in caught.value.votes[:3]) and caught.value.votes[:3]

    for vote in eventually(refused):
        assert "restart_guard" in vote.detail
        seconds = float(vote.detail.split(" again in ")[1].split(" s")[0])
        assert 0.0 < seconds <= guard
    assert lock.acquire(timeout=60.0)
    assert clock() - restarted_at >= guard
    lock.release()


def test_restarted_majority_grants_nothing_that_is_still_believed(nodes, make_client, eventually):
    """An uptime in whole seconds is the difference of two truncated clocks: it may say 1 a moment after the start."""
    make_client(lease=LEASE)  # only to see that the nodes are up
    eventually(lambda: 0.75 < time.time() % 1 < 0.85)
    holder = make_client(lease=LEASE)
    lock = holder.get_lock("x", lease=LEASE)  # not renewed, so that nothing tells the holder but the clock
    assert lock.acquire(blocking=False)
    state = lock._state()
    for i in range(3):
        nodes.kill(i)
        nodes.restart(i)
    eventually(lambda: time.time() % 1 < 0.5)
    other = make_client(lease=LEASE, restart_guard=None)
    assert other.get_lock("x").acquire(timeout=60.0)
    assert clock() >= state.valid_until
    with pytest.raises(LeaseLostError):
        lock.release()
    other.get_lock("x").release()


def test_quarantined_majority_goes_on_renewing(nodes, make_client, eventually, await_renewal):
    client = make_client(lease=1.0, restart_guard=60.0)
    # The guard keeps out whoever is younger than it, so it must be set aside until the lock is held.
    for node in client.runner.nodes:
        node.remembers_since = -math.inf
    lock = client.get_lock("x")
    with lock as hold:
        for i in range(5):  # a rolling restart
            nodes.restart(i)
            eventually(lambda i=i: client.nodes()[i].state == "quarantined")
            await_renewal(hold)
        hold.check()
        with pytest.raises(QuorumError):
            client.get_lock("y").acquire(blocking=False)


def test_hold_is_kept_when_minority_dies(client, nodes, take_away, *, admin, watch, eventually):
    told = []
    with client.get_lock("x", on_lost=told.append) as hold:
        take_away(0, 4)
        elapsed = watch()
        while elapsed() < 1.2 * LEASE:
            assert not hold.wait_lost(0.05)
        hold.check()
        assert client.get_lock("x").owned()
    assert told == []
    assert not client.get_lock("x").locked()
    bring_back(nodes, 0, 4)
    eventually(lambda: admin.keys() == [])


def test_hold_is_lost_loudly_when_majority_is_away(client, nodes, take_away, eventually):
    told = []
    lock = client.get_lock("x", on_lost=lambda hold: told.append(hold.lost))
    assert lock.acquire(blocking=False)
    hold_state = lock._state()
    take_away(0, 1, 2)

    def is_lost():
        valid_until, now = hold_state.valid_until, clock()
        if not lock.owned():
            return True
        # A renewal that was under way may have lengthened it once more.
        assert now <= max(valid_until, hold_state.valid_until), "it is owned for longer than it is valid"
        return False

    eventually(is_lost)
    assert lock.hold_count() == 0
    assert lock.remaining() == 0.0
    with pytest.raises(LeaseLostError):
        lock.acquire(blocking=False)
    eventually(lambda: told)
    with pytest.raises(LeaseLostError, match="lost"):
        lock.release()
    assert told == [True]
    # It is not won back, and nothing keeps the lock from being taken anew.
    bring_back(nodes, 0, 1, 2)
    assert lock.acquire(timeout=60.0)
    lock.release()


def test_waiting_for_loss_ends_when_majority_hangs(client, nodes):
    lock = client.get_lock("x")
    hold = lock.__enter__()
    for i in (2, 3, 4):
        nodes.pause(i)
    assert hold.wait_lost(timeout=60.0)
    with pytest.raises(LeaseLostError):
        hold.check()
    with pytest.raises(LeaseLostError):
        lock.__exit__(None, None, None)


def test_release_keeps_silent_when_majority_hangs_and_hold_is_valid(
    client, nodes, take_away, *, admin, eventually, watch
):
    lock = client.get_lock("x", lease=LONG)
    assert lock.acquire(blocking=False)
    eventually(lambda: len(admin.keys()) == 5)
    take_away(0, 1, 2)
    elapsed = watch()
    lock.release()
    assert elapsed() < LONG / 4, "it is valid, and so it waits for nobody"
    bring_back(nodes, 0, 1, 2)
    eventually(lambda: admin.keys() == [])
