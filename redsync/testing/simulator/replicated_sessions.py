"""Sessions of servers with replicas: they know `PUBLISH` and `WAIT` as clients call them.

Both follow the votes of a client, and are not commands in their own right: the connection does not record them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import hiredis

from redsync.testing.simulator.connections import Connection
from redsync.testing.simulator.sessions import NOTHING, Session, encode

if TYPE_CHECKING:
    from redsync.testing.simulator.replication import GroupServer

__all__ = ["ReplicatedSession"]


class ReplicatedSession(Session):
    """One connection to a server of a group.

    Attributes:
        wrote: The number of the latest change made over this connection; 0 if there was none.
    """

    _FOLLOWING: ClassVar[frozenset[bytes]] = frozenset({b"PUBLISH", b"WAIT"})

    def __init__(self, node: GroupServer, connection: Connection, number: int, *, ignored: bool = False) -> None:
        super().__init__(node, connection, number, ignored=ignored)
        self._server: Final = node
        self.wrote = 0

    def take(self, data: bytes) -> None:
        """Execute received commands, unless a `WAIT` is pending."""
        if self.blocked:
            self._feed(data)
        else:
            super().take(data)

    def unblock(self, count: int) -> None:
        """Answer `WAIT` with the number of replicas, and continue."""
        self.blocked = False
        self.connection.back.send(encode(count, self._resp))
        self.take(b"")

    def _execute(self, words: list[bytes]) -> Any:
        name = words[0].upper()
        if name not in self._FOLLOWING:
            reply = super()._execute(words)
            self._note_change()
            return reply
        reply = self._refusal(words)
        if reply is None:
            reply = self._wait(words) if name == b"WAIT" else self._answer(name, words)
            self._note_change()
        if reply is not NOTHING:
            assert self._out is not None, "it executes commands now"
            self._out.append(encode(reply, self._resp))
        return NOTHING

    def _note_change(self) -> None:
        if self._server.follows is None and self._server.propagate():
            self.wrote = self._server.offset

    def _wait(self, words: list[bytes]) -> Any:
        server = self._server
        if server.follows is not None:
            return hiredis.ReplyError("ERR WAIT cannot be used with replica instances.")
        needed, timeout_ms = map(int, words[1:])
        count = server.acknowledged(self.wrote)
        if count >= needed:
            return count
        self.blocked = True
        server.block(self, needed, timeout_ms / 1000)
        return NOTHING
