"""Answers: nodes' replies to an acquire, each read once, on arrival, and what they mean for a round.

Grants are true, refusals false. All protocols share this: grants and refusals to read, errors to raise.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, NamedTuple

from redsync._core.client_records import contender_of
from redsync._core.memory import FORGOT
from redsync._core.quorum import Choice, Tally, Verdict
from redsync._core.session import Session
from redsync._core.text import is_refusal
from redsync.exceptions import KeyTypeError, QuorumError

__all__ = [
    "EXISTING",
    "NEW",
    "WRONG_TYPE",
    "Refusal",
    "all_answers",
    "gives_up",
    "has_answers",
    "is_outage",
    "most_refusals",
    "no_quorum",
    "read_answer",
    "refusals_of_owners",
    "time_left",
    "type_error",
]

_AGAIN = re.compile(r"no new grants for ([0-9]+\.[0-9]) s")
"""In a node's reason to fail: when it takes part again."""

_LASTING = (
    *("Protocol error", "does not speak RESP3", "not Redis or Valkey", "unknown command", "DB index"),
    *("CERTIFICATE_VERIFY_FAILED", "No such master", "cluster support disabled"),
)
_PASSING = "certificate has expired", "certificate is not yet valid"
"""In a reason to fail: that it lasts until someone changes the client or the server; that a time mends it after all."""

NEW, EXISTING = 1, 2
"""Grants of a lock: the node keeps the claim from now on, or kept it already."""


class Refusal(NamedTuple):
    """One node's refusal of a lock.

    Attributes:
        left_ms: Milliseconds for which the node keeps the holder's claim; -1 if that is unlimited or unknown.
        holder: That claim, or the claim of the waiter whose turn it is; "readers" or "writers" for many.
        ticket: The asker's ticket, or the highest ticket of the queue if it has none; 0 in a queue by arrival.
        ahead: The number of waiters before the asker; -1 if it has no place.
    """

    left_ms: int
    holder: bytes
    ticket: int = 0
    ahead: int = -1

    def __bool__(self) -> bool:
        return False


WRONG_TYPE = Refusal(-1, b"")
"""The key holds a value of another type. That counts as one more owner, because it also keeps the lock away."""


_CODES: dict[int, int | Refusal] = {NEW: NEW, EXISTING: EXISTING, 0: WRONG_TYPE}

_REFUSALS = [int, bytes, int], [int, bytes, int, int]


def read_answer(reply: Any) -> int | Refusal:
    """Read a reply to an acquire of a whole lock.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is int and reply in _CODES:
        return _CODES[reply]
    if reply.__class__ is list and [word.__class__ for word in reply] in _REFUSALS:
        return Refusal(*reply)
    raise ValueError("the reply to an acquire is an integer, or the remaining time in ms, the holder and a ticket")


def has_answers(tally: Tally) -> Verdict:
    """Return WON once a quorum has answered, whatever it said: enough to know what the nodes know."""
    if tally.granted + tally.refused >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if None in tally.ballots else Verdict.LOST


def all_answers(tally: Tally) -> Verdict:
    """Return what `has_answers` does, once each node has answered or failed."""
    return Verdict.PENDING if None in tally.ballots else has_answers(tally)


def most_refusals(tally: Tally) -> int:
    """Return on how many nodes the holder with the most nodes caused a refusal."""
    return max(Counter(contender_of(refusal.holder) for refusal in tally.refusals).values(), default=0)


def refusals_of_owners(tally: Tally) -> list[Any]:
    """Return the refusals, except those of nodes that keep a value of another type."""
    return [refusal for refusal in tally.refusals if refusal is not WRONG_TYPE]


def time_left(tally: Tally) -> float:
    """Return in how many seconds a quorum may be free of the claims in the way; infinity if unknown."""
    remaining = sorted(refusal.left_ms if refusal.left_ms >= 0 else math.inf for refusal in tally.refusals)
    return remaining[min(tally.quorum - tally.granted, len(remaining)) - 1] / 1000


def type_error(name: str | bytes, tally: Tally, label: str = "lock") -> KeyTypeError | None:
    """Return the error to raise if all refusals, or too many, are due to foreign values at the key; else None."""
    refused = tally.refusals
    foreign = sum(refusal is WRONG_TYPE for refusal in refused)
    if not foreign or foreign < min(len(refused), len(tally.nodes) - tally.quorum + 1):
        return None
    sentence = f"the key of {label} {name!r} holds a value of another type: choose another name or prefix"
    return KeyTypeError(name, sentence, tally.votes)


def is_outage(tally: Tally) -> bool:
    """Return whether too few nodes answer in time for a quorum.

    Nodes that are kept out of new grants for a while, because they may have forgotten something, do answer.
    """
    kept_out = sum(reason.startswith(FORGOT) for reason in _failures(tally))
    return tally.won or tally.failed - kept_out > len(tally.nodes) - tally.quorum


def _failures(tally: Tally) -> list[str]:
    return [vote[2] for vote in tally.ballots if vote is not None and vote[0] is Choice.FAILED]


def gives_up(session: Session, tally: Tally, since: float) -> bool:
    """Return whether a call stops waiting for nodes; `since`: when the first round of the outage began.

    A wait for other owners may be endless, a wait for nodes must not. It ends with the outage timeout, or at once if no
    quorum has ever answered this client, and enough nodes fail for a reason that time does not mend: they refuse the
    password, the command or the database, have an untrusted certificate, or speak another protocol.
    """
    if tally.at >= since + session.timing.outage_timeout:
        return True
    if session.answered:
        return False
    lasting = sum(_lasts(reason) for reason in _failures(tally))
    return lasting > len(tally.nodes) - tally.quorum


def _lasts(reason: str) -> bool:
    """Return whether a node fails for a reason that time does not mend; of several witnesses, all must have one."""
    return all(
        is_refusal(part) or (any(text in part for text in _LASTING) and not any(text in part for text in _PASSING))
        for part in reason.split("; ")
    )


def no_quorum(name: str | bytes, tally: Tally, label: str = "lock", *, at: float | None = None) -> QuorumError:
    """Return the error for a round that decided nothing: nodes failed, were too slow, or disagree.

    `at` is the instant at which the attempt ended, if that took another round.
    """
    if tally.won:
        took = (tally.at if at is None else at) - tally.sent_at
        sentence = f"{label} {name!r}: the nodes answered too late, after {took:.3g} s"
    elif tally.without_quorum:
        sentence = f"{label} {name!r}: {tally.failed} of {len(tally.nodes)} nodes failed; {tally.quorum} must answer"
        # Since nodes were started: when enough of them take part again, if no other fails.
        waits = sorted(float(found[1]) for reason in _failures(tally) if (found := _AGAIN.search(reason)))
        if len(waits) >= tally.quorum - tally.granted - tally.refused > 0:
            sentence += f", which is possible in {waits[tally.quorum - tally.granted - tally.refused - 1]:.1f} s"
    else:
        sentence = f"{label} {name!r}: no {tally.quorum} of {len(tally.nodes)} nodes agree"
    return QuorumError(name, sentence, tally.votes)
