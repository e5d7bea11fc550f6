"""The method: two sides in short alternating rounds, ratios within a round, medians over the rounds.

A machine is never quiet, and its noise changes from minute to minute. Two measurements in succession differ by whatever
happened in between; two that alternate every few milliseconds meet the same noise. So each ratio compares two
neighbours in one round, and the median over the rounds excludes the rounds that another program disturbed.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        bench: The name of the benchmark.
        what: The quantity measured.
        unit: The unit of `ours` and `floor`.
        ours: The figure of redsync.
        floor: The figure of the floor in the same rounds; None if there is none.
        ratio: The median over the rounds of ours / floor, not the quotient of the medians; None if there is no floor.
        target: The target, as text.
        met: True if the target is met; None if there is no target.
    """

    bench: str
    what: str
    unit: str
    ours: float
    floor: float | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """The text of the last column."""
        return "" if self.met is None else "ok" if self.met else "MISSED"


@dataclass(frozen=True)
class Sample:
    """One round of one side: microseconds per pair."""

    p50: float
    p99: float
    cpu: float


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def interleave(sides: Sequence[Callable[[], T]], rounds: int) -> list[list[T]]:
    """Run all sides in each round; return a list of results for each side.

    Every second round runs backwards, so that no side always follows the same other one.
    """
    results: list[list[T]] = [[] for _ in sides]
    order = list(range(len(sides)))
    for _ in range(rounds):
        for i in order:
            results[i].append(sides[i]())
        order.reverse()
    return results


def ratio(ours: Sequence[float], floor: Sequence[float]) -> float:
    """Return the median over the rounds of ours / floor."""
    return statistics.median(mine / base for mine, base in zip(ours, floor, strict=True))


def compare(
    bench: str,
    what: str,
    unit: str,
    ours: Sequence[float],
    floor: Sequence[float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Figure:
    """Return the figure of two interleaved sides, judged by their ratio."""
    quotient = ratio(ours, floor)
    target, met = "", None
    if at_most is not None:
        target, met = f"ratio <= {at_most:g}", quotient <= at_most
    elif at_least is not None:
        target, met = f"ratio >= {at_least:g}", quotient >= at_least
    return Figure(bench, what, unit, statistics.median(ours), statistics.median(floor), quotient, target, met)


def time_pairs(acquire: Callable[[], bool], release: Callable[[], object], count: int) -> Sample:
    """Acquire and release `count` times; return the latencies, and the CPU time of all threads of this process."""
    clock = time.perf_counter_ns
    nanoseconds = []
    cpu = time.process_time_ns()
    for _ in range(count):
        start = clock()
        if not acquire():
            raise RuntimeError("an uncontended lock was refused")
        release()
        nanoseconds.append(clock() - start)
    cpu = time.process_time_ns() - cpu
    return Sample(percentile(nanoseconds, 50) / 1e3, percentile(nanoseconds, 99) / 1e3, cpu / count / 1e3)


def time_pairs_for(seconds: float, acquire: Callable[[], bool], release: Callable[[], object]) -> Sample:
    """Acquire and release for that many seconds, to measure a state that lasts only a moment."""
    clock = time.perf_counter_ns
    nanoseconds = []
    cpu, end = time.process_time_ns(), clock() + int(seconds * 1e9)
    while (start := clock()) < end:
        if not acquire():
            raise RuntimeError("an uncontended lock was refused")
        release()
        nanoseconds.append(clock() - start)
    cpu = time.process_time_ns() - cpu
    return Sample(percentile(nanoseconds, 50) / 1e3, percentile(nanoseconds, 99) / 1e3, cpu / len(nanoseconds) / 1e3)


def await_that(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """Return once the condition holds.

    Raises:
        TimeoutError: The condition did not hold within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {seconds:g} s, waiting until {what}")
        time.sleep(0.005)


def resident() -> int:
    """Return this process's present memory in bytes; 0 if the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def say(text: str) -> None:
    """Report progress on standard error, apart from the table."""
    print(text, file=sys.stderr, flush=True)
