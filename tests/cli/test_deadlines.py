"""The instants at which a command gets SIGTERM and SIGKILL."""

import math

import pytest

from redsync.cli.shim import BEHIND, DESERTED, LATE, LONG, LOST, Policy, Schedule

TERM = Policy(True, kill_after=4.0, margin=0.5)
IGNORE = Policy(False, kill_after=4.0, margin=0.5)


def begin(schedule, reason, instant):
    schedule.due[reason] = -math.inf if reason == LOST else instant
    schedule.look(instant)


def test_nothing_happens_while_renewals_succeed():
    schedule = Schedule(TERM, until=30.0, began=0.0)
    for instant in range(10, 100, 10):
        assert not schedule.look(instant)
        assert schedule.next == schedule.until - 4.5
        schedule.until = instant + 30.0
    assert (schedule.reason, schedule.kill_at) == (None, math.inf)


def test_term_is_sent_when_only_kill_after_and_margin_are_left():
    schedule = Schedule(TERM, until=30.0, began=0.0)
    assert not schedule.look(25.4)
    assert schedule.look(25.5)
    assert not schedule.look(25.6)  # it begins once
    assert (schedule.reason, schedule.kill_at, schedule.next) == (LATE, 29.5, 29.5)


def test_first_look_after_the_end_of_the_hold_kills_at_once():
    schedule = Schedule(TERM, until=30.0, began=0.0)
    assert schedule.look(31.0)
    assert schedule.kill_at < 31.0


@pytest.mark.parametrize("reason", [LONG, DESERTED, BEHIND])
def test_command_ended_for_another_reason_is_killed_before_the_hold_ends(reason):
    for instant, kill_at in ((3.0, 7.0), (27.0, 29.5)):
        schedule = Schedule(TERM, until=30.0, began=0.0)
        begin(schedule, reason, instant)
        assert schedule.kill_at == kill_at
    schedule.until = 57.0
    assert schedule.kill_at == 31.0, "a late renewal gives it the rest of its time"


def test_sudden_loss_leaves_time_to_clean_up():
    schedule = Schedule(TERM, until=30.0, began=0.0)
    begin(schedule, LOST, 28.0)
    assert schedule.kill_at == 32.0


def test_end_of_the_hold_does_not_matter_if_a_loss_is_ignored():
    schedule = Schedule(IGNORE, until=30.0, began=0.0)
    assert not schedule.look(31.0)
    assert schedule.next == math.inf


@pytest.mark.parametrize("policy", [TERM, IGNORE])
def test_command_that_takes_too_long_gets_term_with_any_policy(policy):
    limited = Policy(policy.ends_lost, policy.kill_after, policy.margin, max_hold=10.0)
    schedule = Schedule(limited, until=100.0, began=5.0)
    assert not schedule.look(14.9)
    assert schedule.look(15.0)
    assert (schedule.reason, schedule.kill_at) == (LONG, 19.0)
