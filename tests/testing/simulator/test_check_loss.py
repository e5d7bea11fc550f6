"""The checker of losses: it finds those that are reported never, too late, twice, or for released holds."""

import re

from redsync._core.events import HoldLost
from redsync._core.holds import HoldState
from redsync._protocols import lease
from redsync.testing.simulator.checks import LossTold
from redsync.testing.simulator.happenings import Faulted, Stepped, Told
from tests.support.hunting import add_hold, hunt


def do_nothing(*args):
    return
    yield


def test_checker_finds_silent_losses(monkeypatch):
    monkeypatch.setattr(lease, "notify", do_nothing)
    assert "lost, and not reported" in hunt(LossTold, range(2, 12))


def test_checker_finds_watchdog_that_looks_too_late(monkeypatch):
    due = HoldState.due.fget
    monkeypatch.setattr(HoldState, "due", property(lambda state: due(state) + 0.5))
    assert re.search("not reported|reported .* too late", hunt(LossTold, range(12, 112)))


def test_checker_finds_losses_that_are_reported_twice(monkeypatch):
    notify = lease.notify

    def notify_twice(event):
        yield from notify(event)
        yield from notify(event)

    monkeypatch.setattr(lease, "notify", notify_twice)
    assert "reported twice" in hunt(LossTold, range(2, 12))


# By hand.


SIMULATION = {"seed": 1, "checkers": (), "lease": 5.0}


def told(sim, runner, state):
    return Told(sim.now, runner, HoldLost("x", str(state.owner), "a reason", state))


def step(sim, machine):
    return Stepped(sim.now, machine)


def test_loss_may_be_reported_after_a_round_of_votes_but_no_later(sim, machine, runner):
    checker, state, other = LossTold(sim), add_hold(runner, until=2.0), add_hold(runner, until=2.0)
    timeout = runner.session.timing.round_timeout(5.0)
    sim.timeline.now = 2.0 + timeout
    assert checker.see(step(sim, machine)) is None
    assert checker.see(told(sim, runner, state)) is None
    state.lost = "a reason"
    sim.timeline.now = 2.1 + timeout
    assert "and not reported" in checker.see(step(sim, machine))
    assert "was reported 0.09" in checker.see(told(sim, runner, other))


def test_machine_that_stood_still_reports_when_it_continues(sim, machine, runner):
    checker, state = LossTold(sim), add_hold(runner, until=2.0)
    sim.timeline.now = 1.0
    machine.pause()
    sim.timeline.now = 60.0
    assert list(checker.finish()) == []
    checker.see(Faulted(sim.now, "machine resume", "a resumes"))
    machine.paused = False
    assert checker.see(told(sim, runner, state)) is None
    state.lost = "a reason"
    sim.timeline.now = 61.0
    assert list(checker.finish()) == []


def test_released_hold_must_not_be_reported_lost(sim, runner):
    checker, state = LossTold(sim), add_hold(runner)
    runner.session.holds.remove(state)
    assert "reported lost after its release" in checker.see(told(sim, runner, state))


def test_lost_hold_stays_lost(sim, machine, runner):
    checker, state = LossTold(sim), add_hold(runner)
    checker.see(told(sim, runner, state))
    state.lost = "a reason"
    assert checker.see(step(sim, machine)) is None
    state.lost = None
    assert "valid again" in checker.see(step(sim, machine))


def test_hold_must_not_be_extended_after_its_end(sim, machine, runner):
    checker, state = LossTold(sim), add_hold(runner, until=2.0)
    sim.timeline.now = 1.9
    assert checker.see(step(sim, machine)) is None
    sim.timeline.now = 2.1
    state.lengthen(state.valid_until + 2.0)
    assert "ended at 2.000000 and was extended after that" in checker.see(step(sim, machine))


def test_crashed_machine_needs_no_report(sim, machine, runner):
    checker = LossTold(sim)
    add_hold(runner, until=1.0)
    machine.crash()
    sim.timeline.now = 60.0
    assert list(checker.finish()) == []
