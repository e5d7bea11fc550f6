"""First steps with locks and permits: what they tell, typed tokens, and errors that say what is wrong."""

import copy

import pytest
import redis

import redsync
from redsync import AcquireTimeout, QuorumError
from redsync.testing import LocalNodes


def test_permit_tells_which_slots_it_has(client):
    semaphore = client.get_semaphore("gpus", 3)
    with semaphore as first, semaphore as second, semaphore as third:
        assert sorted(first.slots + second.slots + third.slots) == [0, 1, 2]
        assert [first.slots] == [holder.slots for holder in semaphore.holders() if holder.id == first.id]
    several = semaphore.acquire(n=2)
    assert len(several.slots) == 2
    semaphore.release()
    assert len(several.slots) == 1
    several.release()
    assert several.slots == ()


def test_timeout_of_a_lock_names_its_kind_and_holder(client, make_client):
    for make in ("get_lock", "get_fair_lock", "get_mutex"):
        with getattr(client, make)(f"{make} 7") as hold:
            with pytest.raises(AcquireTimeout) as caught, getattr(make_client(), make)(f"{make} 7", timeout=0.05):
                pytest.fail("it is held")
            assert caught.value.holder == hold.owner
            assert hold.owner in str(caught.value)
            assert f"{make[4:].replace('_', ' ')} '{make} 7' was still held by" in str(caught.value)


def test_timeout_that_is_no_number_is_named(client):
    with pytest.raises(TypeError, match=r"timeout must be a number of seconds.*not '3'"):
        client.get_lock("x", timeout="3")


def test_copy_of_a_lock_keeps_its_client(nodes):
    """Even one that can't be pickled, as it was made of clients of redis-py."""
    given = [redis.Redis(port=port) for port in nodes.ports]
    with redsync.Client(given, restart_guard=0) as client, copy.deepcopy(client.get_lock("x", timeout=5)) as hold:
        assert hold.owner.startswith(client.id)


def test_error_of_fresh_nodes_says_when_they_grant():
    possible = r"2 must answer, which is possible in [0-9]+\.[0-9] s \["
    with LocalNodes(3) as nodes, nodes.client(restart_guard=30) as client, pytest.raises(QuorumError, match=possible):
        client.get_lock("x", timeout=0).__enter__()
