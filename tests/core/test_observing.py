"""Input of observers and listeners: records of acquires, subscriptions that drivers fill, journals, and events."""

import copy
import pickle
import threading

import pytest

from redsync import HoldLost, HoldOrphaned, NodeChanged
from redsync._core.observing import (
    _MOST_REPLIES,
    _MOST_STEPS,
    LONG,
    AcquireRecord,
    Journal,
    Journals,
    Observer,
    ObserverSubscription,
    Step,
    journal_of,
    noting_of,
)
from redsync._core.quorum import Tally


def make_tally(*replies, at=10.0):
    tally = Tally(["a:1", "b:1", "c:1"], lambda reply: reply)
    for node, reply in enumerate(replies):
        if isinstance(reply, str):
            tally.fail(node, reply)
        else:
            tally.record(node, reply)
    tally.at = at
    return tally


def make_record(name="x", *, rounds=1, waiting=None, steps=None):
    record = AcquireRecord(name, "lock", 1, None, 9.0, set() if waiting is None else waiting, steps)
    record.rounds = rounds
    return record


def test_record_lists_what_happened_in_order():
    record = make_record(rounds=0, steps=[])
    record.note_round(make_tally(1, 0, "down"))
    record.note_split(10.0)
    record.note_sleep(10.0, queued=True)
    record.note_woken(11.0)
    record.note_handed_over(11.0)
    assert record.steps == [
        Step("round", 10.0, (1, 1, 1)),
        Step("split", 10.0),
        Step("queued", 10.0),
        Step("woken", 11.0),
        Step("handed over", 11.0),
    ]
    assert (record.rounds, record.splits, record.hand_overs) == (1, 1, 1)


def test_record_notes_once_that_it_queued():
    waiting = set()
    record = make_record(waiting=waiting, steps=[])
    assert not record.waiting
    record.note_sleep(10.0, queued=False)
    assert record.waiting
    assert waiting == {record}
    assert not record.steps
    for at in (11.0, 12.0):
        record.note_sleep(at, queued=True)
    assert record.steps == [Step("queued", 11.0)]
    record.end_waiting()
    assert waiting == set()


def test_record_counts_a_round_once():
    record = make_record(rounds=0, steps=[])
    for at in (10.0, 10.0, 11.0):
        record.note_round(make_tally(1, 1, at=at))
    assert record.rounds == len(record.steps) == 2


def test_record_of_a_long_wait_keeps_the_first_steps_and_counts_all():
    record = make_record(rounds=0, steps=[])
    for at in range(_MOST_STEPS + 5):
        record.note_round(make_tally(1, 1, at=at))
    assert (len(record.steps), record.rounds) == (_MOST_STEPS, _MOST_STEPS + 5)


def test_record_without_readers_counts_and_lists_nothing():
    record = make_record(rounds=0)
    record.note_round(make_tally(1, 1))
    record.note_handed_over(11.0)
    assert (record.rounds, record.hand_overs, record.at, record.steps) == (1, 1, 11.0, None)


def test_all_is_told_at_once_if_one_ear_has_no_journal():
    counting, hearing = ObserverSubscription([], print, journal=Journal()), ObserverSubscription([], print)
    assert journal_of([counting]) is counting.journal
    assert journal_of([counting, counting]) is not None
    assert journal_of([counting, hearing]) is journal_of([hearing]) is journal_of([]) is None


def test_ear_keeps_failed_votes_with_their_reason():
    subscription = ObserverSubscription(["a:1", "b:1", "c:1"], print)
    subscription.note_votes(make_tally(1, "down", "no answer"))
    assert list(subscription.failed) == [("b:1", "down"), ("c:1", "no answer")]


@pytest.mark.parametrize("count", [1, 2])
def test_time_of_a_reply_is_noted_for_each_ear_at_its_node(count):
    subscriptions = [ObserverSubscription(["a:1", "b:1"], print) for _ in range(count)]
    for node, note in enumerate(noting_of(subscriptions)):
        note(node + 0.5)
    assert [[list(took) for took in subscription.took] for subscription in subscriptions] == [[[0.5], [1.5]]] * count
    assert noting_of([]) == ()


def test_ear_that_is_not_emptied_drops_the_oldest():
    subscription = ObserverSubscription(["a:1"], print)
    subscription.took[0].extend(range(_MOST_REPLIES + 1))
    assert subscription.took[0][0] == 1


def test_observer_is_a_listener_by_its_type_alone():
    class Deaf(Observer):
        def listen(self, nodes, now):
            return ObserverSubscription(nodes, print)

    assert Deaf().attach(None) is None
    with pytest.raises(AssertionError, match="subscription"):
        Deaf()(None)


# Journals: what is written down is read once, whatever the order and the threads.


class Hold:
    """The parts of a hold that a journal reads."""

    name, lost, live = "x", None, True


def test_journal_has_a_hold_from_its_acquire_to_its_end():
    journal, hold, record = Journal(), Hold(), make_record()
    journal.note_win(record, 9.5, hold)
    assert journal.holds == {hold: ("lock", 9.5)}
    journal.note_end(hold, 12.0, None)
    journal.note_end(hold, 13.0, None)
    assert journal.holds == {}
    assert list(journal.wins) == [(record, 0.5)]
    assert list(journal.ends) == [("lock", "x", 2.5, None)]
    journal.clear()
    assert not journal.wins
    assert not journal.ends


def test_journal_takes_a_re_entry_for_no_hold():
    journal, hold = Journal(), Hold()
    journal.note_win(make_record(rounds=0), 9.5, hold)
    journal.note_win(make_record(), 9.5, True)
    assert journal.holds == {}
    assert len(journal.wins) == 2


@pytest.mark.parametrize("lost", ["its max_hold is over", None], ids=["lost", "released"])
def test_journal_finds_ended_a_hold_whose_end_is_told_before_the_acquire(lost):
    """An end is marked before it is reported; a success is recorded before it looks for the mark."""
    journal, hold = Journal(), Hold()
    hold.lost, hold.live = lost, lost is not None
    journal.note_end(hold, 9.25, lost)
    journal.note_win(make_record(), 9.5, hold)
    journal.note_end(hold, 9.75, lost)
    assert journal.holds == {}
    assert list(journal.ends) == [("lock", "x", 0.0, lost)]


def test_journal_says_when_it_is_long():
    journal = Journal()
    told = [journal.note_win(make_record(), 9.5, True) for _ in range(LONG + 1)]
    assert told == [False] * (LONG - 1) + [True, True]


def test_journal_loses_nothing_while_threads_write_and_one_reads():
    journal, taken = Journal(), []

    def work():
        for _ in range(2000):
            hold = Hold()
            journal.note_win(make_record(), 9.5, hold)
            journal.note_end(hold, 10.0, None)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or journal.ends:
        taken += [journal.ends.popleft() for _ in range(len(journal.ends))]
    assert taken == [("lock", "x", 0.5, None)] * 8000
    assert len(journal.wins) == 8000
    assert journal.holds == {}


def test_several_journals_are_written_alike():
    one, other, hold = Journal(), Journal(), Hold()
    both = Journals([one, other])
    assert not both.note_win(make_record(), 9.5, hold)
    assert one.holds == other.holds == {hold: ("lock", 9.5)}
    both.note_end(hold, 12.0, None)
    assert one.wins == other.wins
    assert list(one.ends) == list(other.ends) == [("lock", "x", 2.5, None)]


@pytest.mark.parametrize("order", [1, -1])
def test_one_long_journal_of_several_is_reported(order):
    long = Journal()
    for _ in range(LONG):
        long.note_win(make_record(), 9.5, True)
    assert Journals([long, Journal()][::order]).note_win(make_record(), 9.5, True)


# Events for listeners: values that they may keep.


EVENTS = [
    NodeChanged("10.0.0.1:6379", "down", "connection refused"),
    HoldLost("x", "c:1", "its lease ended", None),
    HoldOrphaned("x", "c:1"),
]


@pytest.mark.parametrize("event", EVENTS)
def test_event_is_frozen_and_small(event):
    field = event._fields[0]
    with pytest.raises(AttributeError):
        setattr(event, field, "other")
    with pytest.raises((AttributeError, TypeError)):
        event.something_else = 1
    assert not hasattr(event, "__dict__")


@pytest.mark.parametrize("event", EVENTS)
def test_events_are_compared_by_value(event):
    assert copy.copy(event) == event
    assert pickle.loads(pickle.dumps(event)) == event
    assert len({event, copy.copy(event)}) == 1


def test_events_of_different_kinds_differ():
    assert len(set(EVENTS)) == len(EVENTS)
    assert NodeChanged("a", "up", "") != NodeChanged("b", "up", "")
