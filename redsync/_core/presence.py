"""Claims and clients, for people: claims as nodes report them, and the records that explain a client's UUID.

Each client keeps its record on every node.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

__all__ = ["Claim", "ClientRecord", "digests_of", "owner_of"]

_CLAIM: Final = re.compile(rb"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+):[0-9]+")

LONGEST: Final = 500
"""How many characters of a host's or program's name are kept."""

_DIGEST: Final = 4
"""The size of a node's digest in bytes."""

_MOST_NODES: Final = 100

_MODES: Final = {b"r": "read", b"w": "write", b"": None}


class ClientRecord(NamedTuple):
    """One client's process.

    Attributes:
        host: The machine's name.
        pid: The process id.
        program: What runs there, for people.
        since: When the client was made: seconds since 1970 by its machine's clock.
        nodes: A digest for each node of its list; empty if it does not tell.
    """

    host: str
    pid: int
    program: str
    since: float
    nodes: tuple[str, ...] = ()

    def pack(self) -> bytes:
        """Return the record as msgpack: a map, so that later versions can add to it."""
        import msgpack  # late: so that a bare `import redsync` does not wait for it

        # Names that the system could not decode contain lone surrogates, which UTF-8 can't encode: write escapes.
        packed: bytes = msgpack.packb(self._asdict(), unicode_errors="backslashreplace")
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> ClientRecord | None:
        """Return the packed record; None if it is no record, because other programs may write to the key."""
        import msgpack

        try:
            fields = msgpack.unpackb(packed)
            host, pid, program = str(fields["host"]), int(fields["pid"]), str(fields["program"])
            nodes = tuple(str(node)[: 2 * _DIGEST] for node in list(fields.get("nodes", ()))[:_MOST_NODES])
            record = cls(host[:LONGEST], pid, program[:LONGEST], float(fields["since"]), nodes)
            return record if 0 <= pid < 2**63 and math.isfinite(record.since) else None
        except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException):
            return None


def digests_of(homes: Sequence[str]) -> tuple[str, ...]:
    """Return the digest of each node, by which lists can be compared and which tells no address."""
    return tuple(sorted(hashlib.blake2b(home.encode(), digest_size=_DIGEST).hexdigest() for home in homes))


def owner_of(claim: bytes) -> str:
    """Return the owner of a claim on a lock: our claims without their number, other libraries' claims as they are."""
    ours = _CLAIM.fullmatch(claim)
    return (claim if ours is None else ours[1]).decode("utf-8", "backslashreplace")


class Claim(NamedTuple):
    """One holder's claim on one node.

    Attributes:
        owner: The holder.
        hold_count: How many acquisitions it has to release.
        mode: "read" or "write" for a read-write lock; None for other kinds.
        remaining: Seconds until the node forgets the claim; None when it never does.
        client: The record of the holder's client, None if unknown.
        raw: The claim as the node keeps it.
    """

    owner: str
    hold_count: int
    mode: str | None
    remaining: float | None
    client: ClientRecord | None
    raw: bytes

    @classmethod
    def read(cls, words: Any, *, by_thread: bool) -> Claim:
        """Return a claim from a script's words: claim, hold count, mode, remaining ms (-1: for ever), record.

        Args:
            words: The script's words for one claim.
            by_thread: Whether a thread or task holds it, not an object.

        Raises:
            ValueError: None of our scripts replies that.
        """
        raw, count, mode, remaining_ms, record = words
        if (type(raw), type(count), type(remaining_ms)) != (bytes, int, int):
            raise ValueError(f"{words!r:.80} tells of no claim")
        client = ClientRecord.unpack(record) if record else None
        remaining = remaining_ms / 1000 if remaining_ms >= 0 else None
        owner = owner_of(raw) if by_thread else raw.decode("utf-8", "backslashreplace")
        return cls(owner, count, _MODES[mode], remaining, client, raw)
