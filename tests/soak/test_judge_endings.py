"""The end: what is in order passes, and a lock that is stuck, a leak, a complaint or a zombie is found."""

import pytest

from tests.soak.judge_endings import BOUND, judge_complaints, judge_leaks, judge_liveness, judge_zombies
from tests.soak.verdicts import Stall

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


def test_liveness_passes_when_everybody_got_everything():
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
    [
        ([closed()], 0),
        ([], 1),
        ([closed(threads=["redsync-maintenance"])], 1),
        ([closed(sockets=1)], 1),
    ],
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
