"""Handshakes: which scripts a client loads on a node, which nodes it refuses, and which connections it ends."""

import contextlib
import random

import hiredis
import pytest
import redis

from redsync._core.replies import new_reader, next_reply
from redsync._core.scripts import Script
from redsync._drivers.discovery import Location
from redsync._drivers.environment import clock
from redsync._drivers.handshake_connections import pack
from redsync._drivers.handshakes import introduce, join, load_scripts, shake_hands
from redsync._drivers.link_sets import LinkSet
from redsync._drivers.links import Link
from redsync._drivers.nodes import NodeInfo, make_nodes
from tests.support.hostile import TEXTS, bulk, handshake, make_answer
from tests.support.locks import PATIENCE
from tests.support.scripted import StandIn
from tests.support.trouble import version_of

SHIPPED = Script.shipped()
QUESTION = pack("SCRIPT", "EXISTS", *(script.sha for script in SHIPPED))
LOADS = [pack("SCRIPT", "LOAD", script.source) for script in SHIPPED]


def loaded(known):
    """Return the commands for a node that answers so about its scripts."""
    talk = load_scripts()
    assert next(talk) == [QUESTION]
    try:
        return talk.send([known])
    except StopIteration:
        return []


@pytest.mark.parametrize(
    ("known", "loads"),
    [
        pytest.param([1] * len(SHIPPED), [], id="all"),
        pytest.param([0, *[1] * (len(SHIPPED) - 2), 0], [LOADS[0], LOADS[-1]], id="all but two"),
        pytest.param(hiredis.ReplyError("NOPERM"), LOADS, id="refused"),
        pytest.param(b"OK", LOADS, id="text"),
        pytest.param(None, LOADS, id="null"),
        pytest.param([], LOADS, id="nothing"),
        pytest.param([1] * (len(SHIPPED) + 1), LOADS, id="too many"),
        pytest.param([b"1"] * len(SHIPPED), LOADS, id="words"),
    ],
)
def test_node_gets_the_scripts_that_it_lacks_and_all_if_it_does_not_list_them(known, loads):
    assert loaded(known) == loads


ROUNDS = 3000


@pytest.mark.parametrize("url", ["redis://a", "redis+sentinel://s1/m?replicas=2"])
def test_whatever_a_node_answers_is_a_greeting_or_no_connection(url, seed):
    rng = random.Random(seed)
    (node,) = make_nodes(url, redis.Redis)
    if node.locator is not None:
        node.location = Location("a", 6379, 7)
    outcomes = {"greeted": 0, "refused": 0}
    for _ in range(ROUNDS):
        talk = introduce(node, 1.0, b"channel")
        replies = None
        try:
            while True:
                commands = talk.send(replies)
                replies = [answer_to(command, rng) for command in commands]
        except StopIteration:
            outcomes["greeted"] += 1
        except (ConnectionError, hiredis.ProtocolError):
            outcomes["refused"] += 1
    assert min(outcomes.values()) > ROUNDS / 30, outcomes


def answer_to(command, rng):
    """Return a reply to a packed command: often the usual one, or one that is almost so."""
    words = command.split(b"\r\n")[2::2] or [b"PING"]  # no command is the PING behind a SUBSCRIBE
    usual = {b"SUBSCRIBE": b"+PONG\r\n", b"PUBLISH": b":0\r\n", b"WAIT": b":1\r\n"}.get(words[0]) or handshake(words)
    if words[0] == b"EVALSHA" and rng.random() < 0.3:
        usual = b"*3\r\n" + b"".join(make_answer(rng, 4) for _ in range(3))
    if words[0] == b"INFO" and rng.random() < 0.3:
        usual = bulk(b"uptime_in_seconds:%b\r\nrole:%b" % (rng.choice(TEXTS), rng.choice(TEXTS)))
    while True:
        reader = new_reader()
        reader.feed(make_answer(rng) if usual is None or rng.random() < 0.1 else usual)
        with contextlib.suppress(hiredis.ProtocolError):
            reply = next_reply(reader.gets)
            if not isinstance(reply, hiredis.PushNotification):
                return reply


def test_server_that_hides_its_run_id_replaces_no_other():
    """Without its run_id, clients could not tell it from the previous one."""
    (node,) = make_nodes("redis+sentinel://s1/m", redis.Redis)
    node.location = Location("a", 6379, 7)
    talk = shake_hands(node, 1.0)
    next(talk)
    with pytest.raises(ConnectionError, match="hides its run_id"):
        talk.send([{b"proto": 3}, b"redis_version:7.0.0\r\nuptime_in_seconds:5\r\n", b"role:master\r\n"])


# Former connections: bytes written to them are dead, if the node can end them.


@contextlib.contextmanager
def connected(node):
    """Yield a set with a new link to a node, and what identifies the link."""
    connection = node.open(5.0)
    info, connection_id = connection.run(introduce(node, 1.0, b"wake"))
    node.meet(info, 0.0)
    link_set = LinkSet(StandIn([node], clock))
    link_set.install(Link(node, connection, connection_id))
    yield link_set, connection_id
    link_set.end("the test is over", orderly=True)


def deliver(link_set, node):
    """Send what nothing may overtake, and read the replies."""
    link_set.deliver(node, clock())
    deadline = clock() + PATIENCE
    while link_set.owes and clock() < deadline:
        link_set.read(0.1)


def test_new_connection_ends_former_ones(nodes):
    """Before any pending command is sent, so the node executes nothing that former connections still carry."""
    url = nodes.urls[0]
    with (
        redis.Redis.from_url(url, single_connection_client=True) as former,
        redis.Redis.from_url(url, single_connection_client=True) as other,
    ):
        (node,) = make_nodes(nodes.urls[:1], redis.Redis)
        with connected(node) as (link_set, connection_id):
            process = node.info.run_id
            assert connection_id[0] == process
            node.former.update({(process, former.client_id()), ("another process", other.client_id())})
            deliver(link_set, node)
            assert not node.former
            with pytest.raises(redis.ConnectionError, match="closed by server"):
                former.connection.can_read(60)
            assert other.ping()


def test_node_that_refuses_to_number_or_end_connections_is_still_used(nodes, raw):
    channels = ["&*"] if version_of(raw[0]) >= (6, 2) else []
    raw[0].execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", *channels, "+@all", "-client")
    try:
        (node,) = make_nodes([nodes.urls[0].replace("//", "//app:secret@")], redis.Redis)
        with connected(node) as (link_set, connection_id):
            assert connection_id is None
            node.former.add((node.info.run_id, 1))
            deliver(link_set, node)
            assert not node.former
            assert link_set.links != [None]
    finally:
        raw[0].execute_command("ACL", "DELUSER", "app")


# Further connections.


@pytest.fixture
def known():
    """A node that was greeted."""
    (node,) = make_nodes(["redis://a"], redis.Redis)
    node.info = NodeInfo("process", "redis 7.0.0", 100.0)
    return node


def joined(node, *replies):
    talk = join(node, node.generation)
    assert next(talk) == [pack("HELLO", "3"), pack("INFO", "server"), pack("CLIENT", "ID")]
    with pytest.raises(StopIteration) as stop:
        talk.send([{b"proto": 3}, *replies])
    return stop.value.value


def test_further_connection_learns_its_number(known):
    assert joined(known, b"run_id:process\r\n", 7) == ("process", 7)


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ((b"run_id:another\r\n", 7), "another server process"),
        ((b"", 7), "another server process"),
        ((hiredis.ReplyError("NOPERM"), 7), "INFO was refused: NOPERM"),
        ((b"run_id:process\r\n", hiredis.ReplyError("BUSY")), "CLIENT was refused: BUSY"),
    ],
)
def test_further_connection_is_refused_if_it_is_not_the_known_server_or_can_not_be_ended(known, replies, reason):
    with pytest.raises(ConnectionError, match=reason):
        joined(known, *replies)
