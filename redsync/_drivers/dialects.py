"""Dialects: how commands are spelled for a node.

A plain node gets them as they are. A voter that a cluster lends keeps all its keys in one slot: each begins with a hash
tag. It gets scripts of its own, in which the keys that scripts know by themselves have the tag as well, and messages go
over channels of that slot. A cluster spreads a plain PUBLISH to all its servers, so one voter's message would look like
one of each.
"""

from __future__ import annotations

import hashlib
import re
from binascii import crc_hqx
from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any, Final

from redsync._core.effects import Command
from redsync._core.scripts import Script
from redsync._drivers.channels import pack
from redsync._drivers.requests import Request, pack_command

__all__ = ["PLAIN", "ClusterDialect", "Dialect", "dialect_of", "tag_of"]

SLOTS: Final = 16384

_VOTES: Final = b"redsync:wake:votes"
"""A channel that nobody listens to; users that may wake waiters may publish here."""

_VOTE_KEY: Final = b"redsync_vote"
_A_MONTH_MS: Final = b"2592000000"

_OWN_KEY: Final = re.compile(rb"'(redsync_birth|redsync:client:)'")
_PUBLISH: Final = re.compile(rb"redis\.call\('publish', ([^,]+), ([^\n]*)")


class Dialect:
    """Commands as they are.

    Attributes:
        touch: Commands that make a connection write something that replicas get, and need no memory.
    """

    touch: tuple[bytes, ...] = (pack("PUBLISH", _VOTES, b""),)

    def touched(self, replies: Sequence[Any]) -> bool:
        """Whether the replies to `touch` say that something was written."""
        return isinstance(replies[-1], int)

    def key(self, key: bytes) -> bytes:
        """Return a key as the node has it."""
        return key

    def script(self, script: Script) -> Script:
        """Return a script as the node has it."""
        return script

    def data(self, request: Request) -> bytes:
        """Return the bytes of a request."""
        return request.data

    def subscription(self, channel: bytes) -> bytes:
        """Return the command that subscribes to what scripts publish over a channel."""
        return pack("SUBSCRIBE", channel)


PLAIN: Final = Dialect()


class ClusterDialect(Dialect):
    """Commands about keys of one slot.

    Args:
        slot: The slot.
    """

    def __init__(self, slot: int) -> None:
        self._tag: Final = b"{%b}" % tag_of(slot)
        # A cluster's PUBLISH is not replicated, and its SPUBLISH neither. PEXPIRE needs no memory, but a key.
        key = self.key(_VOTE_KEY)
        self.touch = pack("SETNX", key, b"1"), pack("PEXPIRE", key, _A_MONTH_MS)
        self._scripts: Final[dict[Script, Script]] = {}

    def touched(self, replies: Sequence[Any]) -> bool:
        return bool(replies[-1] == 1)

    def key(self, key: bytes) -> bytes:
        return self._tag + key

    def script(self, script: Script) -> Script:
        ours = self._scripts.get(script)
        if ours is None:
            source = self._tagged(script.source)
            sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
            self._scripts[script] = ours = Script(script.name, source, sha)
        return ours

    def _tagged(self, source: bytes) -> bytes:
        """Return a script whose own keys have the tag, and whose messages name keys without it."""
        source = _OWN_KEY.sub(rb"'%b\1'" % self._tag, source)
        untagged = b"string.sub(KEYS[1], %d)" % (len(self._tag) + 1)
        return _PUBLISH.sub(
            lambda found: (
                b"redis.call('spublish', '%b' .. %b, %b" % (self._tag, found[1], found[2].replace(b"KEYS[1]", untagged))
            ),
            source,
        )

    def data(self, request: Request) -> bytes:
        command = request.command
        if command is None:
            return request.data
        keys = tuple(map(self.key, command.keys))
        return pack_command(Command(self.script(command.script), keys, command.args))

    def subscription(self, channel: bytes) -> bytes:
        return pack("SSUBSCRIBE", self.key(channel))


@cache
def dialect_of(slot: int) -> ClusterDialect:
    """Return the dialect of a slot: one for all clients, because each has scripts of its own, 130 kB of them."""
    return ClusterDialect(slot)


@cache
def tag_of(slot: int) -> bytes:
    """Return what stands in braces before all keys of a slot: the first of a series that the slot gets."""
    return next(tag for number in count() if crc_hqx(tag := b"rs%d" % number, 0) % SLOTS == slot)
