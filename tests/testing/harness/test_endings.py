"""The end: correct runs pass; a stuck lock, a leak, a complaint and a zombie are found."""

import pytest

from redsync.testing.harness.endings import BOUND, judge_complaints, judge_leaks, judge_liveness, judge_zombies, zombies
from redsync.testing.harness.verdicts import Stall

SECOND = 1_000_000_000
NAMES = ["lock:0", "lock:1"]


def last(worker, name, took=1.0, **fields):
    return {
        "event": "last", "worker": worker, "name": name, "asked": 0, "at": int(took * SECOND), "got": True, **fields,
    }  # fmt: skip


def all_but(*left_out):
    return [last(worker, name) for worker in (1, 2) for name in NAMES if (worker, name) not in left_out]


def liveness(lines, stalls=()):
    return [violation.promise for violation in judge_liveness(lines, NAMES, [1, 2], stalls)]


def test_liveness_passes_when_every_owner_got_everything():
    assert liveness(all_but()) == []


def test_lock_that_one_worker_did_not_get_is_found():
    assert liveness(all_but((2, "lock:1"))) == ["lock stuck"]
    stuck = last(2, "lock:1", got=False, why="AcquireTimeout")
    assert liveness([*all_but((2, "lock:1")), stuck]) == ["lock stuck"]


def test_lock_that_came_too_late_is_found():
    lines = [*all_but((1, "lock:0")), last(1, "lock:0", took=BOUND + 0.1)]
    assert liveness(lines) == ["lock stuck"]
    assert liveness(lines, [Stall(0, SECOND)]) == []


def closed(threads=(), sockets=0):
    return {"event": "closed", "at": 0, "threads": list(threads), "sockets": sockets}


@pytest.mark.parametrize(
    ("lines", "found"),
    [([closed()], 0), ([], 1), ([closed(threads=["redsync-maintenance"])], 1), ([closed(sockets=1)], 1)],
)
def test_leaks_are_found(lines, found):
    assert [violation.promise for violation in judge_leaks(lines)] == ["leak"] * found


def test_complaints_are_found():
    assert judge_complaints([closed()]) == []
    (violation,) = judge_complaints([{"event": "complaint", "text": "the watchdog failed"}])
    assert str(violation) == "inner error: the watchdog failed"


def test_zombies_are_found():
    assert judge_zombies({0: [], 1: []}) == []
    assert [str(each) for each in judge_zombies({0: [], 3: ["lock:0"]})] == ["zombie: node 3 keeps lock:0"]


# Leftover keys.


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def rest(self):
        self.now += 0.5


def look_for_zombies(*scans, timeout=2.0):
    """Scan nodes whose keys change with each look, then stay; return what was found, and after what time."""
    clock, left = Clock(), list(scans)
    found = zombies(lambda: left.pop(0) if len(left) > 1 else left[0], timeout, clock, clock.rest)
    return found, clock.now - 100.0


def test_zombies_ends_at_once_when_nothing_is_left():
    assert look_for_zombies({0: [], 1: []}) == ({}, 0.0)


@pytest.mark.parametrize("key", [b"redsync:demo:1", b"redsync_queue:{redsync:demo:1}", b"redsync_places::{x}"])
def test_zombies_finds_planted_key_that_stays(key):
    assert look_for_zombies({0: [], 1: [key]}) == ({1: [key]}, 2.0)


def test_zombies_passes_key_that_goes_in_time():
    assert look_for_zombies({0: [b"redsync:x"]}, {0: [b"redsync:x"]}, {0: []}) == ({}, 1.0)


def test_zombies_passes_keys_that_are_not_claims():
    assert look_for_zombies({0: [b"other", b"redsync:client:1b9d"]}) == ({}, 0.0)
