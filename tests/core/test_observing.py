"""Input of observers and listeners: records of acquires, subscriptions that drivers fill, and events."""

import copy
import pickle

import pytest

from redsync import HoldLost, HoldOrphaned, NodeChanged
from redsync._core.observing import _MOST_STEPS, AcquireRecord, Step, round_of
from redsync._core.quorum import Tally
from tests.support.rounds import tally_of


def make_record():
    return AcquireRecord("x", "lock", wanted=1, limit=None, started=9.0)


def test_record_lists_what_happened_in_order():
    record = make_record()
    record.note("round", 10.0, tally_of(1, 0, "down"))
    record.note("split", 10.0)
    for what in ("waiting", "queued", "queued"):
        record.note(what, 11.0)
    assert record.steps == [Step("round", 10.0, (1, 1, 1)), Step("split", 10.0), Step("queued", 11.0)]
    assert record.counts == {"round": 1, "split": 1, "waiting": 1, "queued": 2}


def test_record_of_a_long_wait_keeps_the_first_steps_and_counts_all():
    record = make_record()
    for at in range(_MOST_STEPS + 5):
        record.note("woken", at)
    assert (len(record.steps), record.counts) == (_MOST_STEPS, {"woken": _MOST_STEPS + 5})


def test_round_tells_how_long_each_reply_took_and_why_others_failed_but_keeps_no_reply():
    tally = Tally(["a:1", "b:1", "c:1", "d:1"], bool)
    tally.sent_at = 10.0
    tally.record(0, b"a long reply", 10.25)
    tally.record(1, 0, 10.5)
    tally.fail(2, "no answer")
    (a, b, (node, failed, _)) = round_of(tally)
    assert (a, b, node, failed) == (("a:1", None, 0.25), ("b:1", None, 0.5), "c:1", "no answer")


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
