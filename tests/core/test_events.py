"""Events for listeners: values that they may keep."""

import copy
import pickle

import pytest

from redsync import HoldLost, HoldOrphaned, NodeChanged

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
