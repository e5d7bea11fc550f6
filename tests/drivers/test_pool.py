"""The pool of sets: which thread gets one, in which order, and the end of a set."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redsync._drivers import pool as pools
from redsync._drivers.pool import Pool
from tests.support.injection import Interruption, inject
from tests.support.scripted import Desk


class Lender:
    """A pool, on the real clock, of sets that are connected at once; a test plays the maintenance.

    Attributes:
        quick: False if connections come later.
    """

    def __init__(self, limit=2):
        self.quick = True
        self.desk = Desk()
        self.desk.clock = time.monotonic
        for node in self.desk.nodes:
            node.connected = True
        self.asked = []
        self.fars = {}
        self.looks = 0
        self.pool = Pool(self.desk, self._connect, self._look, limit)

    def _connect(self, link_set, nodes):
        self.asked.append([node.index for node in nodes])
        if self.quick:
            arrive(self, link_set, *self.asked[-1])
            link_set.take_arrivals()

    def _look(self):
        self.looks += 1

    def borrow(self, into=None):
        """Borrow a set; return it, or None."""
        sets = [] if into is None else into
        self.pool.borrow(sets)
        return sets[0] if sets else None

    def give_back(self, link_set):
        self.pool.take_back([link_set])

    def throw_away(self, link_set):
        self.pool.throw_away([link_set])

    def end_torn(self):
        """End the sets that were thrown away, like the maintenance; return how many there were."""
        count = 0
        while self.pool.invalidated:
            link_set = self.pool.invalidated.popleft()
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


# Lending.


def test_set_without_a_quorum_is_not_lent(lender):
    """The maintenance may have the links that it lacks, and sends the round."""
    link_set = lender.borrow()
    lender.give_back(link_set)
    for link in link_set.links[:2]:
        lender.desk.nodes[link.index].connected = False
        link_set.discard(link, "gone")
    assert lender.borrow() is None
    arrive(lender, link_set, 0)
    link_set.take_arrivals()
    assert lender.borrow() is link_set
    lender.give_back(link_set)


def test_no_set_is_lent_to_two_threads_at_once(make_lender):
    """Nor lost: in the end all are there again."""
    lender, users, most = make_lender(3), {}, []

    def use(number):
        for _ in range(300):
            while (link_set := lender.borrow()) is None:
                time.sleep(0)
            assert users.setdefault(id(link_set), number) == number
            most.append(len(users))
            del users[id(link_set)]
            lender.give_back(link_set)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert max(most) <= len(lender.pool) <= 3
    assert len(lender.pool.idle()) == len(lender.pool)


# Interruptions.


def all_are_lent_again(lender, limit):
    """Return whether as many sets can be borrowed as before."""
    lender.end_torn()
    sets = [lender.borrow() for _ in range(limit)]
    for each in filter(None, sets):
        lender.give_back(each)
    return None not in sets


@pytest.mark.parametrize("part", range(4))
def test_set_lent_to_an_interrupted_thread_is_not_lost(make_lender, part):
    """Not even while another keeps the exception, and with it the frames of the call."""
    for point in range(1 + part, 80, 4):
        lender, sets, kept = make_lender(1), [], []

        def borrow(lender=lender, sets=sets, kept=kept):
            try:
                for _ in range(2):
                    lender.borrow(into=sets)
                    lender.pool.take_back(sets)
            except Interruption as error:
                kept.append(error)
            if sets:
                lender.pool.take_back(sets)

        where = inject(point, borrow)
        assert all_are_lent_again(lender, 1), where


# Sets that are thrown away.


def test_set_thrown_away_is_left_to_the_maintenance_and_never_lent_again(lender):
    link_set, other = lender.borrow(), lender.borrow()
    lender.throw_away(link_set)
    assert lender.looks == 1
    assert lender.borrow() is None
    assert list(lender.pool.invalidated) == [link_set]
    assert lender.end_torn() == 1
    assert link_set.closed
    new = lender.borrow()
    assert new not in (None, link_set, other)
    for each in (new, other):
        lender.give_back(each)


# Connections.


def arrive(lender, link_set, *indices):
    for index in indices:
        link, lender.fars[index] = lender.desk.link(index)
        link_set.arrive(index, link)


def test_new_set_is_lent_once_it_has_a_quorum_and_no_connection_is_under_way(lender):
    lender.quick = False
    assert lender.borrow() is None, "no thread waits for a set: the maintenance carries the round"
    assert lender.asked == [[0, 1, 2]], "all at once"
    (link_set,) = lender.pool.sets()
    arrive(lender, link_set, 0)
    assert lender.borrow() is None
    arrive(lender, link_set, 2)
    assert lender.borrow() is None, "the maintenance has a link to each node: with this set, one vote would be missing"
    link_set.arrive(1, "refused")
    assert lender.borrow() is link_set
    assert [each is not None for each in link_set.links] == [True, False, True]
    assert len(lender.asked) == len(lender.pool) == 1
    lender.give_back(link_set)


def test_set_that_is_being_connected_keeps_no_other_from_being_lent(lender):
    first, second = lender.borrow(), lender.borrow()
    lender.give_back(first)
    lender.quick = False
    for index in (0, 1):
        second.discard(second.links[index], "broken")
    lender.give_back(second)
    assert lender.borrow() is None
    assert lender.borrow() is first
    lender.give_back(first)


def test_set_that_lost_a_node_connects_it_once_and_is_not_lent_meanwhile(lender):
    link_set = lender.borrow()
    lender.give_back(link_set)
    link_set.discard(link_set.links[1], "broken")
    lender.quick = False
    assert [lender.borrow(), lender.borrow()] == [None, None]
    assert lender.asked[1:] == [[1]]
    arrive(lender, link_set, 1)
    assert lender.borrow() is link_set
    lender.give_back(link_set)


def test_rested_set_finds_out_which_connections_have_ended_before_it_is_used(lender, monkeypatch):
    """A command over one would fail, although its node works."""
    monkeypatch.setattr(pools, "_LONG_IDLE", 0.01)
    link_set = lender.borrow()
    lender.give_back(link_set)
    lender.fars[1].sock.close()
    lender.quick = False
    time.sleep(0.02)
    assert lender.borrow() is None
    assert link_set.links[1] is None
    assert lender.asked[1:] == [[1]]


@pytest.mark.parametrize("rest", [-1.0, 60.0])
def test_set_is_connected_anew_to_a_node_that_has_another_server(lender, monkeypatch, rest):
    """Its link does not count, so the set would have a vote less than it seems, even if it was in use just now."""
    monkeypatch.setattr(pools, "_LONG_IDLE", rest)
    link_set = lender.borrow()
    lender.give_back(link_set)
    lender.desk.nodes[1].generation += 1
    lender.quick = False
    assert lender.borrow() is None
    assert lender.asked[1:] == [[1]]


def test_set_whose_preparation_is_interrupted_is_thrown_away(lender, monkeypatch):
    def connect(link_set, nodes):
        raise Interruption

    monkeypatch.setattr(lender.pool, "_connect", connect)
    with pytest.raises(Interruption):
        lender.borrow()
    assert lender.end_torn() == 1


# Idle sets.


def test_set_that_was_given_back_last_is_lent_first_unless_one_asks_for_the_longest_rested(lender):
    first, second = lender.borrow(), lender.borrow()
    lender.give_back(first)
    lender.give_back(second)
    assert lender.pool.idle() == [first, second]
    sets = []
    assert lender.pool.borrow_rested(sets)
    assert sets == [first]
    assert lender.borrow() is second
    assert not lender.pool.borrow_rested([]), "both are in use"
    lender.give_back(first)
    lender.give_back(second)
    assert [lender.borrow(), lender.borrow()] == [second, first]
    for each in (first, second):
        lender.give_back(each)


# The end.


def test_closed_pool_lends_no_more(make_lender):
    lender = make_lender(1)
    lent = lender.borrow()
    assert lender.pool.close() == []
    assert lender.borrow() is None
    lender.give_back(lent)
    assert lender.borrow() is None
    assert lender.end_torn() == 1, "a set that comes back after the end is ended"


def test_set_whose_return_a_close_interrupts_is_torn(lender):
    class Interrupted(list):
        def pop(self, position):
            assert lender.pool.close() == []
            return super().pop(position)

    first = lender.borrow()
    lender.pool.take_back(Interrupted([first]))
    assert list(lender.pool.invalidated) == [first]
    assert lender.looks == 1
    lender.end_torn()
