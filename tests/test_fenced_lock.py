"""The public contract of the fenced lock: its tokens, on real nodes that fail, for threads and for asyncio."""

import time

import pytest

from redsync import KeyTypeError, QuorumError

pytestmark = pytest.mark.usefixtures("both_flavours")

TOKEN = "redsync_token:{redsync:x}"


@pytest.fixture
def lock(client):
    return client.get_fenced_lock("x")


def take(lock):
    with lock as hold:
        return hold.fencing_token


def growing(tokens):
    return tokens == sorted(set(tokens))


@pytest.mark.asyncio_too
def test_each_acquisition_has_a_higher_token(lock, make_client, other):
    """Of one thread, another thread, and another client."""
    elsewhere = make_client().get_fenced_lock("x")
    tokens = [take(lock), take(lock), other.do(take, lock), take(elsewhere), take(lock)]
    assert growing(tokens)
    assert all(0 < token < 2**53 for token in tokens)


@pytest.mark.usefixtures("all_nodes_met")
def test_tokens_that_the_client_does_not_expect_are_read_as_they_are(lock, raw, make_client):
    elsewhere = make_client().get_fenced_lock("x")
    token = take(lock) + 1_000_000_000
    for ahead in [5], [1, 3], [0, 0, 2], [0, 0, 0, 0, 0], [3, 2, 1], [1] * 5, [7, 0, 0, 0, 7]:
        # They continue from the highest of a quorum, whatever this client has seen last.
        for node, more in zip(raw, [*ahead, 0, 0, 0, 0], strict=False):
            node.set(TOKEN, token + more)
        known = sorted(token + more for more in [*ahead, *[0] * (5 - len(ahead))])
        mine, other = take(lock), take(elsewhere)
        assert known[2] < mine < other <= known[4] + 2
        token = other


def test_nested_acquire_keeps_the_token(lock):
    with lock as outer, lock as inner:
        assert lock.hold_count() == 2
        assert inner.fencing_token == outer.fencing_token
        token = inner.fencing_token
    assert take(lock) > token


@pytest.mark.usefixtures("all_nodes_met")
def test_steady_state_asks_each_node_once_and_writes_nothing_back(lock, raw):
    token = take(lock) + 1_000_000_000
    for node in raw:
        node.set(TOKEN, token)
        node.config_resetstat()
    tokens = [take(lock) for _ in range(5)]
    assert tokens == list(range(token + 1, token + 6))
    time.sleep(0.1)
    assert [node.info("commandstats")["cmdstat_incr"]["calls"] for node in raw] == [5] * 5
    assert sum(node.info("commandstats").get("cmdstat_set", {}).get("calls", 0) for node in raw) <= 5, (
        "a client's record"
    )


def test_hold_shows_its_token_and_inspect_the_kind(lock, client):
    with lock as hold:
        assert f"token {hold.fencing_token}>" in repr(hold)
        info = client.inspect("x")
        assert (info.kind, info.holders[0].hold_count) == ("fenced lock", 1)
    with client.get_lock("y"):
        assert client.inspect("y").kind == "lock"
    assert client.inspect("x").kind == "none"


def test_tokens_grow_while_nodes_die_and_come_back_empty(lock, nodes, raw, make_client):
    """One after the other, until each has forgotten its token; and then all at once."""
    tokens = [take(lock)]
    for i in range(5):
        nodes.kill(i)
        tokens.append(take(lock))
        nodes.restart(i)
        tokens += [take(lock), take(make_client().get_fenced_lock("x"))]
    for node in raw:
        node.flushall()
    tokens += [take(make_client().get_fenced_lock("x")), take(lock)]
    assert growing(tokens)


def test_token_that_only_one_node_has_is_written_back(lock, raw, nodes, make_client, eventually):
    """AB, then BC: the next owner must see it on every quorum."""
    first = take(lock)
    ahead = first + 3_600_000_000  # an hour: tokens are at least the microseconds of a node's clock
    raw[0].set(TOKEN, ahead)
    for i in (3, 4):
        nodes.pause(i)
    second = take(lock)
    for i in (3, 4):
        nodes.resume(i)
    nodes.kill(0)
    third = take(make_client().get_fenced_lock("x"))
    assert third > second == ahead + 1


def test_waiter_gets_a_higher_token_than_the_holder(lock, client, make_worker, eventually):
    with lock as hold:
        waiters = [make_worker().start(take, client.get_fenced_lock("x")) for _ in range(4)]
        eventually(lambda: len(client.inspect("x").waiters) == 4)
        token = hold.fencing_token
    tokens = sorted(waiter.result(20) for waiter in waiters)
    assert growing([token, *tokens])


def test_lock_held_without_a_token_is_not_reentered_as_a_fenced_one(client, lock):
    with client.get_lock("x") as hold:
        assert hold.fencing_token is None
        with pytest.raises(KeyTypeError, match="no token"):
            lock.acquire()


def test_token_key_is_kept_for_a_day_and_a_foreign_value_is_an_error(lock, raw):
    take(lock)
    for node in raw:
        assert 86_000 < node.ttl(TOKEN) <= 86_400
        node.delete(TOKEN)
        node.rpush(TOKEN, "a stranger's")
    with pytest.raises(QuorumError, match="WRONGTYPE"):
        lock.acquire(False)
    assert raw.count("redsync:x") == 0
