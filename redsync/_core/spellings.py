"""The spelling of keys and scripts on a node.

A plain node has them unchanged. A voter of a cluster keeps all its keys in one slot: each begins with a hash tag. It
gets its own scripts, in which the keys that scripts spell themselves have the tag too, and messages go over channels of
that slot. A cluster spreads a plain PUBLISH to all its servers, so one voter's message would look like all voters'.
"""

from __future__ import annotations

import hashlib
import re
from binascii import crc_hqx
from functools import cache
from itertools import count
from typing import Final

from redsync._core.effects import Command
from redsync._core.scripts import Script

__all__ = ["SLOTS", "Spelling", "Tagged", "slots_of", "tag_of"]

SLOTS: Final = 16384

_OWN_KEY: Final = rb"'(redsync_birth|redsync:client:)'"
_PUBLISH: Final = rb"redis\.call\('publish', ([^,]+), ([^\n]*)"


class Spelling:
    """The spelling of a plain node, which changes nothing."""

    def key(self, key: bytes) -> bytes:
        """Return the node's spelling of a key."""
        return key

    def plain(self, key: bytes) -> bytes:
        """Return the plain spelling of the node's key."""
        return key

    def script(self, script: Script) -> Script:
        """Return the node's version of a script."""
        return script

    def command(self, command: Command) -> Command:
        """Return the node's version of a command."""
        return command


class Tagged(Spelling):
    """The spelling of a voter whose keys are all in one slot."""

    def __init__(self, slot: int) -> None:
        self._tag: Final = b"{%b}" % tag_of(slot)
        self._scripts: Final[dict[Script, Script]] = {}

    def key(self, key: bytes) -> bytes:
        return self._tag + key

    def plain(self, key: bytes) -> bytes:
        return key.removeprefix(self._tag)

    def script(self, script: Script) -> Script:
        ours = self._scripts.get(script)
        if ours is None:
            source = self._tagged(script.source)
            sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
            self._scripts[script] = ours = Script(script.name, source, sha)
        return ours

    def command(self, command: Command) -> Command:
        return Command(self.script(command.script), tuple(map(self.key, command.keys)), command.args)

    def _tagged(self, source: bytes) -> bytes:
        """Return a script whose own keys have the tag, and whose messages name keys without the tag."""
        source = re.sub(_OWN_KEY, rb"'%b\1'" % self._tag, source)
        untagged = b"string.sub(KEYS[1], %d)" % (len(self._tag) + 1)
        return re.sub(
            _PUBLISH,
            lambda found: (
                b"redis.call('spublish', '%b' .. %b, %b" % (self._tag, found[1], found[2].replace(b"KEYS[1]", untagged))
            ),
            source,
        )


@cache
def tag_of(slot: int) -> bytes:
    """Return the text in braces before all keys of a slot: the first of a series that hashes to the slot."""
    return next(tag for number in count() if crc_hqx(tag := b"rs%d" % number, 0) % SLOTS == slot)


def slots_of(nodes: int) -> list[int]:
    """Return one slot for each of that many voters: the middles of equal parts."""
    return [(2 * index + 1) * SLOTS // (2 * nodes) for index in range(nodes)]
