"""The pool of sets: which thread gets one, in which order, and the end of a set."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redsync._drivers import pool as pools
from redsync._drivers.pool import Pool
from tests.support.forks import in_child, is_open
from tests.support.injection import Interruption
from tests.support.locks import PATIENCE
from tests.support.scripted import Desk
from tests.support.sweeps import swept

SOON = 0.05


class Lender:
    """A pool, on the real clock, of sets without links; a test plays the maintenance."""

    def __init__(self, limit=2):
        self.desk = Desk()
        self.desk.shared = self.desk.shared._replace(clock=time.monotonic)
        for node in self.desk.nodes:
            node.connected = False
        self.asked = []
        self.looks = 0
        self.made = 0
        self.pool = Pool(
            self._make,
            lambda link_set, nodes: self.asked.append((link_set, [node.index for node in nodes])),
            self._look,
            clock=time.monotonic,
            limit=limit,
            quorum=2,
            guard=threading.RLock(),
        )

    def _make(self, on_dropped):
        self.made += 1
        link_set = self.desk.make_set()
        link_set._on_dropped = on_dropped
        return link_set

    def _look(self):
        self.looks += 1

    def borrow(self, within=PATIENCE, into=None):
        """Borrow a set; return it, or None."""
        sets = [] if into is None else into
        self.pool.borrow(sets, time.monotonic() + within)
        return sets[0] if sets else None

    def borrow_free(self):
        sets = []
        self.pool.borrow_free(sets)
        return sets[0] if sets else None

    def give_back(self, link_set):
        self.pool.give_back([link_set])

    def throw_away(self, link_set):
        self.pool.throw_away([link_set])

    def end_torn(self):
        """End the sets that were thrown away, like the maintenance; return how many there were."""
        count = 0
        while self.pool.torn:
            link_set = self.pool.torn.popleft()
            link_set.end("torn", orderly=False)
            self.pool.note_ended(link_set)
            count += 1
        return count

    def close(self):
        for link_set in self.pool.close():
            link_set.end("closed", orderly=True)
        self.end_torn()
        self.desk.close()


@pytest.fixture
def make_lender():
    lenders = []

    def make(limit=2):
        lenders.append(Lender(limit))
        return lenders[-1]

    yield make
    for lender in lenders:
        lender.close()


@pytest.fixture
def lender(make_lender):
    """A pool of at most two sets."""
    return make_lender()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as threads:
        yield threads


def await_line(lender, length, eventually):
    eventually(lambda: len(lender.pool._line) == length)


# Lending.


def test_set_that_was_given_back_last_is_lent_first(lender):
    first, second = lender.borrow(), lender.borrow()
    lender.give_back(first)
    lender.give_back(second)
    assert lender.borrow() is second
    assert lender.borrow() is first
    assert lender.made == 2
    for each in (first, second):
        lender.give_back(each)


def test_pool_grows_on_demand_to_its_limit(make_lender):
    lender = make_lender(3)
    sets = [lender.borrow() for _ in range(3)]
    assert len({id(each) for each in sets}) == len(lender.pool) == 3
    assert lender.borrow(SOON) is None
    for each in sets:
        lender.give_back(each)
    assert lender.made == 3


def test_no_set_is_lent_to_two_threads_at_once(make_lender, threads):
    """Nor lost: in the end all are there again."""
    lender, users, most = make_lender(3), {}, []

    def use(number):
        for _ in range(300):
            link_set = lender.borrow()
            assert users.setdefault(id(link_set), number) == number
            most.append(len(users))
            del users[id(link_set)]
            lender.give_back(link_set)

    list(threads.map(use, range(8)))
    assert max(most) <= len(lender.pool) <= 3
    assert len(lender.pool.idle()) == len(lender.pool)


# The line.


def test_who_finds_the_limit_reached_waits_in_line(make_lender, threads, eventually):
    lender = make_lender(1)
    link_set, served = lender.borrow(), []

    def use(number):
        mine = lender.borrow()
        served.append(number)
        lender.give_back(mine)

    waiting = []
    for number in range(5):
        waiting.append(threads.submit(use, number))
        await_line(lender, number + 1, eventually)
    lender.give_back(link_set)
    for each in waiting:
        each.result(PATIENCE)
    assert served == [0, 1, 2, 3, 4]
    assert lender.made == 1


def test_each_waits_within_its_own_timeout(make_lender, threads, eventually):
    lender = make_lender(1)
    link_set = lender.borrow()
    patient = threads.submit(lender.borrow)
    await_line(lender, 1, eventually)
    started_at = time.monotonic()
    assert lender.borrow(SOON) is None
    assert lender.borrow(0.0) is None
    assert time.monotonic() - started_at >= SOON
    assert not patient.done()
    lender.give_back(link_set)
    assert patient.result(PATIENCE) is link_set
    lender.give_back(link_set)


def test_who_has_left_the_line_is_not_handed_a_set(make_lender):
    lender = make_lender(1)
    link_set = lender.borrow()
    assert lender.borrow(SOON) is None
    lender.give_back(link_set)
    assert lender.borrow() is link_set
    lender.give_back(link_set)


def test_free_set_is_lent_without_a_wait_or_not_at_all(lender):
    assert lender.borrow_free() is None, "it makes none"
    link_set = lender.borrow()
    assert lender.borrow_free() is None
    lender.give_back(link_set)
    assert lender.borrow_free() is None, "it has no connections: the maintenance may have some"
    arrive(lender, link_set, 0, 2)
    link_set.take_arrivals()
    assert lender.borrow_free() is link_set
    lender.give_back(link_set)


# A set that is handed over just as its borrower leaves.


POINTS = [*range(1, 80, 9), *swept(*(point for point in range(1, 80) if point % 9 != 1))]


def all_are_lent_again(lender, limit):
    """Return whether as many sets can be borrowed as before."""
    lender.end_torn()
    sets = [lender.borrow(0.0) for _ in range(limit)]
    for each in filter(None, sets):
        lender.give_back(each)
    return None not in sets


@pytest.mark.parametrize("point", POINTS)
def test_set_given_back_at_the_instant_of_a_timeout_is_not_lost(make_lender, inject, point):
    lender = make_lender(1)
    lent, got = lender.borrow(), []

    def give_back():
        lender.give_back(lent)

    where = inject(point, lambda: got.append(lender.borrow(0.0)), handler=give_back)
    if where is None:
        give_back()
    assert got[0] in (lent, None), where
    if got[0] is not None:
        assert not lender.pool.idle(), where
        lender.give_back(lent)
    assert all_are_lent_again(lender, 1), where


@pytest.mark.parametrize("point", POINTS)
def test_set_handed_to_an_interrupted_thread_is_not_lost(make_lender, inject, threads, eventually, point):
    """Not even while another keeps the exception, and with it the frames of the call."""
    lender = make_lender(1)
    link_set, sets, kept = lender.borrow(), [], []

    def borrow():
        try:
            lender.borrow(into=sets)
            lender.pool.give_back(sets)
        except Interruption as error:
            kept.append(error)
        if sets:
            lender.pool.give_back(sets)

    where = threads.submit(inject, point, borrow)
    eventually(lambda: len(lender.pool._line) == 1 or where.done())
    lender.give_back(link_set)
    where.result(PATIENCE)
    del link_set
    assert all_are_lent_again(lender, 1), where.result()


# Sets that are thrown away.


def test_set_thrown_away_is_left_to_the_maintenance_and_never_lent_again(lender):
    link_set, other = lender.borrow(), lender.borrow()
    lender.throw_away(link_set)
    assert lender.looks == 1
    assert lender.borrow(0.0) is None
    assert list(lender.pool.torn) == [link_set]
    assert lender.end_torn() == 1
    assert link_set.closed
    new = lender.borrow(0.0)
    assert new not in (None, link_set, other)
    for each in (new, other):
        lender.give_back(each)


def test_set_that_ended_is_not_lent_again(lender):
    link_set = lender.borrow()
    link_set.end("broken", orderly=False)
    lender.give_back(link_set)
    assert lender.borrow_free() is None
    assert lender.end_torn() == 1


def test_end_of_a_set_makes_room_for_who_waits(make_lender, threads, eventually):
    lender = make_lender(1)
    link_set = lender.borrow()
    waiting = threads.submit(lender.borrow)
    await_line(lender, 1, eventually)
    lender.throw_away(link_set)
    assert lender.end_torn() == 1
    new = waiting.result(PATIENCE)
    assert new is not link_set
    lender.give_back(new)


def test_dropped_set_makes_room_too(make_lender, eventually):
    """An exception has ended the frame that had borrowed it."""
    lender = make_lender(1)
    lender.borrow()
    assert lender.looks == 1
    assert lender.end_torn() == 1
    assert all_are_lent_again(lender, 1)


def test_several_waiters_get_the_room_of_several_sets(lender, threads, eventually):
    sets = [lender.borrow() for _ in range(2)]
    waiting = []
    for number in range(3):
        waiting.append(threads.submit(lender.borrow))
        await_line(lender, number + 1, eventually)
    for each in sets:
        lender.throw_away(each)
    assert lender.end_torn() == 2
    new = [each.result(PATIENCE) for each in waiting[:2]]
    assert None not in new
    assert not waiting[2].done()
    lender.give_back(new[0])
    assert waiting[2].result(PATIENCE) is new[0]
    for each in new:
        lender.give_back(each)


# Connections.


def arrive(lender, link_set, *indices):
    for index in indices:
        link, _ = lender.desk.link(index)
        link_set.arrive(index, link)


def test_new_set_is_lent_once_a_quorum_is_connected_and_the_others_had_a_moment(lender, threads, eventually):
    for node in lender.desk.nodes:
        node.connected = True
    borrowing = threads.submit(lender.borrow)
    eventually(lambda: lender.asked)
    ((link_set, indices),) = lender.asked
    assert indices == [0, 1, 2], "all at once"
    arrive(lender, link_set, 0)
    time.sleep(0.02)
    assert not borrowing.done()
    arrive(lender, link_set, 2)
    assert borrowing.result(PATIENCE) is link_set
    assert link_set.connecting == {1}
    assert [each is not None for each in link_set.links] == [True, False, True]
    arrive(lender, link_set, 1)
    lender.give_back(link_set)
    assert lender.borrow() is link_set
    assert None not in link_set.links, "what has arrived is used"
    lender.give_back(link_set)


def test_new_set_is_lent_with_what_it_has_when_the_time_is_over(lender):
    """A node counts as failed then."""
    for node in lender.desk.nodes:
        node.connected = True
    link_set = lender.borrow(SOON)
    assert link_set.links == [None] * 3
    lender.give_back(link_set)


def test_set_in_use_reconnects_a_node_without_a_wait_while_it_has_a_quorum(lender):
    link_set = lender.borrow()
    for node in lender.desk.nodes:
        node.connected = True
    for index in range(3):
        lender.desk.install(link_set, index)
    lender.give_back(link_set)
    link_set.discard(link_set.links[1], "broken")
    started_at = time.monotonic()
    assert lender.borrow(60.0) is link_set
    assert time.monotonic() - started_at < 30.0
    assert lender.asked == [(link_set, [1])]
    lender.give_back(link_set)
    assert lender.borrow(60.0) is link_set
    assert lender.asked == [(link_set, [1])], "it is being connected"
    lender.give_back(link_set)


def test_rested_set_finds_out_which_connections_have_ended_before_it_is_used(lender, monkeypatch):
    """A command over one would fail, although its node works."""
    monkeypatch.setattr(pools, "_LONG_IDLE", 0.01)
    link_set = lender.borrow()
    fars = [lender.desk.install(link_set, index) for index in range(3)]
    lender.give_back(link_set)
    fars[1].sock.close()
    time.sleep(0.02)
    assert lender.borrow() is link_set
    assert link_set.links[1] is None
    lender.give_back(link_set)


def test_set_whose_preparation_is_interrupted_is_thrown_away(lender, monkeypatch):
    link_set = lender.borrow()
    lender.give_back(link_set)
    for node in lender.desk.nodes:
        node.connected = True

    def connect(link_set, nodes):
        raise Interruption

    monkeypatch.setattr(lender.pool, "_connect", connect)
    with pytest.raises(Interruption):
        lender.borrow()
    assert lender.end_torn() == 1


# Idle sets.


def test_idle_sets_can_be_taken_and_returned_to_their_place(lender):
    first, second = lender.borrow(), lender.borrow()
    lender.give_back(first)
    lender.give_back(second)
    assert lender.pool.idle() == (first, second)
    assert lender.pool.take_idle(first)
    assert not lender.pool.take_idle(first), "it is in use"
    assert lender.pool.return_idle(first, time.monotonic())
    assert lender.borrow() is second
    assert lender.borrow() is first
    for each in (first, second):
        lender.give_back(each)


def test_sets_that_have_rested_for_long_are_ended_but_for_the_last(lender):
    first, second = lender.borrow(), lender.borrow()
    lender.give_back(first)
    lender.give_back(second)
    much_later = time.monotonic() + 3600
    assert lender.pool.take_idle(first)
    assert not lender.pool.return_idle(first, much_later)
    first.end("idle", orderly=True)
    lender.pool.note_ended(first)
    assert lender.pool.take_idle(second)
    assert lender.pool.return_idle(second, much_later)
    assert len(lender.pool) == 1


def test_set_returned_by_the_maintenance_serves_the_line(make_lender, threads, eventually):
    """A thread came while the maintenance read the late replies of the only set."""
    lender = make_lender(1)
    link_set = lender.borrow()
    lender.give_back(link_set)
    assert lender.pool.take_idle(link_set)
    waiting = threads.submit(lender.borrow)
    await_line(lender, 1, eventually)
    assert lender.pool.return_idle(link_set, time.monotonic())
    assert waiting.result(PATIENCE) is link_set
    lender.give_back(link_set)


# The end.


def test_close_wakes_all_that_wait_and_lends_no_more(make_lender, threads, eventually):
    lender = make_lender(1)
    lent = lender.borrow()
    waiting = []
    for number in range(3):
        waiting.append(threads.submit(lender.borrow))
        await_line(lender, number + 1, eventually)
    assert lender.pool.close() == []
    assert [each.result(PATIENCE) for each in waiting] == [None] * 3
    assert lender.borrow() is None
    lender.give_back(lent)
    assert lender.borrow_free() is None
    assert lender.end_torn() == 1, "a set that comes back after the end is ended"


def test_set_whose_return_a_close_interrupts_is_torn(lender):
    class Interrupted(list):
        def pop(self):
            assert lender.pool.close() == []
            return super().pop()

    first = lender.borrow()
    lender.pool.give_back(Interrupted([first]))
    assert list(lender.pool.torn) == [first]
    assert lender.looks == 1
    lender.end_torn()


def test_close_returns_the_free_sets(lender):
    first, second = lender.borrow(), lender.borrow()
    lender.give_back(first)
    assert lender.pool.close() == [first]
    first.end("closed", orderly=True)
    lender.give_back(second)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # is multi-threaded, and forks
def test_child_of_a_fork_forgets_all_sets_lent_or_free(lender):
    sets = [lender.borrow(), lender.borrow()]
    for link_set in sets:
        lender.desk.install(link_set, 0)
    fds = [link_set.links[0].fileno for link_set in sets]
    lender.give_back(sets[0])

    def forget():
        lender.pool.forget(close=True)
        return f"{[link_set.closed for link_set in sets]} {[is_open(fd) for fd in fds]}"

    assert in_child(forget) == "[True, True] [False, False]"
    lender.give_back(sets[1])
