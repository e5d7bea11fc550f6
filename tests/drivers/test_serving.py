"""Serving a leader without followers: what a command's rounds have learned of its replies, and where it does not count.

All replies are there before the leader reads, so one call has to deal with all of them.
"""

import socket
from functools import partial

import pytest

from redsync._core.effects import Broadcast, Command, Packed
from redsync._core.quorum import Verdict
from redsync._drivers.pollers import READ
from redsync._drivers.process import clock
from redsync._drivers.requests import Request
from tests.support.rigs import await_answers, choices, lose, tend_until


@pytest.fixture
def say(raw, make_script):
    """A script that returns the number in the key `say`, or 1."""
    say = make_script("say", "return tonumber(redis.call('get', 'say') or 1)")
    for node in raw:
        node.script_load(say.source)
    return say


class Asker:
    """Asks all nodes with the same packing, and counts the judge's calls."""

    def __init__(self, rig, say):
        self._rig = rig
        self._owner = rig.owner()
        self._command = Command(say, (b"list",), (), Packed())
        self.judged = []
        self.judge = lambda reply: self.judged.append(reply) or reply

    def send(self, judge=None, decide=None, **options):
        effect = Broadcast(self._command, self._owner, judge or self.judge, 60.0, decide=decide, **options)
        request = Request(effect, effect.tally([node.address for node in self._rig.nodes]))
        request.tally.sent_at = clock()
        self._rig.transport.send(request)
        return request

    def ask(self, judge=None, decide=None):
        request = self.send(judge, decide)
        await_answers(self._rig)
        return self.wait(request)

    def wait(self, request):
        self._rig.transport.wait(request, request.tally.sent_at + 60.0)
        return request.tally


@pytest.fixture
def asker(rig, say):
    return Asker(rig, say)


def test_rounds_after_the_first_one_know_the_reply_that_grants(asker):
    # The very first replies of a connection go through the parser.
    asker.ask()
    asker.ask()
    judged = len(asker.judged)
    tally = asker.ask()
    assert (choices(tally), tally.answers, tally.replies) == (["granted"] * 3, [1] * 3, [1] * 3)
    assert (tally.verdict, tally.granted) == (Verdict.WON, 3), "what came with the deciding vote counts as well"
    assert len(asker.judged) == judged


def test_known_reply_counts_as_well_while_a_node_is_down(rig, asker, nodes):
    asker.ask()
    asker.ask()
    lose(rig, nodes, 0)
    judged = len(asker.judged)
    request = asker.send()
    await_answers(rig, 1, 2)
    tally = asker.wait(request)
    assert (choices(tally), tally.verdict) == (["failed", "granted", "granted"], Verdict.WON)
    assert len(asker.judged) == judged


def test_single_node_is_judged_once(make_rig, nodes, say):
    rig = make_rig(nodes.urls[:1])
    asker = Asker(rig.connect(), say)
    asker.ask()
    asker.ask()
    judged = len(asker.judged)
    assert asker.ask().verdict is Verdict.WON
    assert len(asker.judged) == judged


def test_what_one_judge_has_said_does_not_count_for_another(asker):
    asker.ask()
    assert asker.ask(judge=lambda reply: False).verdict is Verdict.LOST


def test_known_reply_does_not_decide_where_a_rule_does(asker):
    asker.ask()
    asker.ask()
    tally = asker.ask(decide=lambda tally: Verdict.LOST if tally.granted == 3 else Verdict.PENDING)
    assert (tally.verdict, tally.granted) == (Verdict.LOST, 3)


@pytest.mark.parametrize("others", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize("said", [0, 2])
@pytest.mark.parametrize("known", [True, False])
def test_other_replies_among_the_usual_ones_count_as_well(asker, raw, others, said, known):
    if known:
        asker.ask()
    for node in others:
        raw[node].set("say", said)
    tally = asker.ask()
    won = said or len(others) == 1
    assert tally.verdict is (Verdict.WON if won else Verdict.LOST)
    for node in range(3):
        if tally.cast[node] is not None:
            reply = said if node in others else 1
            assert tally.cast[node] == (tally.choices[node], reply, reply)
            assert (tally.choices[node].value == "granted") is bool(reply)
    assert tally.granted + tally.refused == 3 - tally.unheard


@pytest.mark.parametrize("node", range(3))
def test_error_among_the_usual_replies_fails_that_vote_alone(rig, asker, raw, node):
    asker.ask()
    raw[node].hset("say", "of another", "type")
    assert asker.ask().verdict is Verdict.WON
    assert not rig.broken
    raw[node].delete("say")
    assert choices(asker.ask()) == ["granted"] * 3


@pytest.mark.parametrize("node", range(3))
def test_connection_that_ends_among_the_usual_replies_costs_that_node_alone(rig, asker, nodes, node):
    asker.ask()
    nodes.kill(node)
    tally = asker.ask()
    assert tally.verdict is Verdict.WON
    assert choices(tally)[node] != "granted"
    assert [index for index, _ in rig.broken] == [node]


def test_end_of_connections_grants_nothing_where_no_usual_reply_is_known(rig, asker, nodes):
    rig.ask(rig.number, rig.owner(), 1)
    rig.settle()
    nodes.pause(1)
    nodes.pause(2)
    request = asker.send()
    # Read by the maintenance, which learns nothing for the request.
    tend_until(rig, lambda: request.tally.granted == 1)
    for node in 1, 2:
        rig.transport.links[node]._sock.shutdown(socket.SHUT_RD)
    assert choices(rig.finish(request)) == ["granted", "failed", "failed"]
    assert request.tally.verdict is Verdict.LOST


def test_replies_longer_than_a_glance_are_all_counted(rig, asker):
    asker.ask()
    asker.ask()
    former = [asker.send() for _ in range(150)]
    request = asker.send()
    await_answers(rig)
    asker.wait(request)
    assert all(each.tally.won for each in [*former, request])
    rig.settle()
    assert [len(link.pending) for link in rig.transport.links] == [0, 0, 0]
    assert not rig.broken


def test_record_of_tls_without_a_reply_grants_nothing(rig, asker):
    """A node may send others than replies, such as the tickets of a session: `read` then returns None."""
    rig.ask(rig.number, rig.owner(), 1)
    rig.settle()
    request = asker.send()
    await_answers(rig)
    for link in rig.transport.links:
        link.read = partial(setattr, link, "read", link.read)  # the first call returns None
        link.glance = partial(setattr, link, "glance", link.glance)
    assert choices(rig.finish(request)).count("granted") == request.tally.granted >= 2


def test_reply_that_was_usual_before_the_latest_one_keeps_its_own_meaning(rig, asker, nodes, raw):
    asker.ask()
    asker.ask()
    raw[0].set("say", 2)
    nodes.pause(1)
    nodes.pause(2)
    request = asker.send()
    tend_until(rig, lambda: request.tally.granted == 1)
    nodes.resume(1)
    rig.finish(request)
    assert request.tally.answers[:2] == [2, 1]


def test_late_reply_of_a_former_round_counts_for_that_round(rig, asker, nodes):
    asker.ask()
    asker.ask()
    judged = len(asker.judged)
    nodes.pause(2)
    former = asker.send(late=True)
    asker.wait(former)
    assert (former.tally.verdict, former.tally.answers) == (Verdict.WON, [1, 1, None])
    nodes.resume(2)
    await_answers(rig, 2)
    nodes.pause(2)
    latter = asker.send()
    await_answers(rig)
    asker.wait(latter)
    assert (latter.tally.verdict, latter.tally.answers) == (Verdict.WON, [1, 1, None])
    assert (former.tally.granted, former.tally.all_votes.answers) == (2, [1, 1, 1])
    assert (former.tally.answers, former.tally.confirmed) == ([1, 1, None], 0b100)
    assert [len(link.pending) for link in rig.transport.links] == [0, 0, 1]
    assert len(asker.judged) == judged


def test_link_that_has_nothing_to_hand_out_does_not_vote(rig, asker):
    """As over TLS, where a poll also tells of what is no data."""
    asker.ask()
    asker.ask()
    links = rig.transport.links
    request = asker.send(judge=lambda reply: reply)
    await_answers(rig)
    links[0].read = links[0].glance = lambda: None
    rig.transport._serve_alone([(link.fileno, READ) for link in links], clock(), request)
    assert (request.tally.granted, request.tally.answers) == (2, [None, 1, 1])
