"""Votes that wait for replicas: what a link hands out, and when; and a real server's answers to WAIT."""

import contextlib

import hiredis
import pytest
import redis

from redsync import QuorumError
from redsync._core.effects import Broadcast
from redsync._core.quorum import Tally
from redsync._core.replies import NOTHING, new_reader
from redsync._core.scripts import Command, Script
from redsync._drivers.acknowledgements import hold_back, wait_commands
from redsync._drivers.links import AnyLink
from redsync._drivers.nodes import make_nodes
from redsync._drivers.requests import PLAIN, Request
from tests.support.sentinels import FakeSentinels


class Wire(AnyLink):
    """A link without a network."""

    def __init__(self, node):
        super().__init__(node, new_reader())
        self.sent = []

    def write(self, data):
        self.sent.append(data)

    shut = reset = forget = None


ACQUIRE, RELEASE = Script.load("lock_acquire"), Script.load("lock_release")


def request(script, key=b"k"):
    effect = Broadcast(Command(script, (key,), (b"claim",)), None, bool, timeout=1.0)
    return Request(effect, Tally(["node-1"], effect.parse))


@pytest.fixture
def wire():
    """A link whose votes one replica must acknowledge."""
    (node,) = make_nodes(["redis://a"], redis.Redis)
    link = Wire(node)
    hold_back(link, 1, 0.25)
    return link


def write(link, *requests):
    link.write(link.encode(requests))


def come(link, *replies):
    """Let replies arrive; return those that may be handed out then."""
    link.feed(b"".join(replies))
    given = []
    while (reply := link.gets()) is not NOTHING:
        given.append(reply)
    return given


def test_wait_follows_a_vote_in_the_same_write_with_half_of_the_rounds_timeout(wire):
    ask = request(ACQUIRE)
    write(wire, ask)
    (sent,) = wire.sent
    assert sent == ask.data + b"".join(wait_commands(PLAIN, 1, 0.125))
    assert sent.endswith(hiredis.pack_command(("WAIT", "1", "125")))


@pytest.mark.parametrize("count", [1, 2, 100])
def test_vote_is_handed_out_once_enough_replicas_have_it(wire, count):
    write(wire, request(ACQUIRE))
    assert come(wire, b":1\r\n") == []
    assert come(wire, b":0\r\n") == []
    assert come(wire, b":%d\r\n" % count) == [1]


def test_vote_that_too_few_replicas_have_becomes_an_error_with_the_reason(wire):
    write(wire, request(ACQUIRE), request(RELEASE))
    lost, back = come(wire, b":1\r\n", b":1\r\n", b":0\r\n", b":0\r\n")
    assert isinstance(lost, hiredis.ReplyError)
    assert str(lost) == "UNACKNOWLEDGED 0 of its replicas have the vote, 1 must have it"
    assert back == 1, "a release does not have to last"


@pytest.mark.parametrize("following", [(b"-NOPERM no\r\n", b":3\r\n"), (b":0\r\n", b"-UNBLOCKED demoted\r\n")])
def test_node_that_refuses_to_wait_has_no_vote(wire, following):
    write(wire, request(ACQUIRE))
    (error,) = come(wire, b":1\r\n", *following)
    assert str(error).startswith("UNACKNOWLEDGED can't ask its replicas: ")


def test_answer_to_wait_that_is_not_a_number_breaks_the_link(wire):
    write(wire, request(ACQUIRE))
    with pytest.raises(hiredis.ProtocolError, match="unexpected reply"):
        come(wire, b":1\r\n", b":0\r\n", b"+OK\r\n")


def test_message_is_not_proof_of_a_hand_over(wire):
    """The node sends it before replicas acknowledge the claim that it reports."""
    write(wire, request(ACQUIRE))
    (message,) = come(wire, b">3\r\n$7\r\nmessage\r\n$4\r\nwake\r\n$14\r\n12 285475da:1k\r\n")
    assert isinstance(message, hiredis.PushNotification)
    assert message == [b"message", b"wake", b"0 285475da:1k"]
    assert come(wire, b">3\r\n$9\r\nsubscribe\r\n$4\r\nwake\r\n:1\r\n") == [[b"subscribe", b"wake", 1]]
    assert come(wire, b":1\r\n", b":0\r\n", b":1\r\n") == [1], "and does not count as a reply"


# A real server, with a replica that is stopped.


@pytest.fixture
def pair(servers, eventually):
    """A master and its replica."""
    with contextlib.ExitStack() as stack:
        master, replica = (stack.enter_context(redis.Redis(port=port, protocol=3)) for port in servers.ports)
        replica.replicaof("127.0.0.1", str(servers.ports[0]))
        eventually(lambda: master.wait(1, 100) == 1 and replica.info("replication")["master_link_status"] == "up")
        yield servers, master


def ask(client, *commands):
    connection = client.connection_pool.get_connection()
    try:
        connection.send_packed_command(list(commands))
        return [connection.read_response() for _ in commands]
    finally:
        client.connection_pool.release(connection)


def test_vote_that_wrote_nothing_also_waits_for_replicas(pair, eventually):
    """Another connection made the claim, and no replica has it: WAIT alone knows no write of this connection."""
    nodes, client = pair
    nodes.pause(1)
    with redis.Redis(port=nodes.ports[0]) as other:
        other.set("claim", "ours")
    read, wait = hiredis.pack_command(("GET", "claim")), wait_commands(PLAIN, 1, 0.1)[-1]
    if ask(client, read, wait) == [b"ours", 1]:  # servers before 7.2 wait for the writes of all connections
        assert ask(client, read, *wait_commands(PLAIN, 1, 0.1)) == [b"ours", 0, 0]
    nodes.resume(1)
    eventually(lambda: ask(client, read, *wait_commands(PLAIN, 1, 1.0)) == [b"ours", 0, 1])


@pytest.mark.asyncio_too
def test_error_names_the_replicas_if_all_are_gone(pair, make_client, both_flavours, eventually):
    """Even if the timeout ends before the master has answered; `test_link_sets` has both cases."""
    nodes, _ = pair
    with FakeSentinels(replicas=1) as sentinels:
        sentinels.say(nodes.ports[0], 1)
        lock = make_client(sentinels.url, lease=3.0).get_lock("x")
        assert lock.acquire(timeout=20)
        lock.release()

        def is_named():
            with pytest.raises(QuorumError) as caught:
                lock.acquire(timeout=0.2)
            return "UNACKNOWLEDGED" in str(caught.value)

        nodes.pause(1)
        try:
            eventually(is_named)
        finally:
            nodes.resume(1)
        assert lock.acquire(timeout=20)
