"""Nodes: their descriptions of themselves, and whether they have remembered for long enough."""

import math

import pytest
import redis

from redsync._core.events import NodeChanged
from redsync._core.memory import BIRTH_KEY, BLANK, NEWBORN, Birth
from redsync._core.memory import ORIGINAL as ORIGINAL_KIND
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.greetings import greet
from redsync._drivers.locators import Location
from redsync._drivers.nodes import NodeInfo

GUARD = 30.0


def birth_of(kind, age):
    return Birth(kind, 1, b"-", age)


ORIGINAL, OLD, YOUNG = birth_of(ORIGINAL_KIND, 0.0), birth_of(NEWBORN, 3600.0), birth_of(NEWBORN, 5.0)
LOOKED_AT = birth_of(BLANK, 3600.0)


def info(uptime=3600.0, birth=ORIGINAL):
    return NodeInfo("run id", "valkey 9.1.2", uptime, pushes=True, birth=birth)


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


def test_node_that_was_never_met_is_fit(node):
    assert node.unfit(1000.0, GUARD) is None


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


def test_node_that_is_met_again_has_its_new_description(meet):
    meet(uptime=3600.0)
    assert meet(uptime=0.0).remembers_since == 1000.0
    assert meet(uptime=3600.0).remembers_since < 0


# Fitness.


def test_node_is_unfit_until_it_has_remembered_for_as_long_as_the_guard(meet):
    node = meet(birth=YOUNG)
    assert "in 25.0 s" in node.unfit(1000.0, GUARD)
    assert "in 0.5 s" in node.unfit(1024.5, GUARD)
    assert node.unfit(1025.0, GUARD) is None
    assert node.unfit(2000.0, GUARD) is None


def test_node_may_be_fit_for_one_claim_and_not_for_another(meet):
    node = meet(birth=YOUNG)
    assert node.unfit(1000.0, 5.0) is None
    assert "in 595.0 s" in node.unfit(1000.0, 600.0)


def test_node_without_a_record_is_unfit_until_it_has_one(meet):
    node = meet(birth=None)
    for now in (1000.0, 1e9):
        assert "as soon as it and its peers were asked" in node.unfit(now, GUARD)


@pytest.mark.parametrize("birth", [None, LOOKED_AT, YOUNG, ORIGINAL])
def test_node_is_fit_for_commands_without_a_guard(meet, birth):
    """Releases, renewals, queries; and every claim of a client without a guard."""
    assert meet(uptime=0.0, birth=birth).unfit(1000.0, 0.0) is None


def test_reason_tells_users_what_to_do(meet):
    reason = meet(birth=YOUNG).unfit(1000.0, GUARD)
    assert reason.startswith("restarted or emptied")
    assert "Client(restart_guard=...)" in reason


# Reports to people.


@pytest.fixture
def group():
    """A node behind Sentinels, whose server remembers everything."""
    (node,) = make_nodes(["redis+sentinel://s1,s2,s3/mymaster?replicas=2"], redis.Redis)
    node.location = Location("a", 1, 7)
    node.meet(info(), 1000.0)
    node.connected = node.tried = True
    return node


def test_node_with_replicas_is_unfit_unless_its_sentinels_have_confirmed_its_server_lately(group):
    assert "that a:1 is still the master: none of the 3 Sentinels has answered yet" in group.unfit(1000.0, GUARD)
    group.locator.confirmed_at, group.locator.excuse = 1000.0, ""
    assert group.unfit(1020.0, GUARD) is None
    assert group.unfit(1020.1, GUARD) == (
        "its Sentinels have not said lately that a:1 is still the master: takes part in new grants again as soon as a "
        "majority of them does"
    )
    assert group.status(1020.1, False, GUARD).state == "quarantined"
    assert group.unfit(1020.1, 0.0) is None, "renewals need no guard"
    assert group.unfit(1020.1, 2 * GUARD) is None


def test_node_without_replicas_needs_no_confirmation_by_its_sentinels():
    (node,) = make_nodes(["redis+sentinel://s1,s2,s3/mymaster"], redis.Redis)
    node.meet(info(), 1000.0)
    assert node.unfit(1000.0, GUARD) is None


def test_node_is_quarantined_while_it_is_unfit(meet):
    node = meet(birth=YOUNG)
    assert node.status(1000.0, False, GUARD).state == "quarantined"
    assert node.status(1025.0, False, GUARD).state == "up"
    assert node.status(1000.0, False, 0.0).state == "up"
    assert node.status(1000.0, True, GUARD).state == "suspect"
    node.connected = False
    assert node.status(1000.0, True, GUARD).state == "down"


def test_quarantine_and_its_end_are_reported_once(meet):
    node = meet(birth=YOUNG)
    told = node.change(1000.0, False, GUARD)
    assert told == NodeChanged(node.address, "quarantined", node.unfit(1000.0, GUARD))
    assert node.change(1010.0, False, GUARD) is None
    assert node.change(1025.0, False, GUARD) == NodeChanged(node.address, "up", "")
    assert node.change(1026.0, False, GUARD) is None


def test_node_without_a_record_is_reported_once_its_peers_were_heard(meet):
    """At the first use it gets an original record, so there is nothing to report."""
    node = meet(birth=None)
    assert node.status(1000.0, False, GUARD).state == "quarantined"
    assert node.change(1000.0, False, GUARD) is None
    node.remember(ORIGINAL, 1000.0)
    assert node.change(1000.0, False, GUARD) is None
    node.remember(None, 1001.0)
    assert node.change(1001.0, False, GUARD) is None
    node.remember(birth_of(NEWBORN, 0.0), 1001.0)
    assert node.change(1001.0, False, GUARD).state == "quarantined"


def test_node_that_is_down_is_reported_no_matter_what_it_remembers(meet):
    node = meet(birth=None)
    node.connected = False
    assert node.change(1000.0, False, GUARD).state == "down"


# Asking it.


@pytest.fixture
def greet_node(nodes):
    """Return a function that greets the first of the real nodes."""
    node = make_nodes(nodes.urls, redis.Redis)[0]
    channels = []

    def greet_node():
        channels.append(node.open(2.0))
        return channels[-1].talk(greet(node, 1.0, raw=True))

    yield greet_node
    for channel in channels:
        channel.close()


def test_greeting_asks_for_the_servers_identity_and_memory(greet_node, raw):
    run_id = raw[0].info("server")["run_id"]
    raw[0].set(BIRTH_KEY, f"newborn {raw[0].time()[0] * 1000 - 60_000} {run_id[:16]}")
    said = greet_node()
    assert said.run_id == run_id
    assert said.process == run_id[:16].encode()
    assert said.uptime >= 0
    assert said.pushes
    assert said.birth.kind == NEWBORN
    assert 58 < said.birth.age < 75


def test_greeting_marks_a_new_server(greet_node):
    birth = greet_node().birth
    assert birth.kind == BLANK
    assert greet_node().birth.mark == birth.mark


@pytest.mark.parametrize("record", ["original 1 0123456789abcdef", "newborn 1 0123456789abcdef", "original 1"])
def test_greeting_makes_a_server_with_another_processs_data_newborn(greet_node, record, raw):
    """For example, it was started from a snapshot, and its peers may have continued."""
    raw[0].set(BIRTH_KEY, record)
    said = greet_node()
    assert said.birth.kind == NEWBORN
    assert said.birth.age < 10
    assert raw[0].get(BIRTH_KEY) == f"newborn {said.birth.since_ms} {said.process.decode()}"


@pytest.mark.parametrize(
    "answer", [b"", b"welcome to something else", b"uptime_in_seconds:soon\r\n", "text", 5, None], ids=repr
)
def test_greeting_of_a_foreign_server_is_a_plain_error(answer):
    (node,) = make_nodes("redis://a", redis.Redis)
    talk = greet(node, 1.0, raw=True)
    next(talk)
    with pytest.raises(ConnectionError, match="not Redis or Valkey"):
        talk.send([{b"proto": 3}, answer, b""])


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("SET", BIRTH_KEY, "a lock"), "is not a birth record"),
        (("RPUSH", BIRTH_KEY, 1), "WRONGTYPE"),
    ],
)
def test_greeting_fails_on_an_invalid_record(greet_node, raw, command, text):
    raw[0].execute_command(*command)
    with pytest.raises(ConnectionError, match=text):
        greet_node()
