"""The search through interleavings catches what was broken on purpose."""

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

# Faults that were planted.


def leave_without_an_heir(self, sleeper):
    """A leader leaves, and passes the lead on to nobody."""
    with self._mutex:
        sleeper.gate = None
        self._followers.pop(sleeper, None)
        if sleeper.leads:
            sleeper.leads = self.leading = False


def leave_and_stay_a_follower(self, sleeper):
    """A follower that is done stays one: it is made the heir when it is gone."""
    with self._mutex:
        sleeper.gate = None
        if sleeper.leads:
            sleeper.leads = self.leading = False
            for heir in list(self._followers):
                del self._followers[heir]
                heir.wake()
                heir.leads = self.leading = True
                break


def leave_in_silence(self, sleeper):
    """The lead is passed on, and the heir sleeps on."""
    with self._mutex:
        sleeper.gate = None
        self._followers.pop(sleeper, None)
        for heir in list(self._followers):
            if sleeper.leads:
                del self._followers[heir]
                heir.leads, sleeper.leads = True, False
        if sleeper.leads:
            sleeper.leads = self.leading = False


def leave_at_an_heir_that_is_done(self, sleeper):
    """The first follower is done already, and the lead is passed on to nobody else."""
    with self._mutex:
        sleeper.gate = None
        self._followers.pop(sleeper, None)
        if sleeper.leads and self._followers:
            heir = next(iter(self._followers))
            if not heir.done:
                del self._followers[heir]
                heir.wake()
                heir.leads, sleeper.leads = True, False
        if sleeper.leads:
            sleeper.leads = self.leading = False


def wait_with_a_late_gate(self, sleeper, deadline):
    """The gate is made when the mutex is free again: who is done in between wakes nobody."""
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
                self._followers[sleeper] = None
            gate.acquire(timeout=deadline - self._clock())
    finally:
        self.leave(sleeper)


def wait_without_a_leader(self, sleeper, deadline):
    """Everybody leads who waits."""
    try:
        while not sleeper.done and self._clock() < deadline:
            sleeper.leads = self.leading = True
            self._lead(sleeper, deadline)
    finally:
        self.leave(sleeper)


def empty_once(self):
    """A flush does not look at the outbox again after it has ended."""
    if self.items:
        with self._mutex:
            if self.flushing:
                return
            self.flushing = True
        while self.items:
            self.dispatch()
        self.flushing = False


def carry_once(self, request, deadline):
    """A thread that was alone does not look at the outbox again after it has sent."""
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
    """An interrupted thread that was alone remains the one that sends."""
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
    """What another thread left behind after the flush is not polled for."""
    link.flush()
    if not link.backlog:
        self._table.watch(link, READ)


def fail_in_silence(self, node, request, reason):
    """Nobody wakes the thread that waits for a vote that fails."""
    if request.tally is not None:
        request.tally.fail(node.index, reason)
        request.done = not request.tally.open


def wait_without_a_bell(self, key, until, unless):
    """The bell is hung up after the look at the condition."""
    if not unless():
        bell = Mailbox()
        with self._mutex:
            self._bells.setdefault(key, []).append(bell)
        yield bell, until
        del self._bells[key]
    return 0, 0


def precede_nothing(self, later):
    """A command that is sent again overtakes its owner's next one."""
    return False


class Planted(NamedTuple):
    """A function that replaces one of ours, and what the search finds with so many preemptions."""

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
        Leadership, "leave", leave_and_stay_a_follower, rounds("a0 a1", "b0 b1"), 1, "somebody leads, and nobody waits"
    ),
    Planted(Leadership, "leave", leave_at_an_heir_that_is_done, rounds("a0", "b0", "c0"), 1, "deadlock"),
    Planted(Leadership, "wait", wait_with_a_late_gate, rounds("a0", "b0"), 1, "deadlock"),
    Planted(Leadership, "wait", wait_without_a_leader, rounds("a0", "b0"), 1, r"\['a', 'b'\] lead"),
    Planted(Outbox, "empty", empty_side_by_side, rounds("a0", "b0"), 1, "b0' got"),
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
def test_flush_that_does_not_look_again_is_found_where_lines_are_points(monkeypatch, owner, name, fault):
    """Another thread's command came after the last look at the outbox, and before the flush has ended."""
    monkeypatch.setattr(owner, name, fault)
    scenario = rounds("a0 a1", "b0") if fault is empty_once else rounds("a0", "b0")
    with pytest.raises(Fault, match="deadlock"):
        explore(scenario, 1, lines=("outboxes", "transport", str(Path(__file__).with_suffix(""))))


# Faults that show when a signal comes.


def wait_and_just_go(self, sleeper, deadline):
    """An interrupted thread keeps the lead, or stays a follower."""
    while not sleeper.done:
        with self._mutex:
            if not self.leading:
                self.leading = sleeper.leads = True
            if not sleeper.leads:
                gate = sleeper.gate = self._make_lock()
                gate.acquire()
                self._followers[sleeper] = None
        if sleeper.leads:
            self._lead(sleeper, deadline)
        else:
            gate.acquire()
    self.leave(sleeper)


def flush_and_just_go(self):
    """An interrupted thread leaves what others have sent to whoever sends next."""
    self.empty()


def rest_with_the_lead(self, sleeper):
    """A thread whose handler calls the client keeps the lead meanwhile."""
    return lambda: None


@by_fault(
    Planted(Leadership, "wait", wait_and_just_go, Strikes.interrupting, 1, "deadlock|somebody leads, and nobody waits"),
    Planted(Outbox, "flush", flush_and_just_go, Strikes.interrupting_the_last, 1, "deadlock|was given up"),
    Planted(Transport, "carry", carry_and_just_go, Strikes.interrupting, 1, "deadlock|somebody"),
    Planted(Leadership, "rest", rest_with_the_lead, Strikes.handling, 1, "got|waited"),
)
def test_planted_fault_is_found_when_a_signal_comes(monkeypatch, planted):
    monkeypatch.setattr(planted.owner, planted.name, planted.fault)
    strikes = Strikes()
    with pytest.raises(Fault, match=planted.complaint):
        strikes.explore(planted.scenario(strikes), partial(explore, bound=planted.bound))
