"""Sessions of virtual nodes: RESP 2 and 3, commands in pieces and in pipelines, pushes in order, errors."""

import hiredis
import pytest

from redsync._drivers.channels import pack
from redsync.testing.simulator.network import CLOSED
from redsync.testing.simulator.sessions import encode
from redsync.testing.simulator.values import Status

SIMULATION = {"seed": 3, "nodes": 1, "checkers": ()}


@pytest.mark.parametrize(
    ("reply", "resp2", "resp3"),
    [
        (7, b":7\r\n", None),
        (-1, b":-1\r\n", None),
        (b"", b"$0\r\n\r\n", None),
        (b"a\r\nb", b"$4\r\na\r\nb\r\n", None),
        (Status(b"OK"), b"+OK\r\n", None),
        (None, b"$-1\r\n", b"_\r\n"),
        ([], b"*0\r\n", None),
        ([1, [b"x", None]], b"*2\r\n:1\r\n*2\r\n$1\r\nx\r\n$-1\r\n", b"*2\r\n:1\r\n*2\r\n$1\r\nx\r\n_\r\n"),
        (hiredis.ReplyError("ERR two\nlines"), b"-ERR two lines\r\n", None),
    ],
)
def test_reply_is_encoded_in_its_version(reply, resp2, resp3):
    assert encode(reply, 2) == resp2
    assert encode(reply, 3) == (resp2 if resp3 is None else resp3)


def test_maps_exist_only_in_resp_3():
    assert encode({b"proto": 3, b"id": None}, 3) == b"%2\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n_\r\n"


@pytest.mark.parametrize(("version", "head", "nothing"), [(2, b"*8\r\n", b"$-1\r\n"), (3, b"%4\r\n", b"_\r\n")])
def test_hello_decides_the_version(call, version, head, nothing):
    assert call("HELLO", version).startswith(head)
    assert call("GET", "nothing") == nothing


@pytest.mark.parametrize(
    ("version", "reply"), [(2, b"*2\r\n$1\r\na\r\n$1\r\n1\r\n"), (3, b"%1\r\n$1\r\na\r\n$1\r\n1\r\n")]
)
def test_hash_is_a_map_or_a_list(call, version, reply):
    call("HELLO", version)
    call("HSET", "hash", "a", 1)
    assert call("HGETALL", "hash") == reply
    assert call("HGETALL", "nothing") == reply[:1] + b"0\r\n"


def test_client_begins_with_resp_2_and_unknown_versions_change_nothing(call):
    assert call("HELLO", 4) == b"-NOPROTO unsupported protocol version\r\n"
    assert call("GET", "nothing") == b"$-1\r\n"


def test_command_may_arrive_in_any_two_pieces(call):
    data = pack("PING", "hello\r\nworld")
    for at in range(1, len(data)):
        assert call.ask(data[:at], data[at:]) == [b"$12\r\nhello\r\nworld\r\n"]


def test_half_a_command_is_not_executed(sim, call):
    assert call.ask(pack("SET", "key", "value")[:-1]) == []
    assert sim.nodes[0].store.peek(b"key") is None
    assert call.ask(b"\n") == [b"+OK\r\n"]


def test_pipeline_is_answered_in_order_and_all_at_once(call):
    commands = [pack("SET", "key", "1"), pack("INCR", "key"), pack("NONSENSE"), pack("GET", "key")]
    answers = b"+OK\r\n:2\r\n-ERR unknown command 'NONSENSE'\r\n$1\r\n2\r\n"
    assert call.ask(b"".join(commands)) == [answers]


def test_end_of_a_pipeline_may_come_later(call):
    data = pack("PING") * 3
    assert call.ask(data[:20]) == [b"+PONG\r\n"]
    assert call.ask(data[20:]) == [b"+PONG\r\n+PONG\r\n"]


@pytest.mark.parametrize(("version", "kind"), [(2, b"*"), (3, b">")])
def test_push_stands_in_its_place_among_replies(call, version, kind):
    call("HELLO", version)
    pushed = kind + b"3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    commands = pack("PING") + pack("SUBSCRIBE", "c") + pack("PING")
    assert call.ask(commands) == [b"+PONG\r\n" + pushed + b"+PONG\r\n"]


def test_messages_reach_only_subscribers(call, other):
    call("HELLO", 3)
    call("SUBSCRIBE", "c", "d")
    assert other("PUBLISH", "c", "hello") == b":1\r\n"
    assert call.messages[-1] == b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n"
    left = b">3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:1\r\n>3\r\n$11\r\nunsubscribe\r\n$1\r\nd\r\n:0\r\n"
    assert call("UNSUBSCRIBE") == left
    assert other("PUBLISH", "c", "hello") == b":0\r\n"


def test_messages_of_a_session_that_has_ended_go_nowhere(sim, call, other):
    call("SUBSCRIBE", "c")
    call.connection.hang_up()
    sim.run(until=sim.now + 1.0)
    assert other("PUBLISH", "c", "hello") == b":0\r\n"
    assert sim.nodes[0].listeners(b"c") == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["GET"], "ERR wrong number of arguments for 'get'"),
        (["PUBLISH", "c"], "ERR wrong number of arguments for 'publish'"),
        (["HGET", "key", "field"], "WRONGTYPE"),
        (["INCR", "key"], "ERR value is not an integer"),
        (["CLIENT", "NONSENSE"], "ERR unknown subcommand 'NONSENSE'"),
        (["SCRIPT", "NONSENSE"], "ERR unknown subcommand 'NONSENSE'"),
        (["EVALSHA", "0" * 40, 0], "NOSCRIPT"),
    ],
)
def test_error_is_answered_and_the_connection_continues(call, words, error):
    call("SET", "key", "text")
    assert call(*words).startswith(f"-{error}".encode())
    assert call("PING") == b"+PONG\r\n"


@pytest.mark.parametrize("data", [b"PING\r\n", b":1\r\n", b"*1\r\n$x\r\n"])
def test_invalid_command_ends_the_connection(call, other, data):
    assert call.ask(data) == [CLOSED]
    assert other("PING") == b"+PONG\r\n"


def test_empty_command_is_ignored(call):
    assert call.ask(b"*0\r\n" + pack("PING")) == [b"+PONG\r\n"]


def test_script_is_known_until_scripts_are_forgotten(sim, call):
    sha = call("SCRIPT", "LOAD", "return 7").split()[1].decode()
    assert call("EVALSHA", sha, 0) == b":7\r\n"
    sim.nodes[0].forget_scripts()
    assert call("SCRIPT", "EXISTS", sha) == b"*1\r\n:0\r\n"
    assert call("EVALSHA", sha, 0) == b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
    assert call("EVAL", "return 7", 0) == b":7\r\n"
    assert call("EVALSHA", sha.upper(), 0) == b":7\r\n"


@pytest.mark.parametrize(
    ("code", "words", "refused"),
    [
        ("MOVED", ["GET", "key"], True),
        ("MOVED", ["PING"], False),
        ("CLUSTERDOWN", ["EVAL", "return 1", 0], True),
        ("CLUSTERDOWN", ["INFO"], False),
        ("LOADING", ["PING"], True),
        ("LOADING", ["SUBSCRIBE", "c"], False),
        ("BUSY", ["INFO"], True),
        ("BUSY", ["HELLO", 2], False),
    ],
)
def test_node_in_trouble_refuses_what_real_ones_refuse(sim, call, code, words, refused):
    sim.nodes[0].refuse(code)
    assert call(*words).startswith(f"-{code}".encode()) is refused
    sim.nodes[0].recover()
    assert not call(*words).startswith(b"-")


def test_session_ends_another_by_its_number_if_it_may(sim, call, other):
    number = int(other("CLIENT", "ID")[1:])
    sim.nodes[0].ends_former = False
    assert call("CLIENT", "KILL", "ID", number).startswith(b"-NOPERM")
    sim.nodes[0].ends_former = True
    assert call("CLIENT", "KILL", "ID", number) == b":1\r\n"
    assert other.messages[-1] is CLOSED
    assert call("CLIENT", "KILL", "ID", number) == b":0\r\n"
