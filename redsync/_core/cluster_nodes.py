"""Replies to CLUSTER NODES: one server's view of its cluster, with the number of each decision.

CLUSTER SLOTS and CLUSTER SHARDS lack these numbers (`config-epoch`). CLUSTER NODES takes no further right than they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from redsync._core.text import printable

__all__ = ["ClusterServer", "masters_in", "owner_in", "read_cluster"]

_SLOTS_FROM: Final = 8
"""The index of the first field of a line that is a slot or a range of slots."""


class ClusterServer(NamedTuple):
    """One server's entry in a server's view.

    Attributes:
        name: Its 40 digits.
        host: Its name or address; empty if it never learned its own.
        port: Its port.
        is_master: True for a master, with slots or without.
        master: The name of its master; `-` if it is not a replica.
        epoch: The number of the decision that gave it its slots.
        ranges: Its slots: `7`, `0-5460`; a migrating slot appears in brackets.
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
    return [server for server in servers if server.is_master and server.ranges]


def owner_in(servers: Sequence[ClusterServer], slot: int) -> ClusterServer | None:
    """Return the master that owns a slot; None if there is none."""
    return next((server for server in masters_in(servers) if server.owns(slot)), None)
