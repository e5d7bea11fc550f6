"""What votes and lost rounds mean: grants and refusals to read, errors to raise. Shared by all protocols."""

from __future__ import annotations

from collections import Counter
from typing import Any

from redsync._core.quorum import Choice, Tally, Verdict
from redsync.exceptions import KeyTypeError, QuorumError

__all__ = ["has_answers", "is_granted", "most_refusals", "no_quorum", "refusals", "type_error"]


_FOREIGN = 0
_CODES = (1, 2, _FOREIGN)
_REFUSALS = [int, bytes], [int, bytes, int], [int, bytes, int, int]


def has_answers(tally: Tally) -> Verdict:
    """Look for a quorum that answers, whatever it says: a question about what nodes know is won by that."""
    if tally.granted + tally.refused >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if None in tally.choices else Verdict.LOST


def is_granted(reply: Any) -> bool:
    """Judge a reply to an acquire, be it new or a repetition."""
    if reply.__class__ is int and reply in _CODES:
        return bool(reply != _FOREIGN)
    if reply.__class__ is not list or [word.__class__ for word in reply] not in _REFUSALS:
        raise ValueError("an acquire is answered by an integer, or by the remaining time in ms and the holder")
    return False


def refusals(tally: Tally) -> list[Any]:
    """Return the replies of the nodes that refused: [remaining ms, holder], or the integer for a foreign value."""
    return [reply for reply, choice in zip(tally.replies, tally.choices, strict=True) if choice is Choice.REFUSED]


def most_refusals(tally: Tally) -> int:
    """Return how many nodes refused for the same holder, whoever has most of them."""
    # A foreign value counts as an owner of its own: it keeps the lock away as well.
    return max(Counter(reply[1] if reply else b"" for reply in refusals(tally)).values(), default=0)


def type_error(name: str | bytes, tally: Tally, label: str = "lock") -> KeyTypeError | None:
    """Return the error to raise if foreign values at the key alone, or on too many nodes, keep the lock away."""
    refused = refusals(tally)
    foreign = sum(not isinstance(reply, list) for reply in refused)
    if not foreign or foreign < min(len(refused), len(tally.nodes) - tally.quorum + 1):
        return None
    sentence = f"the key of {label} {name!r} holds a value of another type: choose another name or prefix"
    return KeyTypeError(name, sentence, tally.votes)


def no_quorum(name: str | bytes, tally: Tally, label: str = "lock") -> QuorumError:
    """Return the error for a round that told nothing: nodes failed, were too slow, or contradict each other."""
    if tally.won:
        sentence = f"{label} {name!r}: the nodes answered too late to be of use, after {tally.at - tally.sent_at:.3g} s"
    elif tally.without_quorum:
        sentence = f"{label} {name!r}: {tally.failed} of {len(tally.nodes)} nodes failed, {tally.quorum} must answer"
    else:
        sentence = f"{label} {name!r}: no {tally.quorum} of {len(tally.nodes)} nodes agree"
    return QuorumError(name, sentence, tally.votes)
