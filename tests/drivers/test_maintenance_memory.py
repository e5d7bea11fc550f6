"""Nodes that lost their memory, on real servers: which take no part in new grants, from when on, and for how long.

The uptime would hide what these tests check, so the servers are older than the guard of the clients here.
"""

import time
from contextlib import suppress

import pytest

from redsync import QuorumError
from tests.support.locks import PATIENCE, states

GUARD = 2.0
"""Seconds; long enough for a test's steps within it on a busy machine."""

BIRTH = "redsync_birth"


@pytest.fixture
def make_guarded(make_client, raw):
    """Make guarded clients of three empty nodes that are older than the guard, by their own uptime."""
    # A server's uptime may be one second too high, so a client subtracts one.
    while min(node.info("server")["uptime_in_seconds"] for node in raw) <= GUARD + 1:
        time.sleep(0.1)
    return lambda **options: make_client(**{"lease": GUARD, "restart_guard": GUARD, **options})


@pytest.fixture
def client(make_guarded):
    """A guarded client of nodes that have been in use for a while, by another client too."""
    return make_guarded()


def births(raw):
    """Return the kind of each node's birth record, None where there is none."""
    records = [node.get(BIRTH) for node in raw]
    return [record and record.split()[0] for record in records]


# First use.


def test_nodes_at_their_first_use_get_original_records_and_grant_at_once(client, raw, eventually):
    assert client.get_lock("x").acquire(False)
    assert births(raw) == ["original"] * 3
    eventually(lambda: all(node.exists("redsync:x") for node in raw))
    assert states(client) == ["up"] * 3


# All nodes forget.


def test_nodes_all_emptied_under_a_hold_grant_no_other_while_it_is_valid(make_guarded, raw):
    """The case that the guard exists for."""
    first, second = make_guarded(), make_guarded()
    hold = first.get_lock("x", lease=GUARD).__enter__()
    for node in raw:
        node.flushall()
    lock = second.get_lock("x")
    while hold.remaining():
        with suppress(QuorumError):
            assert not lock.acquire(False), "two valid holds"
    assert lock.acquire(timeout=20)


# Earlier data.


def test_node_whose_data_was_replaced_while_running_is_kept_out(client, raw, eventually):
    """Another server's data came in; no connection ended, and the node itself tells its clients."""
    with client.get_lock("x"):
        pass
    raw[0].set(BIRTH, "original 1 0123456789abcdef")
    with client.get_lock("x", timeout=PATIENCE):  # the others are a quorum
        pass
    eventually(lambda: states(client) == ["quarantined", "up", "up"])
    eventually(lambda: births(raw) == ["newborn", "original", "original"])


# Invalid records.


@pytest.mark.parametrize(
    ("command", "reason"),
    [(("SET", BIRTH, "a lock"), "is not a birth record"), (("RPUSH", BIRTH, "x"), "the birth record was refused")],
)
def test_node_with_another_value_at_the_records_key_is_down_with_the_reason(make_guarded, raw, command, reason):
    raw[0].execute_command(*command)
    client = make_guarded()
    assert states(client)[0] == "down"
    assert reason in client.nodes()[0].last_error
