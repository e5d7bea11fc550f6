"""Journals: records of successes and of ends of holds, for observers that count them later; see `observing`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync._core.observing import AcquireRecord

__all__ = ["LONG", "End", "Journal", "Journals", "Win"]

LONG: Final = 256
"""The number of acquires in a journal at which its observer is asked to empty it."""

_MOST_EARLY = 256
"""The most ends of holds kept for acquires that have yet to report their success."""


class Win(NamedTuple):
    """A won acquire, as a journal records it."""

    kind: str
    name: str | bytes
    waited: float
    rounds: int
    splits: int
    hand_overs: int
    wanted: int
    limit: int | None


class End(NamedTuple):
    """The end of a hold, as a journal records it; `lost`: the reason of a loss, or None."""

    kind: str
    name: str | bytes
    held: float
    lost: str | None


class Journal:
    """Records of protocols for an observer that counts later; one journal serves all clients of the observer.

    Entries lie flat in lists, and consist of names and numbers only. One object per entry would cost more: the garbage
    collector visits each object that outlives its acquire, and by the time of reading it has left the CPU's caches.

    No lock is needed. Protocols write, in any thread, and one reader at a time takes the entries. `+=` of a tuple, a
    slice, the deletion of a slice, and a dictionary's store and pop are atomic in CPython, as the keys are compared by
    identity. The reader takes only the words that it saw at first; writers add behind them. An interrupted reader
    leaves its unread entries to the next one.

    Another thread may report a hold's loss before the acquire that won it is reported. So the journal keeps the ends of
    unknown holds for a while. A repeated end finds no hold, and is not counted.

    Attributes:
        wins: The fields of each `Win`, one after the other.
        ends: The fields of each `End`, likewise.
        holds: The kind of each hold that has not ended, and the instant at which it began.
    """

    __slots__ = ("_early", "_unread_ends", "_unread_wins", "ends", "holds", "wins")

    def __init__(self) -> None:
        self.wins: Final[list[Any]] = []
        self.ends: Final[list[Any]] = []
        self.holds: Final[dict[HoldState, tuple[str, float]]] = {}
        self._early: Final[dict[HoldState, str | None]] = {}
        self._unread_wins: Iterator[Any] = iter(())
        self._unread_ends: Iterator[Any] = iter(())

    def note_win(self, record: AcquireRecord, at: float, result: HoldState | bool) -> bool:
        """Record a success, and its hold if that is new; return whether the journal is long."""
        kind, wins, rounds = record.kind, self.wins, record.rounds
        wins += (
            kind,
            record.name,
            at - record.started,
            rounds,
            record.splits,
            record.hand_overs,
            record.wanted,
            record.limit,
        )
        # Else a re-entry, or a success without a hold.
        if rounds and result is not True:
            self.holds[result] = kind, at  # type: ignore[index]  # what is won is a hold or True
            if self._early:
                self._note_early(result, at)  # type: ignore[arg-type]
        return len(wins) >= _LONG_WINS

    def _note_early(self, hold: HoldState, at: float) -> None:
        if hold in self._early:
            self.note_end(hold, at, self._early.pop(hold, None))

    def note_end(self, hold: HoldState, at: float, lost: str | None) -> None:
        """Record the end of a hold, once."""
        known = self.holds.pop(hold, None)
        if known is None:
            self._early[hold] = lost
            # Its acquire may have looked for this end in between.
            known = self.holds.pop(hold, None)
            if known is None:
                if len(self._early) > _MOST_EARLY:
                    self._early.pop(next(iter(list(self._early))), None)
                return
            self._early.pop(hold, None)
        kind, since = known
        ends = self.ends
        ends += (kind, hold.name, at - since, lost)

    def take(self) -> tuple[Iterator[Win], Iterator[End]]:
        """Return the entries so far, as iterators that continue if interrupted; for one reader at a time."""
        # Plain tuples, the base of `Win` and `End`: calling these classes for each entry would double the reader's
        # time.
        wins, ends = self.wins, self.ends
        more_wins, more_ends = wins[:], ends[:]
        unread_wins = chain(self._unread_wins, _entries(more_wins, _WIN))
        unread_ends = chain(self._unread_ends, _entries(more_ends, _END))
        won, ended = len(more_wins), len(more_ends)
        # No calls here: an interruption would lose these entries, or repeat them.
        self._unread_wins, self._unread_ends = unread_wins, unread_ends
        del wins[:won], ends[:ended]
        return unread_wins, unread_ends

    def clear(self) -> None:
        """Forget everything."""
        for each in (self.wins, self.ends, self.holds, self._early):
            each.clear()
        self._unread_wins = self._unread_ends = iter(())


class Journals:
    """The journals of several observers, for a client that writes the same into all of them."""

    __slots__ = ("_all",)

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._all: Final = journals

    def note_win(self, record: AcquireRecord, at: float, result: HoldState | bool) -> bool:
        """Record a success; return whether a journal is long."""
        filled = False
        for each in self._all:
            filled |= each.note_win(record, at, result)
        return filled

    def note_end(self, hold: HoldState, at: float, lost: str | None) -> None:
        """Record the end of a hold."""
        for each in self._all:
            each.note_end(hold, at, lost)


_WIN, _END = len(Win._fields), len(End._fields)
_LONG_WINS = LONG * _WIN


def _entries(words: list[Any], each: int) -> Iterator[Any]:
    columns = iter(words)
    return zip(*[columns] * each, strict=True)
