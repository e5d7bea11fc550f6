"""The public contract of the fenced lock: its tokens, on real nodes that fail, for threads and for asyncio."""

import pytest

from redsync import KeyTypeError

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


def test_lock_held_without_a_token_is_not_reentered_as_a_fenced_one(client, lock):
    with client.get_lock("x") as hold:
        assert hold.fencing_token is None
        with pytest.raises(KeyTypeError, match="no token"):
            lock.acquire()
