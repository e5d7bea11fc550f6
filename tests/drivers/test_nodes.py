"""Nodes: their descriptions of themselves, and whether they have remembered for long enough."""

import logging
import math
import pickle

import pytest
import redis
import redis.asyncio

from redsync import Client
from redsync._core.memory import BLANK, NEWBORN, Birth
from redsync._core.memory import ORIGINAL as ORIGINAL_KIND
from redsync._drivers.discovery import Location
from redsync._drivers.nodes import NodeInfo, make_nodes, reason_of

GUARD = 30.0
FORGOT = "restarted or emptied, may have forgotten"


def birth_of(kind, age):
    return Birth(kind, 1, b"-", age)


ORIGINAL, OLD, YOUNG = birth_of(ORIGINAL_KIND, 0.0), birth_of(NEWBORN, 3600.0), birth_of(NEWBORN, 5.0)
LOOKED_AT = birth_of(BLANK, 3600.0)


def info(uptime=3600.0, birth=ORIGINAL):
    return NodeInfo("run id", "valkey 9.1.2", uptime, birth=birth)


@pytest.fixture
def node():
    """A node that was never connected."""
    return make_nodes(["redis://127.0.0.1:1"], redis.Redis)[0]


@pytest.mark.parametrize(
    ("url", "home"),
    [
        ("redis://127.0.0.1:1", "127.0.0.1:1/0"),
        ("redis://user:secret@127.0.0.1:1/0", "127.0.0.1:1/0"),
        ("rediss://127.0.0.1:1/7", "127.0.0.1:1/7"),
        ("unix:///run/redis.sock?db=3", "/run/redis.sock/3"),
    ],
)
def test_home_tells_the_place_of_the_keys_and_not_the_user(url, home):
    assert make_nodes([url], redis.Redis)[0].home == home


@pytest.fixture
def meet(node):
    """Return a function that meets the node at the instant 1000."""

    def meet(**fields):
        node.meet(info(**fields), 1000.0)
        node.connected = node.tried = True
        return node

    return meet


# Since when it remembers.


@pytest.mark.parametrize(
    ("uptime", "birth", "since"),
    [
        # A server subtracts two instants in whole seconds: it may have started a second later than it says.
        (3600.0, ORIGINAL, 1000.0 - 3599.0),
        (0.0, ORIGINAL, 1000.0),
        (1.0, ORIGINAL, 1000.0),
        (3600.0, YOUNG, 995.0),
        (3600.0, birth_of(NEWBORN, 0.0), 1000.0),
        # Emptied, and restarted with its data since: both events count.
        (4.0, OLD, 997.0),
        (4.0, YOUNG, 997.0),
        (3600.0, None, math.inf),
        (0.0, None, math.inf),
        (3600.0, LOOKED_AT, math.inf),
        # fakeredis does not tell when it started.
        (None, ORIGINAL, -math.inf),
        (None, YOUNG, 995.0),
    ],
)
def test_node_remembers_since_the_later_of_its_start_and_its_birth(meet, uptime, birth, since):
    assert meet(uptime=uptime, birth=birth).remembers_since == since


def test_node_whose_record_comes_later_remembers_since_then(meet):
    node = meet(birth=None)
    node.remember(birth_of(NEWBORN, 2.0), 1010.0)
    assert node.remembers_since == 1008.0
    node.remember(ORIGINAL, 1010.0)
    assert node.remembers_since == node.started_at
    node.remember(None, 1010.0)
    assert node.remembers_since == math.inf


# Fitness.


@pytest.mark.parametrize(
    ("birth", "now", "guard", "reason"),
    [
        (YOUNG, 1000.0, GUARD, f"{FORGOT} claims: no new grants for 25.0 s (restart_guard)"),
        (YOUNG, 1024.5, GUARD, "for 0.5 s"),
        (YOUNG, 1025.0, GUARD, None),
        (YOUNG, 1000.0, 5.0, None),  # a claim with a shorter lease
        (YOUNG, 1000.0, 600.0, "for 595.0 s"),
        (None, 1e9, GUARD, "until all nodes were asked"),
    ],
)
def test_node_is_ineligible_until_it_has_remembered_for_as_long_as_the_guard(meet, birth, now, guard, reason):
    said = meet(birth=birth).ineligible_reason(now, guard)
    assert said is None if reason is None else reason in said


# Reports to people.


def test_reason_of_an_error_in_this_process_is_told_though_a_log_handler_exits():
    """In a client for threads it would end the thread of a connect, and none would ever follow."""
    logged = []

    class Exits(logging.Handler):
        def emit(self, record):
            logged.append(record.getMessage())
            raise SystemExit(1)

    handler = Exits()
    logging.getLogger("redsync.node").addHandler(handler)
    try:
        assert reason_of(TypeError("a mistake"), "node-1", None) == "TypeError: a mistake"
    finally:
        logging.getLogger("redsync.node").removeHandler(handler)
    assert logged == ["node node-1 can't be connected because of an error in this process"]


@pytest.fixture
def group():
    """A node behind Sentinels, whose server remembers everything."""
    (node,) = make_nodes(["redis+sentinel://s1,s2,s3/mymaster?replicas=2"], redis.Redis)
    node.location = Location("a", 1, 7)
    node.meet(info(), 1000.0)
    node.connected = node.tried = True
    return node


def test_node_with_replicas_is_ineligible_unless_its_sentinels_have_confirmed_its_server_lately(group):
    assert "that a:1 is still the master: none of the 3 Sentinels has answered yet" in group.ineligible_reason(
        1000.0, GUARD
    )
    group.locator.confirmed_at, group.locator.unknown_reason = 1000.0, ""
    assert group.ineligible_reason(1020.0, GUARD) is None
    assert group.ineligible_reason(1020.1, GUARD) == (
        "its Sentinels have not said lately that a:1 is still the master: takes part in new grants again as soon as a "
        "majority of them does"
    )
    assert group.status(1020.1, False, GUARD).state == "quarantined"
    assert group.ineligible_reason(1020.1, 0.0) is None, "renewals need no guard"
    assert group.ineligible_reason(1020.1, 2 * GUARD) is None
    group.locator.present = Location("b", 1, 8)
    assert group.ineligible_reason(1020.0, GUARD) == "its Sentinels name b:1 as the master now, epoch 8"
    assert group.ineligible_reason(1020.0, 0.0) is None


def test_node_without_replicas_needs_no_confirmation_by_its_sentinels():
    (node,) = make_nodes(["redis+sentinel://s1,s2,s3/mymaster"], redis.Redis)
    node.meet(info(), 1000.0)
    assert node.ineligible_reason(1000.0, GUARD) is None


def test_node_is_quarantined_while_it_is_ineligible(meet):
    node = meet(birth=YOUNG)
    assert node.status(1000.0, False, GUARD).state == "quarantined"
    assert node.status(1025.0, False, GUARD).state == "up"
    assert node.status(1000.0, False, 0.0).state == "up"
    assert node.status(1000.0, True, GUARD).state == "suspect"
    node.connected = False
    assert node.status(1000.0, True, GUARD).state == "down"


# As given by callers; `tests/test_client.py` tests what a client refuses.


@pytest.mark.parametrize(
    "given", [redis.Redis(port=2), redis.Sentinel([("a", 1)]).master_for("m")], ids=["server", "group"]
)
def test_client_with_a_node_that_was_given_without_a_url_says_so_when_it_is_pickled(given):
    with Client(["redis://127.0.0.1:1", given], node_timeout=0.05) as client, pytest.raises(TypeError) as caught:
        pickle.dumps(client)
    assert "node 2" in str(caught.value)
    assert "was given as a redis-py client: give its URL instead" in str(caught.value)
