"""Clusters whose masters serve as nodes: the tags of keys on a voter, and replies to CLUSTER NODES.

A plain node has keys unchanged. A voter of a cluster keeps all its keys in one slot: each begins with a hash tag, such
as `{rs7979}`. The scripts are the same for all nodes. They know a voter by the tag before KEYS[1], put it before the
keys that they make themselves, and send messages over channels of that slot (`_lua/_tag.lua`, `_lua/_wake.lua`). So no
key of a plain node may begin with such a tag: `keys` refuses names and prefixes that would make one.

A reply to CLUSTER NODES is one server's view of its cluster, with the number of each decision (`config-epoch`), which
CLUSTER SLOTS and CLUSTER SHARDS lack.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Final, NamedTuple

from redsync._core.scripts import Command
from redsync._core.text import printable

__all__ = ["SLOTS", "ClusterServer", "KeyTagging", "masters_in", "owner_in", "read_cluster", "slots_of", "tag_of"]

SLOTS: Final = 16384

_SLOTS_FROM: Final = 8
"""The index of the first field of a line that is a slot or a range of slots."""


class KeyTagging:
    """The tagging of keys on a plain node, or on the voter that has a slot.

    Attributes:
        tag: The text with which all keys begin; empty on a plain node.
    """

    def __init__(self, slot: int | None = None) -> None:
        self.tag: Final = b"" if slot is None else b"{%b}" % tag_of(slot)

    def key(self, key: bytes) -> bytes:
        """Return the node's key for a plain one."""
        return self.tag + key

    def plain(self, key: bytes) -> bytes:
        """Return the plain key for one of the node's."""
        return key.removeprefix(self.tag)

    def command(self, command: Command) -> Command:
        """Return a command with the node's keys."""
        return Command(command.script, tuple(map(self.key, command.keys)), command.args)


@cache
def tag_of(slot: int) -> bytes:
    """Return the text in braces before all keys of a slot: the first of a series that hashes to the slot."""
    return next(tag for number in count() if crc_hqx(tag := b"rs%d" % number, 0) % SLOTS == slot)


def slots_of(nodes: int) -> list[int]:
    """Return one slot for each of that many voters: the middles of equal parts."""
    return [(2 * index + 1) * SLOTS // (2 * nodes) for index in range(nodes)]


class ClusterServer(NamedTuple):
    """One server's entry in a server's view.

    Attributes:
        name: Its identity, 40 hexadecimal digits.
        host: Its name or address; empty if it never learned its own.
        port: Its port.
        is_master: True for a master, with slots or without.
        master: The name of its master; `-` if it is not a replica.
        epoch: The number of the decision that gave it its slots.
        ranges: Its slots: `7`, `0-5460`; slots on their way to or from it appear in brackets, too.
    """

    name: str
    host: str
    port: int
    is_master: bool
    master: str
    epoch: int
    ranges: tuple[str, ...]

    def owns(self, slot: int) -> bool:
        """Return whether it owns that slot."""
        for each in self.ranges:
            first, _, last = each.partition("-")
            if not each.startswith("[") and int(first) <= slot <= int(last or first):
                return True
        return False


def read_cluster(text: bytes) -> list[ClusterServer]:
    """Return the servers that a reply to CLUSTER NODES lists.

    Raises:
        AttributeError, IndexError, ValueError: It is not such a reply.
    """
    return [_read(printable(line).split()) for line in text.decode("utf-8", "replace").splitlines() if line]


def _read(fields: Sequence[str]) -> ClusterServer:
    host, _, port = fields[1].partition("@")[0].rpartition(":")
    is_master, ranges = "master" in fields[2].split(","), tuple(fields[_SLOTS_FROM:])
    return ClusterServer(fields[0], host, int(port), is_master, fields[3], int(fields[6]), ranges)


def masters_in(servers: Sequence[ClusterServer]) -> list[ClusterServer]:
    """Return the masters that have slots."""
    return [server for server in servers if server.is_master and any(each[0] != "[" for each in server.ranges)]


def owner_in(servers: Sequence[ClusterServer], slot: int) -> ClusterServer | None:
    """Return the master that owns a slot; None if there is none."""
    return next((server for server in masters_in(servers) if server.owns(slot)), None)
