"""Input of observers and listeners: records of acquires, subscriptions that drivers fill, and events."""

import copy
import pickle

import pytest

from redsync import HoldLost, HoldOrphaned, NodeChanged
from redsync._core.observing import _MOST_REPLIES, _MOST_STEPS, AcquireRecord, ObserverSubscription, Step, noting_of
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


def make_record(waiting=None):
    return AcquireRecord("x", "lock", 1, None, 9.0, set() if waiting is None else waiting)


def test_record_lists_what_happened_in_order():
    record = make_record()
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
    record = make_record(waiting)
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


def test_record_of_a_long_wait_keeps_the_first_steps_and_counts_all():
    record = make_record()
    for at in range(_MOST_STEPS + 5):
        record.note_round(make_tally(1, 1, at=at))
    assert (len(record.steps), record.rounds) == (_MOST_STEPS, _MOST_STEPS + 5)


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


# Events for listeners: values that they may keep.


EVENTS = [
    NodeChanged("10.0.0.1:6379", "down", "connection refused"),
    HoldLost("x", "c:1", "its lease ended", None),
    HoldOrphaned("x", "c:1"),
]


@pytest.mark.parametrize("event", EVENTS)
def test_event_is_a_frozen_and_small_value(event):
    with pytest.raises(AttributeError):
        setattr(event, event._fields[0], "other")
    assert not hasattr(event, "__dict__")
    assert copy.copy(event) == event == pickle.loads(pickle.dumps(event))
    assert len({event, copy.copy(event)}) == 1
