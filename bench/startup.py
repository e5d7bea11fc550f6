"""What it costs to import redsync, beside redis-py alone, which it needs anyway. Fresh processes in turns."""

from __future__ import annotations

import compileall
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import redsync
from bench.measure import Figure, interleave

_STATEMENTS = ("import redis", "import redsync; from redsync import Client", "import redsync")

_PROGRAM = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def run(*, quick: bool) -> list[Figure]:
    """Measure imports with warm caches, and of bytecode: installers compile what they install, a source tree is not."""
    compileall.compile_dir(Path(redsync.__file__).parent, quiet=1)
    for statement in _STATEMENTS:
        _import(statement)
    redis, client, package = interleave([partial(_import, s) for s in _STATEMENTS], 9 if quick else 21)
    # What redsync adds is the difference within a round, for the same reason as ratios are.
    extra = statistics.median(mine - base for mine, base in zip(client, redis, strict=True))
    extra_text = "redsync <= floor + 20 ms"
    floor = statistics.median(redis)
    return [
        Figure(
            "startup",
            "from redsync import Client / import redis",
            "ms",
            floor + extra,
            floor,
            statistics.median(mine / base for mine, base in zip(client, redis, strict=True)),
            extra_text,
            extra <= 20,
        ),
        Figure("startup", "import redsync alone", "ms", statistics.median(package)),
    ]


def _import(statement: str) -> float:
    """Return how long the statement takes in a new interpreter, in milliseconds."""
    command = [sys.executable, "-c", _PROGRAM.format(statement)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(result.stdout) * 1000
