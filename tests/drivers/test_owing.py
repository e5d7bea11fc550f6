"""Order across sets of links: a release also follows its claim over the sets whose nodes have yet to answer."""

import gc
import math
import threading

import pytest

from redsync._core.ownership import Owner
from redsync._drivers import owing
from redsync._drivers.owing import Owing
from tests.support.scripted import ANNA, choices

YES = b":1\r\n"


@pytest.fixture
def sets(desk):
    """Three sets with links to three nodes; the far ends of the first."""
    made = [desk.connected() for _ in range(3)]
    yield [link_set for link_set, _ in made], made[0][1]
    for link_set, _ in made:
        link_set.end("the test is over", orderly=True)


@pytest.fixture
def order(desk):
    return Owing(desk.next_number, threading.RLock())


def release(desk, claim=b"claim", owed_to=0b111, **options):
    return desk.request(claim, owed_to=owed_to, owed_until=math.inf, **options)


def followers(link_set):
    """Return which nodes get what over that set, behind what they owe."""
    return [(index, request.command.args[0]) for index, request in link_set.following]


def ask(desk, link_set, fars, *, silent):
    """Ask for the claim; all nodes but these answer."""
    desk.ask(link_set, b"claim")
    for far in (far for index, far in enumerate(fars) if index not in silent):
        far.say(YES)
    link_set.read(0.0)


def test_release_follows_its_claim_on_nodes_that_have_not_answered(desk, sets, order):
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1, 2])
    order.note(ANNA, first)
    request = release(desk, owed_to=0b011)
    assert order.follow(request, second)
    assert followers(first) == [(1, b"claim")]
    assert choices(request.tally) == [None, "failed", None]


def test_release_over_the_same_set_or_of_another_lock_or_owner_follows_nothing(desk, sets, order):
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1])
    order.note(Owner(ANNA.client_id, 77), first)
    assert not order.follow(release(desk), second)
    order.note(ANNA, first)
    assert not order.follow(release(desk), first)
    assert not order.follow(release(desk, b"another", key=b"another lock"), second)
    assert followers(first) == []


def test_release_follows_an_ask_of_its_owner_for_an_earlier_claim(desk, sets, order):
    """That ask takes a place in the queue, and a place belongs to the owner, not to a claim."""
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1])
    order.note(ANNA, first)
    assert order.follow(release(desk, b"later claim"), second)
    assert followers(first) == [(1, b"later claim")]


def test_release_follows_over_all_sets_that_its_owner_has_used(desk, sets, order):
    (first, second, third), fars = sets
    ask(desk, first, fars, silent=[1])
    order.note(ANNA, first)
    desk.ask(second, b"claim")
    order.note(ANNA, second)
    assert order.follow(release(desk), third)
    assert followers(first) == [(1, b"claim")]
    assert followers(second) == [(0, b"claim"), (1, b"claim"), (2, b"claim")]


def test_each_of_two_claims_is_followed(desk, sets, order):
    """One owner holds two locks, and a node that hangs owes answers for both."""
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1])
    desk.ask(first, b"another", key=b"another lock")
    order.note(ANNA, first)
    assert order.follow(release(desk), second)
    assert order.follow(release(desk, b"another", key=b"another lock"), second)
    assert (1, b"claim") in followers(first)
    assert (1, b"another") in followers(first)


def test_release_follows_a_renewal_of_many_claims_over_the_maintenances_set(desk, sets, order):
    """It was decided early, and creates claims that nodes have forgotten."""
    (own, second, third), fars = sets
    order.own = own
    renewal = desk.request(b"another", owner=None)
    renewal.command = renewal.command._replace(args=(b"another", 1, b"claim", 1))
    own.send(renewal)
    for far in (fars[0], fars[2]):
        far.say(YES)
    own.read(0.0)
    assert not order.follow(release(desk, b"third"), second)
    assert not order.follow(release(desk), own)
    assert order.follow(release(desk), third)
    assert followers(own) == [(1, b"claim")]


def test_what_follows_keeps_its_order_even_as_a_pending_release(desk, sets, order):
    """The connection may break before it is sent."""
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[1])
    order.note(ANNA, first)
    second.send(earlier := release(desk))
    order.follow(release(desk), second)
    ((_, later),) = first.following
    assert later.number > earlier.number


def test_sets_that_are_answered_or_gone_are_forgotten(desk, sets, order, monkeypatch):
    monkeypatch.setattr(owing, "_MANY", 2)
    (first, second, third), fars = sets
    ask(desk, first, fars, silent=[1])
    dropped = desk.make_set()
    order.note(ANNA, dropped)
    del dropped
    gc.collect()
    assert not order.follow(release(desk), second)
    order.note(ANNA, first)
    order.note(Owner(ANNA.client_id, 77), first)
    fars[1].say(YES)
    first.read(0.0)
    desk.ask(third)
    order.note(last := Owner(ANNA.client_id, 78), third)
    assert list(order.sets) == [last]


def test_owner_is_not_forgotten_while_it_returns_a_set(desk, sets, order, monkeypatch):
    """A clean-up by one thread must not drop what another has recorded since it looked."""
    monkeypatch.setattr(owing, "_MANY", 1)
    (first, second, _), fars = sets
    ask(desk, first, fars, silent=[])
    order.note(ANNA, first)
    desk.ask(second, b"claim")
    look = order._others
    threads = []

    def look_and_be_late(owner, but=None):
        found = look(owner, but)
        if owner == ANNA and not threads:
            threads.append(threading.Thread(target=order.note, args=[ANNA, second]))
            threads[0].start()
            threads[0].join(0.1)  # It waits for the guard.
        return found

    monkeypatch.setattr(order, "_others", look_and_be_late)
    order.note(Owner(ANNA.client_id, 77), second)
    threads[0].join()
    assert order.follow(release(desk), first)
