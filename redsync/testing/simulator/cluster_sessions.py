"""Sessions of servers of a cluster: each command with keys is for one slot, and may be redirected.

Messages use channels of a slot (`SSUBSCRIBE`), and the command that a vote writes for its replicas has a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import hiredis

from redsync.testing.simulator.connections import Connection
from redsync.testing.simulator.replicated_sessions import ReplicatedSession

if TYPE_CHECKING:
    from redsync.testing.simulator.cluster_servers import ClusterServer

__all__ = ["ClusterSession"]

_SCRIPTS: Final = frozenset({b"EVAL", b"EVALSHA"})
_UNKEYED: Final = frozenset(
    b"AUTH HELLO RESET SELECT INFO CLIENT PING SCRIPT CLUSTER WAIT FLUSHALL FLUSHDB SUBSCRIBE UNSUBSCRIBE".split()
)


class ClusterSession(ReplicatedSession):
    """One connection to a server of a cluster.

    Attributes:
        place: The index of the node of the latest command with keys.
    """

    _FOLLOWING: ClassVar[frozenset[bytes]] = frozenset({b"SETNX", b"PEXPIRE", b"WAIT"})

    def __init__(self, node: ClusterServer, connection: Connection, number: int, *, ignored: bool = False) -> None:
        super().__init__(node, connection, number, ignored=ignored)
        self._cluster_server: Final = node
        self.place = 0

    def _refusal(self, words: list[bytes]) -> hiredis.ReplyError | None:
        name = words[0].upper()
        if name in _UNKEYED:
            return super()._refusal(words)
        keys = words[3 : 3 + int(words[2])] if name in _SCRIPTS else words[1:2]
        if not keys:
            return super()._refusal(words)
        place = self._cluster_server.place_of_key(keys[0])
        if place is None:
            return hiredis.ReplyError("CLUSTERDOWN no node here has the slot of that key")
        self.place = place
        refusal = super()._refusal(words)
        if refusal is None:
            refusal = self._cluster_server.redirection(place, () if name == b"SSUBSCRIBE" else keys)
        return refusal

    def _answer(self, name: bytes, words: list[bytes]) -> Any:
        match name:
            case b"CLUSTER" if words[1:] == [b"NODES"]:
                return self._cluster_server.describe_cluster()
            case b"SSUBSCRIBE":
                return self._subscribe(*words[1:], word=b"ssubscribe")
        return super()._answer(name, words)
