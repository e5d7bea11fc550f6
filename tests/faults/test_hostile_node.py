"""One of three nodes is hostile: clients of the others lose no time or memory to it, and get no errors from it.

Once with threads and once with asyncio.
"""

import contextlib
import itertools
import random
import time

import pytest

from redsync import QuorumError
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


MESSAGES = b">3\r\n+message\r\n+c\r\n$7\r\n0 a key\r\n" * 1000

ENDLESS = {
    "a text": lambda: itertools.chain([b"$2000000000\r\n"], itertools.repeat(b"x" * 65536)),
    # With pauses, as it shares this process.
    "messages": lambda: dribble(MESSAGES, MESSAGES, every=0.005),
}
"""`test_link_sets` has other answers without an end."""


@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_answers_of_a_minority_cost_nothing(kind, connect, serve):
    hostile = serve(in_use(ENDLESS[kind]))
    client = connect(hostile.url)
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


def use_lock(lock):
    assert lock.acquire(timeout=WITHIN)
    lock.locked()
    lock.extend()
    lock.release()


def use_semaphore(semaphore):
    permit = semaphore.acquire(timeout=WITHIN, n=2)
    assert permit
    semaphore.available()
    semaphore.permits()
    semaphore.holders()
    permit.extend()
    permit.release()


def use_limiter(limiter):
    assert limiter.acquire(timeout=WITHIN)
    limiter.available()
    limiter.retry_after()


def look(latch):
    """Wait briefly, less than a busy machine may take to answer, until an answer comes."""
    gives_up_at = time.monotonic() + WITHIN
    while True:
        with contextlib.suppress(QuorumError):
            return latch.wait(0.01)
        assert time.monotonic() < gives_up_at


def use_latch(latch):
    latch.try_set_count(2)
    latch.count_down()
    latch.count()
    look(latch)
    latch.count_down()
    latch.delete()


USES = {
    "lock": lambda client, name: use_lock(client.get_lock(name)),
    "semaphore": lambda client, name: use_semaphore(client.get_semaphore(name, 5)),
    "rate limiter": lambda client, name: use_limiter(client.get_rate_limiter(name, 100, 1.0)),
    "latch": lambda client, name: use_latch(client.get_count_down_latch(name)),
}
"""Kinds that have their own replies; `test_answers` has the nonsense for all protocols."""


@pytest.mark.parametrize("times", [5, *swept(15)])
@pytest.mark.parametrize("use", USES)
def test_whatever_one_node_answers_the_others_serve(use, times, connect, serve, seed):
    """It answers before the others do, so that its votes count."""
    rng = random.Random(seed)
    client = connect(serve(in_use(lambda: [make_answer(rng)])).url, delay=0.003, node_timeout=2.0)
    use_lock(client.get_lock("first"))  # a call that waits: on a busy machine not all nodes may be connected yet
    for i in range(times):
        USES[use](client, f"x {i}")
