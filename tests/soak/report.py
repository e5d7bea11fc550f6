"""The figures of a soak, as a compact table, and how to repeat it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from redsync.testing.harness.verdicts import Violation, stalls_of, waited
from tests.soak.plan import Trouble
from tests.soak.run import Evidence

SHOWN = 20

Row = tuple[str, str]


def longest_drought(instants: Sequence[int]) -> float:
    """Return the longest time in seconds between two successive instants."""
    ordered = sorted(instants)
    return max((later - earlier for earlier, later in pairwise(ordered)), default=0) / 1e9


def fault_rows(troubles: Sequence[Trouble]) -> list[Row]:
    """Return how often each kind of trouble came."""
    return [(kind, f"{times}") for kind, times in sorted(Counter(trouble.kind for trouble in troubles).items())]


def work_rows(evidence: Evidence, seconds: float) -> list[Row]:
    """Return the outcome of the clients' work."""
    holds, witnesses = evidence.holds, evidence.witnesses
    events = Counter(line["event"] for witness in witnesses for line in witness.lines)
    stalls = [stall for witness in witnesses for stall in stalls_of(witness.lines)]
    lost = [hold for hold in holds if hold.gone in ("lost", "lost inside")]
    early = sum(line["at"] < hold.until for hold in holds for line in hold.told)
    by_lock = [[hold.granted for hold in holds if hold.name == name] for name in evidence.names]
    return [
        ("acquisitions", f"{len(holds):,} ({len(holds) / seconds:.0f}/s)"),
        ("found a latch open", f"{events['opened']:,}"),
        ("busy", f"{events['busy']:,}"),
        ("no quorum", f"{events['no quorum']:,}"),
        ("holds lost", f"{len(lost):,}, {sum(hold.lease is not None for hold in lost):,} of them never renewed"),
        ("reported before their validity ended", f"{early:,}"),
        ("reported after it, at most", f"{_latest_telling(evidence):.3f} s"),
        ("holders killed", f"{sum(hold.killed_at is not None for hold in holds):,}"),
        ("longest without any acquisition", f"{longest_drought([hold.granted for hold in holds]):.1f} s"),
        ("longest without one of a lock", f"{max(map(longest_drought, by_lock), default=0.0):.1f} s"),
        ("processes", f"{len(witnesses)}"),
        ("stalls of processes", f"{len(stalls)} times, {_longest(stalls):.1f} s at most"),
        ("faults postponed by", f"{evidence.late:.1f} s"),
    ]


def _latest_telling(evidence: Evidence) -> float:
    """Return the longest time in seconds from the end of a hold to its report, stalls not counted."""
    return max(
        (
            waited(hold.until, line["at"], stalls_of(witness.lines))
            for witness in evidence.witnesses
            for hold in witness.holds
            for line in hold.told
        ),
        default=0.0,
    )


def _longest(stalls: Sequence) -> float:
    return max((stall.until - stall.since for stall in stalls), default=0) / 1e9


def lines(
    evidence: Evidence, troubles: Sequence[Trouble], violations: Sequence[Violation], seconds: float
) -> Iterator[str]:
    """Yield the report."""
    for title, rows in (("faults", fault_rows(troubles)), ("work", work_rows(evidence, seconds))):
        yield title
        yield from (f"  {caption:<44}{figure}" for caption, figure in rows)
    yield f"violations: {len(violations)}"
    yield from (f"  {violation}" for violation in violations[:SHOWN])
