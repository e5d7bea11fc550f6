"""An older checkout beside this one, in the same rounds: shows a slow-down before it lands.

Each side runs its own benchmarks with its own code, in processes of their own, one round after the other; every other
round in the opposite order. What is compared is each side's ratio to the floor that it measured beside itself, where
there is one: the floor meets the same noise.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from bench.measure import say

__all__ = ["DEFAULT", "compare"]

DEFAULT = "pairs", "threads", "tasks", "contended"
"""What is compared if nothing is named."""

_HERE = Path(__file__).parents[1]
_HEAD = "bench", "what", "unit", "old", "new", "old by floor", "new by floor", "new / old"

_Measured: TypeAlias = dict[tuple[str, str], dict[str, Any]]
"""By benchmark and what it measured: the figure as `--json` writes it."""


def compare(ref: str, names: Sequence[str], rounds: int) -> str:
    """Return a table of the named benchmarks, run so many times by the checkout of `ref` and by this one.

    Raises:
        CalledProcessError: There is no such ref, or a benchmark failed.
    """
    old_rounds: list[_Measured] = []
    new_rounds: list[_Measured] = []
    with _checkout(ref) as old:
        for number in range(rounds):
            sides = [(old, old_rounds, ref), (_HERE, new_rounds, "this checkout")]
            for place, measured, called in sides if number % 2 == 0 else sides[::-1]:
                say(f"round {number + 1} of {rounds}: {called}")
                measured.append(_measure(place, names))
    return _table(old_rounds, new_rounds)


@contextmanager
def _checkout(ref: str) -> Iterator[Path]:
    """Check a ref out beside the work tree, and remove it in any case."""
    with tempfile.TemporaryDirectory(prefix="redsync-bench-") as directory:
        place = Path(directory, "old")
        git = ["git", "-C", str(_HERE), "worktree"]
        try:
            subprocess.run([*git, "add", "--quiet", "--detach", str(place), ref], check=True)
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=False, stderr=subprocess.DEVNULL)


def _measure(place: Path, names: Sequence[str]) -> _Measured:
    with tempfile.TemporaryDirectory(prefix="redsync-bench-") as directory:
        file = Path(directory, "figures.json")
        subprocess.run(
            [sys.executable, "-m", "bench", "--quick", "--json", str(file), *names],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(place)},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return {(figure["bench"], figure["what"]): figure for figure in json.loads(file.read_text())["figures"]}


def _table(old_rounds: Sequence[_Measured], new_rounds: Sequence[_Measured]) -> str:
    rows = [_HEAD]
    for key, figure in new_rounds[0].items():
        if key not in old_rounds[0]:
            continue  # It was not measured then.
        old, new = _medians(old_rounds, key, "ours"), _medians(new_rounds, key, "ours")
        old_ratio, new_ratio = old, new
        by_floor = ["", ""]
        if figure["ratio"] is not None:
            old_ratio, new_ratio = _medians(old_rounds, key, "ratio"), _medians(new_rounds, key, "ratio")
            by_floor = [f"{old_ratio:.2f}", f"{new_ratio:.2f}"]
        change = f"{new_ratio / old_ratio:.2f}" if old_ratio else ""
        rows.append((*key, figure["unit"], f"{old:,.4g}", f"{new:,.4g}", *by_floor, change))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _medians(rounds: Sequence[_Measured], key: tuple[str, str], what: str) -> float:
    return statistics.median(measured[key][what] for measured in rounds)
