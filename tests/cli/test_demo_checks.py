"""The judges of the demo: what is in order passes, and every planted violation is found."""

import itertools
import random

import pytest

from redsync.cli.demo_checks import (
    by_name,
    handovers,
    interval_overlaps,
    ledger_overlaps,
    longest_pause,
    lost_updates,
    percentile,
    zombies,
)
from redsync.cli.demo_ledger import HELD, LOST, NO_QUORUM, TIMEOUT, Attempt, Entry


def held(worker, granted, ended, **fields):
    return Attempt(HELD, fields.pop("name", 0), worker, granted, granted, ended, **{"kept": 1, **fields})


def section(worker, number, *kinds):
    return [Entry(kind, "demo:1", worker, 10 * number, number) for kind in kinds or ("BEGIN", "END")]


def increments(count):
    """A run without fault: each worker reads what the one before wrote."""
    return [held(i % 3, 10 * i + 10, 10 * i + 15, read=i, written=i + 1) for i in range(count)]


# by_name


def test_by_name_sorts_what_was_granted():
    attempts = [
        held(2, 30, 40),
        held(1, 10, 20, name=1),
        Attempt(TIMEOUT, 0, 3, 5),
        held(3, 10, 20),
        Attempt(NO_QUORUM, 2, 3, 5, quorum_errors=1),
        Attempt(LOST, 0, 4, 15, 20, 25),
    ]
    groups = by_name(attempts)
    assert {name: [attempt.worker for attempt in group] for name, group in groups.items()} == {0: [3, 4, 2], 1: [1]}


# interval_overlaps


def test_interval_overlaps_finds_none_in_sections_one_after_the_other():
    assert interval_overlaps([]) == set()
    assert interval_overlaps([held(1, 10, 20)]) == set()
    assert interval_overlaps([held(2, 20, 30), held(1, 10, 20), held(1, 31, 40)]) == set()


@pytest.mark.parametrize(
    ("granted", "ended"),
    [(15, 30), (19, 30), (10, 20), (12, 18), (5, 11), (5, 30), (10, 11), (19, 20)],
)
def test_interval_overlaps_finds_planted_violation(granted, ended):
    pair = ((1, 10), (2, granted))
    assert interval_overlaps([held(1, 10, 20), held(2, granted, ended)]) == {pair}
    assert interval_overlaps([held(2, granted, ended), held(1, 10, 20)]) == {pair}


def test_interval_overlaps_finds_each_pair_within_a_long_violation():
    attempts = [held(1, 0, 100), held(2, 10, 20), held(3, 30, 40), held(4, 35, 50), held(5, 100, 110)]
    assert interval_overlaps(attempts) == {
        ((1, 0), (2, 10)), ((1, 0), (3, 30)), ((1, 0), (4, 35)), ((3, 30), (4, 35)),
    }  # fmt: skip


def test_interval_overlaps_ends_lost_hold_where_it_was_lost():
    lost = Attempt(LOST, 0, 1, 0, 10, 20, kept=0)
    assert interval_overlaps([lost, held(2, 20, 30)]) == set()
    assert interval_overlaps([lost._replace(ended=21), held(2, 20, 30)]) == {((1, 10), (2, 20))}


def test_interval_overlaps_passes_hold_that_was_over_before_its_worker_looked():
    assert interval_overlaps([Attempt(LOST, 0, 1, 0, 15, 12, kept=0), held(2, 10, 30)]) == set()


def test_interval_overlaps_agrees_with_comparing_all_pairs():
    chance = random.Random(7)
    for _ in range(300):
        attempts = []
        for worker in range(6):
            granted = chance.randrange(30)
            attempts.append(held(worker, granted, granted + chance.randrange(1, 8)))
        expected = {
            tuple(sorted((one.key, other.key)))
            for one, other in itertools.combinations(attempts, 2)
            if one.granted < other.ended and other.granted < one.ended
        }
        assert interval_overlaps(attempts) == expected


# ledger_overlaps


def test_ledger_overlaps_finds_none_in_sections_one_after_the_other():
    assert ledger_overlaps([]) == set()
    assert ledger_overlaps(section(1, 1) + section(2, 2) + section(1, 3)) == set()


def test_ledger_overlaps_finds_section_that_begins_within_another():
    one, other = section(1, 1), section(2, 2)
    pair = {((1, 10), (2, 20))}
    assert ledger_overlaps([one[0], other[0], one[1], other[1]]) == pair
    assert ledger_overlaps([one[0], *other, one[1]]) == pair


def test_ledger_overlaps_finds_number_given_twice():
    first, second = section(1, 1), [entry._replace(granted=12) for entry in section(2, 1)]
    assert ledger_overlaps(first + second) == {((1, 10), (2, 12))}


def test_ledger_overlaps_finds_section_that_never_ended():
    assert ledger_overlaps(section(1, 1, "BEGIN") + section(2, 2)) == {((1, 10), (2, 20))}


def test_ledger_overlaps_passes_late_entries_of_lost_hold_only():
    one, other = section(1, 1), section(2, 2)
    entries = [one[0], other[0], one[1], other[1]]
    assert ledger_overlaps(entries, {(1, 10)}) == set()
    assert ledger_overlaps(entries, {(3, 10)}) == {((1, 10), (2, 20))}
    assert ledger_overlaps(section(2, 2, "END")) == set()


# lost_updates


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_lost_updates_finds_none_when_each_read_what_was_written(count):
    assert lost_updates(increments(count), count) == 0
    assert lost_updates(reversed(increments(count)), count) == 0


@pytest.mark.parametrize("counter", [0, 8, 10])
def test_lost_updates_finds_counter_that_differs(counter):
    assert lost_updates(increments(9), counter) == abs(counter - 9)


def test_lost_updates_finds_two_that_read_the_same():
    attempts = [held(1, 10, 20, read=0, written=1), held(2, 11, 21, read=0, written=1)]
    assert lost_updates(attempts, 1) == 1


@pytest.mark.parametrize("position", range(5))
def test_lost_updates_finds_each_planted_overwriting(position):
    attempts = increments(5)
    # This worker read before all the others wrote, and what comes after builds on what it wrote.
    for i in range(position, 5):
        attempts[i] = attempts[i]._replace(read=i - position, written=i - position + 1)
    assert lost_updates(attempts, 5 - position) == position


def test_lost_updates_finds_loss_that_a_later_fault_makes_good():
    attempts = increments(6)
    attempts[3] = attempts[3]._replace(read=2, written=4)
    assert lost_updates(attempts, 6) == 1


def test_lost_updates_passes_acquisition_that_wrote_nothing():
    attempts = increments(3)
    attempts.insert(1, held(9, 16, 18))
    assert lost_updates(attempts, 3) == 0


def test_lost_updates_passes_what_a_late_write_explains_and_nothing_else():
    attempts = increments(4)  # the last one wrote 4
    late = Attempt(LOST, 0, 9, 12, 13, 14, kept=0, read=1, written=2)
    after = held(1, 100, 110, read=2, written=3)
    assert lost_updates([*attempts, late, after], 3) == 0
    assert lost_updates([*attempts, late], 2) == 0
    assert lost_updates([*attempts, late], 4) == 0
    assert lost_updates([*attempts, late._replace(kept=1), after], 3) > 0
    assert lost_updates([*attempts, late, after._replace(read=1, written=2)], 2) == 3
    assert lost_updates([*attempts, late], 3) == 1


# Figures


def test_handovers_counts_changes_of_worker():
    assert handovers([]) == 0
    assert handovers([held(1, 1, 2)]) == 0
    assert handovers([held(worker, 1, 2) for worker in (1, 1, 2, 2, 1, 3)]) == 3


def test_longest_pause_is_from_end_to_next_grant():
    assert longest_pause([]) == 0
    assert longest_pause([held(1, 1, 2)]) == 0
    assert longest_pause([held(1, 1, 2), held(2, 5, 90), held(1, 92, 93)]) == 3


def test_percentile_is_nearest_rank():
    values = list(range(1, 101))
    random.Random(1).shuffle(values)
    assert [percentile(values, share) for share in (0, 0.001, 0.01, 0.5, 0.501, 0.99, 1)] == [1, 1, 1, 50, 51, 99, 100]
    assert percentile([7], 0.5) == percentile([7], 0.99) == 7
    assert percentile([1, 2], 0.5) == 1
    assert percentile([1, 2], 0.99) == 2
    assert percentile([], 0.5) == 0


# zombies


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def rest(self):
        self.now += 0.5


def look_for_zombies(*scans, patience=2.0):
    """Scan nodes whose keys change with each look, the last for ever; return what was found, and after what time."""
    clock, left = Clock(), list(scans)
    found = zombies(lambda: left.pop(0) if len(left) > 1 else left[0], patience, clock, clock.rest)
    return found, clock.now - 100.0


def test_zombies_ends_at_once_when_nothing_is_left():
    assert look_for_zombies({0: [], 1: []}) == ({}, 0.0)


@pytest.mark.parametrize("key", [b"redsync:demo:1", b"redsync_queue:{redsync:demo:1}", b"redsync_places::{x}"])
def test_zombies_finds_planted_key_that_stays(key):
    assert look_for_zombies({0: [], 1: [key]}) == ({1: [key]}, 2.0)


def test_zombies_passes_key_that_goes_in_time():
    assert look_for_zombies({0: [b"redsync:x"]}, {0: [b"redsync:x"]}, {0: []}) == ({}, 1.0)


def test_zombies_passes_what_is_no_claim():
    assert look_for_zombies({0: [b"other", b"redsync:client:1b9d"]}) == ({}, 0.0)
