"""The demo's report: the findings from journals, ledgers and nodes, as a table and one sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from redsync.testing.harness import exclusion
from redsync.testing.harness.holds import Hold, Key, holds_of
from redsync.testing.harness.journal import Line
from redsync.testing.harness.ledger import Entry
from redsync.testing.harness.losses import judge_losses
from redsync.testing.harness.verdicts import stalls_of

__all__ = ["Findings", "Report", "plural"]

_SHOWN = 5


@dataclass(frozen=True)
class Findings:
    """The records of a run, and the keys that it left on the nodes.

    Attributes:
        lines: The journals of all processes.
        names: The locks.
        ledgers: The entries of each lock's ledger.
        counters: Each lock's counter.
        zombies: Keys left on each node, by the node's index.
        seconds: The duration of the run in seconds.
        nodes: The number of nodes.
        processes: The number of worker processes.
        threads: The number of threads in each of them.
        faults: The faults of the nodes, as sentences.
    """

    lines: Sequence[Line]
    names: Sequence[str]
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
        findings: The records of the run.
        holds: The acquisitions of each lock, in the order of their grants.
        acquisitions: The number of acquisitions of all locks, without re-entries.
        overlaps: The number of pairs of acquisitions that overlapped.
        overlapping: The acquisitions of these pairs.
        lost_updates: The number of lost increments.
        zombies: The number of keys left on the nodes.
    """

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._events = Counter(line["event"] for line in findings.lines)
        holds = holds_of(findings.lines)
        self.holds = [[hold for hold in holds if hold.name == name] for name in findings.names]
        self.acquisitions = sum(map(len, self.holds))
        self._pairs = [
            sorted(exclusion.overlaps(mine) | exclusion.ledger_overlaps(entries, mine))
            for mine, entries in zip(self.holds, findings.ledgers, strict=True)
        ]
        self.overlaps = sum(map(len, self._pairs))
        self.overlapping = {key for pairs in self._pairs for pair in pairs for key in pair}
        self._lost_updates = list(map(exclusion.lost_updates, self.holds, findings.counters))
        losses = judge_losses(holds, stalls_of(findings.lines))
        self._untold = [str(violation) for violation in losses if violation.promise == "loss not told"]
        self.lost_updates = sum(self._lost_updates)
        self.zombies = sum(map(len, findings.zombies.values()))

    @property
    def broken(self) -> bool:
        """True if a promise was broken."""
        return bool(self.overlaps or self.lost_updates or self.zombies or self._untold)

    @property
    def proves_nothing(self) -> bool:
        """True if no lock was ever acquired."""
        return not self.acquisitions

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table, each with a caption and a figure; the last three figures must be 0."""
        findings = self.findings
        waits, events = self._waits(), self._events
        return [
            ("acquisitions", f"{self.acquisitions:,}"),
            ("re-entries", f"{events['re-entered']:,}"),
            ("hand-overs per second", f"{sum(map(handovers, self.holds)) / findings.seconds:,.0f}"),
            ("wait p50, ms", _milliseconds(percentile(waits, 0.50))),
            ("wait p99, ms", _milliseconds(percentile(waits, 0.99))),
            ("longest pause of a lock, ms", _milliseconds(max(map(longest_pause, self.holds), default=0))),
            ("QuorumErrors seen", f"{events['no quorum'] + events['unsure']:,}"),
            ("timeouts, lost holds", f"{events['busy']:,}, {events['lost']:,}"),
            ("faults injected", f"{len(findings.faults)}"),
            ("overlaps", f"{self.overlaps:,}"),
            ("lost updates", f"{self.lost_updates:,}"),
            ("zombie keys", f"{self.zombies:,}"),
        ]

    def as_json(self) -> dict[str, object]:
        """Return the report as an object for JSON, with times in seconds."""
        findings, waits, events = self.findings, self._waits(), self._events
        return {
            "seconds": findings.seconds,
            "acquisitions": self.acquisitions,
            "re_entries": events["re-entered"],
            "hand_overs": sum(map(handovers, self.holds)),
            "wait_p50": percentile(waits, 0.50) / 1e9,
            "wait_p99": percentile(waits, 0.99) / 1e9,
            "quorum_errors": events["no quorum"] + events["unsure"],
            "timeouts": events["busy"],
            "lost_holds": events["lost"],
            "faults": list(findings.faults),
            "overlaps": self.overlaps,
            "lost_updates": self.lost_updates,
            "zombie_keys": self.zombies,
            "evidence": self.evidence(),
        }

    def verdict(self) -> str:
        """Return the outcome of the run in a few words."""
        verdicts = {
            "overlap": self.overlaps,
            "lost update": self.lost_updates,
            "lost hold": self._events["lost"],
            "zombie key": self.zombies,
        }
        return ", ".join(
            plural(number, noun) for noun, number in {"acquisition": self.acquisitions, **verdicts}.items()
        )

    def _waits(self) -> list[int]:
        return [hold.granted - hold.asked for holds in self.holds for hold in holds]

    def failures(self) -> list[bool]:
        """Return, for each row of the table, whether it shows a broken promise."""
        verdicts = (self.overlaps, self.lost_updates, self.zombies)
        return [False] * (len(self.rows()) - len(verdicts)) + [bool(verdict) for verdict in verdicts]

    def conclusion(self) -> str:
        """Return the run in one sentence."""
        findings = self.findings
        workers = findings.processes * findings.threads
        who = f"{plural(workers, 'worker')} in {plural(findings.processes, 'process')}"
        if self.broken:
            return f"{who} found a broken promise of redsync: please report this, with the output above."
        if self.proves_nothing:
            return f"{who} never got a lock, which proves nothing: the machine may be too busy."
        faults = f", while {' and '.join(findings.faults)}" if findings.faults else ""
        return (
            f"{who} took {plural(len(self.holds), 'lock')} on {plural(findings.nodes, 'node')} "
            f"{plural(self.acquisitions, 'time')}{faults}: "
            f"never did two hold the same lock at once, no update was lost, and nothing was left behind."
        )

    def evidence(self) -> list[str]:
        """Return the details of broken promises, at most a screen of lines."""
        lines = []
        for index, pairs in enumerate(self._pairs):
            ends = {hold.key: hold.believed_until for hold in self.holds[index]}
            lines += [
                f"overlap on lock {index + 1}: " + " and ".join(_acquisition(key, ends.get(key)) for key in pair)
                for pair in pairs[:_SHOWN]
            ]
        lines += [f"lost updates on lock {index + 1}: {lost}" for index, lost in enumerate(self._lost_updates) if lost]
        lines += self._untold[:_SHOWN]
        for node, keys in self.findings.zombies.items():
            lines += [f"zombie key on node {node + 1}: {key.decode(errors='replace')}" for key in keys[:_SHOWN]]
        return lines


def handovers(holds: Sequence[Hold]) -> int:
    """Return how often a lock went to another worker, by its holds in the order of their grants."""
    return sum(one.worker != other.worker for one, other in pairwise(holds))


def longest_pause(holds: Sequence[Hold]) -> int:
    """Return the longest time in ns from the end of a hold to the next grant; the holds are in the order of grants."""
    return max((other.granted - one.believed_until for one, other in pairwise(holds)), default=0)


def percentile(values: Collection[int], share: float) -> int:
    """Return the smallest value that at least that share of all values does not exceed; 0 if there are none."""
    if not values:
        return 0
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: "1 lock", "3 processes"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def _acquisition(key: Key, ended: int | None) -> str:
    worker, granted = key
    return f"worker {worker} from {granted} to {ended or 'an unknown instant'} ns"


def _milliseconds(ns: int) -> str:
    return f"{ns / 1e6:,.1f}"
