"""The notifier: logs, then the holder's callbacks, then the listeners, no matter what any of them raises."""

import io
import logging
import sys
import threading
import time
from collections import deque

import pytest

from redsync._core.holds import HoldState, Owner
from redsync._core.keys import LockKeys
from redsync._core.observing import HoldLost, NodeChanged, Observer, ObserverSubscription, WatchdogWoke
from redsync._core.quorum import Tally
from redsync._core.scripts import ClaimKind
from redsync._drivers import notifier as notifiers
from redsync._drivers.notifier import EventThread, Notifier, quietly


@pytest.fixture
def state():
    keys = LockKeys.of(b"redsync:", b"x")
    kind = ClaimKind.of("lock", b"hash")
    return HoldState("x", kind, keys, Owner("client", 1), b"client:1:1", 1, 30.0, 100.0, 10.0, 1e9, 0b111, 130.0)


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
        state.loss_callbacks.remove(once)
        told.append(it)

    state.loss_callbacks += [once, told.append]
    Notifier([]).announce(HoldLost("x", "client:1", "why", state))
    assert told == [state, state]


def test_details_go_to_observers_only(said):
    told, heard = [], []

    class Listening(Observer):
        def listen(self, now):
            return ObserverSubscription(heard.append, deque())

    notifier = Notifier([told.append, Listening()])
    notifier.announce(WatchdogWoke(0.5))
    notifier.announce(NodeChanged("a:1", "up", ""))
    assert (told, heard) == ([NodeChanged("a:1", "up", "")], [WatchdogWoke(0.5), NodeChanged("a:1", "up", "")])
    tally = Tally(["a:1"], bool)
    tally.fail(0, "down")
    notifier.note_round(tally)
    assert list(notifier.subscriptions[0].rounds) == [[("a:1", "down", 0.0)]]
    assert said() == [("redsync.node", "INFO", "node a:1 is up")]


class Exits(logging.Handler):
    """An application's log handler that exits."""

    def emit(self, record):
        raise SystemExit(3)


@pytest.fixture
def exits():
    handler = Exits()
    logging.getLogger("redsync").addHandler(handler)
    yield
    logging.getLogger("redsync").removeHandler(handler)


@pytest.mark.usefixtures("exits")
def test_log_handler_that_exits_in_the_clients_own_thread_stops_no_callback(state):
    told = []

    def fail(it):
        raise KeyError("mine")

    def contain(error):
        return isinstance(error, SystemExit)

    state.on_lost += [fail, told.append]
    Notifier([fail, told.append], contain).announce(HoldLost("x", "client:1", "why", state))
    assert len(told) == 2


@pytest.mark.usefixtures("exits")
def test_log_handler_that_exits_in_the_callers_thread_ends_the_call(state):
    with pytest.raises(SystemExit):
        Notifier([]).announce(HoldLost("x", "client:1", "why", state))


# In its own thread.


@pytest.fixture
def make_events():
    made = []

    def make(announce):
        made.append(EventThread(announce))
        return made[-1]

    yield make
    for events in made:
        events.close()


def up(number):
    return NodeChanged(f"a:{number}", "up", "")


def test_events_are_reported_in_order_in_one_other_thread(make_events):
    told, threads, thread_was_ours = [], set(), []

    def announce(event):
        told.append(event)
        threads.add(threading.current_thread())
        thread_was_ours.append(events.is_current())

    events = make_events(announce)
    assert not events.is_current()
    for number in range(20):
        events.post(up(number))
    events.close()
    assert told == [up(number) for number in range(20)]
    assert len(threads - {threading.current_thread()}) == 1
    assert thread_was_ours == [True] * 20


@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_callback_that_raises_ends_no_other(make_events, said, error):
    told = []

    def announce(event):
        told.append(event)
        raise error

    events = make_events(announce)
    events.post(up(1))
    events.post(up(2))
    events.close()
    assert told == [up(1), up(2)]
    assert [(log, text.startswith(f"a callback raised {error!r}")) for log, _, text in said()] == [
        ("redsync", True)
    ] * 2


@pytest.mark.usefixtures("exits")
def test_log_handler_that_exits_does_not_end_the_thread(make_events):
    told = []

    def announce(event):
        told.append(event)
        raise SystemExit(4)

    events = make_events(announce)
    events.post(up(1))
    events.post(up(2))
    events.close()
    assert told == [up(1), up(2)]


def test_close_does_not_wait_forever_for_a_callback(make_events, monkeypatch):
    monkeypatch.setattr(notifiers, "_LAST_EVENTS", 0.05)
    go_on = threading.Event()
    events = make_events(lambda event: go_on.wait(60))
    events.post(up(1))
    started_at = time.monotonic()
    events.close()
    assert 0.05 <= time.monotonic() - started_at < 30
    go_on.set()


def test_events_wait_while_there_are_no_more_threads(make_events, monkeypatch):
    told, start = [], threading.Thread.start

    def fail(thread):
        raise RuntimeError("can't start new thread")

    events = make_events(told.append)
    monkeypatch.setattr(threading.Thread, "start", fail)
    events.post(up(1))
    monkeypatch.setattr(threading.Thread, "start", start)
    events.post(up(2))
    events.close()
    assert told == [up(1), up(2)]


def test_error_of_a_log_handler_is_shown_and_goes_no_further(capsys):
    def fail(*args):
        raise OSError("disk full")

    quietly(fail, "text")
    assert "disk full" in capsys.readouterr().err
    assert sys.exc_info() == (None, None, None)


def test_log_line_that_can_be_written_nowhere_is_dropped(monkeypatch):
    """Logging without configuration writes to standard error, which an application may have closed."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    quietly(closed.write, "text")
