"""What observers get: records of acquires, and ears that take what drivers put there."""

import pytest

from redsync._core.observing import _MOST_REPLIES, _MOST_STEPS, AcquireRecord, Ear, Observer, Step
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


def test_record_lists_what_happened_in_order():
    record = AcquireRecord("x", "lock", 1, None, 9.0)
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


def test_record_tells_once_that_it_queued():
    record = AcquireRecord("x", "lock", 1, None, 9.0)
    assert not record.waiting
    record.note_sleep(10.0, queued=False)
    assert record.waiting
    assert not record.steps
    for at in (11.0, 12.0):
        record.note_sleep(at, queued=True)
    assert record.steps == [Step("queued", 11.0)]


def test_record_counts_a_round_once():
    record = AcquireRecord("x", "lock", 1, None, 9.0)
    for at in (10.0, 10.0, 11.0):
        record.note_round(make_tally(1, 1, at=at))
    assert record.rounds == len(record.steps) == 2


def test_record_of_a_long_wait_keeps_the_first_steps_and_counts_all():
    record = AcquireRecord("x", "lock", 1, None, 9.0)
    for at in range(_MOST_STEPS + 5):
        record.note_round(make_tally(1, 1, at=at))
    assert (len(record.steps), record.rounds) == (_MOST_STEPS, _MOST_STEPS + 5)


def test_ear_keeps_failed_votes_with_their_reason():
    ear = Ear(["a:1", "b:1", "c:1"], print)
    ear.note_votes(make_tally(1, "down", "no answer"))
    assert list(ear.failed) == [(1, "down"), (2, "no answer")]


def test_ear_that_nobody_empties_forgets_the_oldest():
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
