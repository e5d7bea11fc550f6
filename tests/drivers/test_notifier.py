"""The notifier: logs, then the holder's callbacks, then the listeners, no matter what any of them raises."""

import logging

import pytest

from redsync._core.claims import ClaimKind
from redsync._core.events import HoldLost, HoldOrphaned, NodeChanged
from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys
from redsync._core.observing import Ear, Observer, WatchdogWoke
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally
from redsync._drivers.notifier import Notifier
from tests.support.hold_states import new_forms


@pytest.fixture
def state():
    keys = LockKeys.of(b"redsync:", b"x")
    kind = ClaimKind.of("lock", b"hash")
    return HoldState(
        "x", kind, keys, Owner("client", 1), b"client:1:1", 1, new_forms(30.0), 100.0, 10.0, 1e9, 0b111, 130.0
    )


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.DEBUG, "redsync")
    return lambda: [(record.name, record.levelname, record.getMessage()) for record in caplog.records]


def test_loss_is_logged_as_an_error_then_reported_to_holders_then_listeners(state, said):
    order = []
    state.on_lost += [lambda it: order.append(("holder", it)), lambda it: order.append(("second", it))]
    event = HoldLost("x", "client:1", "its lease ended", state)
    Notifier([lambda it: order.append(("listener", it))]).announce(event)
    assert order == [("holder", state), ("second", state), ("listener", event)]
    assert said() == [("redsync.watchdog", "ERROR", "lost the hold of 'x' by client:1: its lease ended")]


def test_orphan_is_logged_as_a_warning_and_reported_to_listeners(said):
    told = []
    Notifier([told.append]).announce(HoldOrphaned("x", "client:1"))
    assert told == [HoldOrphaned("x", "client:1")]
    ((name, level, text),) = said()
    assert (name, level) == ("redsync.watchdog", "WARNING")
    assert "'x'" in text
    assert "client:1" in text


def test_change_of_a_node_is_reported_to_listeners_only(said):
    told = []
    event = NodeChanged("127.0.0.1:1", "down", "refused")
    Notifier([told.append, told.append]).tell(event)
    assert told == [event, event]
    assert said() == []


def test_callback_that_raises_is_logged_and_stops_no_other(state, said):
    told = []

    def fail(it):
        raise KeyError("mine")

    state.on_lost += [fail, told.append]
    Notifier([fail, told.append]).announce(HoldLost("x", "client:1", "why", state))
    assert len(told) == 2
    assert [(name, level) for name, level, _ in said()] == [
        ("redsync.watchdog", "ERROR"),
        ("redsync", "ERROR"),
        ("redsync", "ERROR"),
    ]


def test_interruption_in_a_callback_is_not_hidden(state):
    def interrupt(it):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Notifier([interrupt]).announce(HoldLost("x", "client:1", "why", state))


def test_callback_of_a_lock_object_is_called_once_after_many_reentries(state):
    told = []
    state.on_lost += [told.append] * 3
    Notifier([]).announce(HoldLost("x", "client:1", "why", state))
    assert told == [state]


def test_holder_may_stop_listening_during_the_call(state):
    told = []

    def once(it):
        state.watching.remove(once)
        told.append(it)

    state.watching += [once, told.append]
    Notifier([]).announce(HoldLost("x", "client:1", "why", state))
    assert told == [state, state]


def test_details_go_to_observers_only(said):
    told, heard = [], []

    class Listening(Observer):
        def listen(self, nodes, now):
            return Ear(nodes, heard.append)

    notifier = Notifier([told.append, Listening()], nodes=["a:1"])
    notifier.announce(WatchdogWoke(0.5))
    notifier.tell(NodeChanged("a:1", "up", ""))
    assert (told, heard) == ([NodeChanged("a:1", "up", "")], [WatchdogWoke(0.5), NodeChanged("a:1", "up", "")])
    tally = Tally(["a:1"], bool)
    tally.fail(0, "down")
    notifier.note_votes(tally)
    assert list(notifier.ears[0].failed) == [("a:1", "down")]
    assert said() == []
