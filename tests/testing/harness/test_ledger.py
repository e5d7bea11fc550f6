"""Ledgers: entries are read back, even while others write and where a line is torn."""

import pytest

from redsync.testing.harness.ledger import Entry, Ledger


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path, 0, "demo:1")
    yield ledger
    ledger.close()


def test_ledger_numbers_entries_by_earlier_ones(ledger, tmp_path):
    other = Ledger(tmp_path, 0, "demo:1")
    first = ledger.begin(4, 100)
    ledger.end(first)
    second = other.begin(5, 200)
    other.end(second)
    other.close()
    assert ledger.entries() == [
        Entry("BEGIN", "demo:1", 4, 100, 1),
        Entry("END", "demo:1", 4, 100, 1),
        Entry("BEGIN", "demo:1", 5, 200, 2),
        Entry("END", "demo:1", 5, 200, 2),
    ]
    assert {entry.key for entry in ledger.entries()} == {(4, 100), (5, 200)}


def test_ledger_numbers_are_right_when_it_is_long(ledger):
    for number in range(1, 300):
        begun = ledger.begin(number % 7, 10**15 + number)
        assert begun.number == number
        ledger.end(begun)


def test_ledger_number_is_the_highest_when_a_worker_without_its_lock_appends_late(ledger):
    late = ledger.begin(1, 10)
    ledger.end(ledger.begin(2, 20))
    ledger.end(late)
    assert ledger.begin(3, 30).number == 3


@pytest.mark.parametrize("entries", [3, 300])
def test_ledger_skips_a_line_that_another_is_writing(ledger, tmp_path, entries):
    """An owner that lost the lock may write at any time, and a reader may see half of its line."""
    for number in range(1, entries):
        ledger.begin(1, 10**15 + number)
    with (tmp_path / "lock-0.ledger").open("ab") as file:
        file.write(b"BEGIN demo:1 9")
    assert ledger.begin(2, 10**16).number == entries


def test_counter_is_what_was_written_last(ledger):
    assert ledger.read_counter() == 0
    for value in (1, 10**12, 7):
        ledger.write_counter(value)
        assert ledger.read_counter() == value
