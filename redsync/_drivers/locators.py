"""Locators: where the server of a node is now, according to the servers that decide it.

A node behind a Sentinel group, or a voter of a cluster, has no fixed address: its server is the latest master. A
locator collects the answers of its *witnesses*, the Sentinels or some nodes of the cluster, and draws the conclusion;
it does no input or output. `watches` and `aio_watches` poll the witnesses.

**A majority of the listed witnesses must answer**, and the answer with the highest epoch counts. A single witness may
have been cut off together with a master that was replaced long ago. A client that believed such a witness would count
the votes of a server that has missed everything since.

**Their answers must be recent.** A master may be replaced without learning of it, then be named again and get its
replicas back, while a client is still connected to it under the old decision. Then its votes are acknowledged again,
and nothing on the server shows the change until a client connects under the new decision. But by then the master in
between has had its quarantine, and the witnesses knew of its decision before that. So a node with replicas takes part
in new grants only if a majority of the witnesses was asked within the quarantine, and reports no new decision.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redsync._core.replies import UNREADABLE
from redsync._core.text import outline

__all__ = ["Location", "Locator", "Witness", "Word", "needed_of"]


def needed_of(replicas: int) -> int:
    """Return how many of a group's replicas must have a vote; with the master they are a majority of the group."""
    return (replicas + 1) // 2


class Location(NamedTuple):
    """The place of a node's server.

    Attributes:
        host: The server's host name or address.
        port: Its port.
        epoch: The number of the decision that made it the master; a later one has a higher number.
    """

    host: str
    port: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Witness(NamedTuple):
    """A server that knows where a node's server is.

    Attributes:
        address: `host:port`.
        pool: A redis-py pool, for its connection class and settings.
    """

    address: str
    pool: Any


class Word(NamedTuple):
    """The answer of one witness: where the master is, and how many replicas it has or had."""

    location: Location
    replicas: int


class Locator(ABC):
    """The answers of the witnesses about one master.

    Not thread-safe, except for the attributes, which are replaced as a whole.

    Attributes:
        WITNESSES: A noun for the witnesses, for messages.
        witnesses: The witnesses.
        replicas: The configured number of replicas of the group; 0 if its votes need no acknowledgement.
        questions: The commands for a witness, sent in one write.
        present: Where the master is; None while unknown.
        excuse: Why it is unknown.
        conflict: The configuration error that keeps it unknown; None if there is none.
        words: The latest answer of each witness, or why there is none.
        confirmed_at: The time of the earliest question behind the latest majority of answers, in seconds on the
            client's clock.
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
        self.words: Final[list[Word | str]] = ["no answer yet"] * len(self.witnesses)

    @property
    def needed(self) -> int:
        """The number of replicas that must acknowledge a vote."""
        return needed_of(self.replicas)

    @property
    @abstractmethod
    def home(self) -> str:
        """A text that identifies the node, independent of the order of its witnesses."""

    @abstractmethod
    def _read(self, replies: Sequence[Any], witness: Witness) -> Word | str:
        """Return a witness's answer, or why there is none.

        Raises:
            UNREADABLE: The server is not such a witness.
        """

    @abstractmethod
    def _conflict_in(self, words: Sequence[Word | str]) -> str | None:
        """Return the error in the configuration that these answers show; None if there is none."""

    def ask(self, witness: int, now: float) -> tuple[bytes, ...]:
        """Record when a witness is asked, in seconds on the client's clock; return the questions."""
        self._asked_at[witness] = now
        return self.questions

    def note(self, witness: int, replies: Sequence[Any]) -> None:
        """Record a witness's replies to the questions.

        Raises:
            ConnectionError: The server is not such a witness.
        """
        try:
            self.words[witness] = self._read(replies, self.witnesses[witness])
        except UNREADABLE:
            told = " and ".join(map(outline, replies))
            raise ConnectionError(f"answers with {told}: it is not one of the {self.WITNESSES}") from None
        self._heard_at[witness] = self._asked_at[witness]
        self._conclude()

    def note_failure(self, witness: int, reason: str) -> None:
        """Record why a witness can't be asked."""
        self.words[witness] = reason
        self._conclude()

    def _conclude(self) -> None:
        self.conflict = self._conflict_in(self.words)
        location, reason = (None, self.conflict) if self.conflict is not None else self._conclusion()
        # The excuse first: a reader that finds no location then finds the reason.
        self.excuse = reason or ""
        self.present = location
        if location is not None:
            times = [at for word, at in zip(self.words, self._heard_at, strict=True) if isinstance(word, Word)]
            self.confirmed_at = sorted(times, reverse=True)[len(self.witnesses) // 2]

    def _conclusion(self) -> tuple[Location | None, str | None]:
        """Return where the master is, or the reason why that is unknown."""
        heard = [word for word in self.words if isinstance(word, Word)]
        count, quorum = len(self.witnesses), len(self.witnesses) // 2 + 1
        if len(heard) < quorum:
            words = zip(self.witnesses, self.words, strict=True)
            silence = "; ".join(f"{witness.address}: {word}" for witness, word in words if isinstance(word, str))
            return None, f"{len(heard)} of {count} {self.WITNESSES} name the master, {quorum} must: {silence}"
        newest = max(word.location.epoch for word in heard)
        latest = {word for word in heard if word.location.epoch == newest}
        places = {word.location for word in latest}
        if len(places) > 1:
            where = " and ".join(sorted(map(str, places)))
            return None, (
                f"the {self.WITNESSES} disagree, epoch {newest} is at {where}: they must belong to the same group"
            )
        misfit = self._misfit(max(word.replicas for word in latest)) if self.replicas else None
        return (next(iter(places)), None) if misfit is None else (None, misfit)

    def _misfit(self, known: int) -> str | None:
        """Return why a group with `known` replicas is unusable with the configured number; None if it is usable."""
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
