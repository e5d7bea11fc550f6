"""Pending releases: which a node must still get, in which order, and when; step by step, on the test's own clock."""

import math
import threading

import pytest

from redsync._core.effects import Command, Tell
from redsync._drivers import pending_releases
from redsync._drivers.pending_releases import PendingReleases, is_refused
from redsync._drivers.requests import Request
from tests.support.scripted import ANNA, SCRIPT

NOW = 100.0


def request(number, claim=None, *, until=1000.0, owed_to=0b11):
    claim = b"%d" % number if claim is None else claim
    made = Request(Tell(Command(SCRIPT, (b"key",), (claim,)), ANNA, owed_to, until), None)
    made.number = number
    return made


def several(count):
    return [request(number) for number in range(1, count + 1)]


def taken_by_a_node_that_executes_all(releases, now):
    taken = []
    while batch := releases.take(0, now):
        taken += batch
        for each in batch:
            releases.settle(0, each, now)
    return taken


@pytest.fixture
def releases():
    """The pending releases for two nodes."""
    return PendingReleases(2, threading.RLock())


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
    releases.add(0, [third, first], NOW)
    releases.add(0, [second, request(4, owed_to=0b10)], NOW)
    assert (releases.count(0), releases.count(1)) == (3, 0)
    assert releases.take(0, NOW) == [first, second, third]
    assert releases.take(0, NOW) == []
    assert releases.count(0) == 0


def test_each_node_gets_its_own(releases):
    both, second = request(1), request(2, owed_to=0b10)
    releases.add(0, [both], NOW)
    releases.add(1, [both, second], NOW)
    assert releases.take(0, NOW) == [both]
    assert releases.take(1, NOW) == [both, second]


def test_latest_command_about_a_claim_is_kept(releases):
    """A release of one hold is followed by that of the next, and a waiter rolls back tries while a node is away."""
    release = request(2)
    for each in (request(1, b"mine"), release, request(3, b"mine"), request(1, b"mine")):
        releases.add(0, [each], NOW)
    assert [each.number for each in releases.take(0, NOW)] == [2, 3]


def test_expired_releases_are_dropped(releases):
    soon, later = request(1, until=NOW + 5), request(2)
    releases.add(0, [soon, later], NOW)
    assert releases.take(0, NOW + 5) == [later]


def test_releases_do_not_expire_while_the_node_may_still_execute_claims(releases):
    soon = request(1, until=NOW + 5)
    releases.add(0, [], NOW, unanswered=True)
    releases.add(0, [soon], NOW + 10)
    assert releases.take(0, NOW + 1000) == [soon]
    releases.settle(0, soon, NOW + 1000)
    releases.add(0, [soon], NOW + 1000)
    assert releases.count(0) == 0, "it has answered since"


def test_release_that_a_node_refused_does_not_expire(releases):
    """The node may have hung before, and executed the claim late."""
    soon = request(1, until=NOW + 5)
    releases.refuse(0, soon, NOW + 10)
    assert releases.take(0, NOW + 1000) == [soon]


def test_node_that_left_commands_unanswered_gets_all_before_any_expires(releases):
    """Also those that do not go out with the first ones."""
    made = [request(number, until=NOW + 5) for number in range(1, 701)]
    releases.add(0, made, NOW, unanswered=True)
    assert taken_by_a_node_that_executes_all(releases, NOW + 100) == made


def test_many_expired_releases_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(pending_releases, "_PURGE_FROM", 4)
    releases = PendingReleases(2, threading.RLock())
    lasting = request(0, until=math.inf)
    releases.add(0, [lasting], NOW)
    for number in range(1, 1000):
        releases.add(0, [request(number, until=NOW + number + 1.5)], NOW + number)
        assert releases.count(0) <= 8
    assert lasting in releases.take(0, NOW + 999)


def test_releases_that_have_not_expired_are_all_kept(monkeypatch):
    monkeypatch.setattr(pending_releases, "_PURGE_FROM", 4)
    monkeypatch.setattr(pending_releases, "_STALE_LIMIT", 3)
    releases = PendingReleases(2, threading.RLock())
    made = several(100)
    releases.add(0, made, NOW)
    assert releases.take(0, NOW) == made


def test_node_that_hangs_for_long_is_owed_the_latest_of_the_expired_releases(monkeypatch):
    monkeypatch.setattr(pending_releases, "_PURGE_FROM", 4)
    monkeypatch.setattr(pending_releases, "_STALE_LIMIT", 3)
    releases = PendingReleases(2, threading.RLock())
    lasting = request(0)
    made = [lasting, *(request(number, until=NOW - number) for number in range(1, 16))]
    releases.add(0, made, NOW, unanswered=True)
    assert releases.take(0, NOW)[:4] == [lasting, *made[1:4]]


# When, and how many at once.


def test_pauses_grow_while_the_node_refuses(releases):
    undo, now, pauses = request(1), NOW, []
    for _ in range(12):
        releases.refuse(0, undo, now)
        pauses.append(releases.due_at(0) - now)
        now = releases.due_at(0)
        assert releases.take(0, now - 0.001) == []
        assert releases.take(0, now) == [undo]
        assert releases.due_at(0) == math.inf, "it is under way"
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, *[0.5] * 6])


def test_node_gets_hundreds_at_once(releases):
    made = several(700)
    releases.add(0, made, NOW)
    batch = releases.take(0, NOW)
    assert batch == made[:512]
    assert releases.take(0, NOW) == [], "one batch at a time"
    for each in batch:
        releases.settle(0, each, NOW)
    assert releases.take(0, NOW) == made[512:]


def test_release_that_a_node_never_executes_delays_no_other(releases):
    """It may refuse a single key, by its rules for this user."""
    bad, *others = several(4)
    releases.add(0, [bad, *others], NOW)
    for each in releases.take(0, NOW):
        if each is bad:
            releases.refuse(0, each, NOW)
        else:
            releases.settle(0, each, NOW)
    assert releases.count(0) == 1
    assert releases.take(0, NOW + 1) == [bad]


def test_batch_refused_as_a_whole_is_followed_by_one_pause(releases):
    made = several(3)
    releases.add(0, made, NOW)
    for each in releases.take(0, NOW):
        releases.refuse(0, each, NOW)
    assert releases.due_at(0) == pytest.approx(NOW + 0.01)
    assert releases.take(0, NOW + 1) == made


def test_node_that_executes_again_is_known_to_be_well(releases):
    undo = request(1)
    releases.refuse(0, undo, NOW)
    releases.refuse(0, undo, NOW + 1)
    assert releases.take(0, NOW + 2) == [undo]
    releases.settle(0, undo, NOW + 2)
    releases.refuse(0, undo, NOW + 3)
    assert releases.due_at(0) == pytest.approx(NOW + 3.01)


def test_unanswered_batch_goes_out_again(releases):
    """Its connection has ended."""
    made = several(3)
    releases.add(0, made, NOW)
    assert releases.take(0, NOW) == made
    releases.settle(0, made[0], NOW)
    releases.add(0, made[1:], NOW, unanswered=True)
    assert releases.count(0) == 2
    assert releases.take(0, NOW) == made[1:]


def test_node_needs_nothing_about_a_claim_before_what_it_has_executed(releases):
    first, second, other = request(1, b"mine"), request(2, b"mine"), request(3)
    releases.add(0, [first, other], NOW)
    releases.add(1, [first], NOW)
    releases.settle(0, second, NOW)
    assert releases.take(0, NOW) == [other]
    assert releases.take(1, NOW) == [first]
    releases.refuse(0, second, NOW)
    releases.settle(0, first, NOW + 1)
    assert releases.count(0) == 1, "the earlier one came late"
    releases.settle(0, other, NOW + 1)
    assert releases.take(0, NOW + 1) == [second]


def test_only_what_was_delivered_from_here_makes_room_for_the_next(releases):
    first, second = several(2)
    releases.add(0, [first], NOW)
    assert releases.take(0, NOW) == [first]
    releases.settle(0, second, NOW)
    releases.add(0, [second], NOW)
    assert releases.take(0, NOW) == [], "the first is under way"


def test_new_connection_ends_a_pause(releases):
    made = several(20)
    for _ in range(5):
        releases.refuse(0, made[0], NOW)
    releases.add(0, made, NOW)
    assert releases.take(0, NOW) == []
    releases.clear_pause(0)
    assert releases.due_at(0) <= NOW
    assert releases.take(0, NOW) == made


def test_node_without_pending_releases_is_never_due(releases):
    assert releases.due_at(0) == math.inf
    assert releases.take(0, NOW) == []


def test_threads_may_add_while_the_maintenance_takes(releases):
    made = [several(500)[index::4] for index in range(4)]
    taken = []

    def add(mine):
        for each in mine:
            releases.add(0, [each], NOW)

    threads = [threading.Thread(target=add, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or releases.count(0):
        for each in releases.take(0, NOW):
            taken.append(each.number)
            releases.settle(0, each, NOW)
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 501))
