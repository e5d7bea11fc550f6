"""Labels: groups for synchronizers' names, and reasons for the sentences that say why a vote failed or a hold was lost.

Ten thousand names make a handful of series: the group of a name ends before the first part that looks like an
identifier. If a part is a word followed by a number, the group ends after the word: `order:4711` is in the group
`order`, `stage2:copy` in `stage`. A name without such a part is its own group, so a set of instruments also limits the
number of its groups (`Groups`).

Those sentences are for people, and contain numbers and addresses. The tables below map each to one of a few labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from redsync._core.observing import is_function

__all__ = ["LOSSES", "VOTES", "Groups", "loss_reason", "name_group", "vote_reason"]

UNNAMED: Final = "unnamed"
"""The group of names that begin with an identifier."""

OTHER: Final = "other"
"""The group of names for which `group_of` fails, and of further names once a set has its maximum of groups."""

_LONGEST = 64
_MOST_NAMES = 4096
"""The most names whose group is cached."""

_PART = re.compile(r"[^\W_]+")
_NUMBERED = re.compile(r"([^\W\d_]+)\d+")
_HEX = re.compile(r"[0-9a-fA-F]{8,}")
_OPAQUE = 24
"""A part with at least this many letters, and capitals in the middle, is base64 or the like, not a word."""


def name_group(name: str | bytes) -> str:
    """Return the group of a name: the name up to the first digit, UUID or hash-like part.

    Example: `"order:4711"` and `"order:4712"` are both in the group `"order"`.

    Args:
        name: The name of a synchronizer.
    """
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    end = len(text)
    for part in _PART.finditer(text):
        if not _is_word(word := part[0]):
            numbered = None if _HEX.fullmatch(word) else _NUMBERED.fullmatch(word)
            end = part.start() if numbered is None else part.start() + len(numbered[1])
            break
    return "".join(filter(str.isprintable, text[:end][:_LONGEST])).strip(" :/.-_|#@,;=+{}[]()") or UNNAMED


def _is_word(part: str) -> bool:
    if any(map(str.isdigit, part)) or _HEX.fullmatch(part):
        return False
    return len(part) < _OPAQUE or part[1:].islower() or part[1:].isupper()


class Groups:
    """The groups of one set of instruments, as `group_of` forms them, but at most `most`.

    Attributes:
        of: Returns the group of a name.
    """

    def __init__(self, group_of: Callable[[str | bytes], str], most: int) -> None:
        """Make it empty.

        Raises:
            TypeError: `group_of` is not a function.
            ValueError: `most` is not a positive number.
        """
        if not is_function(group_of):
            raise TypeError(f"group_of must be a function that returns the group of a name, not {group_of!r}")
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise ValueError(f"max_groups must be a whole number, 1 or more, not {most!r}")
        self._group_of: Final = group_of
        self._most: Final = most
        self._groups: Final[set[str]] = set()
        self.of: Final[Callable[[str | bytes], str]] = lru_cache(_MOST_NAMES)(self._of)

    def _of(self, name: str | bytes) -> str:
        try:
            group = str(self._group_of(name))
        except Exception:
            return OTHER
        if group not in self._groups:
            if len(self._groups) >= self._most:
                return OTHER
            self._groups.add(group)
        return group


LOSSES: Final = {
    "max_hold": re.compile(r"its max_hold is over"),
    "lease_ended": re.compile(r"its lease ended"),
    "no_quorum": re.compile(r"no quorum of nodes confirmed"),
    "taken": re.compile(r"nodes no longer (keep|kept) the claim"),
    "superseded": re.compile(r"another acquire of the same object"),
}
VOTES: Final = {
    "timeout": re.compile(r"^no answer (within|in time|for)\b"),
    "interrupted": re.compile(r"^an exception interrupted"),
    "reply": re.compile(r"^(unexpected reply|sent a|sent more than)"),
    "error": re.compile(r"^[A-Z]{3,}\b"),
    "quarantined": re.compile(r"may have forgotten"),
    "unconfirmed": re.compile(r"have not said lately"),
    "suspect": re.compile(r"owes \d+ replies"),
}


def loss_reason(sentence: str) -> str:
    """Return the label for the reason of a loss."""
    return next((label for label, pattern in LOSSES.items() if pattern.search(sentence)), "other")


def vote_reason(sentence: str) -> str:
    """Return the label for the reason of a failed vote; "down" for all failures of the connection."""
    return next((label for label, pattern in VOTES.items() if pattern.search(sentence)), "down")
