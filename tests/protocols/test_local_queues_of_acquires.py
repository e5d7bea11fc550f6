"""Waiting in the process: which acquires stand in a local queue before they ask, and what ends their wait."""

import pytest

from redsync._core.effects import Broadcast
from redsync._core.local_queues import LIMIT, RETRIERS, RETRIES
from redsync._protocols.lock import FAIR_LOCK, LOCK
from redsync._protocols.read_write_lock import READ, WRITE
from redsync.exceptions import QuorumError
from tests.support.toy_replies import NEW, busy, held, without_quorum, won

WAIT = "wait for wake-up"


def fill(toy):
    for other in range(LIMIT):
        toy.session.queues.enter((toy.keys.lock, None), b"%d" % other)
    return toy.session.queues


def leave(toy, waiter):
    list(toy.session.queues.leave_queues(waiter, (toy.keys.lock, None)))


@pytest.fixture
def queues(toy):
    """The queues of a client with as many waiters for a lock as may ask."""
    return fill(toy)


@pytest.fixture
def impatient(make_toy):
    """A client that waits for nodes for five seconds, with as many waiters for a lock as may ask."""
    toy = make_toy(outage_timeout=5.0)
    fill(toy)
    return toy


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize(
    "fields", [{"timeout": 0.0}, {"kind": FAIR_LOCK}, {"kind": READ}, {"name": "y"}, {"lease": 5.0}], ids=min
)
def test_acquire_that_tries_once_or_is_ordered_by_nodes_or_is_first_asks_at_once(toy, fields):
    """With another lease it waits apart: that may be too short for these nodes, and then it never succeeds."""
    assert isinstance(toy.start(toy.acquiring(**fields)), Broadcast)


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("kind", [LOCK, WRITE], ids=["lock", "write lock"])
def test_acquire_interrupted_before_it_asks_rolls_nothing_back(toy, kind):
    assert toy.interrupt(toy.acquiring(kind=kind), [WAIT], 0) == ["signal"]
    assert (toy.commands, list(toy.session.holds), toy.requested.state) == ([], [], None)


def test_acquire_behind_gives_up_at_its_deadline_without_an_ask(toy, queues):
    """Nodes have told those before it that others hold the lock."""
    queues.note((toy.keys.lock, None), None)
    assert toy.acquire((WAIT, toy.slept()), "signal", timeout=9.0) is None
    assert toy.now == pytest.approx(1009.0)


@pytest.mark.parametrize("noted", [(), (None, 1000.0)], ids=["no answer yet", "no quorum now"])
def test_acquire_behind_asks_at_its_deadline_if_those_before_it_found_no_quorum(toy, queues, noted):
    def note():
        for outage_since in noted:
            queues.note((toy.keys.lock, None), outage_since)

    script = (WAIT, toy.slept(meanwhile=note)), ("ask lock_acquire", without_quorum(toy))
    with pytest.raises(QuorumError):
        toy.acquire(*script, "signal", timeout=9.0)


def test_acquire_that_follows_one_without_a_quorum_has_waited_as_long(impatient):
    """Else each waiter would wait for the nodes again."""
    toy = impatient

    def follow():
        toy.session.queues.note((toy.keys.lock, None), 999.0)
        leave(toy, b"0")

    with pytest.raises(QuorumError):
        toy.acquire((WAIT, toy.slept(5.0, meanwhile=follow)), ("ask lock_acquire", without_quorum(toy)))


@pytest.mark.usefixtures("queues")
def test_waiting_on_the_nodes_begins_when_the_turn_comes(toy):
    """Nodes would order the waiters of one client differently by how long they have really waited."""
    toy.acquire(
        (WAIT, toy.slept(20.0, meanwhile=lambda: leave(toy, b"0"))),
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", won(toy)),
    )
    assert toy.commands[-1].args[5] < 10


@pytest.fixture
def another(toy, queues):
    """Return a function that adds another waiter behind; there is room for one before it."""
    leave(toy, b"0")
    return lambda: queues.enter((toy.keys.lock, None), b"behind")


def test_finished_acquire_wakes_the_one_that_may_ask_instead(toy, queues, another):
    toy.acquire(("ask lock_acquire", toy.all_say(NEW, meanwhile=another)), "signal")
    assert queues.may_go((toy.keys.lock, None), b"behind")
    assert toy.effects[-1].key == b"behind"


def test_acquire_shows_those_behind_whether_it_finds_a_quorum(toy, queues, another):
    found = []

    def look():
        found.append((toy.keys.lock, None) in queues.without_quorum)

    toy.acquire(
        ("ask lock_acquire", toy.all_say("down", sent=0, meanwhile=another)),
        ("wait", toy.slept(meanwhile=look)),
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", toy.all_say(NEW, meanwhile=look)),
        "signal",
    )
    assert found == [True, False]


# Retries.


def test_acquire_waits_for_its_turn_to_try_again(toy):
    """Whatever they wait for, not all waiters of a client ask at a time while nodes are away."""
    queues = toy.session.queues
    for other in range(RETRIERS):
        queues.enter(RETRIES, b"%d" % other)
    turns = []
    toy.acquire(
        ("ask lock_acquire", toy.all_say("down", sent=0)),
        ("wait", toy.slept()),
        "signal",
        (WAIT, toy.slept(1.0, meanwhile=lambda: list(queues.leave_queues(b"0", RETRIES)))),
        ("ask lock_acquire", toy.all_say(NEW, meanwhile=lambda: turns.extend(queues._queues[RETRIES]))),
    )
    assert len(turns) == RETRIERS, "its turn lasts until it has an answer"
    assert len(queues._queues[RETRIES]) == RETRIERS - 1


def test_answered_acquire_ends_its_turn_before_it_sleeps(toy):
    turns = []

    def look():
        turns.append(len(toy.session.queues._queues.get(RETRIES, ())))

    toy.acquire(
        ("ask lock_acquire", toy.all_say("down", sent=0)),
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.all_say(held(), meanwhile=look)),
        ("ask lock_acquire for a place", busy(toy)),
        (WAIT, toy.slept(meanwhile=look)),
        ("ask lock_acquire for a place", won(toy)),
    )
    assert turns == [1, 0]


def test_newcomer_that_may_ask_at_once_waits_for_nodes_on_its_own_account(make_toy):
    toy = make_toy(outage_timeout=5.0)
    toy.session.queues.enter((toy.keys.lock, None), b"0")
    toy.session.queues.note((toy.keys.lock, None), 990.0)
    assert toy.acquire(
        ("ask lock_acquire", without_quorum(toy)), ("wait", toy.slept()), ("ask lock_acquire", won(toy))
    ).live
