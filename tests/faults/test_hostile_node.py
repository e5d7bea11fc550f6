"""One of three nodes is hostile: clients of the others lose no time or memory to it, and get no errors from it.

Once with threads and once with asyncio.
"""

import contextlib
import itertools
import random
import time

import pytest

from redsync.testing import FaultProxy, LocalNodes
from tests.support.hostile import Hostile, dribble, handshake, make_answer
from tests.support.sweeps import swept

WITHIN = 60.0
"""Seconds; what the tests wait for happens within a few on an idle machine."""

GUARD = 1.0

pytestmark = [pytest.mark.usefixtures("both_flavours"), pytest.mark.asyncio_too]


@pytest.fixture(scope="module")
def pair():
    """Two healthy nodes, older than the guard."""
    with LocalNodes(2) as nodes:
        time.sleep(GUARD + 1)  # their uptime is in whole seconds, up to one too many
        yield nodes


@pytest.fixture
def connect(pair, make_client):
    """Make clients of the two nodes and another."""
    pair.reset()
    with contextlib.ExitStack() as stack:

        def connect(url, *, delay=0.0, **options):
            urls = pair.urls
            if delay:
                proxies = [stack.enter_context(FaultProxy(port)) for port in pair.ports]
                urls = [proxy.url for proxy in proxies]
                for proxy in proxies:
                    proxy.delay = delay
            return make_client([*urls, url], **{"lease": 30.0, **options})

        yield connect


@pytest.fixture
def serve():
    """Start a hostile server that answers with these pieces."""
    with contextlib.ExitStack() as stack:
        yield lambda answer: stack.enter_context(Hostile(answer))


def in_use(pieces):
    """Return an `answer` that greets as a node does, and answers everything else with these pieces."""

    def answer(words):
        answer = handshake(words)
        return pieces() if answer is None else [answer]

    return answer


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


# In use.


def test_endless_answer_of_a_minority_costs_nothing(connect, serve):
    """`test_link_sets` has other answers without an end."""

    def endless():
        return itertools.chain([b"$2000000000\r\n"], itertools.repeat(b"x" * 65536))

    client = connect(serve(in_use(endless)).url)
    before = resident()
    for i in range(20):
        lock = client.get_lock(f"x {i}")
        assert lock.acquire(timeout=WITHIN)
        lock.release()
    assert resident() - before < 100
    assert [status.state for status in client.nodes()[:2]] == ["up", "up"]


# At the beginning.


def test_node_that_never_ends_its_handshake_does_not_delay_the_first_use_of_the_others(connect, serve):
    client = connect(serve(lambda words: dribble(b"%1\r\n$10\r\n")).url, lease=GUARD, restart_guard=GUARD)
    assert client.get_lock("x").acquire(timeout=WITHIN)
    assert [status.state for status in client.nodes()] == ["up", "up", "down"]


# Random answers.


def use(lock):
    assert lock.acquire(timeout=WITHIN)
    lock.locked()
    lock.extend()
    lock.release()


@pytest.mark.parametrize("times", [5, *swept(15)])
def test_whatever_one_node_answers_the_others_serve(times, connect, serve, seed):
    """It answers before the others do, so that its votes count; `test_answers` has the nonsense for all protocols."""
    rng = random.Random(seed)
    client = connect(serve(in_use(lambda: [make_answer(rng)])).url, delay=0.003, node_timeout=2.0)
    use(client.get_lock("first"))  # a call that waits: on a busy machine not all nodes may be connected yet
    for i in range(times):
        use(client.get_lock(f"x {i}"))
