"""The replies that a node may send, and those that it must not: step by step, on the test's own clock."""

import itertools
import threading

import hiredis
import pytest
import redis

from redsync._core.effects import Broadcast, Command, Tell
from redsync._core.observing import Ear, noting_of
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally, Verdict
from redsync._core.replies import MOST_BYTES
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.channels import pack
from redsync._drivers.dialects import ClusterDialect
from redsync._drivers.dispatcher import Dispatcher
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.links import speak
from redsync._drivers.requests import Request
from tests.support.ours import of_ours
from tests.support.rigs import Wire

limits_depth = pytest.mark.skipif(
    tuple(map(int, hiredis.__version__.split(".")[:2])) < (3, 5), reason="this hiredis nests lists without limit"
)

NODE_TIMEOUT = 0.25
GIVEN_UP = 10.5
"""Seconds, with room for the periodic checks."""


class Rig:
    """Nodes, usually one, their links, and a dispatcher."""

    def __init__(self, script, nodes=1):
        self.now = 100.0
        self.script = script
        self.broken = []
        self.nodes = make_nodes([f"redis://{'abcde'[i]}" for i in range(nodes)], redis.Redis)
        self.dispatcher = Dispatcher(
            self.nodes,
            lambda: self.now,
            NODE_TIMEOUT,
            mutex=threading.Lock(),
            poller=None,
            awaken=lambda _: None,
            receive_at_once=lambda *_: None,
            on_broken=lambda _, reason: self.broken.append(reason),
            on_change=lambda: None,
        )
        self.links = [Wire(node) for node in self.nodes]
        self.link = self.links[0]
        for link in self.links:
            self.dispatcher._table.install(link)

    def ask(self, judge=lambda reply: reply == 1, *, late=False):
        """Send a command that the answer 1 grants."""
        effect = Broadcast(Command(self.script, (b"k",), ()), Owner("rig", 1), judge, 1.0)
        request = Request(effect, Tally([node.address for node in self.nodes], effect.judge, late=late))
        self.dispatcher._outbox.send(request)
        return request

    def hear(self, data, link=None):
        self.dispatcher._take_in(link or self.link, self.now, data)

    def pass_time(self, seconds, step=0.05, hear=b""):
        """Let time pass, and deliver this data at each step."""
        for _ in range(round(seconds / step)):
            self.now += step
            if hear and not self.broken:
                self.hear(hear)
            self.dispatcher._look_for_suspects()


@pytest.fixture
def rig(make_script):
    return Rig(make_script("ask", "return 1"))


# A node works if it answers.


@pytest.mark.parametrize(
    ("first", "then"),
    [(b"", b""), (b"$1000000\r\n", b"x"), (b"*500000\r\n", b":1\r\n"), (b"", b">2\r\n+pong\r\n+x\r\n")],
    ids=["silent", "dribbled text", "dribbled list", "messages only"],
)
def test_node_without_a_whole_answer_is_suspect_and_at_last_disconnected(rig, first, then):
    request = rig.ask()
    if first:
        rig.hear(first)
    rig.pass_time(NODE_TIMEOUT + 0.1, hear=then)
    assert rig.link.suspect
    assert rig.ask().tally.verdict is Verdict.LOST
    rig.pass_time(GIVEN_UP, hear=then)
    assert rig.broken == ["no answer for 10 s"]
    assert rig.link.is_shut
    assert request.tally.verdict is Verdict.LOST


def test_node_that_answers_in_single_bytes_but_in_time_stays_trusted(rig):
    for _ in range(100):
        request = rig.ask()
        for byte in b"$3\r\nabc\r\n":
            rig.now += NODE_TIMEOUT / 10
            rig.hear(bytes([byte]))
            rig.dispatcher._look_for_suspects()
        assert request.done
        assert not rig.link.suspect
    assert rig.broken == []


def test_suspect_node_is_trusted_again_once_it_has_caught_up(rig):
    """Otherwise a node that answers one of many commands now and then would get all new ones."""
    requests = [rig.ask() for _ in range(3)]
    rig.pass_time(0.5)
    assert rig.link.suspect
    rig.hear(b":1\r\n:1\r\n")
    assert rig.link.suspect
    assert rig.ask().tally.verdict is Verdict.LOST
    rig.pass_time(9.0)
    assert rig.broken == []
    rig.hear(b":1\r\n")
    assert not rig.link.suspect
    assert all(request.done for request in requests)
    last = rig.ask()
    rig.hear(b":1\r\n")
    assert last.tally.won


def test_messages_to_an_idle_client_do_not_count_as_missing_answers(rig):
    """No matter how many bytes come in total."""
    message = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4000\r\n" + b"x" * 4000 + b"\r\n"
    for _ in range(MOST_BYTES // 4000 + 100):
        rig.hear(message[:2000])
        rig.hear(message[2000:])
    assert rig.broken == []
    assert rig.link.unfinished == 0


def test_answer_to_a_command_sent_while_its_reader_read_other_links_took_no_time(rig):
    ear = Ear(["a"], print)
    rig.dispatcher.noting = noting_of([ear])
    for sent_at in (rig.now - 0.25, rig.now + 0.001):
        rig.ask().tally.sent_at = sent_at
        rig.hear(b":1\r\n")
    assert list(ear.took[0]) == [0.25, 0.0]


ANSWERS = [
    (b":1\r\n", 1),
    (b":1\r\n", 1),
    (b"*2\r\n:1\r\n:0\r\n", [1, 0]),
    (b":0\r\n", 0),
    (b">3\r\n+message\r\n+c\r\n$2\r\n:1\r\n", None),
    (b":1\r\n", 1),
    (b"$10\r\n:1\r\n:1\r\n\r\n\r\n", b":1\r\n:1\r\n\r\n"),
    (b":2\r\n", 2),
    (b":1764093600000001\r\n", 1764093600000001),
    (b":1\r\n", 1),
]
"""The bytes that a node sends, and their meaning: an answer, or None for a message."""


def test_lines_read_without_the_parser_equal_its_results_for_any_cut_of_the_stream(rig):
    """Parts of longer answers look like whole short ones."""
    stream = b"".join(sent for sent, _ in ANSWERS)
    told = [meant for _, meant in ANSWERS if meant is not None]
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            requests = [rig.ask() for _ in told]
            for piece in (stream[:first], stream[first:second], stream[second:]):
                if piece:
                    rig.hear(piece)
            assert [request.tally.replies[0] for request in requests] == told, (first, second)
            assert rig.broken == []


def test_single_lines_need_no_parser_once_the_parser_is_empty(rig):
    rig.ask()
    for begin, rest in ((b">2\r\n+pong\r\n", b"+x\r\n"), (b">2\r\n+pong\r\n+x\r\n:", b"1\r\n")):
        rig.hear(begin)
        assert not rig.link.at_rest
        rig.hear(rest)
        assert rig.link.at_rest
    rig.link.feed = None
    requests = [rig.ask() for _ in range(3)]
    rig.hear(b":1\r\n")
    rig.hear(b":0\r\n:1\r\n")
    assert [request.tally.replies[0] for request in requests] == [1, 0, 1]


@pytest.mark.usefixtures("boom")
@pytest.mark.parametrize("answer", [b":1\r\n", b"$1\r\n1\r\n"], ids=["number", "text"])
def test_interrupted_callback_of_an_event_loop_hands_the_reply_out_or_breaks_the_link(inject, make_script, answer):
    """The loop will not deliver these bytes again, so the next reply would answer the wrong command."""
    for point in itertools.count(2):  # The first is before the `try`, like those in the loop's own code.
        rig = Rig(make_script("ask", "return 1"))
        rig.ask()
        rig.hear(b":1\r\n")
        first, second = rig.ask(), rig.ask()
        where = inject(point, lambda rig=rig: rig.hear(answer))
        assert first.done, where
        assert bool(rig.broken) == second.done, where
        if where is None:
            break
    assert point > 5


def message(text):
    return b">3\r\n+message\r\n+c\r\n$%d\r\n%b\r\n" % (len(text), text)


def test_many_lines_of_one_piece_need_no_parser_and_each_is_judged_once_for_all_nodes(make_script):
    rig = Rig(make_script("ask", "return 1"), nodes=5)
    judged = []

    def judge(reply):
        judged.append(reply)
        return reply == 1

    requests = [rig.ask(judge, late=i % 2 == 0) for i in range(100)]
    piece = b"".join(b":%d\r\n" % (i % 10 != 9) for i in range(100))
    for link in rig.links:
        rig.hear(b":1\r\n", link)  # The parser begins at rest only after its first answer.
        link.feed = None
        rig.hear(piece[4:], link)
    votes = [(request.tally.granted, request.tally.refused) for request in requests]
    assert votes == [(3, 0) if i % 10 != 9 else (0, 3) for i in range(100)]
    assert (judged.count(1), judged.count(0)) == (90, 30)
    backers = [request.tally.all_votes.backers for request in requests]
    assert backers == [0 if i % 10 == 9 else 0b00111 if i % 2 else 0b11111 for i in range(100)]
    assert not any(link.pending for link in rig.links)
    assert rig.broken == []


def test_message_that_another_node_has_sent_needs_no_parser(rig):
    told, request = [], rig.ask()
    rig.dispatcher.wakeups.deliver = lambda push, nodes: told.append(push[-1])
    rig.hear(b":1\r\n" + message(b"1 a"))
    assert request.tally.won
    rig.hear(message(b"2 a"))
    rig.link.feed = None
    rig.hear(message(b"2 a"))
    assert rig.broken == []
    rig.hear(message(b"1 a"))
    assert rig.broken != [], "a different one needs the parser"
    assert told == [b"1 a", b"2 a", b"2 a"]


def test_another_thread_that_expects_a_message_meanwhile_does_not_change_what_came(rig):
    class Piece(bytes):
        def __eq__(self, other):
            wakeups.known = message(b"2 b"), (b"message", b"c", b"2 b")
            return super().__eq__(other)

        __hash__ = bytes.__hash__

    told, wakeups = [], rig.dispatcher.wakeups
    wakeups.deliver = lambda push, nodes: told.append(push[-1])
    rig.hear(message(b"1 a"))
    wakeups.known = Piece(message(b"1 a")), (b"message", b"c", b"1 a")
    rig.hear(message(b"1 a"))
    assert wakeups.known[0] == message(b"2 b")
    assert told == [b"1 a"] * 2


def test_message_within_another_reply_is_none(rig):
    told, request = [], rig.ask()
    rig.dispatcher.wakeups.deliver = lambda push, nodes: told.append(push[-1])
    text = message(b"1 a")
    for data in (b":0\r\n", text, b"$%d\r\n" % len(text), text, b"\r\n", text):
        if data[:1] == b"$":
            request = rig.ask()
        rig.hear(data)
    assert request.tally.replies == [text]
    assert told == [b"1 a"] * 2


def test_end_of_a_message_is_not_a_message(rig):
    end = b"+x\r\n"
    rig.hear(message(b"+x")[: -len(end)])
    rig.hear(end)
    request = rig.ask()
    rig.hear(end)
    assert request.tally.replies == [b"x"]


def test_no_line_bypasses_the_wait_for_replicas(rig):
    hold_back(rig.link, 1, NODE_TIMEOUT)
    rig.dispatcher.reconsider()
    for _ in range(3):
        request = rig.ask()
        for line, is_counted in ((b":1\r\n", False), (b":0\r\n", False), (b":1\r\n", True)):
            rig.hear(line)
            assert request.done == is_counted
        assert request.tally.won


# Errors that break this node's link, and nothing else.


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"*2147483647\r\n", "announced 2147483647 elements, more than 1000000"),
        (b":1\r\n*2147483647\r\n", "announced 2147483647 elements, more than 1000000"),
        (b"+" + b"x" * 70_000, "sent a line of more than 65536 bytes"),
        (b":1\r\n:1\r\n", "sent a reply to no command"),
        (b">0\r\n", "sent a reply to no command"),
        (b"%1\r\n*0\r\n:1\r\n", "unhashable type: 'list'"),
        (b">3\r\n$7\r\nmessage\r\n:1\r\n:2\r\n", "a message is text, not 2"),
        pytest.param(b"*1\r\n" * 2000 + b":1\r\n", "Max nesting depth exceeded", marks=limits_depth),
        (b">3\r\n$7\r\nmessage\r\n:1\r\n" + b"*1\r\n" * 1000 + b":1\r\n", "a message is text, not [[[[...]]]]"),
        (b"\x1b]0;owned\x07\r\n", r'Protocol error, got "\x1b" as reply type byte'),
    ],
    ids=lambda it: it[:12] if isinstance(it, bytes) else "",
)
def test_answer_that_no_script_gives_breaks_the_link(rig, answer, reason):
    request = rig.ask()
    rig.hear(answer)
    assert rig.broken == [reason]
    assert rig.link.is_shut
    assert request.done


@pytest.mark.parametrize("header", [b"$2000000000\r\n", b"*900000\r\n$100000000\r\n", b"=100000000\r\n"])
def test_answer_without_an_end_breaks_the_link(rig, header):
    rig.ask()
    rig.hear(header)
    piece = b"x" * 16384
    for _ in range(MOST_BYTES // len(piece) - 1):
        rig.hear(piece)
    assert rig.broken == []
    rig.hear(piece)
    rig.hear(piece)
    assert rig.broken == ["sent a reply of more than 8388608 bytes"]


def test_flood_of_messages_breaks_the_link(rig):
    messages = b">3\r\n+message\r\n+c\r\n$7\r\n0 a key\r\n" * 400
    for _ in range(300):
        rig.now += 0.1
        rig.hear(messages)
    assert rig.broken == []
    for _ in range(100):
        rig.hear(messages)
        if rig.broken:
            break
    assert rig.broken == ["sent more than 20000 messages in a second"]


def test_error_is_shown_without_terminal_escapes(rig):
    request = rig.ask()
    rig.hear(b"-ERR \x1b]0;owned\x07 " + b"x" * 1000 + b"\r\n")
    assert rig.nodes[0].last_error.startswith(r"ERR \x1b]0;owned\x07 xxx")
    assert len(rig.nodes[0].last_error) < 210
    assert request.tally.replies == [rig.nodes[0].last_error]


def test_answer_to_another_command_breaks_the_link_before_more_are_handed_out(rig):
    """A proxy lost an answer: from then on each answer would go to the command behind its own."""
    ours = Broadcast(Command(rig.script, (b"k",), ()), None, of_ours(lambda reply: reply[0] == 1), 1.0)
    requests = [Request(ours, Tally(["a"], ours.judge)) for _ in range(3)]
    for request in requests:
        rig.dispatcher._outbox.send(request)
    rig.hear(b":7\r\n*1\r\n:1\r\n*1\r\n:1\r\n")
    assert rig.broken == ["sent an unexpected reply 7"]
    assert [request.tally.granted for request in requests] == [0, 0, 0]
    assert requests[0].tally.replies == ["unexpected reply 7"]
    assert requests[1].tally.replies == rig.broken


@pytest.mark.parametrize(
    "answer",
    [
        b"(" + b"9" * 5000 + b"\r\n",
        b",nan\r\n",
        b"_\r\n",
        b"#t\r\n",
        b"=8\r\ntxt:\xff\xfe\xfd1\r\n",
        b"*1\r\n" * 1000 + b":1\r\n",
        b"$4000000\r\n" + b"\xff" * 4_000_000 + b"\r\n",
    ],
    ids=lambda answer: answer[:8],
)
def test_odd_answer_is_a_failed_vote_and_breaks_the_link(make_script, answer):
    rig = Rig(make_script("ask", "return 1"))
    effect = Broadcast(Command(rig.script, (b"k",), ()), None, of_ours(lambda reply: reply.is_known), 1.0)
    request = Request(effect, Tally(["a"], effect.judge))
    rig.dispatcher._outbox.send(request)
    rig.hear(answer)
    (reason,) = rig.broken
    assert reason.startswith("sent an unexpected reply ")
    assert len(reason) < 120
    assert request.done
    assert not request.tally.won
    assert all(len(str(vote)) < 300 for vote in request.tally.votes)


# Commands that a node must get.


def test_forgotten_script_is_loaded_as_the_node_has_it(rig):
    """Found by the simulator: a voter of a cluster got EVALSHA of an empty script instead of SCRIPT LOAD."""
    node = rig.nodes[0]
    node.dialect = ClusterDialect(8192)
    speak(rig.link)
    request = rig.ask()
    (asked,) = rig.link.sent
    rig.hear(b"-NOSCRIPT forgotten\r\n")
    load = pack("SCRIPT", "LOAD", node.dialect.script(rig.script).source)
    assert rig.link.sent == [asked, load, asked]
    rig.hear(b"$40\r\n" + b"0" * 40 + b"\r\n:1\r\n")
    assert request.tally.verdict is Verdict.WON


def test_refused_rollback_is_sent_again_even_behind_the_resent_earlier_command(rig):
    """The node had forgotten the claim's script, and was busy when the rollback came."""
    owner = Owner("rig", 1)
    args = (b"claim",)
    ask = Broadcast(Command(rig.script, (b"k",), args), owner, of_ours(lambda reply: reply == 1), 1.0)
    undo = Tell(Command(rig.script, (b"k",), (*args, 0)), owner, owed_to=1, owed_until=1000.0)
    rig.dispatcher._outbox.send(Request(ask, Tally(["a"], ask.judge)))
    rig.dispatcher._outbox.send(Request(undo, None))
    claimed, undone = rig.link.sent
    rig.hear(b"-NOSCRIPT forgotten\r\n-BUSY\r\n")
    assert rig.link.sent.count(claimed) == 2
    rig.hear(b"+OK\r\n:1\r\n")
    rig.now += 1.0
    rig.dispatcher._send_due()
    assert rig.link.sent.count(undone) == 2
