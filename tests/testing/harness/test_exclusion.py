"""Exclusion: correct runs pass, every planted violation is found, and killed processes raise no false alarm."""

import itertools
import random
from dataclasses import replace

import pytest

from redsync.testing.harness.exclusion import (
    disorder,
    judge_exclusion,
    ledger_overlaps,
    lost_updates,
    most_at_once,
    overlaps,
)
from redsync.testing.harness.ledger import Entry
from tests.support.holds import held


def section(of, number):
    return [Entry(kind, of.name, of.worker, of.granted, number) for kind in ("BEGIN", "END")]


def judge(holds, counter, entries=None):
    if entries is None:
        entries = [entry for number, each in enumerate(holds, 1) for entry in section(each, number)]
    return [violation.promise for violation in judge_exclusion(holds, {"lock:0": entries}, {"lock:0": counter})]


def test_holds_one_after_the_other_pass():
    assert judge([held(1, 10, 20, 1), held(2, 20, 30, 2), held(1, 40, 50, 3)], 3) == []


def test_overlap_is_found_by_the_ledger_alone():
    first, second = held(1, 10, 20, 1), held(2, 20, 30, 2)
    (begin, end), (next_begin, next_end) = section(first, 1), section(second, 2)
    assert judge([first, second], 2, [begin, next_begin, end, next_end]) == ["overlap in the ledger"]


def test_lost_update_is_found_by_the_counter_alone():
    assert judge([held(1, 10, 20, 1), held(2, 20, 30, 1)], 1) == ["lost updates"]
    assert judge([held(1, 10, 20, 1), held(2, 20, 30, 2)], 1) == ["lost updates"]


def test_locks_do_not_exclude_each_other():
    mine, other = held(1, 10, 30, 1), held(2, 15, 25, 1, name="lock:1")
    entries = {each.name: section(each, 1) for each in (mine, other)}
    assert judge_exclusion([mine, other], entries, {"lock:0": 1, "lock:1": 1}) == []


def killed(worker, granted, killed_at, value=0):
    return held(worker, granted, None, value, kept=False, gone=None, killed_at=killed_at)


def test_overlap_with_process_that_was_killed_later_is_found():
    assert "overlap" in judge([killed(1, 10, 30), held(2, 29, 40, 1)], 1)


@pytest.mark.parametrize("next_granted", [30, 35])
def test_killed_process_believes_nothing(next_granted):
    assert judge([killed(1, 10, 30), held(2, next_granted, 40, 1)], 1) == []


def test_overlap_with_process_that_was_stopped_is_found_within_its_validity():
    stopped = held(1, 10, 500, 1, until=40, kept=False, gone="lost")
    assert judge([stopped, held(2, 39, 60, 2)], 2) == ["overlap"]
    assert judge([stopped, held(2, 40, 60, 2)], 2) == []


@pytest.mark.parametrize("found", [1, 2])
def test_process_killed_at_its_write_may_have_written(found):
    holds = [held(1, 10, 20, 1), killed(2, 30, 40, value=2), held(3, 60, 70, found + 1)]
    assert judge(holds, found + 1) == []


def test_write_of_process_that_stood_still_may_come_late():
    late = held(1, 10, 900, 1, until=50, kept=False, gone="lost")
    # It read 0, stalled, and wrote 1 when two others had counted to 2; the next one read that.
    holds = [late, held(2, 60, 70, 1), held(3, 80, 90, 2), held(2, 950, 960, 2)]
    assert judge(holds, 2) == []
    assert judge([held(2, 60, 70, 1), held(3, 80, 90, 2), held(2, 950, 960, 2)], 2) == ["lost updates"]


def test_sections_of_killed_processes_are_ignored_in_the_ledger():
    dead, heir = killed(1, 10, 30), held(2, 60, 70, 1)
    begin, _ = section(dead, 1)
    stranger = Entry("BEGIN", "lock:0", 7, 45, 1)  # killed before it could record that it was granted
    assert judge([dead, heir], 1, [begin, stranger, *section(heir, 1)]) == []


def test_too_many_permits_of_a_semaphore_are_found():
    holds = [held(worker, worker, 10, name="semaphore:0") for worker in range(4)]
    assert judge_exclusion(holds, {"semaphore:0": []}, {"semaphore:0": 0}, limit=4) == []
    (found,) = judge_exclusion(holds, {"semaphore:0": []}, {"semaphore:0": 0}, limit=3)
    assert str(found) == "too many permits: 4 of semaphore:0 at 3"


# Overlaps by the clock.


@pytest.mark.parametrize(
    ("granted", "ended"), [(15, 30), (19, 30), (10, 20), (12, 18), (5, 11), (5, 30), (10, 11), (19, 20)]
)
def test_overlaps_finds_planted_violation(granted, ended):
    pair = ((1, 10), (2, granted))
    assert overlaps([held(1, 10, 20), held(2, granted, ended)]) == {pair}
    assert overlaps([held(2, granted, ended), held(1, 10, 20)]) == {pair}


def test_overlaps_begin_when_the_quorum_was_counted():
    assert overlaps([held(1, 10, 20), held(2, 21, 30, since=19)]) == {((1, 10), (2, 21))}
    assert overlaps([held(1, 10, 20), held(2, 21, 30, since=20)]) == set()


def test_overlaps_agree_with_comparing_all_pairs():
    rng = random.Random(7)
    for _ in range(300):
        holds = [held(worker, at := rng.randrange(30), at + rng.randrange(1, 8)) for worker in range(6)]
        expected = {
            tuple(sorted((one.key, other.key)))
            for one, other in itertools.combinations(holds, 2)
            if one.granted < other.ended and other.granted < one.ended
        }
        assert overlaps(holds) == expected


def test_readers_overlap_with_writers_only():
    ada = held(1, 0, 20, owner="ada", mode="write")
    bob, cid = held(2, 10, 30, owner="bob", mode="read"), held(3, 20, 40, owner="cid", mode="read")
    assert overlaps([cid, bob]) == set()
    assert overlaps([cid, bob, ada]) == {(ada.key, bob.key)}
    late = held(1, 25, 26, owner="ada", mode="write")
    assert overlaps([bob, cid, late]) == {(late.key, bob.key), (late.key, cid.key)}
    assert overlaps([ada, held(4, 0, 20, owner="eve", mode="write")]) == {(ada.key, (4, 0))}


def test_writer_may_read():
    ada, again = held(1, 0, 20, owner="ada", mode="write"), held(1, 10, 50, owner="ada", mode="read")
    assert overlaps([ada, again, held(2, 20, 30, owner="bob", mode="read")]) == set()


def test_most_at_once_finds_four():
    three = [held(1, 0, 40), held(2, 10, 20), held(3, 15, 30), held(4, 20, 30)]
    assert most_at_once(three) == (3, 20)
    assert most_at_once([*three, held(5, 29, 50)]) == (4, 29)
    assert most_at_once([*three, held(5, 29, 29)]) == (3, 20)
    assert most_at_once([]) == (0, 0)


def test_disorder_finds_tokens_that_are_no_higher_than_all_before():
    one, two, three, four, five, six = (
        held(1, 10 * at, 10 * at + 5, token=token) for at, token in enumerate([3, 7, 5, 6, 8, 8])
    )
    assert disorder([two, one, five, held(1, 15, 17)]) == []
    found = disorder([six, five, four, three, two, one])
    assert found == [(two.key, three.key), (two.key, four.key), (five.key, six.key)]


# Overlaps by the order of appends.


def planted(*holds):
    return [section(each, number) for number, each in enumerate(holds, 1)]


def test_ledger_overlaps_finds_section_that_begins_within_another():
    holds = [held(1, 10, 15), held(2, 20, 25)]
    (begin, end), other = planted(*holds)
    assert ledger_overlaps([begin, other[0], end, other[1]], holds) == {((1, 10), (2, 20))}
    assert ledger_overlaps([begin, *other, end], holds) == {((1, 10), (2, 20))}


def test_ledger_overlaps_finds_number_given_twice():
    first, second = held(1, 10, 11), held(2, 12, 13)
    assert ledger_overlaps(section(first, 1) + section(second, 1), [first, second]) == {((1, 10), (2, 12))}


def test_ledger_overlaps_finds_section_that_never_ended():
    holds = [held(1, 10, 15), held(2, 20, 25)]
    (begin, _), other = planted(*holds)
    assert ledger_overlaps([begin, *other], holds) == {((1, 10), (2, 20))}


def test_ledger_overlaps_passes_late_entries_of_lost_hold_only():
    lost, kept = held(1, 10, 15, kept=False), held(2, 20, 25)
    (begin, end), other = planted(lost, kept)
    assert ledger_overlaps([begin, other[0], end, other[1]], [lost, kept]) == set()
    assert ledger_overlaps([other[1]], [kept]) == set()


# Lost updates.


def increments(count):
    """A run without faults: each owner reads what the one before wrote."""
    return [held(i % 3, 10 * i + 10, 10 * i + 15, i + 1) for i in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_lost_updates_finds_none_in_a_correct_run(count):
    assert lost_updates(increments(count), count) == 0
    assert lost_updates(reversed(increments(count)), count) == 0


@pytest.mark.parametrize("counter", [0, 8, 10])
def test_lost_updates_finds_counter_that_differs(counter):
    assert lost_updates(increments(9), counter) == abs(counter - 9)


@pytest.mark.parametrize("position", range(5))
def test_lost_updates_finds_each_planted_overwriting(position):
    holds = increments(5)
    # This worker read before all the others wrote, and later ones build on what it wrote.
    for i in range(position, 5):
        holds[i] = replace(holds[i], written=i - position + 1)
    assert lost_updates(holds, 5 - position) == position


def test_lost_updates_passes_acquisition_that_wrote_nothing():
    holds = increments(3)
    holds.insert(1, held(9, 16, 18))
    assert lost_updates(holds, 3) == 0


def test_lost_updates_passes_what_a_late_write_explains_and_nothing_else():
    holds = increments(4)  # the last one wrote 4
    late = held(9, 13, 14, 2, kept=False)
    after = held(1, 100, 110, 3)
    assert lost_updates([*holds, late, after], 3) == 0
    assert lost_updates([*holds, late], 2) == 0
    assert lost_updates([*holds, late], 4) == 0
    assert lost_updates([*holds, replace(late, kept=True), after], 3) > 0
    assert lost_updates([*holds, late, replace(after, written=2)], 2) == 3
    assert lost_updates([*holds, late], 3) == 1
