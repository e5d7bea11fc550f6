"""A wait for other owners may be endless, a wait for nodes must not: on real nodes, in both flavours."""

import contextlib
import math
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redsync import QuorumError
from tests.support.kinds import LOCKS
from tests.support.locks import PATIENCE
from tests.support.trouble import read_only

pytestmark = pytest.mark.usefixtures("both_flavours")

NOWHERE = [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]
FOR_EVER = 3600.0

WAITS = {
    **{word: lambda client, make=make: make(client).acquire() for word, make in LOCKS.items()},
    "semaphore": lambda client: client.get_semaphore("x", 2).acquire(),
    "limiter": lambda client: client.get_rate_limiter("x", 2, 1.0).acquire(),
    "latch": lambda client: client.get_count_down_latch("x").wait(),
    "count-down": lambda client: client.get_count_down_latch("x", timeout=FOR_EVER).count_down(),
}


@pytest.fixture
def admins(raw):
    return raw[:3]


@contextlib.contextmanager
def another_password(admins):
    """Let nodes want a password, and end the connections of all who have not given it."""
    for admin in admins:
        admin.config_set("requirepass", "secret")
        admin.execute_command("AUTH", "secret")
        admin.execute_command("CLIENT", "KILL", "SKIPME", "yes")
    try:
        yield
    finally:
        for admin in admins:
            admin.config_set("requirepass", "")


@pytest.mark.asyncio_too
@pytest.mark.parametrize("kind", WAITS)
def test_wait_for_nodes_ends(make_client, kind):
    client = make_client(NOWHERE, outage_timeout=0.3)
    began = time.monotonic()
    with pytest.raises(QuorumError, match="of 3 nodes failed"):
        WAITS[kind](client)
    assert 0.3 <= time.monotonic() - began < PATIENCE


@pytest.mark.parametrize("kind", ["lock", "latch"])
def test_wait_ends_though_nodes_had_answered_before(make_client, nodes, other, kind, eventually):
    holder, client = make_client(), make_client(outage_timeout=0.5)
    if kind == "latch":
        assert holder.get_count_down_latch("x").try_set_count(1)
    else:
        assert holder.get_lock("x").acquire(timeout=PATIENCE)
    waiting = other.start(lambda: WAITS[kind](client))
    eventually(lambda: client.runner.session.answered)
    for i in range(5):
        nodes.kill(i)
    with pytest.raises(QuorumError):
        waiting.result(PATIENCE)


def test_wait_for_another_owner_has_no_such_end(make_client, other):
    mine, yours = (make_client(outage_timeout=0.1).get_lock("x") for _ in range(2))
    assert yours.acquire(timeout=PATIENCE)
    waiting = other.start(mine.acquire)
    with pytest.raises(TimeoutError):
        waiting.result(1.0)
    yours.release()
    assert waiting.result(PATIENCE)


def test_nodes_within_their_restart_guard_do_answer(make_client, nodes, eventually):
    """Their guard ends automatically."""
    for i in range(3):
        nodes.restart(i)
    client = make_client(n=3, lease=3.0, restart_guard=3.0, outage_timeout=0.5)
    eventually(lambda: [node.state for node in client.nodes()] == ["quarantined"] * 3, within=PATIENCE)
    assert client.get_lock("x").acquire()


@pytest.mark.parametrize("trouble", [read_only, another_password])
def test_call_waits_for_nodes_that_come_back_in_time(make_client, other, admins, trouble):
    """A password that is changed later is an outage too."""
    client = make_client(n=3, outage_timeout=FOR_EVER)
    assert client.get_lock("y").acquire(timeout=PATIENCE)
    with trouble(admins):
        waiting = other.start(client.get_lock("x").acquire)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
    assert waiting.result(PATIENCE)


@pytest.mark.asyncio_too
@pytest.mark.parametrize("kind", WAITS)
def test_wait_ends_at_once_if_nodes_refuse_the_password_from_the_beginning(make_client, nodes, admins, kind):
    urls = [url.replace("redis://", "redis://:wrong@") for url in nodes.urls[:3]]
    with another_password(admins), pytest.raises(QuorumError, match="username-password"):
        WAITS[kind](make_client(urls, outage_timeout=FOR_EVER))


def test_minority_that_refuses_the_password_ends_nothing(make_client, nodes, admins):
    urls = [nodes.urls[0], nodes.urls[4], NOWHERE[0]]
    began = time.monotonic()
    with another_password(admins[:1]), pytest.raises(QuorumError):
        make_client(urls, outage_timeout=1.0).get_lock("x").acquire()
    assert time.monotonic() - began >= 1.0


@pytest.mark.threads_only
def test_all_waiters_learn_of_an_outage(make_client, nodes):
    """While nodes hang, one waiter of a client at a time asks them; of a crowd most ask no node anyway."""
    client = make_client(n=3, outage_timeout=1.0)
    assert client.get_lock("y").acquire(timeout=PATIENCE)
    for i in range(3):
        nodes.pause(i)

    def wait_in_vain(number):
        with pytest.raises(QuorumError):
            client.get_lock(f"x{number % 5}").acquire()

    with ThreadPoolExecutor(150) as pool:
        assert list(pool.map(wait_in_vain, range(150), timeout=PATIENCE)) == [None] * 150


@pytest.mark.threads_only
def test_outage_timeout_is_the_lease_by_default_and_may_be_endless(make_client):
    for given, expected in ((None, 7.0), (math.inf, math.inf), (0, 0.0)):
        assert make_client(NOWHERE, lease=7.0, outage_timeout=given).runner.session.timing.outage_timeout == expected
