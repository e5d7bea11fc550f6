"""A stall excuses a process only for its duration, and only if the process was not busy itself."""

from redsync.testing.harness.verdicts import Stall, Violation, stalls_of, waited

SECOND = 1_000_000_000


def test_violation_names_the_promise_first():
    assert str(Violation("overlap", "two at once")) == "overlap: two at once"


def test_process_that_was_busy_did_not_stand_still():
    def stall(cpu):
        return {"event": "stall", "since": SECOND, "at": 3 * SECOND, "cpu": cpu}

    assert stalls_of([stall(SECOND // 2), stall(2 * SECOND), {"event": "acquired"}]) == [Stall(SECOND, 3 * SECOND)]


def test_waiting_is_counted_without_stalls():
    stalls = [Stall(0, 2 * SECOND), Stall(3 * SECOND, 4 * SECOND), Stall(9 * SECOND, 20 * SECOND)]
    assert waited(SECOND, 10 * SECOND, stalls) == 6.0
    assert waited(10 * SECOND, SECOND, stalls) == -9.0
