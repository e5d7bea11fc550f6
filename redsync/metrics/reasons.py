"""Reasons: short labels for the sentences in which a client says why a vote failed or a hold was lost.

Those sentences are for people, and contain numbers and addresses. The tables below map each to one of a few labels.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LOSSES", "VOTES", "loss_reason", "vote_reason"]

_LOSSES: Final = {
    "max_hold": re.compile(r"its max_hold is over"),
    "lease_ended": re.compile(r"its lease ended"),
    "no_quorum": re.compile(r"no quorum of nodes confirmed"),
    "taken": re.compile(r"nodes no longer (keep|kept) the claim"),
    "superseded": re.compile(r"another acquire of the same object"),
}
_VOTES: Final = {
    "timeout": re.compile(r"no answer (within|in time|for)\b"),
    "suspect": re.compile(r"suspect: owes|owes \d+ replies|has not answered an earlier"),
    "quarantined": re.compile(r"may have forgotten"),
    "unconfirmed": re.compile(r"have not said lately"),
    "connections": re.compile(r"all \d+ connections"),
    "interrupted": re.compile(r"an exception interrupted"),
    "reply": re.compile(r"unexpected reply|sent a|sent more than"),
    "error": re.compile(r"[A-Z]{3,}\b"),
}

LOSSES: Final = (*_LOSSES, "other")
"""All labels that `loss_reason` returns."""

VOTES: Final = (*_VOTES, "down")
"""All labels that `vote_reason` returns."""


def loss_reason(sentence: str) -> str:
    """Return the label for the reason of a loss."""
    return next((label for label, pattern in _LOSSES.items() if pattern.search(sentence)), "other")


def vote_reason(sentence: str) -> str:
    """Return the label for the reason of a failed vote; "down" for all failures of the connection."""
    return next((label for label, pattern in _VOTES.items() if pattern.match(sentence)), _elsewhere(sentence))


def _elsewhere(sentence: str) -> str:
    """Return the label of a sentence that does not begin with its reason."""
    found = ("quarantined", "unconfirmed", "suspect")
    return next((label for label in found if _VOTES[label].search(sentence)), "down")
