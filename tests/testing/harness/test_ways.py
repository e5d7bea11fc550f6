"""All actions of an owner on synchronizers of each kind, with real clients for threads: the records that it writes."""

import threading

import pytest
import redis

from redsync import Client
from redsync.testing.harness.blocking import Blocking, run
from redsync.testing.harness.orders import Order
from redsync.testing.harness.owner import Owner, World
from redsync.testing.harness.tasks import Task


class Actor:
    """An owner that is a thread, with its records."""

    def __init__(self, client, kind, **order):
        self.lines = []
        order = {"limit": 3, "per": 0.2, "shares": True, **order}
        order = Order(urls=[], names=[], directory="", journal="", first=0, owners=1, seed="1", **order)
        world = World(Blocking(client), lambda event, **about: self.lines.append((event, about)), self._sleep)
        self.ways = Owner(1, order, world).ways(kind)

    async def _sleep(self, seconds):
        threading.Event().wait(seconds)

    def does(self, steps):
        """Return the events that some steps record."""
        self.lines.clear()
        run(steps)
        return [event for event, _ in self.lines]

    def about(self, event):
        return next(about for each, about in self.lines if each == event)


@pytest.fixture
def actor(redsync_client):
    return lambda kind, **order: Actor(redsync_client, kind, **order)


def test_owner_takes_lock_by_methods_again_and_again_and_extends_it(actor):
    owner = actor("lock")
    task = Task(20.0, 0.0, levels=2, extends=1.0, way="acquire")
    done = owner.does(owner.ways.take("x", task))
    assert done == ["asks", "acquired", "re-entered", "left", "extended", "done", "released"]
    assert (owner.about("acquired")["count"], owner.about("re-entered")["count"]) == (1, 2)


def test_owner_leaves_lock_and_releases_the_rest(actor, redsync_nodes):
    owner = actor("lock")
    assert owner.does(owner.ways.take("x", Task(20.0, 0.0, way="leave")))[-1] == "leaves"
    with Client(redsync_nodes.urls, restart_guard=0) as other:
        late = Actor(other, "lock")
        assert late.does(late.ways.take("x", Task(0.0, 0.0, way="acquire"))) == ["asks", "busy"]
    assert owner.does(owner.ways.give_back_rest("x")) == ["released"]


def test_owner_acquires_again_after_losing_a_hold_of_three_levels(actor, redsync_nodes):
    owner = actor("lock")
    levels = []

    def forget_at_the_third(_rng):
        levels.append(len(levels))
        if len(levels) == 3:
            for url in redsync_nodes.urls:
                with redis.Redis.from_url(url) as node:
                    node.flushall()
        return 0.0

    assert owner.does(owner.ways.take("x", Task(20.0, forget_at_the_third, levels=3)))[-1] == "lost"
    assert owner.does(owner.ways.take("x", Task(20.0, 0.0)))[-1] == "released"


def test_owner_downgrades_after_writing(actor):
    owner = actor("read_write_lock")
    done = owner.does(owner.ways.downgrade("x", Task(20.0, 0.0, way="downgrade")))
    assert done == ["asks", "acquired", "acquired", "done", "released", "done", "released"]
    assert [about["mode"] for event, about in owner.lines if event == "released"] == ["write", "read"]


def test_owner_reads_while_it_writes(actor):
    owner = actor("read_write_lock")
    owner.does(owner.ways.read_inside("x", Task(20.0, 0.0)))
    assert [about["mode"] for event, about in owner.lines if event == "released"] == ["read", "write"]


def test_reader_is_refused_the_write_lock(actor):
    owner = actor("read_write_lock")
    assert owner.does(owner.ways.upgrade("x", Task(20.0, 0.0)))[1:] == ["acquired", "refused", "done", "released"]
    owner.does(owner.ways.look("x"))
    assert (owner.about("found")["reads"], owner.about("found")["writes"]) == (False, False)


def test_owner_takes_several_permits_and_others_resize(actor):
    owner = actor("semaphore")
    assert owner.does(owner.ways.take("x", Task(20.0, 0.0, n=3, way="leave", max_hold=60.0)))[-1] == "leaves"
    owner.does(owner.ways.look("x"))
    assert (owner.about("found")["available"], owner.about("found")["holders"]) == (0, 1)
    assert owner.does(owner.ways.resize("x", 1)) == ["resizes", "resized"]
    assert "too many" in owner.does(owner.ways.take("x", Task(0.0, 0.0, n=3, way="acquire")))


@pytest.mark.parametrize("shares", [False, True])
def test_owner_returns_all_permits_in_any_way(actor, shares):
    owner = actor("semaphore", shares=shares)
    for _ in range(8):
        assert owner.does(owner.ways.take("x", Task(20.0, 0.0, n=3, way="acquire")))[-1] == "released"
        assert sum(about["n"] for event, about in owner.lines if event == "released") == 3


def test_owner_waits_for_room_and_succeeds(actor):
    owner = actor("rate_limiter")
    assert owner.does(owner.ways.take("x", Task(20.0, 0.0, n=3, way="acquire"))) == ["asks", "success"]
    told = owner.does(owner.ways.ask_when("x", 1))
    assert 0.0 < owner.about("room")["seconds"] <= 0.5
    while told[-1] == "busy":  # slow rounds may delay room beyond the longest promised time
        told = owner.does(owner.ways.ask_when("x", 1))
    assert told == ["wonders", "room", "asks", "success"]
    assert owner.does(owner.ways.look("x")) == ["found"]


def test_owner_sets_latch_counts_it_down_and_learns_that_it_is_open(actor):
    owner = actor("count_down_latch")
    assert owner.does(owner.ways.set("x", 2)) == ["asks", "set"]
    assert owner.does(owner.ways.set("x", 1)) == ["asks", "not set"]
    assert owner.does(owner.ways.wait("x", 0.0)) == ["asks", "busy"]
    assert owner.does(owner.ways.insist("x", 1, 20.0, 2)) == ["asks", "counted"]
    assert owner.does(owner.ways.look("x")) == ["asks", "found"]
    assert owner.about("found")["left"] == 1
    owner.does(owner.ways.count_down("x", 1, 20.0))
    assert owner.does(owner.ways.wait("x", 20.0)) == ["asks", "opened"]


def test_owner_deletes_latch_that_others_set(actor):
    owner = actor("count_down_latch")
    owner.does(owner.ways.set("x", 2))
    assert owner.does(owner.ways.delete("x")) == ["asks", "deleted"]
    assert owner.does(owner.ways.wait("x", 0.0)) == ["asks", "opened"]


def test_owner_counts_down_again_when_too_few_nodes_answer(actor, redsync_nodes):
    owner = actor("count_down_latch")
    owner.does(owner.ways.set("x", 2))
    for node in range(3):
        redsync_nodes.kill(node)
    assert owner.does(owner.ways.insist("x", 1, 0.0, 2)) == 2 * ["asks", "no quorum"]
    assert owner.does(owner.ways.look("x")) == ["asks", "no quorum"]
