"""The judges of what owners recorded: each finds its planted mistakes, and no more.

Records are made by hand. The soak shows that correct runs pass, with all faults.
"""

import itertools
import socket
from dataclasses import replace

import pytest

from tests.chaos.blocking import run
from tests.chaos.health import leftovers, open_sockets
from tests.chaos.held_intervals import Hold, holds_of
from tests.chaos.judges import (
    disorder,
    judge_complaints,
    judge_exclusion,
    judge_hearing,
    judge_leaks,
    judge_liveness,
    judge_losses,
    judge_zombies,
    most_at_once,
    overlaps,
    zombies,
)

MS = 1_000_000
SECOND = 1000 * MS


def promises(violations):
    return [violation.promise for violation in violations]


# Exclusion.


def held(worker, granted, ended, value=0, **fields):
    """Return a hold that was kept, and under which the counter was set to `value`; 0: nothing was written."""
    until = granted + 10_000 if ended is None else ended + 100
    usual = {"number": 1, "name": "lock:0", "asked": granted, "since": granted, "until": until, "kept": True}
    given = {**usual, "worker": worker, "granted": granted, "ended": ended, "written": value, "gone": "released"}
    return Hold(**{**given, **fields})


def killed(worker, granted, killed_at, value=0):
    return held(worker, granted, None, value, kept=False, gone=None, killed_at=killed_at)


def stopped(until):
    return held(1, 10, 900, 1, until=until, kept=False, gone="lost")


ONE, TWO = held(1, 10, 20, 1), held(2, 20, 30, 2)


@pytest.mark.parametrize(
    ("holds", "counter", "found"),
    [
        pytest.param([ONE, TWO], 2, [], id="one after the other"),
        pytest.param([held(1, 10, 20, 1), held(2, 19, 30, 2)], 2, ["overlap"], id="two at once"),
        pytest.param([ONE, held(2, 20, 30, 1)], 1, ["lost updates"], id="an update is overwritten"),
        pytest.param([ONE, TWO], 1, ["lost updates"], id="the counter is behind"),
        pytest.param([ONE, killed(2, 19, 40)], 1, ["overlap"], id="a process killed later"),
        pytest.param([killed(1, 10, 30), held(2, 30, 40, 1)], 1, [], id="a killed process believes nothing"),
        pytest.param([ONE, killed(2, 30, 40, 2), held(3, 60, 70, 2)], 2, [], id="killed before its write"),
        pytest.param([ONE, killed(2, 30, 40, 2), held(3, 60, 70, 3)], 3, [], id="killed after its write"),
        pytest.param([stopped(40), held(2, 40, 60, 2)], 2, [], id="a process that is paused"),
        pytest.param([stopped(40), held(2, 39, 60, 2)], 2, ["overlap"], id="a stopped one that is valid"),
        pytest.param(
            [stopped(50), held(2, 60, 70, 1), held(3, 80, 90, 2), held(2, 950, 960, 2)], 2, [], id="a late write"
        ),
        pytest.param(
            [held(1, 10, 20, 1, token=7), held(2, 20, 30, 2, token=7)], 2, ["token does not grow"], id="a token"
        ),
    ],
)
def test_judge_of_exclusion_finds(holds, counter, found):
    assert promises(judge_exclusion(holds, {"lock:0": counter})) == found


def test_readers_overlap_with_writers_of_other_owners_only():
    ada = held(1, 0, 20, owner="ada", mode="write")
    again = held(1, 5, 20, owner="ada", mode="read")
    bob, cid = held(2, 10, 30, owner="bob", mode="read"), held(3, 20, 40, owner="cid", mode="read")
    assert overlaps([cid, bob]) == overlaps([ada, again]) == set()
    assert overlaps([cid, bob, ada]) == {(ada.key, bob.key)}


def test_judge_finds_too_many_permits_and_disorder():
    holds = [held(worker, worker, 10, name="semaphore:0") for worker in range(4)]
    (found,) = judge_exclusion(holds, {"semaphore:0": 0}, limit=3)
    assert str(found) == "too many permits: 4 of semaphore:0 at 3"
    assert most_at_once([]) == (0, 0)
    tokens = [held(1, 10 * at, 10 * at + 5, token=token) for at, token in enumerate([3, 7, 5])]
    assert disorder(tokens) == [(tokens[1].key, tokens[2].key)]
    stopped = held(2, 35, 34, token=4)  # its lease ended before `acquire` returned
    assert disorder([*tokens, stopped]) == disorder(tokens)


# Holds, from the lines of a history.

GRANT = {
    "event": "acquired", "worker": 1, "number": 1, "name": "lock:0", "asked": 5, "since": 10, "lease": None, "at": 10,
    "until": 30,
}  # fmt: skip


def event(kind, at, **fields):
    return {"event": kind, "worker": 1, "number": 1, "at": at, **fields}


def seen(at, **fields):
    return event("looked", at, before=at, **{"remaining": 5, **fields})


TOLD_EARLY = event("told", 25, until=30, lost=True, remaining=0)


@pytest.mark.parametrize(
    ("lines", "killed_at", "believed_until"),
    [
        pytest.param([event("done", 20, kept=True), event("released", 22)], 40, 20, id="until its release begins"),
        pytest.param([seen(15, until=40), event("done", 50, kept=False)], None, 40, id="until its validity ends"),
        pytest.param([event("writes", 12, value=7)], 20, 20, id="until its process is killed"),
        pytest.param([seen(18), seen(24, remaining=0), TOLD_EARLY], None, 18, id="until it was last valid"),
        pytest.param([TOLD_EARLY], None, 10, id="not at all"),
    ],
)
def test_hold_is_believed(lines, killed_at, believed_until):
    (hold,) = holds_of([GRANT, *lines], killed_at)
    assert hold.believed_until == believed_until


# Losses.

UNTIL = 10 * SECOND
LOST = Hold(
    worker=1,
    number=1,
    name="lock:0",
    asked=0,
    since=SECOND,
    granted=SECOND,
    until=UNTIL,
    ended=15 * SECOND,
    gone="lost",
)


def told(at, **fields):
    return {"event": "told", "at": at, "lost": True, "remaining": 0, **fields}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"told": [told(5 * SECOND)]}, []),
        ({"told": [told(UNTIL + SECOND)]}, []),
        ({"ended": 9 * SECOND, "kept": True, "gone": "released"}, []),
        ({"ended": None, "gone": None, "killed_at": 20 * SECOND}, []),
        ({"ended": UNTIL + 1}, ["loss not told"]),
        ({"told": [told(UNTIL), told(UNTIL + MS)]}, ["loss told twice"]),
        ({"told": [told(UNTIL, remaining=1)]}, ["loss told wrongly"]),
    ],
)
def test_judge_of_losses_finds(fields, found):
    assert set(promises(judge_losses([replace(LOST, **fields)]))) == set(found)


@pytest.mark.parametrize(
    ("lines", "killed_at", "found"), [("told heard", None, 0), ("told", None, 1), ("told", 99, 0), ("heard", 99, 1)]
)
def test_listeners_must_hear_of_each_loss(lines, killed_at, found):
    assert len(judge_hearing([{"event": word, "at": 0} for word in lines.split()], killed_at)) == found


# The end.

NAMES = ["lock:0", "lock:1"]


@pytest.mark.parametrize(
    ("name", "fields", "found"),
    [
        ("lock:1", {}, []),
        ("another", {}, ["lock stuck"]),
        ("lock:1", {"got": False, "why": "AcquireTimeout"}, ["lock stuck"]),
    ],
)
def test_judge_of_liveness_finds(name, fields, found):
    last = {"event": "last", "worker": 1, "name": "lock:0", "asked": 0, "at": SECOND, "got": True}
    assert promises(judge_liveness([last, {**last, "name": name, **fields}], NAMES, [1])) == found


@pytest.mark.parametrize(("threads", "sockets", "found"), [([], 0, 0), (["redsync-maintenance"], 0, 1), ([], 1, 1)])
def test_judge_of_leaks_finds(threads, sockets, found):
    closed = {"event": "closed", "at": 0, "threads": threads, "sockets": sockets}
    assert len(judge_leaks([closed])) == found
    assert promises(judge_leaks([])) == ["leak"]


def test_complaints_and_zombies_are_found():
    assert promises(judge_complaints([{"event": "complaint", "text": "the watchdog failed"}])) == ["inner error"]
    assert [str(each) for each in judge_zombies({0: [], 3: ["lock:0"]})] == ["zombie: node 3 keeps lock:0"]


@pytest.mark.parametrize(
    ("scans", "found"),
    [
        ([{0: [b"other", b"redsync:client:1b9d"]}], {}),
        ([{0: [b"redsync:x"]}, {0: []}], {}),
        ([{0: [b"redsync_queue:{redsync:demo:1}"]}], {0: [b"redsync_queue:{redsync:demo:1}"]}),
    ],
)
def test_keys_that_stay_are_zombies(scans, found):
    clock, left = itertools.count(), list(scans)
    assert zombies(lambda: left.pop(0) if len(left) > 1 else left[0], 2.0, lambda: next(clock), lambda: None) == found


# Health of a process.


def test_socket_that_stays_open_is_a_leftover():
    async def sleep(seconds):
        """Return at once: nothing here is about to end."""

    before = open_sockets()
    with socket.socket():
        assert run(leftovers(before, sleep, timeout=0.05))[1] == 1
    assert run(leftovers(before, sleep, timeout=0.05))[1] == 0
