"""Journals: what is written down is read once, whatever the order and the threads."""

import threading

import pytest

from redsync._core.journals import _MOST_EARLY, LONG, Journal, Journals
from redsync._core.observing import AcquireRecord
from tests.support.injection import inject_at_calls as inject


def make_record(name="x", *, rounds=1):
    record = AcquireRecord(name, "lock", 1, None, 9.0, set(), None)
    record.rounds = rounds
    return record


class Hold:
    """The parts of a hold that a journal reads."""

    name = "x"


def take(journal):
    wins, ends = journal.take()
    return list(wins), list(ends)


def test_journal_has_a_hold_from_its_acquire_to_its_end():
    journal, hold = Journal(), Hold()
    journal.note_win(make_record(), 9.5, hold)
    assert journal.holds == {hold: ("lock", 9.5)}
    journal.note_end(hold, 12.0, None)
    journal.note_end(hold, 13.0, None)
    assert journal.holds == {}
    assert take(journal) == ([("lock", "x", 0.5, 1, 0, 0, 1, None)], [("lock", "x", 2.5, None)])
    assert take(journal) == ([], [])


def test_journal_takes_a_re_entry_for_no_hold():
    journal, hold = Journal(), Hold()
    journal.note_win(make_record(rounds=0), 9.5, hold)
    journal.note_win(make_record(), 9.5, True)
    assert journal.holds == {}
    assert len(take(journal)[0]) == 2


def test_journal_remembers_an_end_that_is_told_before_the_acquire():
    journal, hold, other = Journal(), Hold(), Hold()
    journal.note_end(hold, 9.25, "its max_hold is over")
    journal.note_win(make_record(), 9.5, other)
    journal.note_win(make_record(), 9.5, hold)
    assert journal.holds == {other: ("lock", 9.5)}
    assert take(journal)[1] == [("lock", "x", 0.0, "its max_hold is over")]


def test_journal_finds_the_acquire_that_comes_while_an_end_is_noted():
    journal, hold = Journal(), Hold()

    class Overtaken(dict):
        def pop(self, key, default=None):
            known = super().pop(key, default)
            if known is None:
                journal.holds = dict(self)
                journal.note_win(make_record(), 9.5, hold)
            return known

    journal.holds = Overtaken()
    journal.note_end(hold, 10.0, None)
    assert (journal.holds, journal._early) == ({}, {})
    assert take(journal)[1] == [("lock", "x", 0.5, None)]


def test_journal_forgets_the_oldest_ends_of_unknown_holds():
    journal = Journal()
    for _ in range(_MOST_EARLY + 5):
        journal.note_end(Hold(), 10.0, None)
    assert len(journal._early) == _MOST_EARLY
    journal.clear()
    assert len(journal._early) == 0


def test_journal_says_when_it_is_long():
    journal = Journal()
    told = [journal.note_win(make_record(), 9.5, True) for _ in range(LONG + 1)]
    assert told == [False] * (LONG - 1) + [True, True]


def test_journal_loses_nothing_while_threads_write_and_one_reads():
    journal, wins, ends = Journal(), [], []

    def work():
        for _ in range(2000):
            hold = Hold()
            journal.note_win(make_record(), 9.5, hold)
            journal.note_end(hold, 10.0, None)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken = take(journal)
        wins += taken[0]
        ends += taken[1]
    taken = take(journal)
    assert wins + taken[0] == [("lock", "x", 0.5, 1, 0, 0, 1, None)] * 8000
    assert ends + taken[1] == [("lock", "x", 0.5, None)] * 8000
    assert journal.holds == {}


def test_journal_gives_what_an_interrupted_reader_has_not_read_to_the_next_one():
    journal = Journal()
    for name in ("a", "b", "c"):
        journal.note_win(make_record(name), 9.5, hold := Hold())
        journal.note_end(hold, 10.0, None)
    wins, ends = journal.take()
    assert (next(wins)[1], next(ends)[0]) == ("a", "lock")
    journal.note_win(make_record("d"), 9.5, True)
    wins, ends = take(journal)
    assert [win[1] for win in wins] == ["b", "c", "d"]
    assert len(ends) == 2
    assert take(journal) == ([], [])
    journal.note_win(make_record("e"), 9.5, True)
    journal.take()
    journal.clear()
    assert take(journal) == ([], [])


def test_journal_keeps_its_entries_if_its_reader_is_interrupted_before_it_has_them():
    point, where = 0, ""
    while where is not None:
        point += 1
        journal = Journal()
        journal.note_win(make_record(), 9.5, hold := Hold())
        journal.note_end(hold, 10.0, None)
        where = inject(point, journal.take)
        assert tuple(map(len, take(journal))) == (1, 1), where
    assert point > 5


def test_several_journals_are_written_alike():
    one, other, hold = Journal(), Journal(), Hold()
    both = Journals([one, other])
    assert not both.note_win(make_record(), 9.5, hold)
    assert one.holds == other.holds == {hold: ("lock", 9.5)}
    both.note_end(hold, 12.0, None)
    assert take(one) == take(other) == ([("lock", "x", 0.5, 1, 0, 0, 1, None)], [("lock", "x", 2.5, None)])


@pytest.mark.parametrize("order", [1, -1])
def test_one_long_journal_of_several_is_reported(order):
    long = Journal()
    for _ in range(LONG):
        long.note_win(make_record(), 9.5, True)
    assert Journals([long, Journal()][::order]).note_win(make_record(), 9.5, True)
