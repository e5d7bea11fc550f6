"""The demo's report: the three figures that must be 0, and what is said of them."""

from redsync.cli.demo_ledger import HELD, LOST, NO_QUORUM, TIMEOUT, Attempt, Entry
from redsync.cli.demo_report import Findings, Report, plural

MS = 1_000_000


def findings(attempts=None, **changes):
    """Two locks; the first was taken twice, by two workers one after the other."""
    given = {
        "attempts": [
            Attempt(HELD, 0, 1, 0, 10 * MS, 12 * MS, 1, 2, 0, 0, 1),
            Attempt(HELD, 0, 2, 0, 30 * MS, 32 * MS, 1, 1, 1, 1, 2),
            Attempt(TIMEOUT, 1, 2, 0),
            Attempt(NO_QUORUM, 1, 2, 0, quorum_errors=1),
        ]
        if attempts is None
        else attempts,
        "ledgers": [
            [
                Entry(kind, "demo:1", worker, granted, number)
                for worker, granted, number in ((1, 10 * MS, 1), (2, 30 * MS, 2))
                for kind in ("BEGIN", "END")
            ],
            [],
        ],
        "counters": [2, 0],
        "zombies": {},
        "seconds": 0.5,
        "nodes": 5,
        "processes": 4,
        "threads": 4,
        "faults": ["node 3 was killed and came back empty", "node 1 hung for a time"],
    }
    return Findings(**given | changes)


def test_report_of_run_in_order():
    report = Report(findings())
    assert report.rows() == [
        ("acquisitions", "2"),
        ("re-entries", "3"),
        ("hand-overs per second", "2"),
        ("wait p50, ms", "10.0"),
        ("wait p99, ms", "30.0"),
        ("longest pause of a lock, ms", "18.0"),
        ("QuorumErrors seen", "2"),
        ("timeouts, lost holds", "1, 0"),
        ("faults injected", "2"),
        ("overlaps", "0"),
        ("lost updates", "0"),
        ("zombie keys", "0"),
    ]
    assert not report.broken
    assert not report.proves_nothing
    assert report.failures() == [False] * 12
    assert report.evidence() == []
    assert report.conclusion() == (
        "16 workers in 4 processes took 2 locks on 5 nodes 2 times, while node 3 was killed and came back empty and "
        "node 1 hung for a time: never did two hold the same lock at once, no update was lost, and nothing was left "
        "behind."
    )


def test_report_finds_overlap_by_the_clock():
    first, second, *_ = findings().attempts
    report = Report(findings([first._replace(ended=31 * MS), second]))
    assert report.broken
    assert report.overlaps == 1
    assert report.failures()[-3:] == [True, False, False]
    assert report.evidence() == [
        "overlap on lock 1: worker 1 from 10000000 to 31000000 ns and worker 2 from 30000000 to 32000000 ns"
    ]
    assert "break its promise" in report.conclusion()


def test_report_counts_overlap_once_that_clock_and_ledger_tell_of():
    first, second, *_ = findings().attempts
    one, one_end, other, other_end = findings().ledgers[0]
    crossed = [[one, other, one_end, other_end], []]
    assert Report(findings(ledgers=crossed)).overlaps == 1
    assert Report(findings([first._replace(ended=31 * MS), second], ledgers=crossed)).overlaps == 1


def test_report_passes_crossed_ledger_of_lost_hold():
    first, second, *_ = findings().attempts
    one, one_end, other, other_end = findings().ledgers[0]
    lost = first._replace(outcome=LOST, kept=0, read=0, written=0)
    second = second._replace(read=0, written=1)
    report = Report(findings([lost, second], ledgers=[[one, other, one_end, other_end], []], counters=[1, 0]))
    assert not report.broken
    assert ("timeouts, lost holds", "0, 1") in report.rows()


def test_report_finds_lost_update_on_any_lock():
    assert Report(findings(counters=[1, 0])).evidence() == ["lost updates on lock 1: 1"]
    report = Report(findings(counters=[2, 3]))
    assert report.lost_updates == 3
    assert report.broken
    assert report.failures()[-3:] == [False, True, False]


def test_report_finds_zombie():
    report = Report(findings(zombies={2: [b"redsync:demo:1", b"redsync:\xff"]}))
    assert report.zombies == 2
    assert report.broken
    assert report.failures()[-3:] == [False, False, True]
    assert report.evidence() == ["zombie key on node 3: redsync:demo:1", "zombie key on node 3: redsync:�"]


def test_report_of_run_without_acquisition_proves_nothing():
    report = Report(findings([], ledgers=[[], []], counters=[0, 0]))
    assert report.proves_nothing
    assert not report.broken
    assert "proves nothing" in report.conclusion()
    assert ("wait p99, ms", "0.0") in report.rows()


def test_plural_speaks_english():
    assert [plural(1, "lock"), plural(0, "lock"), plural(1234, "process")] == ["1 lock", "0 locks", "1,234 processes"]
