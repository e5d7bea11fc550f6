"""Locators: where the server of a node is now, by the word of those who decide it.

A node that a Sentinel group stands for, or one of the voters that a cluster lends, has no fixed address: its server is
whoever was made the master last. A locator collects what its *witnesses* say of that, the Sentinels or some nodes of
the cluster, and draws the conclusion; it does no input or output. `watches` and `aio_watches` ask the witnesses, again
and again.

**A majority of the listed witnesses must answer**, and the word with the highest epoch counts. One of them alone may
have been cut off together with a master that was replaced long ago: a client that believes it would vote with a server
that has missed everything since.

**What they said must be recent.** A master that was replaced without being told may be named again, and get its
replicas back, while a client is still connected to it under the old decision: then its votes are acknowledged again,
and until somebody comes under the new decision nothing on the server tells. But by then the server between has had its
quarantine, and the witnesses knew of its decision before that. Hence a node with replicas takes part in new grants only
if a majority of the witnesses was asked within the quarantine, and says that nothing has been decided since.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redsync._core.quorum import outline

__all__ = ["Location", "Locator", "Witness", "Word", "needed_of"]


def needed_of(replicas: int) -> int:
    """Return how many of so many replicas must have a vote: with their master they are a majority of the group."""
    return (replicas + 1) // 2


class Location(NamedTuple):
    """Where the server of a node is.

    Attributes:
        host: Its name or address.
        port: Its port.
        epoch: The number of the decision that made it the master; a later one has a higher number.
    """

    host: str
    port: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Witness(NamedTuple):
    """Somebody who can be asked where a node's server is.

    Attributes:
        address: `host:port`.
        pool: A pool of redis-py's, for its connection class and settings.
    """

    address: str
    pool: Any


class Word(NamedTuple):
    """What one witness says: where the master is, and how many replicas it has or had."""

    location: Location
    replicas: int


class Locator(ABC):
    """What the witnesses say of one master.

    Not thread-safe, but for the attributes, which are replaced as a whole.

    Attributes:
        WITNESSES: What the witnesses are, for people.
        witnesses: They.
        replicas: How many replicas the group is configured with; 0 if its votes need no acknowledgement.
        questions: What to ask a witness, in one write.
        present: Where the master is; None if that is not known now.
        excuse: Why it is not known.
        conflict: Why it can't be known, whatever comes: a mistake in the configuration; None if there is none.
        confirmed_at: When the witnesses were asked that said so last, seconds on the client's clock: the earliest
            question of the latest majority.
    """

    WITNESSES: str
    questions: tuple[bytes, ...]

    def __init__(self, witnesses: Sequence[Witness], replicas: int) -> None:
        self.witnesses: Final = tuple(witnesses)
        self.replicas: Final = replicas
        self.present: Location | None = None
        self.excuse = f"none of the {len(self.witnesses)} {self.WITNESSES} has answered yet"
        self.conflict: str | None = None
        self.confirmed_at = -math.inf
        self._asked_at: Final = [-math.inf] * len(self.witnesses)
        self._heard_at: Final = [-math.inf] * len(self.witnesses)
        self._words: Final[list[Word | str]] = ["no answer yet"] * len(self.witnesses)

    @property
    def needed(self) -> int:
        """How many replicas must acknowledge a vote."""
        return needed_of(self.replicas)

    @property
    @abstractmethod
    def home(self) -> str:
        """What stands for the node, however its witnesses are listed."""

    @abstractmethod
    def _read(self, replies: Sequence[Any], witness: Witness) -> Word | str:
        """Return what a witness says, or why it says nothing.

        Raises:
            TypeError, ValueError, KeyError, AttributeError, IndexError: No witness replies that.
        """

    @abstractmethod
    def _conflict_in(self, words: Sequence[Word | str]) -> str | None:
        """Return what is wrong with the configuration if these words are right; None if nothing is."""

    def ask(self, witness: int, now: float) -> tuple[bytes, ...]:
        """Record when a witness is asked, seconds on the client's clock; return the questions."""
        self._asked_at[witness] = now
        return self.questions

    def note(self, witness: int, replies: Sequence[Any]) -> None:
        """Record what a witness replied to the questions.

        Raises:
            ConnectionError: No witness replies that.
        """
        try:
            self._words[witness] = self._read(replies, self.witnesses[witness])
        except (TypeError, ValueError, KeyError, AttributeError, IndexError):
            told = " and ".join(map(outline, replies))
            raise ConnectionError(f"answers by {told}: it is none of the {self.WITNESSES}") from None
        self._heard_at[witness] = self._asked_at[witness]
        self._conclude()

    def note_failure(self, witness: int, reason: str) -> None:
        """Record that a witness can't be asked."""
        self._words[witness] = reason
        self._conclude()

    def _conclude(self) -> None:
        self.conflict = self._conflict_in(self._words)
        location, reason = (None, self.conflict) if self.conflict is not None else self._conclusion()
        # The excuse first: whoever finds no location then finds the reason for that.
        self.excuse = reason or ""
        self.present = location
        if location is not None:
            times = [at for word, at in zip(self._words, self._heard_at, strict=True) if isinstance(word, Word)]
            self.confirmed_at = sorted(times, reverse=True)[len(self.witnesses) // 2]

    def _conclusion(self) -> tuple[Location | None, str | None]:
        """Return where the master is, or else the reason for which that is not known."""
        heard = [word for word in self._words if isinstance(word, Word)]
        count, quorum = len(self.witnesses), len(self.witnesses) // 2 + 1
        if len(heard) < quorum:
            words = zip(self.witnesses, self._words, strict=True)
            silence = "; ".join(f"{witness.address}: {word}" for witness, word in words if isinstance(word, str))
            return None, f"{len(heard)} of {count} {self.WITNESSES} tell the master, {quorum} must: {silence}"
        newest = max(word.location.epoch for word in heard)
        latest = {word for word in heard if word.location.epoch == newest}
        places = {word.location for word in latest}
        if len(places) > 1:
            where = " and ".join(sorted(map(str, places)))
            return None, (
                f"the {self.WITNESSES} disagree, epoch {newest} is at {where}: they must be of one and the same group"
            )
        misfit = self._misfit(max(word.replicas for word in latest)) if self.replicas else None
        return (next(iter(places)), None) if misfit is None else (None, misfit)

    def _misfit(self, known: int) -> str | None:
        """Return why a group with so many replicas can't be used with the number configured; None if it can."""
        if known > self.replicas:
            return (
                f"the {self.WITNESSES} list {known} replicas of the master, but replicas={self.replicas}: two masters "
                f"might then gather {needed_of(self.replicas)} each. Give the number of all replicas, or make them "
                f"forget those that are gone (SENTINEL RESET, CLUSTER FORGET)"
            )
        if known < needed_of(self.replicas):
            return (
                f"the {self.WITNESSES} list {known} replicas of the master, but replicas={self.replicas} needs "
                f"{needed_of(self.replicas)} to acknowledge each vote: attach them, or give the number of replicas"
            )
        return None
