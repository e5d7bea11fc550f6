"""The demo's report: what the journals, ledgers and nodes say in the end, as a table and one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redsync.cli import demo_checks as checks
from redsync.cli.demo_ledger import LOST, TIMEOUT, Attempt, Entry

__all__ = ["Findings", "Report", "plural"]

_SHOWN = 5


@dataclass(frozen=True)
class Findings:
    """What a run left behind.

    Attributes:
        attempts: Of all workers, in any order.
        ledgers: The entries of each lock's ledger.
        counters: Each lock's counter.
        zombies: Keys that stayed on the nodes, by the nodes' index.
        seconds: How long the run lasted.
        nodes: How many nodes there were.
        processes: How many worker processes.
        threads: How many threads each of them had.
        faults: What was done to the nodes, as sentences.
    """

    attempts: Sequence[Attempt]
    ledgers: Sequence[Sequence[Entry]]
    counters: Sequence[int]
    zombies: Mapping[int, Sequence[bytes]]
    seconds: float
    nodes: int
    processes: int
    threads: int
    faults: Sequence[str] = ()


class Report:
    """The verdict on a run.

    Attributes:
        acquisitions: How often a lock was taken, re-entries not counted.
        overlaps: How many pairs of acquisitions were under way at the same time.
        lost_updates: How many increments were lost.
        zombies: How many keys stayed on the nodes.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        groups = checks.by_name(findings.attempts)
        self._by_name = [groups.get(index, []) for index in range(len(findings.counters))]
        self.acquisitions = sum(map(len, self._by_name))
        self._pairs = [
            sorted(
                checks.interval_overlaps(attempts)
                | checks.ledger_overlaps(entries, {attempt.key for attempt in attempts if not attempt.kept})
            )
            for attempts, entries in zip(self._by_name, findings.ledgers, strict=True)
        ]
        self.overlaps = sum(map(len, self._pairs))
        self._lost_updates = list(map(checks.lost_updates, self._by_name, findings.counters))
        self.lost_updates = sum(self._lost_updates)
        self.zombies = sum(map(len, findings.zombies.values()))

    @property
    def broken(self) -> bool:
        """Whether a promise was broken."""
        return bool(self.overlaps or self.lost_updates or self.zombies)

    @property
    def proves_nothing(self) -> bool:
        """Whether no lock was ever taken."""
        return not self.acquisitions

    def rows(self) -> list[tuple[str, str]]:
        """Return the table: a caption and a figure per row, the three that must be 0 last."""
        findings = self._findings
        waits = [attempt.granted - attempt.asked for attempts in self._by_name for attempt in attempts]
        outcomes = [attempt.outcome for attempt in findings.attempts]
        handovers = sum(map(checks.handovers, self._by_name))
        return [
            ("acquisitions", f"{self.acquisitions:,}"),
            ("re-entries", f"{sum(attempt.reentries for attempt in findings.attempts):,}"),
            ("hand-overs per second", f"{handovers / findings.seconds:,.0f}"),
            ("wait p50, ms", _milliseconds(checks.percentile(waits, 0.50))),
            ("wait p99, ms", _milliseconds(checks.percentile(waits, 0.99))),
            ("longest pause of a lock, ms", _milliseconds(max(map(checks.longest_pause, self._by_name), default=0))),
            ("QuorumErrors seen", f"{sum(attempt.quorum_errors for attempt in findings.attempts):,}"),
            ("timeouts, lost holds", f"{outcomes.count(TIMEOUT):,}, {outcomes.count(LOST):,}"),
            ("faults injected", f"{len(findings.faults)}"),
            ("overlaps", f"{self.overlaps:,}"),
            ("lost updates", f"{self.lost_updates:,}"),
            ("zombie keys", f"{self.zombies:,}"),
        ]

    def as_json(self) -> dict[str, object]:
        """Return the report for programs; times in seconds."""
        findings = self._findings
        waits = [attempt.granted - attempt.asked for attempts in self._by_name for attempt in attempts]
        outcomes = [attempt.outcome for attempt in findings.attempts]
        return {
            "seconds": findings.seconds,
            "acquisitions": self.acquisitions,
            "re_entries": sum(attempt.reentries for attempt in findings.attempts),
            "hand_overs": sum(map(checks.handovers, self._by_name)),
            "wait_p50": checks.percentile(waits, 0.50) / 1e9,
            "wait_p99": checks.percentile(waits, 0.99) / 1e9,
            "quorum_errors": sum(attempt.quorum_errors for attempt in findings.attempts),
            "timeouts": outcomes.count(TIMEOUT),
            "lost_holds": outcomes.count(LOST),
            "faults": list(findings.faults),
            "overlaps": self.overlaps,
            "lost_updates": self.lost_updates,
            "zombie_keys": self.zombies,
            "evidence": self.evidence(),
        }

    def failures(self) -> list[bool]:
        """Tell of each row of the table whether it shows a broken promise."""
        verdicts = (self.overlaps, self.lost_updates, self.zombies)
        return [False] * (len(self.rows()) - len(verdicts)) + [bool(verdict) for verdict in verdicts]

    def conclusion(self) -> str:
        """Return the run in one sentence."""
        findings = self._findings
        workers = findings.processes * findings.threads
        who = f"{plural(workers, 'worker')} in {plural(findings.processes, 'process')}"
        if self.broken:
            return f"{who} found redsync to break its promise: please report this, with the output above."
        if self.proves_nothing:
            return f"{who} never got a lock, which proves nothing: the machine may be too busy."
        faults = f", while {' and '.join(findings.faults)}" if findings.faults else ""
        return (
            f"{who} took {plural(len(self._by_name), 'lock')} on {plural(findings.nodes, 'node')} "
            f"{plural(self.acquisitions, 'time')}{faults}: "
            f"never did two hold the same lock at once, no update was lost, and nothing was left behind."
        )

    def evidence(self) -> list[str]:
        """Return what exactly was found wrong, as lines; no more than a screen of them."""
        lines = []
        for index, pairs in enumerate(self._pairs):
            ends = {attempt.key: attempt.ended for attempt in self._by_name[index]}
            lines += [
                f"overlap on lock {index + 1}: " + " and ".join(_acquisition(key, ends.get(key)) for key in pair)
                for pair in pairs[:_SHOWN]
            ]
        lines += [f"lost updates on lock {index + 1}: {lost}" for index, lost in enumerate(self._lost_updates) if lost]
        for node, keys in self._findings.zombies.items():
            lines += [f"zombie key on node {node + 1}: {key.decode(errors='replace')}" for key in keys[:_SHOWN]]
        return lines


def plural(number: int, noun: str) -> str:
    """Return a number of things in words: "1 lock", "3 processes"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def _acquisition(key: tuple[int, int], ended: int | None) -> str:
    worker, granted = key
    return f"worker {worker} from {granted} to {ended or 'an unknown instant'} ns"


def _milliseconds(ns: int) -> str:
    return f"{ns / 1e6:,.1f}"
