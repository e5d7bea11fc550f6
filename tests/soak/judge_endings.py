"""When all faults are over: can everybody take everything again, and is nothing left on nodes and in clients?"""

from collections.abc import Collection, Mapping, Sequence

from tests.soak.journal import Line
from tests.soak.verdicts import Stall, Violation, waited

BOUND = 15.0
"""Seconds in which every lock must be had again: a guard and what clients need to see its end, the lease of a client
that was killed, and some turns of the others, on a machine that has other things to do."""


def judge_liveness(
    lines: Sequence[Line], names: Collection[str], workers: Collection[int], stalls: Sequence[Stall]
) -> list[Violation]:
    """Return which locks some thread of a process could not take, or not in time, when the faults were over.

    Args:
        lines: The journal of a process that was told to finish.
        names: All locks.
        workers: The threads of the process.
        stalls: When it stood still.
    """
    violations = []
    last = {(line["worker"], line["name"]): line for line in lines if line["event"] == "last"}
    for worker in workers:
        for name in names:
            line = last.get((worker, name))
            if line is None or not line["got"]:
                why = "did not come to try" if line is None else f"got {line['why']}"
                violations.append(Violation("lock stuck", f"worker {worker} {why} at the end, of {name}"))
            elif (took := waited(line["asked"], line["at"], stalls)) > BOUND:
                violations.append(Violation("lock stuck", f"worker {worker} waited {took:.1f} s for {name} at the end"))
    return violations


def judge_leaks(lines: Sequence[Line]) -> list[Violation]:
    """Return what a process that was told to finish kept of its closed client, or complained of."""
    closed = [line for line in lines if line["event"] == "closed"]
    if not closed:
        return [Violation("leak", "a client was never closed")]
    if closed[-1]["threads"] or closed[-1]["sockets"]:
        left = f"threads {closed[-1]['threads']} and {closed[-1]['sockets']} sockets"
        return [Violation("leak", f"a closed client left {left}")]
    return []


def judge_complaints(lines: Sequence[Line]) -> list[Violation]:
    """Return the errors that the library logged of itself, with a traceback."""
    return [Violation("inner error", line["text"]) for line in lines if line["event"] == "complaint"]


def judge_zombies(left: Mapping[int, Collection[str]]) -> list[Violation]:
    """Return the claims and places that are left on nodes, by node, although everybody is gone."""
    return [Violation("zombie", f"node {node} keeps {key}") for node, keys in left.items() for key in keys]
