"""Exclusion: what is in order passes, every planted violation is found, and killed processes accuse nobody."""

import pytest

from redsync.cli.demo_ledger import Entry
from tests.soak.journal import Hold
from tests.soak.judge_exclusion import judge_exclusion


def hold(worker, granted, ended, value, **fields):
    """A hold under which the counter was set to `value`."""
    until = granted + 10_000 if ended is None else ended + 100
    defaults = {"until": until, "kept": True, "read": value - 1, "written": value, "gone": "released"}
    options = {**defaults, **fields}
    return Hold(worker=worker, number=1, name="lock:0", asked=granted, granted=granted, ended=ended, **options)


def section(of, number):
    return [Entry(kind, of.name, of.worker, of.granted, number) for kind in ("BEGIN", "END")]


def judge(holds, counter, entries=None):
    if entries is None:
        entries = [entry for number, each in enumerate(holds, 1) for entry in section(each, number)]
    return [violation.promise for violation in judge_exclusion(holds, {"lock:0": entries}, {"lock:0": counter})]


def test_holds_one_after_the_other_pass():
    assert judge([hold(1, 10, 20, 1), hold(2, 20, 30, 2), hold(1, 40, 50, 3)], 3) == []


def test_overlap_is_found_by_the_clock_alone():
    assert judge([hold(1, 10, 20, 1), hold(2, 19, 30, 2)], 2) == ["overlap"]


def test_overlap_is_found_by_the_ledger_alone():
    first, second = hold(1, 10, 20, 1), hold(2, 20, 30, 2)
    (begin, end), (next_begin, next_end) = section(first, 1), section(second, 2)
    assert judge([first, second], 2, [begin, next_begin, end, next_end]) == ["overlap in the ledger"]


def test_lost_update_is_found_by_the_counter_alone():
    assert judge([hold(1, 10, 20, 1), hold(2, 20, 30, 1)], 1) == ["lost updates"]
    assert judge([hold(1, 10, 20, 1), hold(2, 20, 30, 2)], 1) == ["lost updates"]


def test_locks_do_not_exclude_each_other():
    mine, other = hold(1, 10, 30, 1), hold(2, 15, 25, 1)
    other.name = "lock:1"
    entries = {each.name: section(each, 1) for each in (mine, other)}
    assert judge_exclusion([mine, other], entries, {"lock:0": 1, "lock:1": 1}) == []


def killed(worker, granted, killed_at, value=0):
    return hold(worker, granted, None, value, kept=False, gone=None, killed_at=killed_at)


def test_overlap_with_process_that_was_killed_later_is_found():
    assert "overlap" in judge([killed(1, 10, 30), hold(2, 29, 40, 1)], 1)


@pytest.mark.parametrize("next_granted", [30, 35])
def test_killed_process_believes_no_more(next_granted):
    assert judge([killed(1, 10, 30), hold(2, next_granted, 40, 1)], 1) == []


def test_overlap_with_process_that_was_stopped_is_found_within_its_validity():
    stopped = hold(1, 10, 500, 1, until=40, kept=False, gone="lost")
    assert judge([stopped, hold(2, 39, 60, 2)], 2) == ["overlap"]
    assert judge([stopped, hold(2, 40, 60, 2)], 2) == []


@pytest.mark.parametrize("found", [1, 2])
def test_process_killed_at_its_write_may_have_written(found):
    holds = [hold(1, 10, 20, 1), killed(2, 30, 40, value=2), hold(3, 60, 70, found + 1)]
    assert judge(holds, found + 1) == []


def test_write_of_process_that_stood_still_may_come_late():
    late = hold(1, 10, 900, 1, until=50, kept=False, gone="lost")
    # It read 0, stood still, and wrote 1 when two others had counted to 2; the next one found that.
    holds = [late, hold(2, 60, 70, 1), hold(3, 80, 90, 2), hold(2, 950, 960, 2)]
    assert judge(holds, 2) == []
    assert judge([hold(2, 60, 70, 1), hold(3, 80, 90, 2), hold(2, 950, 960, 2)], 2) == ["lost updates"]


def test_sections_of_killed_processes_have_no_place_in_the_ledger():
    dead, heir = killed(1, 10, 30), hold(2, 60, 70, 1)
    begin, _ = section(dead, 1)
    stranger = Entry("BEGIN", "lock:0", 7, 45, 1)  # killed before it could write that it was granted
    assert judge([dead, heir], 1, [begin, stranger, *section(heir, 1)]) == []
