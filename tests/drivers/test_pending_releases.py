"""Pending releases: which a node must still get, in which order, and when; step by step, on the test's own clock."""

import gc
import math
import threading

import pytest

from redsync._core.effects import Tell
from redsync._core.scripts import Command
from redsync._drivers import pending_releases
from redsync._drivers.pending_releases import PendingReleases, is_refused, keep_behind
from redsync._drivers.requests import Request
from redsync._signal_safe import SafeLock
from tests.support.scripted import ANNA, SCRIPT, choices, take

NOW = 100.0


def request(number, claim=None, *, deliver_to=0b11):
    claim = b"%d" % number if claim is None else claim
    made = Request(Tell(Command(SCRIPT, (b"key",), (claim,)), ANNA, deliver_to), None)
    made.number = number
    return made


def several(count):
    return [request(number) for number in range(1, count + 1)]


@pytest.fixture
def releases():
    """The pending releases for two nodes."""
    return PendingReleases(2, SafeLock(threading.RLock()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BUSY Redis is busy running a script", True),
        ("MISCONF Redis is configured to save RDB snapshots", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("OOM command not allowed when used memory > 'maxmemory'", True),
        ("ERR Error running script (call to f_0): @user_script:9: -MISCONF Redis is configured", True),
        ("NOSCRIPT No matching script", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("ERR unknown command 'EVALSHA'", False),
        ("ERR Error running script (call to f_0): @user_script:9: WRONGTYPE Operation against a key", False),
        ("UNACKNOWLEDGED 0 of its replicas have the vote, 1 must have it", False),
    ],
)
def test_is_refused_tells_which_errors_may_pass(text, expected):
    assert is_refused(text) is expected


# Which, and in which order.


def test_node_gets_what_it_must_get_in_order_and_once(releases):
    first, second, third = several(3)
    releases.add(0, [first, second])
    releases.add(0, [third, request(4, deliver_to=0b10)])
    assert (releases.count(0), releases.count(1)) == (3, 0)
    assert take(releases, 0, NOW) == [first, second, third]
    assert take(releases, 0, NOW) == []
    assert releases.count(0) == 0


def test_latest_command_about_a_claim_is_kept(releases):
    """A release of one hold is followed by that of the next, and a waiter rolls back tries while a node is away."""
    release = request(2)
    for each in (request(1, b"mine"), release, request(3, b"mine"), request(1, b"mine")):
        releases.add(0, [each])
    assert [each.number for each in take(releases, 0, NOW)] == [2, 3]


def test_latest_releases_are_kept_up_to_a_limit(monkeypatch, releases):
    """A node may refuse all commands for hours, as its disk is full."""
    monkeypatch.setattr(pending_releases, "_MOST_KEPT", 3)
    for each in several(9):
        releases.add(0, [each])
    assert [each.number for each in take(releases, 0, NOW)] == [7, 8, 9]


# When, and how many at once.


def test_node_that_refuses_gets_them_again_after_a_pause(releases):
    made = several(3)
    for each in made:
        releases.refuse(0, each, NOW)
    assert releases.due_at(0) == pytest.approx(NOW + 0.2)
    assert take(releases, 0, NOW + 0.1) == []
    assert take(releases, 0, NOW + 0.2) == made
    assert releases.due_at(0) == math.inf, "they are under way"


def test_node_gets_hundreds_at_once(releases):
    made = several(700)
    releases.add(0, made)
    assert take(releases, 0, NOW) == made[:512]
    assert take(releases, 0, NOW) == [], "a moment later"
    assert take(releases, 0, NOW + 0.1, 500) == made[512:524], "as many as its connection has room for"
    assert take(releases, 0, NOW + 0.2, 600) == []
    assert take(releases, 0, NOW + 0.3) == made[524:]


def test_new_connection_ends_a_pause(releases):
    (release,) = several(1)
    releases.refuse(0, release, NOW)
    releases.clear_pause(0)
    assert releases.due_at(0) <= NOW
    assert take(releases, 0, NOW) == [release]


# Order across sets of links: a release goes out again, once the nodes have answered what it follows over other sets.

YES = b":1\r\n"


@pytest.fixture
def sets(desk):
    """Three sets with links to three nodes; the far ends of the first."""
    made = [desk.connected() for _ in range(3)]
    desk.releases.others = lambda: [link_set for link_set, _ in made]
    return [link_set for link_set, _ in made], made[0][1]


@pytest.fixture
def own(desk):
    return desk.make_set()


def release(desk, claim=b"claim", deliver_to=0b111, **options):
    request = desk.request(claim, deliver_to=deliver_to, **options)
    request.number = desk.next_number()
    return request


def kept(desk):
    """Return which nodes get what once they have answered."""
    return [(i, claim[1]) for i, of_node in enumerate(desk.releases.of_node) for claim in of_node.requests]


def ask(desk, link_set, fars, *, silent):
    """Ask for the claim; all nodes but these answer."""
    desk.ask(link_set, b"claim")
    for far in (far for index, far in enumerate(fars) if index not in silent):
        far.say(YES)
    link_set.read(0.0)


def test_release_is_kept_for_nodes_that_have_not_answered_an_ask_for_its_claim(desk, sets, own):
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1, 2])
    request = release(desk, deliver_to=0b011)
    keep_behind(request, second, desk, own)
    assert kept(desk) == [(1, b"claim")]
    assert choices(request.tally) == [None, None, None]


def test_kept_release_is_due_once_the_node_has_answered(desk, sets, own):
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1])
    request = release(desk)
    keep_behind(request, second, desk, own)
    desk.releases.resolve(1, request)
    assert desk.releases.due(1, desk.now) == []
    desk.ask(first, b"a later ask")
    fars[1].say(YES)
    first.read(0.0)
    (again,) = desk.releases.due(1, desk.now + 1.0)
    assert again.claim == request.claim


def test_unanswered_command_keeps_back_nothing_that_need_not_follow_it(desk, sets, own):
    (first, _, _), fars = sets
    ask(desk, first, fars, silent=[1])
    other = release(desk, b"another", key=b"another lock")
    desk.releases.add(1, [other])
    assert desk.releases.due(1, desk.now) == [other]


def test_release_over_the_same_set_or_of_another_lock_is_not_kept(desk, sets, own):
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1])
    keep_behind(release(desk), first, desk, own)
    keep_behind(release(desk, b"another", key=b"another lock"), second, desk, own)
    assert kept(desk) == []


def test_release_is_kept_behind_an_ask_of_its_owner_for_an_earlier_claim(desk, sets, own):
    """That ask takes a place in the queue, and a place belongs to the owner, not to a claim."""
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1])
    keep_behind(release(desk, b"later claim"), second, desk, own)
    assert kept(desk) == [(1, b"later claim")]


def test_release_waits_for_all_sets_that_its_owner_has_used(desk, sets, own):
    (first, second, third), fars = sets
    ask(desk, first, fars, silent=[1])
    desk.ask(second, b"claim")
    keep_behind(release(desk), third, desk, own)
    assert kept(desk) == [(0, b"claim"), (1, b"claim"), (2, b"claim")]
    fars[1].say(YES)
    first.read(0.0)
    assert desk.releases.due(1, desk.now) == []


def test_release_goes_out_again_behind_the_end_of_a_connection_that_may_still_bring_the_ask(desk, own):
    """The connection was given up, but a proxy may have the ask."""
    first, (second, _) = desk.make_set(), desk.connected()
    ours = desk.install(own, 1)
    desk.install(first, 1, ("process", 6))
    desk.ask(first, b"claim")
    first.discard(first.links[1], "no answer for 8.0 s")
    keep_behind(release(desk), second, desk, own)
    assert (1, b"claim") in kept(desk)
    own.deliver(desk.nodes[1], desk.now)
    assert ours.last_words() == [b"6", b"claim"]
    keep_behind(release(desk, b"later"), second, desk, own)
    assert (1, b"later") in kept(desk), "the node has yet to execute that"
    ours.say(b":1\r\n", YES)
    own.read(0.0)
    keep_behind(release(desk, b"last"), second, desk, own)
    assert (1, b"last") not in kept(desk)


def test_release_is_kept_behind_a_renewal_of_many_claims_over_the_maintenances_set(desk, sets):
    """It was decided early, and creates claims that nodes have forgotten."""
    (own, second, third), fars = sets
    desk.releases.others = lambda: [second, third]
    renewal = desk.request(b"another", owner=None)
    renewal.command = renewal.command._replace(args=(b"another", 1, b"claim", 1))
    own.send(renewal)
    for far in (fars[0], fars[2]):
        far.say(YES)
    own.read(0.0)
    keep_behind(release(desk, b"third"), second, desk, own)
    keep_behind(release(desk), own, desk, own)
    assert kept(desk) == []
    keep_behind(release(desk), third, desk, own)
    assert kept(desk) == [(1, b"claim")]


def test_other_threads_may_use_their_sets_while_a_release_looks_at_these(desk, sets, own):
    """They run when a garbage collection in between runs finalizers, as it may wherever Python 3.11 allocates."""
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1])
    pending, thresholds = first.links[1].pending, gc.get_threshold()

    class Other:
        def __init__(self):
            self.me = self

        def __del__(self):
            pending.append(desk.request(b"another"))

    try:
        for allocations in range(1, 200):
            gc.collect()
            gc.set_threshold(allocations)
            Other()
            keep_behind(release(desk), second, desk, own)
            desk.releases.due(1, desk.now + allocations)
            gc.set_threshold(*thresholds)
    finally:
        gc.set_threshold(*thresholds)
    assert kept(desk) == [(1, b"claim")]
