"""Who has what, for people: claims as nodes tell of them, and the records that tell who is behind a client's UUID.

Each client keeps its record on every node.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

__all__ = ["Claim", "ClientRecord"]

_MODES: Final = {b"r": "read", b"w": "write", b"": None}


class ClientRecord(NamedTuple):
    """One client's process.

    Attributes:
        host: The machine's name.
        pid: The process id.
        program: What runs there, for people.
        since: When the client was made: seconds since 1970 by its machine's clock.
    """

    host: str
    pid: int
    program: str
    since: float

    def pack(self) -> bytes:
        """Return the record as msgpack: a map, so that later versions can add to it."""
        import msgpack  # late: who only imports redsync need not wait for it

        # Names that the system could not decode are kept as lone surrogates, which are no UTF-8: shown as escapes.
        packed: bytes = msgpack.packb(self._asdict(), unicode_errors="backslashreplace")
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> ClientRecord | None:
        """Return what was packed; None if it is not a record, as whoever has the key may write there."""
        import msgpack

        try:
            fields = msgpack.unpackb(packed)
            return cls(str(fields["host"]), int(fields["pid"]), str(fields["program"]), float(fields["since"]))
        except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException):
            return None


class Claim(NamedTuple):
    """One holder's claim on one node.

    Attributes:
        owner: The holder.
        hold_count: How many acquisitions it has to release.
        mode: "read" or "write" of a read-write lock; None of what is held in one way only.
        remaining: Seconds until the node forgets the claim; None when it never does.
        client: Who is behind the holder, None if unknown.
    """

    owner: str
    hold_count: int
    mode: str | None
    remaining: float | None
    client: ClientRecord | None

    @classmethod
    def read(cls, words: Any) -> Claim:
        """Return what a script says of one claim: owner, hold count, mode, remaining ms (-1: for ever), record."""
        owner, count, mode, remaining_ms, record = words
        client = ClientRecord.unpack(record) if record else None
        remaining = remaining_ms / 1000 if remaining_ms >= 0 else None
        return cls(owner.decode("utf-8", "backslashreplace"), count, _MODES[mode], remaining, client)
