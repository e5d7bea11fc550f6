"""The search through interleavings finds planted faults."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from redsync._drivers.connection_table import ConnectionTable
from redsync._drivers.leadership import Leadership
from redsync._drivers.outboxes import Outbox
from redsync._drivers.pollers import READ
from redsync._drivers.requests import Mailbox, Request
from redsync._drivers.transport import Transport
from redsync._drivers.wakeups import Wakeups
from tests.support.interleaving.explore import explore
from tests.support.interleaving.scenarios import (
    breaking,
    overtaking,
    ringing,
    rounds,
)
from tests.support.interleaving.signals import Strikes
from tests.support.interleaving.world import Fault

# Planted faults.


def leave_without_an_heir(self, sleeper):
    """A leader leaves without passing the lead on."""
    with self._mutex:
        sleeper.gate = None
        self.followers.pop(sleeper, None)
        if sleeper.leads:
            sleeper.leads = self.leading = False


def leave_and_stay_a_follower(self, sleeper):
    """A done follower stays in the list, and becomes the heir after it has left."""
    with self._mutex:
        sleeper.gate = None
        if sleeper.leads:
            sleeper.leads = self.leading = False
            for heir in list(self.followers):
                del self.followers[heir]
                heir.wake()
                heir.leads = self.leading = True
                break


def leave_in_silence(self, sleeper):
    """The lead is passed on, but the heir sleeps on."""
    with self._mutex:
        sleeper.gate = None
        self.followers.pop(sleeper, None)
        for heir in list(self.followers):
            if sleeper.leads:
                del self.followers[heir]
                heir.leads, sleeper.leads = True, False
        if sleeper.leads:
            sleeper.leads = self.leading = False


def leave_at_an_heir_that_is_done(self, sleeper):
    """The first follower is already done, and the lead is passed on to no other."""
    with self._mutex:
        sleeper.gate = None
        self.followers.pop(sleeper, None)
        if sleeper.leads and self.followers:
            heir = next(iter(self.followers))
            if not heir.done:
                del self.followers[heir]
                heir.wake()
                heir.leads, sleeper.leads = True, False
        if sleeper.leads:
            sleeper.leads = self.leading = False


def wait_with_a_late_gate(self, sleeper, deadline):
    """The gate is made after the mutex is released: a sleeper that is done in between is not woken."""
    try:
        while not sleeper.done:
            with self._mutex:
                if not self.leading:
                    self.leading = sleeper.leads = True
                follows = not sleeper.leads
            if not follows:
                self._lead(sleeper, deadline)
                continue
            gate = self._make_lock()
            gate.acquire()
            with self._mutex:
                sleeper.gate = gate
                self.followers[sleeper] = None
            gate.acquire(timeout=deadline - self._clock())
    finally:
        self.leave(sleeper)


def wait_without_a_leader(self, sleeper, deadline):
    """Every waiting thread leads."""
    try:
        while not sleeper.done and self._clock() < deadline:
            sleeper.leads = self.leading = True
            self._lead(sleeper, deadline)
    finally:
        self.leave(sleeper)


def empty_once(self):
    """A flush does not check the outbox again at its end."""
    if self.items:
        with self._mutex:
            if self.flushing:
                return
            self.flushing = True
        while self.items:
            self.dispatch()
        self.flushing = False


def carry_once(self, request, deadline):
    """A lone thread does not check the outbox again after sending."""
    outbox, leadership = self._outbox, self._leadership
    outbox.items.append(request)
    with self._mutex:
        alone = not (leadership.leading or outbox.flushing)
        if alone:
            leadership.leading = request.leads = outbox.flushing = True
    if alone:
        while outbox.items:
            outbox.dispatch()
        outbox.flushing = False
        self._lead(request, deadline)
    else:
        outbox.flush()
        leadership.wait(request, deadline)
    leadership.leave(request)


def carry_and_just_go(self, request, deadline):
    """An interrupted lone thread remains the flushing thread."""
    outbox, leadership = self._outbox, self._leadership
    outbox.items.append(request)
    with self._mutex:
        alone = not (leadership.leading or outbox.flushing)
        if alone:
            leadership.leading = request.leads = outbox.flushing = True
    if alone:
        while outbox.items or outbox.batch:
            outbox.dispatch()
        outbox.flushing = False
    outbox.flush()
    leadership.wait(request, deadline)


def empty_side_by_side(self):
    """Two threads flush at a time."""
    while self.items or self.batch:
        self.dispatch()


def unclog_without_a_second_look(self, link):
    """A link is not polled for bytes that another thread kept after the flush."""
    link.flush()
    if not link.backlog:
        self._table.watch(link, READ)


def fail_in_silence(self, node, request, reason):
    """A failed vote does not wake the thread that waits for it."""
    if request.tally is not None:
        request.tally.fail(node.index, reason)
        request.done = not request.tally.open


def wait_without_a_bell(self, key, until, unless):
    """The bell is opened after the check of the condition."""
    if not unless():
        bell = Mailbox()
        with self._mutex:
            self._bells.setdefault(key, []).append(bell)
        yield bell, until
        del self._bells[key]
    return 0, 0


def precede_nothing(self, later):
    """A resent command overtakes its owner's next one."""
    return False


class Planted(NamedTuple):
    """A function that replaces one of the library's, and the search's finding with that many preemptions."""

    owner: type
    name: str
    fault: Callable
    scenario: Any
    bound: int
    complaint: str


def by_fault(*planted):
    return pytest.mark.parametrize("planted", planted, ids=[each.fault.__name__ for each in planted])


@by_fault(
    Planted(Leadership, "leave", leave_without_an_heir, rounds("a0", "b0"), 1, "deadlock"),
    Planted(Leadership, "leave", leave_in_silence, rounds("a0", "b0"), 1, "deadlock"),
    Planted(
        Leadership, "leave", leave_and_stay_a_follower, rounds("a0 a1", "b0 b1"), 1, "a leader is left without a thread"
    ),
    Planted(Leadership, "leave", leave_at_an_heir_that_is_done, rounds("a0", "b0", "c0"), 1, "deadlock"),
    Planted(Leadership, "wait", wait_with_a_late_gate, rounds("a0", "b0"), 1, "deadlock"),
    Planted(Leadership, "wait", wait_without_a_leader, rounds("a0", "b0"), 1, r"\['a', 'b'\] lead"),
    Planted(Outbox, "empty", empty_side_by_side, rounds("a0", "b0"), 1, "0. got"),
    Planted(Transport, "_unclog", unclog_without_a_second_look, rounds("a0", "b0", room=60), 2, "deadlock"),
    Planted(ConnectionTable, "fail", fail_in_silence, breaking(nodes=1), 1, "deadlock"),
    Planted(Wakeups, "wait_for_bell", wait_without_a_bell, ringing(), 1, "deadlock"),
    Planted(Request, "precedes", precede_nothing, overtaking("a0"), 1, "executed in the wrong order"),
)
def test_planted_fault_is_found(monkeypatch, planted):
    monkeypatch.setattr(planted.owner, planted.name, planted.fault)
    with pytest.raises(Fault, match=planted.complaint):
        explore(planted.scenario, planted.bound)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [(Outbox, "empty", empty_once), (Transport, "carry", carry_once)],
    ids=["empty_once", "carry_once"],
)
def test_flush_that_does_not_check_again_is_found_where_lines_are_points(monkeypatch, owner, name, fault):
    """Another thread's command came after the last check of the outbox, before the end of the flush."""
    monkeypatch.setattr(owner, name, fault)
    scenario = rounds("a0 a1", "b0") if fault is empty_once else rounds("a0", "b0")
    with pytest.raises(Fault, match="deadlock"):
        explore(scenario, 1, lines=("outboxes", "transport", str(Path(__file__).with_suffix(""))))


# Faults that need a signal.


def wait_and_just_go(self, sleeper, deadline):
    """An interrupted thread keeps the lead, or stays a follower."""
    while not sleeper.done:
        with self._mutex:
            if not self.leading:
                self.leading = sleeper.leads = True
            if not sleeper.leads:
                gate = sleeper.gate = self._make_lock()
                gate.acquire()
                self.followers[sleeper] = None
        if sleeper.leads:
            self._lead(sleeper, deadline)
        else:
            gate.acquire()
    self.leave(sleeper)


def flush_and_just_go(self):
    """An interrupted thread leaves others' requests to the next sender."""
    self.empty()


def rest_with_the_lead(self, sleeper):
    """A thread whose handler calls the client keeps the lead during that call."""
    return lambda: None


@by_fault(
    Planted(Leadership, "wait", wait_and_just_go, Strikes.interrupting, 1, "deadlock|leader is left without a thread"),
    Planted(Outbox, "flush", flush_and_just_go, Strikes.interrupting_the_last, 1, "deadlock|was given up"),
    Planted(Transport, "carry", carry_and_just_go, Strikes.interrupting, 1, "deadlock|thread leads|is left without"),
    Planted(Leadership, "rest", rest_with_the_lead, Strikes.handling, 1, "got|waited"),
)
def test_planted_fault_is_found_when_a_signal_comes(monkeypatch, planted):
    monkeypatch.setattr(planted.owner, planted.name, planted.fault)
    strikes = Strikes()
    with pytest.raises(Fault, match=planted.complaint):
        strikes.explore(planted.scenario(strikes), partial(explore, bound=planted.bound))
