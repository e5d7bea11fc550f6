"""Benchmarks of an older commit next to those of this checkout, in the same rounds: shows a slow-down before the merge.

Both sides run a benchmark one after the other, each with its own code and processes; every other round swaps the order.
A side's figure is divided by the floor that it measured in the same run, if there is one, because the floor meets the
same noise. The change is the median of new / old over the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from bench.measure import interleave, say

__all__ = ["DEFAULT", "compare", "resolve"]

DEFAULT = "pairs", "threads", "tasks", "contended"
"""The benchmarks to compare if none is named."""

HERE = Path(__file__).parents[1]

_HEAD = "bench", "what", "unit", "old", "its floor", "new", "its floor", "old / floor", "new / floor", "new / old"

_Measured: TypeAlias = dict[tuple[str, str], dict[str, Any]]
"""Figures as `--json` writes them, by benchmark and by what it measured."""


def resolve(ref: str, here: Path = HERE) -> str:
    """Return the commit that a ref names.

    Raises:
        ValueError: It names none, or this is not a git repository.
    """
    command = ["git", "-C", str(here), "rev-parse", "--quiet", "--verify", "--end-of-options", f"{ref}^{{commit}}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ValueError(f"{ref!r} is not a commit of the repository at {here}")
    return result.stdout.strip()


def compare(commit: str, names: Sequence[str], rounds: int, here: Path = HERE) -> tuple[str, list[str]]:
    """Run benchmarks on both sides for that many rounds; return a table, and the names of benchmarks that failed."""
    rows, failed = [_HEAD], []
    with _checkout(commit, here) as old:
        for name in names:
            say(f"{name} ...")
            try:
                both = interleave([partial(_measure, old, name), partial(_measure, here, name)], rounds)
            except RuntimeError as error:
                # The other benchmarks are still useful.
                say(str(error))
                failed.append(name)
            else:
                rows += _rows(*both)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), failed


@contextmanager
def _checkout(commit: str, here: Path) -> Iterator[Path]:
    """Unpack a commit into a temporary directory, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="redsync-bench-") as directory:
        # Not a git worktree: an interruption while git creates one leaves a locked record in the repository.
        archive, place = Path(directory, "old.zip"), Path(directory, "old")
        subprocess.run(["git", "-C", str(here), "archive", f"--output={archive}", commit], check=True)
        with zipfile.ZipFile(archive) as files:
            files.extractall(place)
        yield place


def _measure(place: Path, name: str) -> _Measured:
    """Run a benchmark with the code of a checkout.

    Raises:
        RuntimeError: The benchmark failed, or the checkout does not have it.
    """
    with tempfile.TemporaryDirectory(prefix="redsync-bench-") as directory:
        file = Path(directory, "figures.json")
        result = subprocess.run(
            [sys.executable, "-m", "bench", "--quick", "--json", str(file), name],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(place)},
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if result.returncode:
            raise RuntimeError(f"{name} failed in {place}: {result.stderr[-2000:].strip()}")
        return {(figure["bench"], figure["what"]): figure for figure in json.loads(file.read_text())["figures"]}


def _rows(old_rounds: Sequence[_Measured], new_rounds: Sequence[_Measured]) -> list[tuple[str, ...]]:
    rows = []
    for key, figure in new_rounds[0].items():
        if not all(key in measured for measured in (*old_rounds, *new_rounds)):
            continue  # one of the sides did not measure this
        old, new = ([measured[key] for measured in rounds] for rounds in (old_rounds, new_rounds))
        judged = "ours" if figure["ratio"] is None else "ratio"
        changes = [mine[judged] / base[judged] for base, mine in zip(old, new, strict=True) if base[judged]]
        values = [_median(side, what) for side in (old, new) for what in ("ours", "floor")]
        ratios = [_median(side, "ratio") for side in (old, new)]
        rows.append((*key, figure["unit"], *values, *ratios, f"{statistics.median(changes):.2f}" if changes else ""))
    return rows


def _median(figures: Sequence[dict[str, Any]], what: str) -> str:
    values = [figure[what] for figure in figures]
    return "" if None in values else f"{statistics.median(values):,.4g}"
