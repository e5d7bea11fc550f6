"""The spelling of keys on a node.

A plain node has them unchanged. A voter of a cluster keeps all its keys in one slot: each begins with a hash tag, such
as `{rs7979}`. The scripts are the same for all nodes. They know a voter by the tag before KEYS[1], put it before the
keys that they spell themselves, and send messages over channels of that slot (`_lua/_tag.lua`, `_lua/_wake.lua`). So no
key of a plain node may begin with such a tag: `keys` refuses names and prefixes that would make one.
"""

from __future__ import annotations

from binascii import crc_hqx
from functools import cache
from itertools import count
from typing import Final

from redsync._core.effects import Command

__all__ = ["SLOTS", "Spelling", "slots_of", "tag_of"]

SLOTS: Final = 16384


class Spelling:
    """The spelling of keys on a plain node, or on the voter that has a slot.

    Attributes:
        tag: The text with which all keys begin; empty on a plain node.
    """

    def __init__(self, slot: int | None = None) -> None:
        self.tag: Final = b"" if slot is None else b"{%b}" % tag_of(slot)

    def key(self, key: bytes) -> bytes:
        """Return the node's spelling of a key."""
        return self.tag + key

    def plain(self, key: bytes) -> bytes:
        """Return the plain spelling of the node's key."""
        return key.removeprefix(self.tag)

    def command(self, command: Command) -> Command:
        """Return a command with the node's spelling of its keys."""
        return Command(command.script, tuple(map(self.key, command.keys)), command.args)


@cache
def tag_of(slot: int) -> bytes:
    """Return the text in braces before all keys of a slot: the first of a series that hashes to the slot."""
    return next(tag for number in count() if crc_hqx(tag := b"rs%d" % number, 0) % SLOTS == slot)


def slots_of(nodes: int) -> list[int]:
    """Return one slot for each of that many voters: the middles of equal parts."""
    return [(2 * index + 1) * SLOTS // (2 * nodes) for index in range(nodes)]
