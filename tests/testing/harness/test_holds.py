"""Holds know until when each was certainly believed, however its process ended."""

import pytest

from redsync.testing.harness.holds import Hold, holds_of


def grant(at=10, until=30, **fields):
    return {
        "event": "acquired", "worker": 1, "number": 1, "name": "lock:0", "asked": 5, "since": at, "lease": None,
        "at": at, "until": until, **fields,
    }  # fmt: skip


def event(kind, at, **fields):
    return {"event": kind, "worker": 1, "number": 1, "at": at, **fields}


def look(before, remaining, lost=False, **fields):
    return event("looked", before, before=before, after=before, remaining=remaining, lost=lost, since=0, **fields)


def only(lines, killed_at=None) -> Hold:
    (hold,) = holds_of(lines, killed_at)
    return hold


def test_hold_is_believed_until_its_release_begins():
    lines = [grant(), event("done", 20, kept=True, until=30), event("released", 22)]
    hold = only(lines, killed_at=40)  # later, when it held nothing
    assert (hold.believed_until, hold.kept, hold.killed_at) == (20, True, None)


def test_hold_is_believed_until_its_validity_ends():
    lines = [grant(), look(15, 25, until=40), event("done", 50, kept=False, until=40), event("lost", 52)]
    assert only(lines).believed_until == 40
    assert not only(lines).kept


@pytest.mark.parametrize(("killed_at", "believed_until"), [(20, 20), (40, 30)])
def test_hold_of_killed_process_is_believed_until_its_death(killed_at, believed_until):
    hold = only([grant(), event("writes", 12, value=7)], killed_at)
    assert (hold.believed_until, hold.kept, hold.read, hold.written) == (believed_until, False, 6, 7)


def test_hold_reported_lost_early_is_believed_until_it_was_last_seen_valid():
    told = event("told", 25, until=30, lost=True, remaining=0)
    assert only([grant(), look(18, 12, until=30), look(24, 0, lost=True, until=30), told]).believed_until == 18
    assert only([grant(), told]).believed_until == 10


def test_hold_reported_lost_after_its_time_is_believed_until_its_end():
    assert only([grant(), event("told", 31, until=30, lost=True, remaining=0)]).believed_until == 30


def test_hold_may_be_reported_lost_before_its_grant_is_recorded():
    hold = only([event("told", 31, until=30, lost=True, remaining=0), grant(at=32)])
    assert len(hold.told) == 1
    assert hold.believed_until < hold.granted == 32  # it was never believed


def test_holds_of_all_threads_are_distinguished():
    second = [grant(at=40, number=2, until=60)]
    lines = [grant(), grant(at=5, worker=2), *second, event("done", 20, kept=True, until=30)]
    found = [(hold.worker, hold.number, hold.ended) for hold in holds_of(lines)]
    assert found == [(2, 1, None), (1, 1, 20), (1, 2, None)]


def test_lines_without_a_hold_are_ignored():
    assert holds_of([{"event": "stall", "at": 1, "since": 0, "cpu": 0}, event("busy", 3)]) == []
