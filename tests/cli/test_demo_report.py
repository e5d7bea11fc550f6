"""The demo's report: the three figures that must be 0, and the sentences about them."""

import random

from redsync.cli.demo_report import Findings, Report, handovers, longest_pause, percentile, plural
from redsync.testing.harness.ledger import Entry
from tests.support.holds import held

MS = 1_000_000


def acquisition(worker, granted, ended, value, reentries=0, **done):
    """Return one worker's records of a hold of the first lock."""
    until = ended + 100 * MS
    lines = [
        {"event": "acquired", "at": granted, "name": "lock:1", "asked": 0, "since": granted, "until": until},
        *({"event": "re-entered", "at": granted} for _ in range(reentries)),
        {"event": "writes", "at": granted, "value": value},
        {"event": "done", "at": ended, "kept": True, "until": until, **done},
        {"event": "released", "at": ended},
    ]
    return [{"worker": worker, "number": 1, **line} for line in lines]


FIRST, SECOND = acquisition(1, 10 * MS, 12 * MS, 1, 2), acquisition(2, 30 * MS, 32 * MS, 2, 1)


def findings(lines=None, **changes):
    """Two locks; two workers in turn acquired the first one."""
    trouble = ({"event": event, "at": 0, "worker": 2, "number": 9} for event in ("busy", "no quorum", "unsure"))
    given = {
        "lines": [*FIRST, *SECOND, *trouble] if lines is None else lines,
        "names": ["lock:1", "lock:2"],
        "ledgers": [
            [
                Entry(kind, "lock:1", worker, granted, number)
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
        "faults": ["node 3 was killed and came back empty", "node 1 hung for a while"],
    }
    return Findings(**given | changes)


def test_report_of_a_run_passes_if_all_is_in_order():
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
    assert report.overlapping == set()
    assert report.verdict() == "2 acquisitions, 0 overlaps, 0 lost updates, 0 lost holds, 0 zombie keys"
    assert report.conclusion() == (
        "16 workers in 4 processes took 2 locks on 5 nodes 2 times, while node 3 was killed and came back empty and "
        "node 1 hung for a while: never did two hold the same lock at once, no update was lost, and nothing was left "
        "behind."
    )


def test_report_finds_overlap_by_the_clock():
    report = Report(findings([*acquisition(1, 10 * MS, 31 * MS, 1), *SECOND]))
    assert report.broken
    assert report.overlaps == 1
    assert report.overlapping == {(1, 10 * MS), (2, 30 * MS)}
    assert report.verdict().startswith("2 acquisitions, 1 overlap, ")
    assert report.failures()[-3:] == [True, False, False]
    assert report.evidence() == [
        "overlap on lock 1: worker 1 from 10000000 to 31000000 ns and worker 2 from 30000000 to 32000000 ns"
    ]
    assert "broken promise" in report.conclusion()


def test_report_counts_an_overlap_by_clock_and_ledger_once():
    one, one_end, other, other_end = findings().ledgers[0]
    crossed = [[one, other, one_end, other_end], []]
    assert Report(findings(ledgers=crossed)).overlaps == 1
    assert Report(findings([*acquisition(1, 10 * MS, 31 * MS, 1), *SECOND], ledgers=crossed)).overlaps == 1


def lost(*told):
    """Return a worker's records of a hold that it lost."""
    acquired, *_ = acquisition(1, 10 * MS, 12 * MS, 1)
    told = ({"event": "told", "worker": 1, "number": 1, "remaining": 0, "lost": True, "at": at} for at in told)
    done = {"event": "done", "at": 200 * MS, "kept": False, "worker": 1, "number": 1}
    return [acquired, *told, done, {**done, "event": "lost"}]


def test_report_passes_crossed_ledger_of_lost_hold():
    one, one_end, other, other_end = findings().ledgers[0]
    after = acquisition(2, 130 * MS, 132 * MS, 1)
    other, other_end = other._replace(granted=130 * MS), other_end._replace(granted=130 * MS)
    report = Report(
        findings([*lost(112 * MS), *after], ledgers=[[one, other, one_end, other_end], []], counters=[1, 0])
    )
    assert not report.broken
    assert ("timeouts, lost holds", "0, 1") in report.rows()


def test_report_finds_unreported_loss():
    report = Report(findings(lost(), ledgers=[[], []], counters=[0, 0]))
    assert report.broken
    assert [line.partition(":")[0] for line in report.evidence()] == ["loss not told"]


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


def test_plural_adds_the_english_ending():
    assert [plural(1, "lock"), plural(0, "lock"), plural(1234, "process")] == ["1 lock", "0 locks", "1,234 processes"]


# Figures


def test_handovers_counts_changes_of_worker():
    assert handovers([]) == 0
    assert handovers([held(1, 1, 2)]) == 0
    assert handovers([held(worker, 1, 2) for worker in (1, 1, 2, 2, 1, 3)]) == 3


def test_longest_pause_lasts_from_an_end_to_the_next_grant():
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
