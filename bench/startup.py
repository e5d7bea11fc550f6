"""The cost of importing redsync and of starting its commands, next to redis-py alone: fresh processes in turn."""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import redsync
from bench.measure import Figure, interleave

_BASE = "import redis"


def _command(arguments: list[str], *modules: str) -> str:
    """Return a program that does what a command does before its work: parse its arguments, and load its modules."""
    loads = "".join(f"; import redsync.{module}" for module in modules)
    return f"import sys; sys.argv[1:] = {arguments!r}; from redsync.cli import main; main(){loads}"


# Both lack nodes, or a command to run, so they end before they do anything.
_LOCK = _command(
    ["lock", "x"],
    "client",
    "_facades.fenced_lock",
    "cli.supervisor",
)
_LS = _command(["ls"], "_protocols.surveys")

WITHIN = {
    "from redsync import Client": ("from redsync import Client", 20),
    "redsync lock": (_LOCK, 30),
    "redsync ls": (f"import redis; {_LS}", 30),
}
"""Statements, and the milliseconds that each may cost beyond redis-py alone."""

_PACKAGE = "import redsync"

_PROGRAM = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def run(*, quick: bool) -> list[Figure]:
    """Measure imports with warm caches and compiled bytecode, as after an installation, unlike in a source tree."""
    compileall.compile_dir(Path(redsync.__file__).parent, quiet=1)
    statements = [_BASE, _PACKAGE, *(statement for statement, _ in WITHIN.values())]
    for statement in statements:
        _import(statement)
    sides = [partial(_import, statement) for statement in statements]
    redis, package, *others = interleave(sides, 9 if quick else 21)
    floor = statistics.median(redis)
    figures = []
    for (what, (_, most)), mine in zip(WITHIN.items(), others, strict=True):
        # Like ratios, the time that redsync adds is computed within a round.
        extra = statistics.median(own - base for own, base in zip(mine, redis, strict=True))
        share = statistics.median(own / base for own, base in zip(mine, redis, strict=True))
        target = f"redsync <= floor + {most} ms"
        name = f"{what} / import redis"
        figures.append(Figure("startup", name, "ms", floor + extra, floor, share, target, extra <= most))
    return [*figures, Figure("startup", "import redsync alone", "ms", statistics.median(package))]


def _import(statement: str) -> float:
    """Return the time of the statement in a new interpreter, in milliseconds."""
    command = [sys.executable, "-c", _PROGRAM.format(statement)]
    environment = {name: value for name, value in os.environ.items() if name != "REDSYNC_URLS"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return float(result.stdout) * 1000
