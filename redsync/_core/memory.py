"""Whether nodes remember: birth records, and what one that has none gets.

A node that lost its memory may have forgotten claims that are still believed. A restart shows in its uptime; FLUSHALL,
or an empty server in its place, shows in that its *birth record* is missing. While it is missing the node grants
nothing new, in the very script that would grant. What it gets depends on its peers:

* none of the nodes has a record: the first use. All get an *original* one and grant at once;
* others remember: it forgot. It gets a *newborn* one, and grants again when that is older than the guard.

A node that can not be asked may remember, so the first use is only seen while all of them answer.

Several clients may begin at once, and each finds some nodes christened by the others and some not yet. None of them may
be locked out for that. So half of the nodes may have a record already, if it is original and seconds old; then whoever
writes a newborn one has seen more than half of the nodes with an original one, which stay a quorum. And who begins
takes what a node has for true, whatever it wanted to write: it is what it would have found a moment later. Who has used
the nodes before knows better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

__all__ = ["BIRTH_KEY", "NEWBORN", "ORIGINAL", "Birth", "christening"]

BIRTH_KEY: Final = b"redsync_birth"
"""Spelled apart from the default prefix: a lock may be called "birth"."""

ORIGINAL: Final = b"original"
NEWBORN: Final = b"newborn"

FIRST_USE: Final = 5.0
"""Seconds after the first record during which the others may be missing because several clients begin at once."""


class Birth(NamedTuple):
    """A birth record.

    Attributes:
        newborn: Whether the node may have forgotten claims before.
        age: For how many seconds it has remembered everything since, by its own clock.
    """

    newborn: bool
    age: float

    @classmethod
    def read(cls, record: bytes | None, now: float) -> Birth | None:
        """Return what a node's record says at that instant of the node's clock, in seconds; None if it has none.

        Raises:
            ValueError: It is no record.
        """
        if record is None:
            return None
        kind, _, since_ms = record.partition(b" ")
        if kind not in (ORIGINAL, NEWBORN):
            raise ValueError(f"the key {BIRTH_KEY.decode()} holds {record!r:.40}, which is no birth record")
        return cls(kind == NEWBORN, max(now - int(since_ms) / 1000, 0.0))

    @classmethod
    def christened(cls, reply: Any) -> Birth:
        """Return what a node has after a christening, whoever's it was.

        Raises:
            TypeError, ValueError: It is not what the script replies.
        """
        record, now_ms = reply
        birth = cls.read(record, now_ms / 1000)
        if birth is None:
            raise ValueError("a node that was christened has a record")
        return birth


def christening(births: Sequence[Birth | None], *, certain: bool) -> bytes | None:
    """Return what nodes without a record get: ORIGINAL or NEWBORN; None if all have one.

    Args:
        births: The records of all nodes that have been asked.
        certain: Whether all nodes have been asked, and none of them is known to have had a record before.
    """
    blank = births.count(None)
    if not blank:
        return None
    known = [birth for birth in births if birth is not None]
    is_first_use = all(not birth.newborn and birth.age < FIRST_USE for birth in known) and blank >= len(known)
    return ORIGINAL if certain and is_first_use else NEWBORN
