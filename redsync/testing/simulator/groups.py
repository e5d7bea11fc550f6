"""Groups: logical nodes, each a master, its replicas and three Sentinels.

A group decides which server is the master, under a growing number. The effects of a decision come later, at times by
the seed: each Sentinel learns of it, each replica is moved, and the old master learns of it, if they can be reached.
Until then the old master serves the clients connected to it, and a replica acknowledges the votes of the server that it
still follows. An old master that never learned of its replacement may be promoted again, as the same process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import hiredis

from redsync._core.scripts import Script
from redsync.testing.simulator.happenings import Faulted
from redsync.testing.simulator.network import ACCEPTED, CONNECT, Connection, Mark
from redsync.testing.simulator.replication import GroupServer
from redsync.testing.simulator.sessions import encode
from redsync.testing.simulator.values import Status

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Group", "Knowledge", "VirtualSentinel"]

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

    def __init__(self, sim: Simulation, index: int, replicas: int, scripts: Mapping[str, Script]) -> None:
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

    def _make_server(self, letter: str, scripts: Mapping[str, Script]) -> GroupServer:
        return GroupServer(self, letter, scripts)

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
    def is_settled(self) -> bool:
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
