"""After all faults: can every owner acquire everything again, and do nodes and clients keep nothing?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from redsync.testing.harness.journal import Line
from redsync.testing.harness.verdicts import Stall, Violation, waited

__all__ = ["BOUND", "judge_complaints", "judge_leaks", "judge_liveness", "judge_zombies", "zombies"]

T = TypeVar("T")

_CLAIMS: Final = (b"redsync:", b"redsync_queue:", b"redsync_places:")
_RECORDS: Final = b"redsync:client:"

BOUND: Final = 15.0
"""Seconds within which every lock must be acquired again: a guard and the time clients need to see its end, the lease
of a killed client, and some turns of the others, on a busy machine."""


def judge_liveness(
    lines: Sequence[Line], names: Collection[str], workers: Collection[int], stalls: Sequence[Stall]
) -> list[Violation]:
    """Return the locks that workers of a process that finished on request did not get in time after the faults."""
    violations = []
    last = {(line["worker"], line["name"]): line for line in lines if line["event"] == "last"}
    for worker in workers:
        for name in names:
            line = last.get((worker, name))
            if line is None or not line["got"]:
                why = "never tried" if line is None else f"got {line['why']}"
                violations.append(Violation("lock stuck", f"worker {worker} {why} at the end, of {name}"))
            elif (took := waited(line["asked"], line["at"], stalls)) > BOUND:
                violations.append(Violation("lock stuck", f"worker {worker} waited {took:.1f} s for {name} at the end"))
    return violations


def judge_leaks(lines: Sequence[Line]) -> list[Violation]:
    """Return the threads and sockets that the closed client of a process left behind."""
    closed = [line for line in lines if line["event"] == "closed"]
    if not closed:
        return [Violation("leak", "a client was never closed")]
    if closed[-1]["threads"] or closed[-1]["sockets"]:
        left = f"threads {closed[-1]['threads']} and {closed[-1]['sockets']} sockets"
        return [Violation("leak", f"a closed client left {left}")]
    return []


def judge_complaints(lines: Sequence[Line]) -> list[Violation]:
    """Return the library's own errors that it logged with a traceback."""
    return [Violation("inner error", line["text"]) for line in lines if line["event"] == "complaint"]


def judge_zombies(left: Mapping[int, Collection[str]]) -> list[Violation]:
    """Return the claims and places left on nodes, by node, although all clients are gone."""
    return [Violation("zombie", f"node {node} keeps {key}") for node, keys in left.items() for key in keys]


def zombies(
    scan: Callable[[], Mapping[T, Collection[bytes]]],
    timeout: float,
    clock: Callable[[], float],
    rest: Callable[[], None],
) -> dict[T, list[bytes]]:
    """Return the claims and places still on the nodes although no client holds or waits, by node.

    A command under way may need a moment, so a key counts only if it outlasts `timeout` seconds, in which scans and
    rests take turns. The record in which a client identifies itself is not a claim.
    """
    deadline = clock() + timeout
    while True:
        at = clock()
        left = {
            node: sorted(key for key in keys if key.startswith(_CLAIMS) and not key.startswith(_RECORDS))
            for node, keys in scan().items()
        }
        found = {node: keys for node, keys in left.items() if keys}
        if not found or at >= deadline:
            return found
        rest()
