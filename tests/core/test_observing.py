"""Input of observers: records of acquires, and ears that drivers fill."""

import pytest

from redsync._core.journals import Journal
from redsync._core.observing import (
    _MOST_REPLIES,
    _MOST_STEPS,
    AcquireRecord,
    Ear,
    Observer,
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
    counting, hearing = Ear([], print, journal=Journal()), Ear([], print)
    assert journal_of([counting]) is counting.journal
    assert journal_of([counting, counting]) is not None
    assert journal_of([counting, hearing]) is journal_of([hearing]) is journal_of([]) is None


def test_ear_keeps_failed_votes_with_their_reason():
    ear = Ear(["a:1", "b:1", "c:1"], print)
    ear.note_votes(make_tally(1, "down", "no answer"))
    assert list(ear.failed) == [("b:1", "down"), ("c:1", "no answer")]


@pytest.mark.parametrize("count", [1, 2])
def test_time_of_a_reply_is_noted_for_each_ear_at_its_node(count):
    ears = [Ear(["a:1", "b:1"], print) for _ in range(count)]
    for node, note in enumerate(noting_of(ears)):
        note(node + 0.5)
    assert [[list(took) for took in ear.took] for ear in ears] == [[[0.5], [1.5]]] * count
    assert noting_of([]) == ()


def test_ear_that_is_not_emptied_drops_the_oldest():
    ear = Ear(["a:1"], print)
    ear.took[0].extend(range(_MOST_REPLIES + 1))
    assert ear.took[0][0] == 1


def test_observer_is_a_listener_by_its_type_alone():
    class Deaf(Observer):
        def listen(self, nodes, now):
            return Ear(nodes, print)

    assert Deaf().attach(None) is None
    with pytest.raises(AssertionError, match="ear"):
        Deaf()(None)
