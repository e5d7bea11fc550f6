"""Journals survive whoever writes them, and say until when each hold was certainly believed."""

import subprocess
import sys

import pytest

from tests.soak.journal import Hold, Journal, holds_of, nanoseconds, read

SECOND = 1_000_000_000


def grant(at=10, until=30, **fields):
    return {
        "event": "grant", "worker": 1, "number": 1, "name": "lock:0", "asked": 5, "lease": None,
        "at": at, "until": until, **fields,
    }  # fmt: skip


def event(kind, at, **fields):
    return {"event": kind, "worker": 1, "number": 1, "at": at, **fields}


def look(before, remaining, lost=False, **fields):
    return event("look", before, before=before, after=before, remaining=remaining, lost=lost, since=0, **fields)


def only(lines, killed_at=None) -> Hold:
    (hold,) = holds_of(lines, killed_at)
    return hold


# Files.


def test_journal_keeps_what_was_written_before_its_process_was_killed(tmp_path):
    path = tmp_path / "x.journal"
    script = (
        "import os, signal, sys; from pathlib import Path; from tests.soak.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for number in range(100): journal.note('look', number=number)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert [line["number"] for line in read(path)] == list(range(100))


def test_journal_appends_to_what_others_wrote(tmp_path):
    path = tmp_path / "x.journal"
    first, second = Journal(path), Journal(path)
    first.note("a", at=1)
    second.note("b", at=2)
    first.note("c", at=3)
    assert [line["event"] for line in read(path)] == ["a", "b", "c"]


def test_reading_leaves_out_half_a_line(tmp_path):
    path = tmp_path / "x.journal"
    path.write_bytes(b'{"event": "a"}\n{"event": "b"')
    assert read(path) == [{"event": "a"}]
    assert read(tmp_path / "none") == []


def test_instants_are_rounded_down():
    assert nanoseconds(1.9999999999) == 1_999_999_999


# Holds.


def test_hold_is_believed_until_its_release_begins():
    lines = [grant(), event("end", 20, kept=True, until=30), event("gone", 22, how="released")]
    hold = only(lines, killed_at=40)  # later, when it held nothing
    assert (hold.believed_until, hold.kept, hold.killed_at) == (20, True, None)


def test_hold_is_believed_until_its_validity_ends():
    lines = [grant(), look(15, 25, until=40), event("end", 50, kept=False, until=40), event("gone", 52, how="lost")]
    assert only(lines).believed_until == 40
    assert not only(lines).kept


@pytest.mark.parametrize(("killed_at", "believed_until"), [(20, 20), (40, 30)])
def test_hold_of_killed_process_is_believed_until_its_death(killed_at, believed_until):
    hold = only([grant(), event("write", 12, written=7)], killed_at)
    assert (hold.believed_until, hold.kept, hold.read, hold.written) == (believed_until, False, 6, 7)


def test_hold_told_lost_early_is_believed_until_it_was_last_seen_valid():
    told = event("told", 25, until=30, lost=True, remaining=0)
    assert only([grant(), look(18, 12, until=30), look(24, 0, lost=True, until=30), told]).believed_until == 18
    assert only([grant(), told]).believed_until == 10


def test_hold_told_lost_when_its_time_was_over_is_believed_until_then():
    assert only([grant(), event("told", 31, until=30, lost=True, remaining=0)]).believed_until == 30


def test_hold_may_be_told_lost_before_it_is_known_to_be_granted():
    hold = only([event("told", 31, until=30, lost=True, remaining=0), grant(at=32)])
    assert len(hold.told) == 1
    assert hold.attempt().ended == hold.attempt().granted == 32  # it was never believed


def test_holds_of_all_threads_are_told_apart():
    second = [grant(at=40, number=2, until=60)]
    lines = [grant(), grant(at=5, worker=2), *second, event("end", 20, kept=True, until=30)]
    found = [(hold.worker, hold.number, hold.ended) for hold in holds_of(lines)]
    assert found == [(2, 1, None), (1, 1, 20), (1, 2, None)]


def test_lines_of_no_hold_are_left_out():
    assert holds_of([{"event": "stall", "at": 1, "since": 0, "cpu": 0}, event("miss", 3, why="busy")]) == []
