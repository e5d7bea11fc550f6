"""Print how long each part of the house is, beside its budget and its goal; fail if a part does not keep its budget.

The table is `[tool.redsync.budgets]` in pyproject.toml. Lines are those of .py and .lua files, with docstrings and
comments. A budget only falls: each step sets it to what it has reached, so one that is more than a hundredth too high
fails too. A commit that raises one says why in its first line.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]

_SUFFIXES: Final = {"lines": (".py", ".lua"), "traces": (".trace",), "words": (".md",)}
"""The files whose lines or words each unit counts; `concepts` counts a numbered list instead."""

_CONCEPTS: Final = re.compile(r"^## From `acquire\(\)` to the socket\n(.*?)^## ", re.MULTILINE | re.DOTALL)


def _files(part: dict[str, Any], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield the part's files that git knows: all below its paths, but for those below its exceptions."""
    left_out = [f":!{path}" for path in part.get("without", ())]
    command = ["git", "ls-files", "-z", *(f":(glob){path}" for path in part["paths"]), *left_out]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in listed.split("\0"):
        if name.endswith(suffixes) and (ROOT / name).exists():
            yield ROOT / name


def measure(part: dict[str, Any]) -> int:
    """Return how long a part is, in its unit."""
    if part["unit"] == "concepts":
        section = _CONCEPTS.search((ROOT / part["paths"][0]).read_text())
        assert section is not None, f"{part['paths'][0]} lists no concepts"
        return len(re.findall(r"^\d+\. ", section[1], re.MULTILINE))
    texts = [file.read_text(encoding="utf-8") for file in set(_files(part, _SUFFIXES[part["unit"]]))]
    assert texts, f"there is nothing in {part['paths']}"
    return sum(len(text.split()) if part["unit"] == "words" else text.count("\n") for text in texts)


def main() -> int:
    """Print the table; return 1 if a part is longer than its budget, or much shorter."""
    parts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["redsync"]["budgets"]
    table, wrong = [f"{'part':<32}{'now':>8}{'budget':>8}{'goal':>8}"], []
    for name, part in parts.items():
        length = measure(part)
        if length > part["budget"]:
            wrong.append(f"{name}: {length} {part['unit']} exceed the budget of {part['budget']}")
        elif length < 0.99 * part["budget"]:
            wrong.append(f"{name}: lower the budget of {part['budget']} to {length} {part['unit']}")
        table.append(f"{name:<32}{length:>8,}{part['budget']:>8,}{part['goal']:>8,}")
    print("\n".join(table + wrong))  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
