"""A majority of nodes is away: callers and holders get precise errors in time, and all recovers automatically."""

import time

import pytest

from redsync import LeaseLostError, QuorumError
from redsync._core.quorum import Choice

LEASE = 1.5


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
