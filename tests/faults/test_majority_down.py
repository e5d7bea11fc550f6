"""A majority of nodes is away: callers and holders get precise errors in time, and all recovers automatically."""

import math
import time

import pytest

from redsync import LeaseLostError, QuorumError
from redsync._core.quorum import Choice

LEASE = 1.5
LONG = 120.0
"""Seconds of a lease that the tests never wait for: claims that are gone sooner were released."""


def clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture
def client(make_client, all_nodes_met):
    client = make_client(lease=LEASE)
    with client.get_lock("x"):  # everything is connected
        pass
    return client


@pytest.fixture
def take_away(nodes):
    """Return a function that kills nodes and stops nodes, in turn."""

    def take_away(*indices):
        for number, i in enumerate(indices):
            (nodes.pause if number % 2 else nodes.kill)(i)

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


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get_lock("x").acquire(blocking=False),
        lambda client: client.get_lock("x").locked(),
        lambda client: client.inspect("x"),
        lambda client: client.get_lock("x").force_release(),
    ],
    ids=["acquire", "locked", "inspect", "force_release"],
)
def test_call_fails_at_once_when_majority_is_away(call, client, nodes, take_away, promptly):
    away = (0, 2, 3)
    take_away(*away)

    def try_in_vain():
        with pytest.raises(QuorumError) as caught:
            call(client)
        check_votes(caught.value, nodes, away)
        assert caught.value.name == "x"

    for _ in range(2):  # the first finds out, the next knows
        promptly(try_in_vain, 1.0)


@pytest.mark.parametrize("away", [(1, 2, 4), range(5)], ids=["majority", "all"])
def test_acquire_fails_at_its_deadline_when_too_many_are_away(away, client, nodes, take_away, promptly):
    take_away(*away)

    def try_in_vain():
        with pytest.raises(QuorumError) as caught:
            client.get_lock("x").acquire(timeout=0.5)
        check_votes(caught.value, nodes, away[:3])

    for _ in range(2):
        assert promptly(try_in_vain, 0.8) >= 0.5


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


def test_restarted_majority_grants_nothing_that_is_still_believed(nodes, make_client, eventually):
    """An uptime in whole seconds is the difference of two truncated clocks: it may be 1 a moment after the start."""
    make_client(lease=LEASE)  # only to see that the nodes are up
    eventually(lambda: 0.75 < time.time() % 1 < 0.85)
    holder = make_client(lease=LEASE)
    lock = holder.get_lock("x", lease=LEASE)  # not renewed, so only the clock informs the holder
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


def test_quarantined_majority_continues_to_renew(nodes, make_client, eventually, await_renewal):
    client = make_client(lease=1.0, restart_guard=60.0)
    # The guard keeps out younger nodes, so it is disabled until the lock is held.
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


def test_hold_is_lost_loudly_when_majority_is_away(client, nodes, take_away, eventually):
    told = []
    lock = client.get_lock("x", on_lost=lambda hold: told.append(hold.lost))
    hold = lock.__enter__()
    hold_state = lock._state()
    take_away(0, 1, 2)

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
    bring_back(nodes, 0, 1, 2)
    assert lock.acquire(timeout=60.0)
    lock.release()
