"""Losses: those reported in time pass; planted silence, delay and lies are found."""

import pytest

from redsync.testing.harness.holds import Hold
from redsync.testing.harness.losses import SLACK, judge_hearing, judge_losses
from redsync.testing.harness.verdicts import Stall

MS = 1_000_000
SECOND = 1000 * MS
UNTIL = 10 * SECOND


def told(at, **fields):
    return {"event": "told", "at": at, "lost": True, "remaining": 0, **fields}


def look(before, remaining, lost, until=UNTIL, since=UNTIL):
    return {
        "event": "looked", "before": before, "after": before + MS, "remaining": remaining, "lost": lost,
        "since": since, "until": until,
    }  # fmt: skip


def hold(**fields):
    options = {"until": UNTIL, "ended": 15 * SECOND, "kept": False, "gone": "lost", **fields}
    return Hold(worker=1, number=1, name="lock:0", asked=0, since=SECOND, granted=SECOND, **options)


def judge(each, stalls=()):
    return [violation.promise for violation in judge_losses([each], stalls)]


# Reported.


@pytest.mark.parametrize("at", [5 * SECOND, UNTIL, UNTIL + SECOND])
def test_loss_reported_in_time_passes(at):
    assert judge(hold(told=[told(at)])) == []


def test_released_hold_needs_no_report():
    assert judge(hold(ended=9 * SECOND, kept=True, gone="released")) == []
    assert judge(hold(ended=9 * SECOND, kept=True, gone="lost")) == []  # its release reported it


def test_hold_of_killed_process_needs_no_report():
    assert judge(hold(ended=None, gone=None, killed_at=20 * SECOND)) == []


def test_unreported_loss_is_found():
    assert "loss not told" in judge(hold())
    assert "loss not told" in judge(hold(ended=UNTIL + 1))
    assert "loss not told" in judge(hold(ended=9 * SECOND, kept=True, gone="lost inside"))


def test_late_report_is_found():
    assert judge(hold(told=[told(UNTIL + int(1.01 * SLACK * SECOND))])) == ["loss told late"]


def test_second_report_is_found():
    assert judge(hold(told=[told(UNTIL), told(UNTIL + MS)])) == ["loss told twice"]


@pytest.mark.parametrize("fields", [{"lost": False}, {"remaining": 1}])
def test_report_that_contradicts_itself_is_found(fields):
    assert judge(hold(told=[told(UNTIL, **fields)])) == ["loss told wrongly"]


def test_release_without_error_after_a_report_is_found():
    assert judge(hold(told=[told(5 * SECOND)], ended=9 * SECOND, kept=True, gone="released")) == ["loss told wrongly"]


@pytest.mark.parametrize(
    ("lines", "killed_at", "found"),
    [
        ("told heard told heard", None, 0),
        ("told heard told", None, 1),
        ("heard", None, 1),
        ("told heard told", 99, 0),
        ("told heard heard", 99, 1),
    ],
)
def test_listeners_must_hear_of_each_loss(lines, killed_at, found):
    lines = [{"event": word, "at": 0} for word in lines.split()]
    assert len(judge_hearing(lines, killed_at)) == found


# Stalls.


def test_process_that_stood_still_reports_when_it_continues():
    late = hold(told=[told(20 * SECOND)], ended=21 * SECOND)
    assert judge(late, [Stall(9 * SECOND, 19 * SECOND)]) == []
    assert judge(late, [Stall(9 * SECOND, 18 * SECOND)]) == ["loss told late"]
    assert judge(late, [Stall(2 * SECOND, UNTIL)]) == ["loss told late"]


# Looks.


def test_honest_looks_pass():
    looks = [
        look(8 * SECOND, 2 * SECOND, lost=False),
        look(UNTIL - MS // 2, MS // 4, lost=True),  # it ended between two readings
        look(UNTIL, 0, lost=True),
        look(12 * SECOND, 0, lost=True),
    ]
    assert judge(hold(looks=looks, told=[told(UNTIL)])) == []


def test_renewal_between_two_readings_is_not_a_lie():
    looks = [look(8 * SECOND, 4 * SECOND, lost=False, since=UNTIL, until=12 * SECOND)]
    assert judge(hold(until=12 * SECOND, looks=looks, told=[told(12 * SECOND)])) == []


@pytest.mark.parametrize(
    "lie",
    [
        look(UNTIL + MS, 0, lost=False),
        look(UNTIL + MS, 5, lost=True),
        look(8 * SECOND, 3 * SECOND, lost=False),
        look(8 * SECOND, SECOND, lost=False),
        look(8 * SECOND, 0, lost=False),
    ],
)
def test_lie_is_found(lie):
    assert "hold lied" in judge(hold(looks=[lie], told=[told(UNTIL)]))


def test_lost_hold_that_comes_back_is_found():
    looks = [look(5 * SECOND, 0, lost=True), look(8 * SECOND, 2 * SECOND, lost=False)]
    assert judge(hold(looks=looks, told=[told(5 * SECOND)])) == ["lost hold came back"]


def test_early_loss_must_be_reported_early():
    looks = [look(5 * SECOND, 0, lost=True)]
    assert judge(hold(looks=looks, told=[told(6 * SECOND)])) == []
    assert judge(hold(looks=looks, told=[told(8 * SECOND)])) == ["loss told late"]
    assert judge(hold(looks=looks, told=[told(8 * SECOND)]), [Stall(6 * SECOND, 8 * SECOND)]) == []
    assert "loss not told" in judge(hold(looks=looks, ended=9 * SECOND))
