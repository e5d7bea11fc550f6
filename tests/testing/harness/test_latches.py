"""Latches that open after all count-downs pass; one that opens early is found; doubtful ones are not violations."""

import random

import pytest

from redsync.testing.harness.latches import judge_latches

SET = ("set", 2, 0, 10, "set")
COUNT, COUNT_LATER = ("count down", 1, 20, 30, "counted"), ("count down", 1, 60, 70, "counted")
TOLD = ("wait", 0, 40, 50, "opened")


def journal(*calls, worker=1, ended_at=None):
    """Return the journal of a process with an owner that made these calls: how, n, from, to, and the outcome."""
    lines = []
    for number, (how, n, asked, at, event) in enumerate(calls):
        about = {"worker": worker, "number": number, "name": "count_down_latch:0"}
        lines.append({"event": "asks", "at": asked, "how": how, "n": n, **about})
        if at is not None:
            lines.append({"event": event, "at": at, "left": 0, **about})
    return lines, ended_at


def early(*journals):
    return [violation.promise for violation in judge_latches(journals)]


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([SET, COUNT, COUNT_LATER, ("wait", 0, 40, 80, "opened")], id="when all was counted"),
        pytest.param([SET, COUNT, ("count down", 1, 49, 90, "no quorum"), TOLD], id="when the last count has begun"),
        pytest.param([SET, ("count down", 2, 5, 30, "counted"), TOLD], id="when a count-down began before it"),
        pytest.param([TOLD, ("set", 2, 60, 70, "set")], id="when it is not yet set"),
        pytest.param([("set", 2, 0, 45, "set"), TOLD], id="when it may have been open at first"),
        pytest.param([SET, ("delete", 0, 45, 60, "no quorum"), TOLD], id="when it may have been deleted"),
        pytest.param(
            [SET, ("set", 1, 5, 20, "no quorum"), ("count down", 1, 30, 35, "counted"), TOLD],
            id="when another setting may be the later one",
        ),
        pytest.param([SET, ("wait", 0, 40, 50, "busy"), ("look", 0, 51, 52, "no quorum")], id="when no call says so"),
    ],
)
def test_latch_may_open(calls):
    assert early(*(journal(call, worker=worker) for worker, call in enumerate(calls))) == []


@pytest.mark.parametrize("told", [TOLD, ("look", 0, 40, 50, "found")])
@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([SET, COUNT], id="one of two was counted"),
        pytest.param([SET, COUNT, ("count down", 1, 51, 60, "counted")], id="the last count began later"),
        pytest.param([("count down", 2, -20, -10, "counted"), SET], id="the count-down ended before it was set"),
        pytest.param([("set", 1, -9, -1, "no quorum"), SET, COUNT], id="an earlier setting is over"),
        pytest.param([SET, COUNT, ("set", 2, 31, 35, "set")], id="the later setting is not open either"),
    ],
)
def test_latch_that_opens_early_is_found(calls, told):
    assert early(*(journal(call, worker=worker) for worker, call in enumerate([*calls, told]))) == [
        "latch opened early"
    ]


def test_count_that_failed_and_was_repeated_counts_once():
    failed = ("count down", 1, 12, 18, "no quorum")
    assert early(journal(SET, failed, COUNT, TOLD)) == ["latch opened early"]
    assert early(journal(SET, failed, TOLD), journal(COUNT)) == []


def test_process_that_was_killed_may_have_counted_until_then_only():
    counting = journal(("count down", 1, 5, None, ""), ended_at=15)
    told = journal(COUNT, TOLD, worker=2)
    assert early(journal(SET, worker=3), counting, told) == []
    assert early(journal(("set", 2, 16, 18, "set"), worker=3), counting, told) == ["latch opened early"]


def test_forgetting_old_calls_makes_no_difference():
    """One latch after the other opens, and each is reported; then one is reported early."""
    calls, at, rng = [], 0, random.Random(1)
    for _ in range(300):
        n, at = rng.randint(1, 3), at + 100
        counts = [("count down", 1, at + 20 + i, at + 30 + i, "counted") for i in range(n)]
        calls += [("set", n, at, at + 10, "set"), *counts, ("wait", 0, at + 15, at + 50, "opened")]
    assert early(journal(*calls)) == []
    assert (
        len(early(journal(*calls, ("set", 1, at + 60, at + 61, "set"), ("wait", 0, at + 62, at + 63, "opened")))) == 1
    )


def test_lines_of_other_kinds_are_ignored():
    lines, _ = journal(SET, TOLD)
    assert early(([{**line, "name": "lock:0"} for line in lines] + [{"event": "ready", "at": 0}], None)) == []
