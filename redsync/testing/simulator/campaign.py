"""Campaigns: many runs by seed on all cores, and their outcomes.

Used by `python -m redsync.testing.simulator` and `make simulate SEEDS=100000`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from redsync.testing.simulator.runs import Outcome, how_to_replay, simulate
from redsync.testing.simulator.simulation import SimulationError

__all__ = ["Campaign", "Failure"]

_CHUNK = 25
_SHOWN = 5
_PLAIN_REPORTS = 20


@dataclass(frozen=True)
class Failure:
    """A failed run.

    Attributes:
        seed: Its seed.
        what: The reason, in one paragraph.
    """

    seed: int
    what: str


def _run_chunk(seeds: range, kind: str = "lock", **how: Any) -> tuple[Outcome, list[Failure]]:
    outcome, failures = Outcome(), []
    # A run leaves little but reference cycles; collecting those of many runs at once costs less.
    gc.disable()
    for seed in seeds:
        try:
            outcome.add(simulate(seed, kind=kind, **how))
        except SimulationError as error:
            failures.append(Failure(seed, "\n".join(error.complaints)))
        except Exception:
            failures.append(Failure(seed, traceback.format_exc()))
    gc.enable()
    gc.collect()
    return outcome, failures


class Campaign:
    """Many runs.

    Args:
        seeds: The seeds.
        jobs: The number of processes; None for one per core.
        kind: The kind of synchronizer that the runs contend for.
        **how: Options for all runs, as for `simulate`: `long`, `nodes`, `replicas`, `cluster`, `unlisted`, `sets`.

    Attributes:
        outcome: The sum of all successful runs.
        failures: The failed runs, sorted by seed once the campaign is over.
    """

    def __init__(self, seeds: range, jobs: int | None = None, kind: str = "lock", **how: Any) -> None:
        self._seeds = seeds
        self._jobs = jobs or os.cpu_count() or 1
        self._kind = kind
        self._how = how
        self._begun = time.monotonic()
        self.outcome = Outcome()
        self.failures: list[Failure] = []

    def run(self) -> bool:
        """Make all runs, show progress, print the outcome; return whether all succeeded."""
        self._begun = time.monotonic()
        chunks = [self._seeds[i : i + _CHUNK] for i in range(0, len(self._seeds), _CHUNK)]
        with _progress(len(self._seeds)) as advance, multiprocessing.Pool(min(self._jobs, len(chunks) or 1)) as pool:
            for outcome, failures in pool.imap_unordered(partial(_run_chunk, kind=self._kind, **self._how), chunks):
                self.outcome.add(outcome)
                self._note(failures)
                advance(outcome.runs + len(failures))
        self.failures.sort(key=lambda failure: failure.seed)
        _print(self.summary())
        return not self.failures

    def _note(self, failures: list[Failure]) -> None:
        for failure in failures:
            if len(self.failures) < _SHOWN:
                _print(f"seed {failure.seed}: {failure.what.rstrip()}\n{self._replay(failure)}\n")
            self.failures.append(failure)

    def summary(self) -> str:
        """Return the outcome as text."""
        outcome, took = self.outcome, time.monotonic() - self._begun
        runs = outcome.runs + len(self.failures)
        faults = ", ".join(f"{count:,} {kind}" for kind, count in outcome.faults.most_common())
        each = 1000 * took * self._jobs / max(runs, 1)
        hours = outcome.seconds / 3600
        lines = [
            f"{runs:,} runs in {took:.1f} s ({each:.1f} ms each on one core), {hours:,.1f} hours of virtual time",
            f"{outcome.acquisitions:,} acquisitions, {outcome.losses:,} reported losses",
            f"faults: {faults or 'none'}",
        ]
        if self.failures:
            seeds = ", ".join(str(failure.seed) for failure in self.failures[:20])
            more = f" and {len(self.failures) - 20} more" if len(self.failures) > 20 else ""
            lines += [f"{len(self.failures)} runs FAILED, seeds {seeds}{more}", self._replay(self.failures[0])]
        else:
            lines.append("every promise was kept in every run")
        return "\n".join(lines)

    def _replay(self, failure: Failure) -> str:
        return f"replay with: {how_to_replay(failure.seed, self._kind, **self._how)}"


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object]]:
    """Show progress: a bar on a terminal, otherwise a line now and then. Yield the function that adds to it."""
    rich: Any = None
    if sys.stdout.isatty():
        try:
            import rich.progress as rich
        except ImportError:
            rich = None
    if rich is None:
        yield _reporting(total)
        return
    with rich.Progress(*rich.Progress.get_default_columns(), rich.MofNCompleteColumn()) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda count: bar.advance(task, count)


def _reporting(total: int) -> Callable[[int], None]:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if before * _PLAIN_REPORTS // total < done * _PLAIN_REPORTS // total:
            _print(f"{done:,} of {total:,} runs")

    return advance
