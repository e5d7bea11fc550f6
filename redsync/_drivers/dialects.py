"""Dialects: how drivers encode commands for a node (`spellings`), and other differences between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redsync._core.spellings import Spelling
from redsync._drivers.channels import pack
from redsync._drivers.requests import Request, pack_command

__all__ = ["PLAIN", "ClusterDialect", "Dialect"]

_VOTES: Final = b"redsync:wake:votes"
"""A channel without listeners; users that may wake waiters may publish to it."""

_VOTE_KEY: Final = b"redsync_vote"
_A_MONTH_MS: Final = b"2592000000"


class Dialect(Spelling):
    """Unchanged commands.

    Attributes:
        touch: Commands that make a connection write something that replicas get; they need no memory.
    """

    touch: tuple[bytes, ...] = (pack("PUBLISH", _VOTES, b""),)

    def touched(self, replies: Sequence[Any]) -> bool:
        """Return True if the replies to `touch` prove a write."""
        return isinstance(replies[-1], int)

    def data(self, request: Request) -> bytes:
        """Return the bytes of a request."""
        return request.data

    def subscription(self, channel: bytes) -> bytes:
        """Return the command that subscribes to a channel to which scripts publish."""
        return pack("SUBSCRIBE", channel)


PLAIN: Final = Dialect()


class ClusterDialect(Dialect):
    """Commands for keys of one slot."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        # A cluster replicates neither PUBLISH nor SPUBLISH. PEXPIRE needs no memory, but a key.
        key = self.key(_VOTE_KEY)
        self.touch = pack("SETNX", key, b"1"), pack("PEXPIRE", key, _A_MONTH_MS)

    def touched(self, replies: Sequence[Any]) -> bool:
        return bool(replies[-1] == 1)

    def data(self, request: Request) -> bytes:
        return request.data if request.command is None else pack_command(self.command(request.command))

    def subscription(self, channel: bytes) -> bytes:
        return pack("SSUBSCRIBE", self.key(channel))
