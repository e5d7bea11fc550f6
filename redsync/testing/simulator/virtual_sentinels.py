"""Virtual Sentinels: servers that answer where a group's master is, each as far as it knows.

They decide nothing: the group does, and informs each at its own time. During a failover a Sentinel answers the first
question with the number of the new decision and the address of the old master; only the second question reveals the new
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import hiredis

from redsync.testing.simulator.network import ACCEPTED, CONNECT, Connection, Mark
from redsync.testing.simulator.sessions import encode
from redsync.testing.simulator.values import Status

if TYPE_CHECKING:
    from redsync.testing.simulator.replication import GroupServer

__all__ = ["Knowledge", "VirtualSentinel"]

_NOTHING: Final = object()


class Knowledge(NamedTuple):
    """A Sentinel's knowledge.

    Attributes:
        epoch: The number of the latest decision.
        master: The master by that decision.
        before: The master before that.
        replicas: The number of listed replicas.
    """

    epoch: int
    master: GroupServer
    before: GroupServer
    replicas: int


class VirtualSentinel:
    """One Sentinel.

    Attributes:
        name: Its name in URLs.
        service: The name by which it knows the master.
        knows: Its knowledge.
        up: True if it answers.
    """

    def __init__(self, name: str, service: str, knows: Knowledge) -> None:
        self.name: Final = name
        self.service: Final = service
        self.knows = knows
        self.up = True
        self._readers: Final[dict[Connection, Any]] = {}

    def crash(self) -> None:
        """End, with all connections."""
        self.up = False
        for connection in list(self._readers):
            connection.reset()
        self._readers.clear()

    def restart(self) -> None:
        """Come back, with its old knowledge."""
        self.up = True

    def receive(self, connection: Connection, message: bytes | Mark) -> None:
        """Receive a message from the network."""
        if not self.up:
            connection.reset()
        elif message is CONNECT:
            self._readers[connection] = hiredis.Reader(notEnoughData=_NOTHING)
            connection.back.send(ACCEPTED)
        elif isinstance(message, bytes) and connection in self._readers:
            reader = self._readers[connection]
            reader.feed(message)
            replies = []
            while (words := reader.gets()) is not _NOTHING:
                replies.append(encode(self._answer([word.upper() for word in words[:2]], words[2:]), 2))
            if replies:
                connection.back.send(b"".join(replies))
        elif not isinstance(message, bytes):
            self._readers.pop(connection, None)

    def _answer(self, verb: list[bytes], words: list[bytes]) -> Any:
        tell = _VERBS.get(b" ".join(verb))
        if tell is None:
            return Status(b"OK")
        if words != [self.service.encode()]:
            return hiredis.ReplyError("ERR No such master with that name")
        return tell(self)

    def _describe(self) -> list[bytes]:
        knows = self.knows
        told = {
            "name": self.service,
            "ip": knows.before.name,
            "port": "6379",
            "num-slaves": str(knows.replicas),
            "config-epoch": str(knows.epoch),
        }
        return [word.encode() for pair in told.items() for word in pair]

    def _address(self) -> list[bytes]:
        return [self.knows.master.name.encode(), b"6379"]


_VERBS: Final[dict[bytes, Callable[[VirtualSentinel], list[bytes]]]] = {
    b"SENTINEL MASTER": VirtualSentinel._describe,
    b"SENTINEL GET-MASTER-ADDR-BY-NAME": VirtualSentinel._address,
}
