"""A machine that was suspended: to its processes, time has jumped ahead, and nothing woke them for that."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redsync import Client, Hold, HoldLost, LeaseLostError
from redsync._drivers.environment import REAL, clock
from tests.support.owing import owing

LEASE = 30.0
PROMPT = 15.0  # a sleeper checks the clock once a second; without that it would sleep until the lease ends


@pytest.fixture
def suspend(monkeypatch):
    """Return a function that lets the clients of this process find that much time has passed."""
    ahead = [0.0]
    later = REAL._replace(clock=lambda: clock() + sum(ahead))
    monkeypatch.setattr(Client, "_ENVIRONMENT", later)
    return ahead.append


@pytest.fixture
def told():
    """The reports about holds: events and holds, each with its instant."""
    return []


@pytest.fixture
def client(suspend, make_client, told, eventually):
    """A client that is connected to all nodes."""

    def listen(event):
        if isinstance(event, HoldLost):
            told.append((event, time.monotonic()))

    client = make_client(lease=LEASE, node_timeout=0.1, listeners=[listen])
    eventually(lambda: {node.state for node in client.nodes()} == {"up"})
    return client


@pytest.fixture
def lock(client, told):
    return client.get_lock("x", on_lost=lambda hold: told.append((hold, time.monotonic())))


@pytest.fixture
def await_replies(client, eventually):
    """Return a function that waits until the client is idle, so it rarely looks at the clock."""

    def await_replies():
        eventually(lambda: not owing(client))
        # Until now it has looked twice in each node_timeout; that it has stopped is not visible from outside.
        time.sleep(0.15)

    return await_replies


@pytest.fixture
def unplug(nodes):
    """Return a function that pauses all nodes until the end of the test."""
    yield lambda: [nodes.pause(i) for i in range(5)]
    for i in range(5):
        nodes.resume(i)


def test_suspended_holder_learns_its_loss_although_no_node_answers(
    suspend, lock, told, await_replies, unplug, *, eventually
):
    def wait(hold):
        return hold.wait_lost(), time.monotonic()

    hold = lock.__enter__()
    # The first renewal comes a moment after the grant. If no node answered it, the loss would have another reason.
    eventually(lambda: hold._state.renew_at > clock() + 1.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, hold)
        await_replies()
        unplug()
        woken_at = time.monotonic()
        suspend(LEASE + 10)
        assert hold.lost
        assert hold.remaining() == lock.remaining() == 0.0
        assert not lock.owned()
        lost, told_at = waiting.result(60)
    assert lost
    with pytest.raises(LeaseLostError, match="lease ended"):
        lock.__exit__(None, None, None)
    # The thread that finds the loss first may not be the one that reports it.
    eventually(lambda: [type(thing) for thing, _ in told] == [Hold, HoldLost])
    waits = [at - woken_at for at in (told_at, told[0][1], told[1][1])]
    print("told after", waits)
    assert max(waits) < PROMPT


def test_suspended_waiter_gives_up_when_its_timeout_is_over(suspend, lock, await_replies, raw, *, eventually):
    for node in raw:
        node.hset("redsync:x", "stranger:1", 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock.acquire, timeout=20.0)
        eventually(lambda: raw[0].exists("redsync_queue:{redsync:x}"))
        await_replies()  # a round under way would end without answers
        woken_at = time.monotonic()
        suspend(25.0)
        assert waiting.result(60) is False
        assert time.monotonic() - woken_at < PROMPT
    # It has left the queues.
    eventually(lambda: raw.keys() == [{b"redsync:x"}] * 5)
