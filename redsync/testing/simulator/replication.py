"""Servers of a group: a master, and replicas that apply its commands in order, later.

Replication is asynchronous. A replica that begins to follow a server first receives that server's whole state, then
each change; its earlier data is gone. It acknowledges the changes that it has applied, and that takes time, too.
Between two servers that can't reach each other nothing gets through: the replica starts over later.

A server counts commands that change data, and messages. `WAIT` counts the replicas that have acknowledged the last
change of its own connection; a command that changed nothing does not count. The server sends messages to subscribers at
once, before any replica has the changes that they announce.

A replaced master continues as master until it learns of that. A server that becomes a replica ends its clients'
connections, and refuses commands that write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import hiredis

from redsync._core.scripts import Script
from redsync.testing.simulator.network import Connection
from redsync.testing.simulator.nodes import VirtualNode
from redsync.testing.simulator.sessions import ReplicatedSession, Session
from redsync.testing.simulator.values import Entry

if TYPE_CHECKING:
    from redsync.testing.simulator.groups import Group
    from redsync.testing.simulator.letters import Letter

__all__ = ["GroupServer", "Stream"]

_READ_ONLY: Final = "READONLY You can't write against a read only replica."

_HUNG: Final = 0.01
"""Seconds after which a hung server checks again whether a wait is over."""


class Stream:
    """The changes that a replica gets from the server it follows, in order.

    Attributes:
        acked: The latest change that the replica has acknowledged, as the server knows; -1: none yet.
        open: True while the replica accepts changes.
    """

    def __init__(self, master: GroupServer, replica: GroupServer) -> None:
        self._master: Final = master
        self._replica: Final = replica
        self._queue: Final[deque[tuple[int, dict[bytes, Entry]]]] = deque()
        self._due = 0
        self._arrives = self._tells = 0.0
        self.acked = -1
        self.open = True
        for other in [other for other in master.streams if other._replica is replica]:
            del master.streams[other]
        master.streams[self] = None
        self.send(master.offset, master.store.copy())

    def send(self, offset: int, state: dict[bytes, Entry]) -> None:
        """Send a change, with the state after it."""
        self._queue.append((offset, state))
        self._arrives = self._later(self._arrives, self._arrive)

    def _later(self, earliest: float, action: Any, *args: Any) -> float:
        """Call `action` after a while, and not before `earliest`; return when."""
        group = self._master.group
        when = max(group.sim.now + group.lag(), earliest)
        group.sim.timeline.schedule(when, None, action, args)
        return when

    def _arrive(self) -> None:
        self._due += 1
        self.apply()

    def apply(self) -> None:
        """Apply the changes that have arrived, unless the replica hangs."""
        replica, group = self._replica, self._master.group
        while self._due and self.open and replica.state == "up":
            if not group.are_connected(self._master, replica):
                self.open = False
                return
            self._due -= 1
            offset, state = self._queue.popleft()
            replica.store.load(state)
            replica.offset = offset
            self._tells = self._later(self._tells, self._acknowledge, offset)

    def _acknowledge(self, offset: int) -> None:
        master = self._master
        if self in master.streams and master.group.are_connected(master, self._replica):
            self.acked = offset
            master.look_at_waits()

    def leave(self) -> None:
        """End it from the replica's side; the server learns of that after all acknowledgements."""
        if self.open:
            self.open = False
            self._later(self._tells, self._end)

    def _end(self) -> None:
        # A server that was cut off continues to believe in its replicas.
        if self._master.group.are_connected(self._master, self._replica):
            self._master.streams.pop(self, None)


class GroupServer(VirtualNode):
    """One server of a group.

    Attributes:
        group: The group.
        follows: The server that it replicates; None for a master.
        offset: The number of its latest change.
        streams: The streams to its replicas, as far as it knows.
        stream: The stream from the server that it follows; None if there is none.
    """

    _SESSION: ClassVar[Any] = ReplicatedSession

    def __init__(self, group: Group, letter: str, scripts: Mapping[str, Script]) -> None:
        super().__init__(group.sim, group.index, scripts, letter)
        self.group: Final = group
        self._server = self.name
        self.follows: GroupServer | None = None
        self._history = next(group.histories)
        self.offset = 0
        self.streams: Final[dict[Stream, None]] = {}
        self.stream: Stream | None = None
        self._published = False
        self._shipped = self.store.copy()
        self._waits: Final[dict[ReplicatedSession, int]] = {}

    def __repr__(self) -> str:
        return f"<GroupServer {self.name}>"

    # Serving.

    def execute(self, session: Session, script: Script, words: Sequence[bytes], sent: Letter | None) -> Any:
        """Execute a script, and return its reply; a replica refuses."""
        if self.follows is not None:
            refusal = hiredis.ReplyError(_READ_ONLY)
            self.note_refused(session, sent, refusal)
            return refusal
        # Checkers look at the server that has executed a script, replaced or not.
        nodes, place = self._sim.nodes, self.place_of(session)
        present, nodes[place] = nodes[place], self.as_node(place)
        try:
            return super().execute(session, script, words, sent)
        finally:
            nodes[place] = present

    def as_node(self, _place: int) -> VirtualNode:
        """Return the server as checkers see it where it serves the node with that index."""
        return self

    def describe(self) -> bytes:
        """Return the server's description of itself, as INFO does."""
        role = "role:master\r\n"
        if self.follows is not None:
            role = f"role:slave\r\nmaster_host:{self.follows.name}\r\nmaster_port:6379\r\n"
        return super().describe() + f"# Replication\r\n{role}master_replid:{self._history:08x}{0:032x}\r\n".encode()

    def _publish(self, channel: bytes, message: bytes) -> int:
        self._published = True
        return super()._publish(channel, message)

    def propagate(self) -> bool:
        """Send changes to all replicas; return whether there are any."""
        if not (self._published or self.store.differs(self._shipped)):
            return False
        self._published = False
        self._shipped = state = self.store.copy()
        self.offset += 1
        for stream in self.streams:
            if stream.open:
                stream.send(self.offset, state)
        return True

    # Waiting for replicas.

    def acknowledged(self, offset: int) -> int:
        """Return how many replicas have all up to that change."""
        return sum(stream.acked >= offset for stream in self.streams)

    def block(self, session: ReplicatedSession, needed: int, timeout: float) -> None:
        """Answer a session once that many replicas have its last change, or after the timeout."""
        self._waits[session] = needed
        if timeout:
            self._sim.timeline.after(timeout / self.clock.rate, self._end_wait, session, session.executed)

    def _end_wait(self, session: ReplicatedSession, executed: int) -> None:
        if session not in self._waits or session.executed != executed:
            return
        if self.state == "hung":
            self._sim.timeline.after(_HUNG, self._end_wait, session, executed)
        else:
            self._release(session)

    def look_at_waits(self) -> None:
        """Answer the sessions for which enough replicas have acknowledged."""
        if self.state == "up":
            for session, needed in list(self._waits.items()):
                if session in self._waits and self.acknowledged(session.wrote) >= needed:
                    self._release(session)

    def _release(self, session: ReplicatedSession) -> None:
        del self._waits[session]
        session.unblock(self.acknowledged(session.wrote))

    def _drop(self, connection: Connection) -> None:
        session = self._sessions.get(connection)
        if isinstance(session, ReplicatedSession):
            self._waits.pop(session, None)
        super()._drop(connection)

    # Roles.

    def follow(self, master: GroupServer) -> None:
        """Become a replica of another server: that server's state, once it arrives, replaces the data here."""
        self._part()
        if self.follows is None:
            self._end_service()
        self.follows = master
        self._note("follow", f"follows {master.name}")
        self.attach()

    def promote(self) -> None:
        """Become a master, with its present data; if it was a replica, a new history begins."""
        self._part()
        if self.follows is not None:
            self._history = next(self.group.histories)
        self.follows = None
        self._shipped = self.store.copy()

    def attach(self) -> None:
        """Begin to get the state of the server that it follows, if that can be reached."""
        master = self.follows
        if master is None or master.follows is not None or (self.stream is not None and self.stream.open):
            return
        if self.state == "up" == master.state and self.group.are_connected(self, master):
            self.stream = Stream(master, self)

    def _part(self) -> None:
        if self.stream is not None:
            self.stream.leave()
            self.stream = None

    def _end_service(self) -> None:
        """End all connections of clients and replicas."""
        self._waits.clear()
        for connection in list(self._sessions):
            self.end(connection)
        self._let_go()

    def _let_go(self) -> None:
        for stream in self.streams:
            stream.open = False
        self.streams.clear()

    # Faults.

    def resume(self) -> None:
        """Continue after `hang`: first execute what arrived meanwhile."""
        super().resume()
        if self.stream is not None:
            self.stream.apply()
        self.look_at_waits()

    def crash(self, *, dark: bool = False) -> None:
        """End the process; `dark` if the whole machine is gone."""
        if self.state not in ("down", "dark"):
            self._waits.clear()
            self._let_go()
            self._part()
        super().crash(dark=dark)

    def restart(self, *, forget: bool = False, lost: float = 0.0) -> None:
        """Come back after `crash` as another process, with or without the data."""
        if self.state in ("down", "dark"):
            super().restart(forget=forget, lost=lost)
            self._shipped = self.store.copy()

    def flush(self) -> None:
        """Forget everything, as after FLUSHALL; the replicas do, too."""
        super().flush()
        self.propagate()
