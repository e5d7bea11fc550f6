"""Claims and clients, for people: claims as nodes report them, and the records that explain a client's UUID.

Each client keeps its record on every node.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack

__all__ = [
    "ELLIPSIS",
    "LAYOUT",
    "Claim",
    "ClientRecord",
    "contender_of",
    "cut",
    "digests_of",
    "is_ours",
    "owner_of",
    "short",
    "told_claim",
    "who",
]

_UUID: Final = 36  # characters of a UUID; the first eight are enough to tell clients apart
ELLIPSIS: Final = "..."

_CLAIM: Final = rb"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+):[0-9]+"

_REDISSON: Final = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+"

LAYOUT: Final = 1
"""The layout of keys on the nodes; it grows when older releases would misread one."""

LONGEST: Final = 500
"""The most characters kept of a host's or program's name."""

MOST_HELD: Final = 200
"""Of how many holds a client tells since when it has them."""

_DIGEST: Final = 4
"""The size of a node's digest in bytes."""

_MOST_NODES: Final = 100

_MODES: Final = {b"r": "read", b"w": "write", b"": None}


class ClientRecord(NamedTuple):
    """One client's process.

    Attributes:
        host: The machine's name.
        pid: The process id.
        program: The program that runs there, for people.
        since: The instant at which the client was made: seconds since 1970 by its machine's clock.
        nodes: A digest for each node of its list; empty if the record has none.
        held: The claims of its oldest holds, without the client's id, and since when it has them: seconds since 1970 by
            its machine's clock. Younger holds come with a later announcement.
        layout: The layout of keys that it uses, see `docs/protocol.md`.
    """

    host: str
    pid: int
    program: str
    since: float
    nodes: tuple[str, ...] = ()
    held: tuple[tuple[bytes, float], ...] = ()
    layout: int = LAYOUT

    def pack(self) -> bytes:
        """Return the record as msgpack: a map, so that later versions can add to it."""
        # Names that the system could not decode contain lone surrogates, which UTF-8 can't encode. So write escapes.
        fields = {name: value for name, value in self._asdict().items() if name != "held" or value}
        packed: bytes = msgpack.packb(fields, unicode_errors="backslashreplace")
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> ClientRecord | None:
        """Return the packed record; None if it is not one: other programs may write to the key."""
        try:
            fields = msgpack.unpackb(packed)
            host, pid, program = str(fields["host"]), int(fields["pid"]), str(fields["program"])
            nodes = tuple(str(node)[: 2 * _DIGEST] for node in list(fields.get("nodes", ()))[:_MOST_NODES])
            told = list(fields.get("held", ()))[:MOST_HELD]
            held = tuple((claim[:LONGEST], float(since)) for claim, since in told if isinstance(claim, bytes))
            layout = int(fields.get("layout", 1))
            record = cls(host[:LONGEST], pid, program[:LONGEST], float(fields["since"]), nodes, held, layout)
            return record if 0 <= pid < 2**63 and math.isfinite(record.since) else None
        except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException):
            return None


def digests_of(homes: Sequence[str]) -> tuple[str, ...]:
    """Return the digest of each node, for comparing lists without revealing addresses."""
    return tuple(sorted(hashlib.blake2b(home.encode(), digest_size=_DIGEST).hexdigest() for home in homes))


def owner_of(claim: bytes) -> str:
    """Return the owner of a claim on a lock: our claims without their number, other libraries' claims unchanged."""
    ours = re.fullmatch(_CLAIM, claim)
    return (claim if ours is None else ours[1]).decode("utf-8", "backslashreplace")


def contender_of(claim: bytes) -> bytes:
    """Return who competes for a lock by that claim: the claim, but one name for all of Redisson.

    A RedLock or MultiLock of Redisson has another UUID on each node, so its claims look like those of several owners.
    """
    return b"redisson" if re.fullmatch(_REDISSON, claim) else claim


def is_ours(claim: bytes) -> bool:
    """Return whether a claim has the form of ours, `<client>:<serial>:<number>`."""
    return re.fullmatch(rb"[^:]+:[0-9]+:[0-9]+", claim) is not None


def told_claim(claim: bytes) -> bytes:
    """Return a claim as its client's record has it: without the id of the client, and a mode before that."""
    return b":".join(claim.rsplit(b":", 2)[1:])


class Claim(NamedTuple):
    """One holder's claim on one node.

    Attributes:
        owner: The holder.
        hold_count: The number of acquisitions that it has to release.
        mode: "read" or "write" for a read-write lock; None for other kinds.
        remaining: Seconds until the node forgets the claim; None if it never does.
        client: The record of the holder's client; None if unknown.
        raw: The claim as the node keeps it.
    """

    owner: str
    hold_count: int
    mode: str | None
    remaining: float | None
    client: ClientRecord | None
    raw: bytes

    @property
    def contender(self) -> str | bytes:
        """Its owner, but one name for all of Redisson, see `contender_of`."""
        return self.owner if is_ours(self.raw) else contender_of(self.raw)

    @property
    def held_since(self) -> float | None:
        """Since when it is held, seconds since 1970 by the holder's clock; None if its client has not told that yet."""
        told = dict(self.client.held).get(told_claim(self.raw)) if self.client else None
        return told if told is not None and math.isfinite(told) else None

    @classmethod
    def read(cls, words: Any, *, by_thread: bool) -> Claim:
        """Return a claim from a script's words: claim, hold count, mode, remaining ms (-1: without limit), record.

        A thread or task holds it if `by_thread`, else an object.

        Raises:
            ValueError: None of our scripts replies so.
        """
        raw, count, mode, remaining_ms, record = words
        if (type(raw), type(count), type(remaining_ms)) != (bytes, int, int):
            raise ValueError(f"{words!r:.80} is not a claim")
        client = ClientRecord.unpack(record) if record else None
        remaining = remaining_ms / 1000 if remaining_ms >= 0 else None
        owner = owner_of(raw) if by_thread else raw.decode("utf-8", "backslashreplace")
        return cls(owner, count, _MODES[mode], remaining, client, raw)


# As people see owners.


def who(owner: str, client: ClientRecord | None) -> str:
    """Return an owner for people: its process, or else its id."""
    return f"{client.host}:{client.pid}" if client else cut(owner)


def short(owner: str) -> str:
    """Return an owner's id for people, with its UUID shortened."""
    client, _, serial = owner.partition(":")
    return cut(f"{client[:8]}:{serial}" if len(client) == _UUID else owner)


def cut(owner: str) -> str:
    """Return an owner's id for people: its beginning, if it is some other program's long value."""
    return owner if len(owner) <= 256 else owner[:64] + ELLIPSIS
