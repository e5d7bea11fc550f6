"""Locators: where the server of a node is now, by the word of those who decide it.

A node that a Sentinel group stands for has no fixed address: the master is whoever the Sentinels name, until they
promote another. `Locator` collects what its *witnesses*, the Sentinels, say of that, and draws the conclusion; it does
no input or output. `watches` and `aio_watches` ask the witnesses, again and again.

**A majority of the listed Sentinels must answer**, and the word with the highest epoch counts. One Sentinel alone may
have been cut off together with a master that was replaced long ago: a client that believes it would vote with a server
that has missed everything since.

**What they said must be recent.** A master that was replaced without being told may be named again, and get its
replicas back, while a client is still connected to it under the old decision: then its votes are acknowledged again,
and until somebody comes under the new decision nothing on the server tells. But by then the server between has had its
quarantine, and the Sentinels knew of its decision before that. Hence a node with replicas takes part in new grants only
if a majority of the Sentinels was asked within the quarantine, and says that nothing has been decided since.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import hiredis

from redsync._core.quorum import outline
from redsync._core.text import printable
from redsync._drivers.channels import pack

__all__ = ["Location", "Locator", "Witness", "needed_of"]

_UNKNOWN: Final = "No such master"
"""What a Sentinel says if it does not know the name of the master."""


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


class _Word(NamedTuple):
    """What one Sentinel says: where the master is, and how many replicas it has or had."""

    location: Location
    replicas: int


class Locator:
    """What the Sentinels say of one master.

    Not thread-safe, but for the attributes, which are replaced as a whole.

    Attributes:
        service: The name by which the Sentinels know the master.
        witnesses: The Sentinels.
        replicas: How many replicas the group is configured with; 0 if its votes need no acknowledgement.
        questions: What to ask a Sentinel, in one write: the number of its latest decision, and where the master is.
        present: Where the master is; None if that is not known now.
        excuse: Why it is not known.
        conflict: Why it can't be known, whatever comes: a mistake in the configuration; None if there is none.
        confirmed_at: When the Sentinels were asked that said so last, seconds on the client's clock: the earliest
            question of the latest majority.
    """

    def __init__(self, service: str, witnesses: Sequence[Witness], replicas: int) -> None:
        self.service: Final = service
        self.witnesses: Final = tuple(witnesses)
        self.replicas: Final = replicas
        # The first one tells the address too, but during a failover that of the old master with the new number.
        self.questions: Final = (
            pack("SENTINEL", "MASTER", service),
            pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service),
        )
        self.present: Location | None = None
        self.excuse = f"none of the {len(self.witnesses)} Sentinels has answered yet"
        self.conflict: str | None = None
        self.confirmed_at = -math.inf
        self._asked_at: Final = [-math.inf] * len(self.witnesses)
        self._heard_at: Final = [-math.inf] * len(self.witnesses)
        self._words: Final[list[_Word | str]] = ["no answer yet"] * len(self.witnesses)

    @property
    def needed(self) -> int:
        """How many replicas must acknowledge a vote."""
        return needed_of(self.replicas)

    @property
    def home(self) -> str:
        """What stands for the group, however its Sentinels are listed."""
        return f"{self.service}@{','.join(sorted(witness.address for witness in self.witnesses))}"

    def ask(self, witness: int, now: float) -> tuple[bytes, bytes]:
        """Record when a Sentinel is asked, seconds on the client's clock; return the questions."""
        self._asked_at[witness] = now
        return self.questions

    def note(self, witness: int, replies: Sequence[Any]) -> None:
        """Record what a Sentinel replied to the questions.

        Raises:
            ConnectionError: No Sentinel replies that.
        """
        decision, address = replies
        if isinstance(decision, hiredis.ReplyError):
            self._words[witness] = printable(str(decision))
        else:
            self._words[witness] = _read(decision, address)
            self._heard_at[witness] = self._asked_at[witness]
        self._conclude()

    def note_failure(self, witness: int, reason: str) -> None:
        """Record that a Sentinel can't be asked."""
        self._words[witness] = reason
        self._conclude()

    def _conclude(self) -> None:
        heard = [word for word in self._words if isinstance(word, _Word)]
        quorum = len(self.witnesses) // 2 + 1
        strangers = [word for word in self._words if isinstance(word, str) and _UNKNOWN in word]
        if len(strangers) >= quorum:
            self.conflict = (
                f"{len(strangers)} of {len(self.witnesses)} Sentinels know no master named {self.service!r}: name it "
                f"as in their `sentinel monitor`, in the URL after the Sentinels: "
                f"redis+sentinel://host:26379,host:26379/{self.service}/0"
            )
        newest = max((word.location.epoch for word in heard), default=0)
        latest = {word for word in heard if word.location.epoch == newest}
        places = {word.location for word in latest}
        known = max((word.replicas for word in latest), default=0)
        reason = self.conflict
        if reason is None and len(heard) < quorum:
            reason = (
                f"{len(heard)} of {len(self.witnesses)} Sentinels tell the master, {quorum} must: {self._silence()}"
            )
        elif reason is None and len(places) > 1:
            where = " and ".join(sorted(map(str, places)))
            reason = f"the Sentinels disagree, epoch {newest} is at {where}: they must watch one and the same group"
        elif reason is None and self.replicas:
            reason = self._misfit(known)
        # The excuse first: whoever finds no location then finds the reason for that.
        self.excuse = reason or ""
        self.present = next(iter(places)) if reason is None else None
        if reason is None:
            times = [at for word, at in zip(self._words, self._heard_at, strict=True) if isinstance(word, _Word)]
            self.confirmed_at = sorted(times, reverse=True)[quorum - 1]

    def _silence(self) -> str:
        words = zip(self.witnesses, self._words, strict=True)
        return "; ".join(f"{witness.address}: {word}" for witness, word in words if isinstance(word, str))

    def _misfit(self, known: int) -> str | None:
        """Return why a group with so many replicas can't be used with the number configured; None if it can."""
        if known > self.replicas:
            return (
                f"the Sentinels list {known} replicas of {self.service}, but replicas={self.replicas}: two masters "
                f"might then gather {needed_of(self.replicas)} each. Give the number of all replicas; after one was "
                f"removed, tell the Sentinels by SENTINEL RESET"
            )
        if known < needed_of(self.replicas):
            return (
                f"the Sentinels list {known} replicas of {self.service}, but replicas={self.replicas} needs "
                f"{needed_of(self.replicas)} to acknowledge each vote: attach them, or give the number of replicas"
            )
        return None


def _read(decision: Any, address: Any) -> _Word:
    """Return what a Sentinel says of a master: a list of names and values, and a list of host and port."""
    try:
        fields = dict(zip(decision[::2], decision[1::2], strict=True))
        host, port = address
        location = Location(printable(host.decode()), int(port), int(fields[b"config-epoch"]))
        return _Word(location, int(fields[b"num-slaves"]))
    except (TypeError, ValueError, KeyError, AttributeError):
        told = outline(decision), outline(address)
        raise ConnectionError(f"answers SENTINEL by {told[0]} and {told[1]}: it is no Sentinel") from None
