"""Groups: logical nodes, each a master, its replicas and three Sentinels.

A group decides which server is the master, under a growing number. The effects of a decision come later, at times by
the seed: each Sentinel learns of it, each replica is moved, and the old master learns of it, if they can be reached.
Until then the old master serves the clients connected to it, and a replica acknowledges the votes of the server that it
still follows. An old master that never learned of its replacement may be promoted again, as the same process.

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

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import hiredis

from redsync._core.scripts import Script
from redsync.testing.simulator.network import ACCEPTED, CONNECT, Connection, Mark
from redsync.testing.simulator.store import Entry, Status
from redsync.testing.simulator.trace_events import Faulted
from redsync.testing.simulator.virtual_nodes import NOTHING, Session, encode
from tests.simulation.stores import differs
from tests.simulation.trial_nodes import TrialNode

if TYPE_CHECKING:
    from redsync._drivers.requests import Request
    from tests.simulation.trial import Trial

_READ_ONLY: Final = "READONLY You can't write against a read only replica."

_HUNG: Final = 0.01
"""Seconds after which a hung server checks again whether a wait is over."""


class ReplicatedSession(Session):
    """One connection to a server of a group, which knows `PUBLISH` and `WAIT` as clients call them.

    Both follow the votes of a client, and are not commands in their own right: the connection does not record them.

    Attributes:
        wrote: The number of the latest change made over this connection; 0 if there was none.
        blocked: True while the latest command waits for its answer; later ones wait for it.
    """

    _FOLLOWING: ClassVar[frozenset[bytes]] = frozenset({b"PUBLISH", b"WAIT"})

    def __init__(self, node: GroupServer, connection: Connection, number: int, *, ignored: bool = False) -> None:
        super().__init__(node, connection, number, ignored=ignored)
        self._server: Final = node
        self.wrote = 0
        self.blocked = False
        gets = self._gets
        self._gets = lambda: NOTHING if self.blocked else gets()

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


class GroupServer(TrialNode):
    """One server of a group.

    Attributes:
        group: The group.
        follows: The server that it replicates; None for a master.
        offset: The number of its latest change.
        streams: The streams to its replicas, as far as it knows.
        stream: The stream from the server that it follows; None if there is none.
    """

    _SESSION: ClassVar[Any] = ReplicatedSession

    def __init__(self, group: Group, suffix: str, scripts: Mapping[str, Script]) -> None:
        super().__init__(group.sim, group.index, scripts, suffix)
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

    def execute(self, session: Session, script: Script, words: Sequence[bytes], sent: Request | None) -> Any:
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

    def as_node(self, _place: int) -> TrialNode:
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
        if not (self._published or differs(self.store, self._shipped)):
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
            self.begin_history()
        self.follows = None
        self._shipped = self.store.copy()

    def begin_history(self) -> None:
        """Let the data have a new history, as at a promotion, or when the first replica comes."""
        self._history = next(self.group.histories)

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


_SENTINELS: Final = 3
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"

_LOOKS: Final = (0.02, 0.12)
"""Seconds between two looks for servers that have something to learn."""

_LAG: Final = 0.01
"""Seconds that a change, or its acknowledgement, takes at most without faults; usually far fewer."""

_SLOWNESS: Final = 1.0
"""Seconds until all reachable servers have learned a decision, at most."""


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
    """One Sentinel: a server that answers where a group's master is, as far as it knows.

    It decides nothing: the group does, and informs each at its own time. During a failover a Sentinel answers the first
    question with the number of the new decision and the address of the old master; only the second question reveals the
    new one.

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


class Group:
    """One logical node.

    Attributes:
        WORD: The word for a group in a trace.
        sim: The simulation.
        index: Its index among the nodes.
        name: Its name in a trace, and the Sentinels' name for its master.
        servers: The servers; the first one is the master at first.
        sentinels: The Sentinels.
        master: The master by the latest decision.
        epoch: The number of that decision.
        apart: The servers that reach only each other, and none of the Sentinels.
        deaf: The Sentinels that learn nothing.
        lagging: Additional seconds that a change may take.
        slowness: Seconds until all servers have learned a decision, at most.
        histories: Numbers the histories of data; a server has its own from its promotion on.
    """

    WORD = "group"

    def __init__(self, sim: Trial, index: int, replicas: int, scripts: Mapping[str, Script]) -> None:
        self.sim: Final = sim
        self.index: Final = index
        self.name: Final = f"{self.WORD}-{index + 1}"
        self.lagging = 0.0
        self.slowness = _SLOWNESS
        self.apart: set[GroupServer] = set()
        self.deaf: set[VirtualSentinel] = set()
        self._rng: Final = sim.random_for(self.name)
        self.histories: Final = itertools.count(1)
        self.servers: Final = [self._make_server(_LETTERS[i], scripts) for i in range(replicas + 1)]
        self.master = self.servers[0]
        self.epoch = 0
        self.sentinels: Final = self._make_sentinels()
        self._before = self.master
        self._lists_at = 0.0
        self._told_at: Final[dict[GroupServer | VirtualSentinel, float]] = {}
        for server in self.servers[1:]:
            server.follows = self.master
            server.attach()
        self._look()

    def _make_server(self, suffix: str, scripts: Mapping[str, Script]) -> GroupServer:
        return GroupServer(self, suffix, scripts)

    def _make_sentinels(self) -> list[VirtualSentinel]:
        knows = Knowledge(0, self.master, self.master, len(self.servers) - 1)
        return [VirtualSentinel(f"{self.name}-sentinel-{i + 1}", self.name, knows) for i in range(_SENTINELS)]

    @property
    def url(self) -> str:
        """A URL that names it, with the number of its replicas."""
        hosts = ",".join(sentinel.name for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.name}?replicas={len(self.servers) - 1}"

    def are_connected(self, one: GroupServer, other: GroupServer) -> bool:
        """Return whether two servers reach each other."""
        return (one in self.apart) == (other in self.apart)

    def lag(self) -> float:
        """Return how long a change takes to another server."""
        return self._rng.random() ** 4 * _LAG + self._rng.random() * self.lagging

    @property
    def has_converged(self) -> bool:
        """True if all servers are up and follow the master, and all Sentinels know that."""
        return (
            not (self.apart or self.deaf or self.lagging)
            and all(sentinel.up and self._is_informed(sentinel) for sentinel in self.sentinels)
            and all(server is self.master or self._is_moved(server) for server in self.servers)
        )

    def _is_informed(self, sentinel: VirtualSentinel) -> bool:
        return sentinel.knows.epoch == self.epoch and sentinel.knows.replicas == len(self.servers) - 1

    def _is_moved(self, server: GroupServer) -> bool:
        stream = server.stream
        return server.follows is self.master and stream is not None and stream.open and stream.acked >= 0

    # Decisions.

    def fail_over(self, server: GroupServer) -> None:
        """Make a server the master: a replica, or an old master that does not know that it was replaced."""
        assert server.state == "up", "a promoted server answers"
        self.epoch = self._next_epoch()
        self._note("failover", f"{server.name} becomes the master, epoch {self.epoch}")
        self._before, self.master = self.master, server
        self._install()
        server.promote()
        for each in self.members():
            self._delay_news(each)

    def _next_epoch(self) -> int:
        return self.epoch + 1

    def _install(self) -> None:
        """Install the present master as the node."""
        self.sim.nodes[self.index] = self.master

    def members(self) -> list[GroupServer | VirtualSentinel]:
        """Return all servers and Sentinels."""
        return [*self.servers, *self.sentinels]

    def _delay_news(self, each: GroupServer | VirtualSentinel) -> None:
        self._told_at[each] = self.sim.now + self._rng.random() * self.slowness

    def tell(self, server: GroupServer, when: float) -> None:
        """Set the instant of true time at which a server learns the latest decision; infinity: never."""
        self._told_at[server] = when

    def candidates(self) -> list[GroupServer]:
        """Return the servers that may be promoted: all that answer the Sentinels, except the master.

        None may while only a minority knows the latest decision: Sentinels vote about the master that they know.
        """
        if not self._is_known():
            return []
        return [
            server
            for server in self.servers
            if server is not self.master and server.state == "up" and server not in self.apart
        ]

    def _is_known(self) -> bool:
        return sum(sentinel.knows.epoch == self.epoch for sentinel in self.sentinels) > len(self.sentinels) // 2

    def isolate(self, servers: Collection[GroupServer]) -> None:
        """Let servers reach only each other, and no Sentinels."""
        self._note("isolation", f"reach only each other: {', '.join(server.name for server in servers) or 'all'}")
        self.apart = set(servers)

    def deafen(self, sentinel: VirtualSentinel) -> None:
        """Let a Sentinel learn nothing, as if it were cut off from the servers and from the others."""
        self._note("deafness", f"{sentinel.name} learns nothing")
        self.deaf.add(sentinel)

    def delay(self, seconds: float) -> None:
        """Let each change take up to that much longer."""
        self._note("lag", f"changes take up to {seconds:.3f} s longer")
        self.lagging = seconds

    def reset(self, seconds: float) -> None:
        """Let the Sentinels forget the replicas, as SENTINEL RESET does, and find those of the master after a while."""
        self._note("reset", f"the Sentinels list no replicas for {seconds:.3f} s")
        self._lists_at = self.sim.now + seconds
        for sentinel in self.sentinels:
            sentinel.knows = sentinel.knows._replace(replicas=0)

    def heal(self) -> None:
        """End all faults between servers and Sentinels."""
        if self.apart or self.deaf or self.lagging:
            self._note("heal", "all reach each other again")
            for each in self.members():
                if (each in self.apart or each in self.deaf) and self._told_at.get(each) != math.inf:
                    self._delay_news(each)
            self.apart, self.deaf, self.lagging = set(), set(), 0.0

    # The effects of decisions.

    def _look(self) -> None:
        """Inform the servers and Sentinels that have something to learn and can be reached."""
        now = self.sim.now
        for server in self.servers:
            is_told = server.state == "up" and server not in self.apart and now >= self._told_at.get(server, 0.0)
            if is_told and server is not self.master and server.follows is not self.master:
                server.follow(self.master)
            server.attach()
        for sentinel in self.sentinels:
            if sentinel.up and sentinel not in self.deaf and now >= self._told_at.get(sentinel, 0.0):
                self._inform(sentinel)
        self.sim.timeline.after(self._rng.uniform(*_LOOKS), self._look)

    def _inform(self, sentinel: VirtualSentinel) -> None:
        listed = sentinel.knows.replicas
        if sentinel.knows.epoch != self.epoch:
            # The list of replicas is kept; the new master leaves it, the old one joins it.
            sentinel.knows = Knowledge(self.epoch, self.master, self._before, listed)
        found = sum(stream.open for stream in self.master.streams)
        if found > listed and self.sim.now >= self._lists_at:
            sentinel.knows = sentinel.knows._replace(replicas=found)

    def _note(self, kind: str, text: str) -> None:
        self.sim.saw(Faulted(self.sim.now, f"group {kind}", f"{self.name}: {text}"))
