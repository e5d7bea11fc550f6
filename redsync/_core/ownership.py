"""Owners and claims: identities that are never mistaken for one another.

An owner is `<client uuid>:<serial>`. The serial numbers the threads (tasks) of one process and, unlike the thread ids
of an operating system, is never reused: a new thread can't inherit the holds of one that ended.

Nodes keep a *claim* for an owner, `<client uuid>:<serial>:<number>`, a field of a hash as in Redisson's RLock, so that
Java and Python could share locks. Each outermost hold has its own number, and so has each try after a rollback. A late
command, over a connection that was given up long ago, can only touch the claim for which it was sent: nothing rests on
the order between two connections. Numbers only grow. By the numbers, nodes recognize a command that is older than its
owner's place in a queue; places are kept under the owner alone.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from redsync._core.keys import HoldKey, wake_channel

if TYPE_CHECKING:
    from redsync._core.holds import HoldState

__all__ = ["Owner"]


class Owner:
    """One thread or task of one client. Compared by identity: the driver keeps exactly one object for each.

    Attributes:
        client_id: The client's UUID as text.
        serial: The thread's or task's number within its process, from 1.
        wire: The owner in the nodes' queues, UTF-8.
        channel: The channel over which nodes wake this owner.
        holds: Its holds, lost or not, by `LockKeys.hold`; see `HoldTable`.
        object: The object to which its hold belongs; None for a thread or task.
        ended: True once the client knows that it has ended; see `HoldTable.orphan`.
    """

    __slots__ = ("channel", "client_id", "ended", "holds", "object", "serial", "wire")

    def __init__(self, client_id: str, serial: int) -> None:
        self.client_id: Final = client_id
        self.serial: Final = serial
        self.wire: Final = f"{client_id}:{serial}".encode()
        self.channel: Final = wake_channel(client_id)
        self.holds: Final[dict[HoldKey, HoldState]] = {}
        self.object: weakref.ref[object] | None = None
        self.ended = False

    @property
    def is_gone(self) -> bool:
        """True if it has ended, or its object was dropped: Python swallows a finalizer that is interrupted."""
        return self.ended or (self.object is not None and self.object() is None)

    def claim(self, number: int) -> bytes:
        """Return the owner's claim of that number, as nodes store it."""
        return b"%b:%d" % (self.wire, number)

    def __str__(self) -> str:
        return f"{self.client_id}:{self.serial}"
