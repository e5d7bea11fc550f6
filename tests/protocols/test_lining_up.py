"""Lining up: which acquires wait inside the process, and what ends their wait."""

import pytest

from redsync._core.crowds import FRONT
from redsync._core.effects import Broadcast
from redsync._core.keys import LockKeys
from redsync._protocols.acquire_requests import Outcome
from redsync._protocols.fair_lock import FAIR_LOCK
from redsync._protocols.lock import LOCK
from redsync._protocols.places import Arrival
from redsync._protocols.read_write_lock import READ
from redsync.exceptions import QuorumError
from tests.support.injection import Interruption
from tests.support.replies import NEW, busy, mute, won

KEYS = {kind: LockKeys.of(b"redsync:", b"x", kind.mode) for kind in (LOCK, FAIR_LOCK, READ)}


def fill(toy):
    crowds = toy.session.crowds
    crowds.under_way[toy.keys.lock] = FRONT
    for other in range(FRONT):
        crowds.enter(toy.keys.lock, b"%d" % other)
    return crowds


@pytest.fixture
def crowds(toy):
    """Crowds of a client with as many waiters for a lock as may ask."""
    return fill(toy)


@pytest.fixture
def impatient(make_toy):
    """A client that waits for nodes for five seconds, and its crowds."""
    toy = make_toy(outage_timeout=5.0)
    return toy, fill(toy)


@pytest.mark.usefixtures("crowds")
@pytest.mark.parametrize("fields", [{"timeout": 0.0}, {"kind": FAIR_LOCK}, {"kind": READ}, {"name": "y"}], ids=min)
def test_acquire_that_tries_once_or_is_ordered_by_nodes_or_is_first_asks_at_once(toy, fields):
    assert isinstance(toy.start(toy.acquiring(**fields)), Broadcast)


def test_acquire_asks_at_once_while_few_are_under_way(toy, crowds):
    crowds.under_way[toy.keys.lock] -= 1
    assert isinstance(toy.start(toy.acquiring()), Broadcast)


def test_acquires_of_other_locks_do_not_count(toy, crowds):
    crowds.under_way[b"another"] = crowds.under_way.pop(toy.keys.lock)
    assert isinstance(toy.start(toy.acquiring()), Broadcast)


@pytest.mark.parametrize(("kind", "under_way"), [(LOCK, 0), (FAIR_LOCK, 0), (READ, FRONT)])
def test_acquire_interrupted_in_its_pause_has_asked_nothing_and_rolls_nothing_back(toy, kind, under_way):
    before = {toy.keys.lock: under_way} if under_way else {}
    toy.session.crowds.under_way.update(before)
    outcome = Outcome()
    steps = toy.acquiring(kind=kind, keys=KEYS[kind], outcome=outcome, crowded=True, ahead=4)
    assert toy.interrupt(steps, ["wait"], 0) == []
    assert (toy.commands, list(toy.session.holds), outcome.state) == ([], [], None)
    assert toy.session.crowds.under_way == before


@pytest.mark.usefixtures("crowds")
def test_acquire_behind_gives_up_at_its_deadline_without_an_ask(toy):
    """Nodes have told the front that others hold the lock."""
    assert toy.acquire(("wait for wake-up", toy.slept()), timeout=9.0) is None
    assert toy.now == pytest.approx(1009.0)


def test_acquire_behind_asks_at_its_deadline_if_the_front_found_no_quorum(toy, crowds):
    def note():
        crowds.note(toy.keys.lock, 1000.0)

    script = ("wait for wake-up", toy.slept(meanwhile=note)), ("ask lock_acquire for a place", mute(toy))
    with pytest.raises(QuorumError):
        toy.acquire(*script, "tell lock_abandon, leave", timeout=9.0)


@pytest.mark.parametrize("found_at", [1000.0, 1003.0])
def test_acquire_behind_asks_when_the_front_has_found_no_quorum_for_the_outage_timeout(impatient, found_at):
    """And asks no more than once: the front has waited for nodes long enough."""

    def note():
        crowds.note(toy.keys.lock, 1000.0)

    toy, crowds = impatient
    script = [("wait for wake-up", toy.slept(found_at - 1000.0, meanwhile=note)), ("wait for wake-up", toy.slept())]
    with pytest.raises(QuorumError):
        toy.acquire(*script, ("ask lock_acquire for a place", mute(toy)), "tell lock_abandon, leave")
    assert toy.waits[-1].until == 1005.0


def test_acquire_that_follows_a_front_without_a_quorum_has_waited_as_long(impatient):
    """Else each row of a crowd would wait for the nodes again."""

    def follow():
        crowds.note(toy.keys.lock, 999.0)
        crowds.leave(toy.keys.lock, b"0")

    toy, crowds = impatient
    script = ("wait for wake-up", toy.slept(5.0, meanwhile=follow)), ("ask lock_acquire for a place", mute(toy))
    with pytest.raises(QuorumError):
        toy.acquire(*script, "tell lock_abandon, leave")


@pytest.mark.usefixtures("crowds")
def test_acquire_behind_looks_by_itself_from_time_to_time(toy):
    toy.acquire(*[("wait for wake-up", toy.slept())] * 4, timeout=100.0)
    assert [wait.until - 1000.0 for wait in toy.waits] == [30.0, 60.0, 90.0, 100.0]


def test_acquire_behind_lines_up_again_if_its_owner_has_left_the_crowd_meanwhile(toy, crowds):
    """A signal handler has acquired the same lock in the same thread."""
    crowd = toy.keys.lock
    state = toy.acquire(
        ("wait for wake-up", toy.slept(1.0, meanwhile=lambda: crowds.leave(crowd, toy.owner.wire))),
        ("wait for wake-up", toy.slept(1.0, meanwhile=lambda: crowds.leave(crowd, b"0"))),
        ("ask lock_acquire for a place", won(toy)),
    )
    assert state.valid(toy.now)


@pytest.fixture
def fills_up(toy, crowds):
    """Return a function that adds another waiter behind; there is room in front for the toy's owner."""
    crowds.leave(toy.keys.lock, b"0")
    return lambda: crowds.enter(toy.keys.lock, b"behind")


def test_finished_acquire_wakes_the_one_that_may_ask_instead(toy, crowds, fills_up):
    toy.acquire(("ask lock_acquire", toy.all_say(NEW, meanwhile=fills_up)), "signal")
    assert crowds.is_in_front(toy.keys.lock, b"behind")
    assert toy.effects[-1].key == b"behind may ask for " + toy.keys.lock


def test_acquire_interrupted_when_it_wakes_the_next_does_so_again(toy, fills_up):
    script = [("ask lock_acquire", toy.all_say(NEW, meanwhile=fills_up)), "signal"]
    assert toy.interrupt(toy.acquiring(), script, 1) == ["signal"]


def test_acquire_in_front_shows_those_behind_whether_it_finds_a_quorum(toy, crowds, fills_up):
    found = []

    def look():
        found.append(toy.keys.lock in crowds.mute)

    toy.acquire(
        ("ask lock_acquire", toy.all_say("down", sent=0, meanwhile=fills_up)),
        ("wait", toy.slept(meanwhile=look)),
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", toy.all_say(NEW, meanwhile=look)),
        "signal",
    )
    assert found == [True, False]


def test_acquire_interrupted_before_it_lines_up_does_not_count(toy):
    class Interrupted(Arrival):
        @property
        def lines_up(self):
            raise Interruption

    toy.session.crowds.under_way[toy.keys.lock] = FRONT + 1
    with pytest.raises(Interruption):
        next(toy.acquiring(queue=Interrupted))
    assert toy.session.crowds.under_way == {toy.keys.lock: FRONT + 1}
