"""What votes and lost rounds mean: grants and refusals to read, errors to raise. Shared by all protocols."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from redsync._core.quorum import Tally, Verdict
from redsync._protocols.answers import FOREIGN
from redsync.exceptions import KeyTypeError, QuorumError

__all__ = ["has_answers", "most_refusals", "no_quorum", "time_left", "told", "type_error"]


def has_answers(tally: Tally) -> Verdict:
    """Look for a quorum that answers, whatever it says: that decides a question about what nodes know."""
    if tally.granted + tally.refused >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if None in tally.choices else Verdict.LOST


def most_refusals(tally: Tally) -> int:
    """Return how many nodes refused for the same holder, of the holder that has most nodes."""
    return max(Counter(refusal.holder for refusal in tally.refusals).values(), default=0)


def told(tally: Tally) -> list[Any]:
    """Return the refusals, without those of nodes that keep a value of another type."""
    return [refusal for refusal in tally.refusals if refusal is not FOREIGN]


def time_left(tally: Tally) -> float:
    """Return in how many seconds a quorum may be free of the claims in the way; infinity if that is not known."""
    remaining = sorted(refusal.left_ms if refusal.left_ms >= 0 else math.inf for refusal in tally.refusals)
    return remaining[min(tally.quorum - tally.granted, len(remaining)) - 1] / 1000


def type_error(name: str | bytes, tally: Tally, label: str = "lock") -> KeyTypeError | None:
    """Return the error to raise if foreign values at the key alone, or on too many nodes, keep the lock away."""
    refused = tally.refusals
    foreign = sum(refusal is FOREIGN for refusal in refused)
    if not foreign or foreign < min(len(refused), len(tally.nodes) - tally.quorum + 1):
        return None
    sentence = f"the key of {label} {name!r} holds a value of another type: choose another name or prefix"
    return KeyTypeError(name, sentence, tally.votes)


def no_quorum(name: str | bytes, tally: Tally, label: str = "lock", *, at: float | None = None) -> QuorumError:
    """Return the error for a round that decided nothing: nodes failed, were too slow, or contradict each other.

    Args:
        name: The name of the lock or other synchronizer.
        tally: The round.
        label: What kind it is.
        at: The instant at which the attempt ended, if that took another round.
    """
    if tally.won:
        took = (tally.at if at is None else at) - tally.sent_at
        sentence = f"{label} {name!r}: the nodes answered too late to be of use, after {took:.3g} s"
    elif tally.without_quorum:
        sentence = f"{label} {name!r}: {tally.failed} of {len(tally.nodes)} nodes failed, {tally.quorum} must answer"
    else:
        sentence = f"{label} {name!r}: no {tally.quorum} of {len(tally.nodes)} nodes agree"
    return QuorumError(name, sentence, tally.votes)
