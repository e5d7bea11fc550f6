"""The public contract of the fenced lock: its tokens, on real nodes that fail, for threads and for asyncio."""

import pytest

from redsync import FencedHold

pytestmark = pytest.mark.usefixtures("both_flavours")


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


def test_hold_shows_its_token_and_inspect_the_kind(lock, client):
    with lock as hold:
        assert isinstance(hold, FencedHold)
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
