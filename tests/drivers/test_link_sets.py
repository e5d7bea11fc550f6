"""Links and sets of links: rounds, the pairing of replies, silence, broken links, pending releases, and forks."""

import itertools
import math
import os
import socket
import struct
import time
from contextlib import suppress

import hiredis
import pytest

from redsync import ClientClosedError
from redsync._core.replies import MOST_BYTES
from redsync._drivers import link_sets, links
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.discovery import Location
from redsync._drivers.handshake_connections import HandshakeConnection
from redsync._drivers.links import GIVE_UP, Link
from redsync._drivers.requests import Codec
from tests.support.forks import in_child
from tests.support.injection import Interruption
from tests.support.scripted import NODE_TIMEOUT, SCRIPT, Desk, choices, message, take, words_of

YES, NO = b":1\r\n", b":0\r\n"

limits_depth = pytest.mark.skipif(
    tuple(map(int, hiredis.__version__.split(".")[:2])) < (3, 5), reason="this hiredis nests lists without limit"
)

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # is multi-threaded, and forks


@pytest.fixture
def connected(desk):
    """A set with a link to each of three nodes, and the far ends."""
    return desk.connected()


@pytest.fixture
def link_set(connected):
    return connected[0]


@pytest.fixture
def fars(connected):
    return connected[1]


def hear(link_set):
    """Read what has arrived."""
    link_set.read(0.0)


# A round.


def test_round_asks_all_nodes_and_ends_as_soon_as_a_quorum_grants(desk, link_set, fars):
    request = desk.ask(link_set)
    assert [far.commands() for far in fars] == [[[b"EVALSHA", b"0" * 40, b"1", b"key", b"word"]]] * 3
    assert request.tally.sent == 0b111
    fars[0].say(YES)
    hear(link_set)
    assert not request.done
    fars[2].say(YES)
    hear(link_set)
    assert request.done
    assert request.tally.won
    assert choices(request.tally) == ["granted", None, "granted"]
    assert request.number == 1


def test_late_replies_of_decided_rounds_are_skipped_in_their_order(desk, link_set, fars):
    """Also while several rounds owe one, and whatever these replies are."""
    for _ in range(3):
        early = desk.ask(link_set)
        fars[0].say(YES)
        fars[1].say(YES)
        hear(link_set)
        assert early.done
    request = desk.ask(link_set, b"new")
    fars[2].say(YES, b"-ERR busy\r\n")
    hear(link_set)
    assert choices(request.tally) == [None] * 3
    fars[2].say(b"$4\r\nwhat\r\n", NO)
    hear(link_set)
    assert choices(request.tally) == [None, None, "refused"]
    assert not link_set.links[2].pending
    assert choices(early.tally) == ["granted", "granted", None], "the protocol may be reading it"


def test_error_is_a_failed_vote_and_the_nodes_last_error(desk, link_set, fars):
    request = desk.ask(link_set)
    fars[1].say(b"-ERR \x1b]0;owned\x07 " + b"x" * 1000 + b"\r\n")
    hear(link_set)
    assert choices(request.tally) == [None, "failed", None]
    assert request.tally.replies[1] == desk.nodes[1].last_error
    assert desk.nodes[1].last_error.startswith(r"ERR \x1b]0;owned\x07 xxx")
    assert len(desk.nodes[1].last_error) < 210
    assert desk.pending() == [0, 0, 0], "it need not get it"


def test_observers_learn_how_long_each_counted_reply_took(desk, link_set, fars):
    request = desk.ask(link_set)
    desk.now += 0.25
    fars[1].say(YES)
    hear(link_set)
    assert request.tally.ballots[1][3] - request.tally.sent_at == 0.25


# Scripts that a node has forgotten.


@pytest.mark.parametrize("slot", [None, 8192], ids=["plain node", "voter of a cluster"])
def test_forgotten_script_is_loaded_and_the_command_sent_again(desk, slot):
    if slot is not None:
        desk.nodes[1].codec = Codec(slot)
    link_set, fars = desk.connected()
    request = desk.ask(link_set)
    (asked,) = fars[1].commands()
    fars[1].say(b"-NOSCRIPT forgotten\r\n")
    hear(link_set)
    assert fars[1].commands() == [[b"SCRIPT", b"LOAD", SCRIPT.source], asked]
    fars[1].say(b"$40\r\n" + b"0" * 40 + b"\r\n")
    hear(link_set)
    assert choices(request.tally) == [None] * 3
    fars[1].say(YES)
    hear(link_set)
    assert choices(request.tally) == [None, "granted", None]


@pytest.mark.parametrize("case", ["again", "something was sent behind it"])
def test_vote_fails_where_the_command_can_not_be_sent_again_in_order(desk, link_set, fars, case):
    """The node gets the script, and the next command finds it."""
    first = desk.ask(link_set, deliver_to=0b111)
    second = None if case == "again" else desk.ask(link_set, b"next")
    fars[1].take()
    if case == "again":
        fars[1].say(b"-NOSCRIPT forgotten\r\n+OK\r\n-NOSCRIPT forgotten\r\n")
    else:
        fars[1].say(b"-NOSCRIPT forgotten\r\n", YES)
    hear(link_set)
    assert fars[1].commands()[-1] == [b"SCRIPT", b"LOAD", SCRIPT.source]
    assert first.tally.replies[1] == "NOSCRIPT forgotten"
    assert desk.pending() == [0, 1, 0]
    if second is not None:
        assert choices(second.tally) == [None, "granted", None]


def test_link_that_breaks_as_a_forgotten_script_is_sent_costs_only_its_vote(desk, link_set, fars):
    request = desk.ask(link_set, deliver_to=0b010)
    fars[1].take()
    fars[1].say(b"-NOSCRIPT forgotten\r\n")
    fars[1].sock.close()
    hear(link_set)
    assert link_set.links[1] is None
    assert choices(request.tally) == [None, "failed", None]
    assert desk.pending() == [0, 1, 0]


def test_link_that_has_ended_is_polled_no_more(desk, link_set, fars):
    """Else each wait for the other nodes would be a busy one."""
    desk.ask(link_set)
    fars[1].sock.close()
    hear(link_set)
    assert link_set.links[1] is None
    began = time.monotonic()
    link_set.read(0.02)
    assert time.monotonic() - began >= 0.02


# Which nodes get a request.


def test_node_without_a_link_fails_at_once_with_its_reason(desk):
    link_set = desk.make_set()
    desk.install(link_set, 0)
    desk.nodes[1].connected, desk.nodes[1].down_reason = False, "gone fishing"
    request = desk.ask(link_set)
    assert request.tally.replies == [None, "gone fishing", "no connection yet"]
    assert request.done
    assert request.tally.without_quorum
    assert request.tally.sent == 0b001


def test_node_that_remembers_too_little_gets_no_new_claims_but_everything_else(desk, link_set, fars):
    node = desk.nodes[1]
    node.remembers_since = desk.now - 20.0
    for guard, vote in [(10.0, None), (50.0, "failed"), (10.0, None), (0.0, None)]:
        request = desk.ask(link_set, guard=guard)
        assert choices(request.tally) == [None, vote, None], guard
        assert len(fars[1].commands()) == (vote is None)
        assert request.tally.sent == (0b101 if vote else 0b111), "it is not even asked"
        for far in fars[: 3 if vote is None else 1]:
            far.say(YES)
        hear(link_set)
        fars[2].say(*[YES] * bool(vote))
        hear(link_set)
    desk.now += 31.0
    assert choices(desk.ask(link_set, guard=50.0).tally) == [None] * 3


def test_each_of_several_requests_in_one_write_has_its_own_guard(desk, link_set, fars):
    desk.nodes[1].remembers_since = desk.now - 30.0
    requests = [desk.request(guard=guard) for guard in (10.0, 50.0, 0.0)]
    link_set.send(*requests)
    assert [choices(request.tally)[1] for request in requests] == [None, "failed", None]


@pytest.mark.parametrize(
    ("age", "reason", "since"),
    [
        ("5000", "for 25.0 s", 95.0),
        ("-1", "may have forgotten claims", math.inf),  # it can't tell since when it remembers
        *((text, "FORGETFUL", -math.inf) for text in ("soon", "", "1.5", "-2", "0x10", "1_000", "9" * 400, "-1 or so")),
    ],
)
def test_forgetful_node_has_no_vote_and_is_left_out_for_as_long_as_it_says(desk, link_set, fars, *, age, reason, since):
    """A reply that no node sends costs only that vote."""
    request = desk.ask(link_set, guard=30.0)
    fars[1].say(f"-FORGETFUL {age}\r\n".encode())
    hear(link_set)
    assert reason in request.tally.replies[1]
    assert choices(request.tally) == [None, "failed", None]
    assert desk.nodes[1].remembers_since == since
    is_known = since != -math.inf
    assert (desk.changes > 0) == is_known, "the maintenance has to write its record"
    assert choices(desk.ask(link_set, guard=30.0).tally) == [None, "failed" if is_known else None, None]


def test_link_to_a_former_server_ends_before_anything_is_sent(desk, link_set, fars):
    pending = desk.ask(link_set, deliver_to=0b111)
    fars[1].take()
    desk.nodes[1].generation += 1
    desk.nodes[1].down_reason = "its Sentinels name another master now"
    request = desk.ask(link_set, b"new")
    assert choices(request.tally) == [None, "failed", None]
    assert choices(pending.tally) == [None, "failed", None]
    assert request.tally.replies[1] == desk.nodes[1].down_reason
    assert fars[1].take() == b""
    assert fars[1].ended()
    assert desk.pending() == [0, 1, 0]


def test_vote_counts_only_while_its_server_is_known_to_be_the_master():
    """The process may be paused within the round: it may have come, or been given, long after the request was sent."""
    desk = Desk(urls=["redis+sentinel://s1,s2,s3/mymaster?replicas=2"])
    (node,), link_set = desk.nodes, desk.make_set()
    node.location = node.locator.present = Location("a", 1, 7)
    far, votes = desk.install(link_set, 0), []

    def vote(later, *, moves=False, **options):
        node.locator.confirmed_at = desk.now
        request = desk.ask(link_set, **options)
        desk.now += later
        node.generation += moves
        far.say(YES)
        hear(link_set)
        votes.extend(choices(request.tally))

    vote(6.0, guard=9.0)
    vote(6.1, guard=9.0)
    vote(6.1)
    vote(0.0, guard=9.0, moves=True)
    assert votes == ["granted", "failed", "granted", "failed"]
    desk.close()


# Silence.


def test_node_that_owes_replies_for_too_long_gets_only_releases(desk, link_set, fars):
    late = desk.ask(link_set)
    for far in fars[:2]:
        far.say(YES)
    hear(link_set)
    desk.now += NODE_TIMEOUT
    assert choices(desk.ask(link_set).tally) == [None] * 3, "not yet"
    for far in fars[:2]:
        far.say(YES)
    hear(link_set)
    fars[2].take()
    desk.now += 0.01
    request = desk.ask(link_set)
    assert choices(request.tally) == [None, None, "failed"]
    assert request.tally.replies[2] == "owes 2 replies for 0.26 s"
    assert request.tally.sent == 0b011
    assert link_set.links[2].suspect
    release = desk.ask(link_set, b"release", deliver_to=0b111)
    assert release.tally.sent == 0b111
    desk.tell(link_set, b"undo")
    assert fars[2].last_words() == [b"release", b"undo"]
    assert desk.lagging == [2], "told once"
    assert choices(late.tally) == ["granted", "granted", None]


def test_silence_lasts_from_the_first_unanswered_command_to_the_next_answer(desk, link_set, fars):
    """With asyncio many tasks share a link: a node that answers steadily always owes something."""

    def suspects():
        link_set.look(desk.now)
        return [link.suspect for link in link_set.links]

    desk.now += 1000.0
    desk.ask(link_set)
    for _ in range(5):
        desk.ask(link_set)
        desk.now += NODE_TIMEOUT
        assert suspects() == [False] * 3
        for far in fars:
            far.say(YES)
        hear(link_set)
    desk.now += NODE_TIMEOUT + 0.01
    assert suspects() == [True] * 3
    fars[1].say(YES)
    hear(link_set)
    assert suspects() == [True, False, True]
    assert choices(desk.ask(link_set).tally) == ["failed", None, "failed"]


def test_process_that_was_suspended_reads_before_it_calls_anything_missing(desk, link_set, fars):
    """The replies lie in its sockets, unread."""
    first = desk.ask(link_set)
    for far in fars:
        far.say(YES)
    desk.now += 100.0
    second = desk.ask(link_set)
    assert first.tally.won
    assert choices(second.tally) == [None] * 3
    assert second.tally.sent == 0b111
    assert all(link_set.links)


def test_wait_beyond_its_deadline_reads_once_more(desk, link_set, fars):
    """The poll that counts began after the deadline."""
    request = desk.ask(link_set)
    deadline = desk.now + 1.0

    looks = itertools.count(1)
    fars[0].say(message(b"1 unknown"))  # ends the first poll

    def clock():
        """The process is suspended in its first poll, and its replies come meanwhile."""
        if next(looks) == 2:
            desk.now += 100.0
            for far in fars:
                far.say(YES)
        return desk.now

    link_set._clock = clock
    assert link_set.wait(request, deadline) is True
    assert request.tally.won


@pytest.mark.parametrize(
    ("first", "then"),
    [(b"", b""), (b"$1000000\r\n", b"x"), (b"*500000\r\n", b":1\r\n"), (b"", b">2\r\n+pong\r\n+x\r\n")],
    ids=["silent", "dribbled text", "dribbled list", "messages only"],
)
def test_only_whole_answers_show_that_a_node_works(desk, link_set, fars, first, then):
    """A connection that is silent for too long is replaced: the node may work again behind a dead one."""
    request = desk.ask(link_set)
    release = desk.tell(link_set)
    fars[0].say(first)
    link = link_set.links[0]
    for far in fars[1:]:
        far.say(NO, NO)
    while link_set.links[0] is not None:
        assert desk.now < 111.0
        assert link.suspect == (desk.now > 100.0 + NODE_TIMEOUT)
        desk.now += 0.1
        fars[0].say(then)
        hear(link_set)
        link_set.look(desk.now)
    assert desk.now > 100.0 + GIVE_UP
    assert choices(request.tally) == ["failed" if request.tally.failed else None, "refused", "refused"]
    assert fars[0].ended()
    assert desk.pending() == [1, 0, 0]
    assert take(desk.releases, 0, desk.now) == [release]


@pytest.mark.parametrize(("lease", "seconds"), [(60.0, GIVE_UP), (6.0, 2.0), (0.3, NODE_TIMEOUT)])
def test_silent_connection_is_given_up_in_time_for_a_renewal_over_a_new_one(lease, seconds):
    desk = Desk(lease=lease)
    link_set, _ = desk.connected()
    desk.ask(link_set)
    for silence, is_kept in (seconds * 0.99, True), (seconds * 1.01, False):
        link_set.look(100.0 + silence)
        assert all(link_set.links) is is_kept
    desk.close()


def test_node_with_too_many_commands_unanswered_gets_only_releases(desk, link_set, fars, monkeypatch):
    desk.releases.others = lambda: [link_set]
    monkeypatch.setattr(link_sets, "_MOST_PENDING", 3)
    monkeypatch.setattr(link_sets, "_FEW_PENDING", 0)
    for _ in range(4):
        assert desk.ask(link_set).tally.sent == 0b111
    assert desk.ask(link_set).tally.sent == 0
    assert desk.ask(link_set, deliver_to=0b001).tally.sent == 0b001


def test_unanswered_commands_over_all_sets_of_callers_are_limited(desk):
    """Each release looks through them. But a set alone may have many: a node may be further away than the others."""
    sets = [desk.connected()[0] for _ in range(4)]
    desk.releases.others = lambda: sets
    sent = [[desk.ask(each).tally.sent for _ in range(500)].count(0b111) for each in sets]
    assert sent[:2] == [500, 500]
    assert sum(sent) < 1100
    assert min(sent) > 20


# Replies that no node sends.


@pytest.mark.parametrize(
    "answer",
    [
        b":7\r\n",
        b"_\r\n",
        b"$4\r\ntext\r\n",
        b"*1\r\n:1\r\n",
        b",nan\r\n",
        b"(" + b"9" * 5000 + b"\r\n",
        b"=8\r\ntxt:\xff\xfe\xfd1\r\n",
        b"*1\r\n" * 1000 + b":1\r\n",
    ],
    ids=lambda answer: answer[:8],
)
def test_reply_of_the_wrong_shape_ends_the_link_and_shifts_no_vote(desk, link_set, fars, answer):
    """A proxy lost an answer: from then on each answer would go to the command behind its own."""
    requests = [desk.ask(link_set, parse={0: False, 1: True}.__getitem__) for _ in range(3)]
    fars[1].say(answer, YES, YES)
    hear(link_set)
    assert link_set.links[1] is None
    assert [choices(request.tally) for request in requests] == [[None, "failed", None]] * 3
    reasons = [request.tally.replies[1] for request in requests]
    assert reasons[0].startswith("unexpected reply ")
    assert reasons[1] == reasons[2] == "sent an " + reasons[0]
    assert len(reasons[0]) < 120
    assert fars[1].ended()
    for far in (fars[0], fars[2]):
        far.say(YES, YES, YES)
    hear(link_set)
    assert [request.tally.won for request in requests] == [True] * 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b":1\r\n:1\r\n", "sent a reply to no command"),
        (b"%1\r\n*0\r\n:1\r\n", "sent a reply with an unhashable key"),
        pytest.param(b"*1\r\n" * 2000 + b":1\r\n", "Max nesting depth exceeded", marks=limits_depth),
        (b"\x1b]0;owned\x07\r\n", r'Protocol error, got "\x1b" as reply type byte'),
        (b"", "closed the connection"),
    ],
    ids=lambda it: it[:12] if isinstance(it, bytes) else "",
)
def test_bytes_that_no_node_sends_end_the_link_and_fail_what_it_has_to_answer(desk, link_set, fars, answer, reason):
    broken = []
    link_set.on_discarded = lambda link, reason: broken.append((link.index, reason))
    request = desk.ask(link_set, deliver_to=0b010)
    if answer:
        fars[1].say(answer)
    else:
        fars[1].sock.shutdown(socket.SHUT_RDWR)
    for _ in range(10):
        hear(link_set)
    assert broken == [(1, reason)]
    assert link_set.links[1] is None
    assert link_set.links[0] is not None
    assert desk.changes > 0
    is_answered = answer == YES + YES
    assert choices(request.tally) == [None, "granted" if is_answered else "failed", None]
    assert desk.pending() == [0, 0 if is_answered else 1, 0]


@pytest.mark.parametrize("header", [b"$2000000000\r\n", b"*900000\r\n$100000000\r\n", b"=100000000\r\n", b"+"])
def test_answer_without_an_end_ends_the_link(desk, link_set, fars, header):
    request, piece, sent = desk.ask(link_set), b"x" * 16384, 0
    fars[1].say(header)
    while link_set.links[1] is not None:
        assert sent <= MOST_BYTES
        fars[1].say(piece)
        sent += len(piece)
        hear(link_set)
    assert sent >= MOST_BYTES - len(piece)
    assert request.tally.replies[1] == "sent a reply of more than 8388608 bytes"


def test_messages_do_not_count_as_an_answer_without_an_end(desk, link_set, fars):
    """No matter how many bytes come in total."""
    text = message(b"x" * 8000)
    for _ in range(MOST_BYTES // 8000 + 100):
        fars[1].say(text[:4000])
        hear(link_set)
        fars[1].say(text[4000:])
        hear(link_set)
    assert link_set.links[1] is not None


# Messages.


def test_messages_reach_their_mailboxes_and_no_request(desk, link_set, fars):
    desk.wakeups.subscribe(b"a:key")
    request = desk.ask(link_set)
    fars[1].say(message(b"7 a:key"), YES, message(b"0 another"))
    fars[2].say(message(b"7 a:key"))
    hear(link_set)
    assert choices(request.tally) == [None, "granted", None]
    mailbox = desk.wakeups._mailboxes[b"a:key"]
    assert mailbox.done
    assert mailbox.ask_ids == {b"7": 0b110}


def test_missing_vote_of_a_node_that_waits_for_its_replicas_is_blamed_on_them():
    """The node itself has answered, and its answer to the WAIT may come too late for a round that ends soon."""
    desk = Desk(nodes=3)
    link_set, fars = desk.make_set(), []
    for index in range(3):
        link, far = desk.link(index)
        hold_back(link, 1, NODE_TIMEOUT)
        link_set.install(link)
        fars.append(far)
    blamed, hung = "UNACKNOWLEDGED 1 of its replicas must have the vote: late", "late"

    first = desk.ask(link_set)
    fars[0].say(YES)
    fars[1].say(YES, NO)
    hear(link_set)
    link_set.close_round(first, "late")
    assert first.tally.replies[:2] == [blamed, blamed]

    second = desk.ask(link_set)
    fars[1].say(NO)
    fars[2].say(YES, NO, YES)
    hear(link_set)
    link_set.close_round(second, "late")
    assert second.tally.replies[:2] == [blamed, hung], "the first node still waits for the vote before"

    desk.now += 2 * NODE_TIMEOUT
    assert (
        desk.ask(link_set).tally.replies[0].startswith("UNACKNOWLEDGED 1 of its replicas must have the vote: owes 2 ")
    )
    assert desk.nodes[0].last_error.startswith("UNACKNOWLEDGED")
    desk.close()


# Commands that a node must get.


def test_pending_release_does_not_go_out_behind_a_later_command_about_its_claim(desk, link_set, fars):
    """The later one may make it needless, and would be undone by it; once that is answered, nothing is left to send."""
    earlier = desk.release(b"mine")
    later = desk.tell(link_set, b"mine")
    for far in fars:
        far.commands()
    desk.releases.add(0, [earlier])
    link_set.deliver(desk.nodes[0], desk.now)
    assert fars[0].commands() == []
    assert desk.pending() == [1, 0, 0]
    fars[0].say(YES)
    hear(link_set)
    assert later not in link_set.links[0].pending
    assert desk.pending() == [0, 0, 0]


def test_release_becomes_pending_where_it_can_not_be_sent(desk):
    link_set = desk.make_set()
    fars = {index: desk.install(link_set, index) for index in (0, 1)}
    release = desk.tell(link_set, deliver_to=0b101)
    assert fars[0].last_words() == [b"release"]
    assert desk.pending() == [0, 0, 1]
    assert take(desk.releases, 2, desk.now) == [release]
    assert desk.changes == 1


def test_release_that_no_node_would_ever_execute_is_not_sent_again(desk, link_set, fars):
    desk.tell(link_set)
    fars[1].say(b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n")
    hear(link_set)
    assert desk.pending() == [0, 0, 0]


@pytest.mark.parametrize("error", [Interruption(), ConnectionResetError(104, "reset")], ids=repr)
def test_pending_release_outlives_an_error_while_it_is_sent(desk, link_set, monkeypatch, error):
    """An exception of a signal's handler, or the end of its link."""
    desk.releases.add(1, [desk.release(deliver_to=0b010)])
    link = link_set.links[1]
    monkeypatch.setattr(link, "write", lambda _: (_ for _ in ()).throw(error))
    with suppress(Interruption):
        link_set.deliver(link.node, desk.now)
    assert (link_set.links[1] is None) == isinstance(error, OSError)
    assert desk.pending() == [0, 1, 0]


def test_request_for_one_node_without_a_link_becomes_pending(desk):
    link_set = desk.make_set()
    release = desk.release()
    link_set.send_to(1, [release], desk.now)
    assert desk.pending() == [0, 1, 0]
    assert desk.changes == 1


# A node that does not read.


@pytest.fixture
def narrow(desk, link_set):
    """The far end of a node that accepts few bytes at once."""
    link_set.links[1]._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return link_set


def test_bytes_wait_for_room_and_arrive_whole_and_in_order(desk, narrow, fars):
    words = [b"%d" % number + b"x" * 100_000 for number in range(8)]
    for word in words:
        desk.ask(narrow, word)
        fars[0].take(), fars[2].take()
    assert narrow.links[1].backlog
    received = b""
    while narrow.links[1].backlog:
        received += fars[1].take()
        hear(narrow)
    assert [words[-1] for words in words_of(received + fars[1].take())] == words
    desk.ask(narrow, b"more")
    assert fars[1].last_words() == [b"more"]
    assert not narrow.links[1].backlog


def test_node_that_does_not_read_for_too_long_loses_its_link(desk, narrow, fars, monkeypatch):
    monkeypatch.setattr(links, "BACKLOG_LIMIT", 1_000_000)
    request = None
    for _ in range(1000):
        request = desk.ask(narrow, b"x" * 10_000)
        if narrow.links[1] is None:
            break
        fars[0].take(), fars[2].take()
    assert request.tally.replies[1] == "does not read: more than 1000000 bytes wait for it"
    assert choices(request.tally) == [None, "failed", None]


def test_first_bytes_to_a_new_link_have_no_limit(desk, narrow, fars, monkeypatch):
    """The limit is for a node that does not read; releases that waited for the node must not be lost to it."""
    monkeypatch.setattr(links, "BACKLOG_LIMIT", 1000)
    releases = [desk.release(b"%d" % number + b"x" * 10_000) for number in range(50)]
    narrow.send_to(1, releases, desk.now)
    received = b""
    while narrow.links[1].backlog:
        received += fars[1].take()
        hear(narrow)
    assert len(words_of(received + fars[1].take())) == 50


# Which links a set has.


def test_missing_are_the_nodes_that_are_up_and_have_no_link(desk):
    link_set = desk.make_set()
    desk.nodes[2].connected = False
    assert link_set.missing(desk.now) == desk.nodes[:2]
    assert link_set.missing(desk.now) == [], "they are being connected"
    link, _ = desk.link(0)
    link_set.arrive(0, link)
    link_set.arrive(1, "refused")
    link_set.take_arrivals()
    assert [each and each.index for each in link_set.links] == [0, None, None]
    assert link_set.missing(desk.now) == [], "not at once"
    assert link_set.missing(desk.now + 0.2) == [desk.nodes[1]]


def test_connection_that_comes_after_the_end_is_closed(desk):
    link_set = desk.make_set()
    link, far = desk.link(0)
    link_set.arrive(0, link)
    link_set.arrive(1, "refused")
    link_set.end("over", orderly=True)
    assert far.ended()
    link, far = desk.link(0)
    link_set.arrive(0, link)
    assert far.ended()


def test_read_tells_when_a_watched_descriptor_is_readable(desk, link_set):
    reader, writer = socket.socketpair()
    with reader, writer:
        link_set.watch(reader.fileno())
        assert link_set.read(0.0) is False
        writer.send(b"x")
        assert link_set.read(0.0) is True


def test_interruption_never_drops_a_new_connection(desk, monkeypatch):
    """It is in use, or still among the arrivals, so the end of the set finds it."""
    link_set = desk.make_set()
    link, far = desk.link(0)
    link_set.arrive(0, link)

    def strike(link):
        raise Interruption

    monkeypatch.setattr(link_set, "install", strike)
    with pytest.raises(Interruption):
        link_set.take_arrivals()
    link_set.end("interrupted", orderly=False)
    assert far.ended()


def test_exception_while_a_link_is_discarded_leaves_no_open_connection(desk, link_set, fars, monkeypatch):
    class Struck(set):
        def discard(self, link):
            self.clear()
            monkeypatch.undo()
            raise Interruption

    monkeypatch.setattr(desk, "installed", Struck(desk.installed))
    with pytest.raises(Interruption):
        link_set.discard(link_set.links[1], "gone")
    link_set.end("thrown away", orderly=False)
    assert [far.ended() for far in fars] == [True] * 3


# The end of links.


@pytest.mark.parametrize("orderly", [True, False])
def test_ended_set_is_closed_and_what_it_had_under_way_failed(desk, orderly):
    link_set = desk.make_set()
    fars = [desk.install(link_set, index, ("process", 70 + index)) for index in range(3)]
    request = desk.ask(link_set, deliver_to=0b001)
    link_set.end("over", orderly=orderly)
    assert link_set.closed
    assert link_set.links == [None] * 3
    assert request.done
    assert [far.last_words() for far in fars] == [[b"word"]] * 3, "sent bytes arrive, if the node reads them first"
    assert all(far.ended() for far in fars)
    assert desk.pending() == [1, 0, 0]
    former = set() if orderly else {("process", 70)}
    assert desk.nodes[0].former == former, "the node must end it, if the client did not end it in order"


@pytest.fixture
def tcp(desk):
    """A set with one link over TCP, the socket, and its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    far.settimeout(30)
    link_set = desk.make_set()
    link_set.install(Link(desk.nodes[0], HandshakeConnection(near, 5.0)))
    with far:
        yield link_set, link_set.links[0], far


def read_to_the_end(sock):
    parts = []
    while part := sock.recv(1000):
        parts.append(part)
    return b"".join(parts)


def test_discarded_connection_is_reset(desk, tcp):
    """The kernel would keep sending unacknowledged bytes for minutes."""
    link_set, link, far = tcp
    sock = socket.socket(fileno=os.dup(link.fileno))
    link_set.discard(link, "gone")
    assert struct.unpack("ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 0)
    sock.close()
    assert read_to_the_end(far) == b""


def test_connection_of_a_closed_client_ends_cleanly(desk, tcp):
    link_set, _, far = tcp
    desk.ask(link_set)
    link_set.end("closed", orderly=True)
    assert read_to_the_end(far).endswith(b"word\r\n")
    far.send(b"a reply")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
def test_kernel_drops_a_connection_with_unacknowledged_data(tcp):
    _, link, _ = tcp
    assert link._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == GIVE_UP * 1000


# Forks.


def test_child_of_a_fork_writes_nothing_to_its_parents_connections_and_reads_nothing(desk, link_set, fars):
    desk.ask(link_set)
    for far in fars:
        far.take()
        far.say(YES)

    def act():
        said = []
        for action in (lambda: desk.ask(link_set), lambda: desk.tell(link_set), lambda: link_set.read(0.0)):
            try:
                action()
            except ClientClosedError as error:
                said.append(str(error))
        return f"{len(said)} {'forked' in said[0]}"

    assert in_child(act) == "3 True"
    assert [far.take() for far in fars] == [b""] * 3
    request = desk.ask(link_set)
    assert not any(link is None for link in link_set.links)
    for far in fars[:2]:
        far.say(YES)
    hear(link_set)
    assert request.tally.won, "the first reply of each node was still there"
