"""Client records: who is behind a client's UUID. Each client keeps one on every node, for `inspect` to show."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ClientRecord"]


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
