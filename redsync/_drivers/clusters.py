"""Voters of a cluster: each is the current owner of one fixed slot.

    redis+cluster://user:password@host:6379,host:6379,host:6379?nodes=3&replicas=1

stands for three nodes. Their slots are spread evenly, in the same way for every client that gives the same number. A
slot has one owner, so its keys move with it. A node whose slot moves changes its server, as after a failover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import hiredis

from redsync._core.cluster_nodes import masters_in, owner_in, read_cluster
from redsync._core.cluster_urls import ClusterUrl
from redsync._core.spellings import slots_of
from redsync._core.text import printable
from redsync._drivers.channels import pack
from redsync._drivers.locators import Location, Locator, Witness, Word

__all__ = ["ClusterLocator", "lent"]

_TOO_FEW: Final = "too few masters"
_NO_CLUSTER: Final = "cluster support disabled"


class ClusterLocator(Locator):
    """The answers of some nodes of a cluster about the owner of a slot.

    Attributes:
        slot: The slot.
    """

    WITNESSES = "cluster nodes"

    def __init__(self, slot: int, nodes: int, witnesses: Sequence[Witness], replicas: int) -> None:
        super().__init__(witnesses, replicas)
        self.slot: Final = slot
        self._nodes: Final = nodes
        self.questions = (pack("CLUSTER", "NODES"),)

    @property
    def home(self) -> str:
        return f"slot {self.slot}@{','.join(sorted(witness.address for witness in self.witnesses))}"

    def _read(self, replies: Sequence[Any], witness: Witness) -> Word | str:
        (reply,) = replies
        if isinstance(reply, hiredis.ReplyError):
            return printable(str(reply))
        known = read_cluster(reply)
        masters = masters_in(known)
        if len(masters) < self._nodes:
            return f"{_TOO_FEW}: {len(masters)} have slots, nodes={self._nodes}"
        owner = owner_in(masters, self.slot)
        if owner is None:
            return f"no node owns slot {self.slot}"
        replicas = sum(1 for server in known if server.master == owner.name)
        # A node that does not know its own address omits it.
        own = witness.address.rpartition(":")[0]
        return Word(Location(owner.host or own, owner.port, owner.epoch), replicas)

    def _conflict_in(self, words: Sequence[Word | str]) -> str | None:
        wrong = [word for word in words if isinstance(word, str)]
        few = [word for word in wrong if word.startswith(_TOO_FEW)]
        if len(few) > len(words) // 2:
            return f"the cluster has {few[0]}: each voter needs its own master. Give a smaller odd number of nodes"
        if len([word for word in wrong if _NO_CLUSTER in word]) > len(words) // 2:
            return "the servers are not a cluster: list each of them as a separate node, redis://host:6379/0"
        return None


def lent(url: str, client_class: type[Any]) -> list[tuple[str, Any, ClusterLocator]]:
    """Return the name of each voter of a cluster, a pool for its server, and its locator.

    Raises:
        NodeUrlError: The URL does not name a cluster.
        ValueError: redis-py does not know an option; the message may show it.
    """
    said = ClusterUrl.read(url)
    pool = client_class.from_url(said.server).connection_pool
    witnesses = [Witness(address, client_class.from_url(each).connection_pool) for address, each in said.seeds]
    voters = []
    for number, slot in enumerate(slots_of(said.nodes), 1):
        locator = ClusterLocator(slot, said.nodes, witnesses, said.replicas)
        voters.append((f"{said.seeds[0][0]}/{number} of {said.nodes}", pool, locator))
    return voters
