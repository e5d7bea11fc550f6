"""A minority of nodes hangs: no client waits for it, and late commands there leave nothing after their release."""

import pytest

from tests.support.locks import calls, states

pytestmark = [pytest.mark.usefixtures("both_flavours", "all_nodes_met"), pytest.mark.asyncio_too]

LONG = 120.0
"""Seconds of a lease that the tests never wait for: claims that are gone sooner were released."""
PAIRS = 100


@pytest.fixture
def client(make_client):
    return make_client(lease=LONG, node_timeout=0.25)


@pytest.fixture
def lock(client):
    lock = client.get_lock("x")
    with lock:  # everything is connected, and every script is loaded
        pass
    return lock


def pairs(lock):
    for _ in range(PAIRS):
        assert lock.acquire(blocking=False)
        lock.release()


@pytest.fixture
def quiet(raw, eventually):
    """Return a function that waits until nodes execute nothing more, so that nothing arrives late any more."""

    def quiet(indices):
        before = {}

        def nothing_new():
            found = [calls(raw[i]) for i in indices]
            same = before.get("calls") == found
            before["calls"] = found
            return same

        eventually(nothing_new)

    return quiet


@pytest.mark.parametrize("hung", [[2], [0, 4]], ids=["one", "two"])
def test_hung_nodes_delay_no_call_and_keep_no_zombie(hung, nodes, client, lock, *, raw, eventually, promptly, quiet):
    before = [calls(node) for node in raw]
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
    assert not any(raw.keys())
    assert all(calls(raw[i]) >= before[i] + 2 for i in hung)
    pairs(lock)
    quiet(range(5))
    assert not any(raw.keys())
