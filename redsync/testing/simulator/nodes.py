"""Virtual nodes: servers that execute the shipped scripts, crash, hang, forget, and have clocks of their own.

A hung node takes what it is sent and executes it when it goes on: in order for each connection, in any order between
them. A node that is down refuses connections; one that is dark does not even do that. It comes back as another process,
with its data or without. Keys expire by its clock, also while it is down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redsync._core.effects import Command
from redsync._core.memory import BIRTH_KEY, Birth
from redsync._core.scripts import Script
from redsync._drivers.nodes import NodeInfo
from redsync.testing.simulator.happenings import Executed, Faulted
from redsync.testing.simulator.network import CLOSED, Connection
from redsync.testing.simulator.scripting import run_script
from redsync.testing.simulator.store import Store
from redsync.testing.simulator.timeline import Clock

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Greeting", "Push", "VirtualNode"]

_EPOCH = 1_700_000_000.0


class Greeting(NamedTuple):
    """The first message of a connection: what client listens to, and whether it asks for the birth record."""

    channel: bytes
    guarded: bool


class Push(NamedTuple):
    """A message of a channel, in the form in which drivers get it."""

    kind: bytes
    channel: bytes
    message: bytes


class VirtualNode:
    """One server.

    Attributes:
        index: Its place among the nodes.
        name: What the trace and URLs call it: `node-1` is the one with index 0.
        clock: Its clock, in seconds since 1970.
        store: What it remembers.
        state: "up", "hung", "down" or "dark".
        run_id: The identity of its present process.
    """

    def __init__(
        self,
        sim: Simulation,
        index: int,
        scripts: Mapping[str, Script],
    ) -> None:
        self.index: Final = index
        self.name: Final = f"node-{index + 1}"
        self._sim: Final = sim
        self._luck: Final = sim.luck(self.name)
        self.clock: Final = Clock(sim.timeline, _EPOCH + self._luck.uniform(-1.0, 1.0))
        self.store: Final = Store(self.clock.now, self._publish)
        self.state = "up"
        self._scripts: Final = scripts
        self._channels: Final[dict[bytes, dict[Connection, None]]] = {}
        self._connections: Final[dict[Connection, None]] = {}
        self._backlog: Final[list[tuple[Connection, Any]]] = []
        self._begin(uptime=86400.0)

    def _begin(self, uptime: float) -> None:
        self.run_id = f"{self._luck.getrandbits(160):040x}"
        self._started_at = self.clock.now() - uptime

    # Serving.

    def receive(self, connection: Connection, message: Any) -> None:
        """Take a message from the network."""
        if self.state == "up":
            self._serve(connection, message)
        elif self.state == "hung":
            self._backlog.append((connection, message))
        else:
            connection.reset(silently=self.state == "dark")

    def _serve(self, connection: Connection, message: Any) -> None:
        if message.__class__ is Command:
            script, keys, args = message
            reply = run_script(self._scripts.get(script.name, script), self.store, keys, args)
            stray = connection.given_up
            self._sim.saw(Executed(self._sim.now, self.index, connection.client, script.name, keys, args, reply, stray))
            connection.back.send(reply)
        elif message is CLOSED:
            self._connections.pop(connection, None)
            for listening in self._channels.values():
                listening.pop(connection, None)
        else:
            assert isinstance(message, Greeting), "a connection begins with a greeting"
            self._connections[connection] = None
            self._channels.setdefault(message.channel, {})[connection] = None
            connection.back.send(self._describe(message.guarded))

    def _describe(self, guarded: bool) -> NodeInfo:
        now = self.clock.now()
        record = self.store.execute(b"GET", BIRTH_KEY) if guarded else None
        assert record is None or isinstance(record, bytes), "GET answers with bytes"
        # A server subtracts whole seconds.
        uptime = float(int(now) - int(self._started_at))
        return NodeInfo(self.run_id, "virtual", uptime, True, Birth.read(record, now))

    def listeners(self, channel: bytes) -> int:
        """Return how many connections listen to a channel, as far as this node has noticed."""
        return len(self._channels.get(channel, ()))

    def _publish(self, channel: bytes, message: bytes) -> int:
        listening = self._channels.get(channel, ())
        for connection in listening:
            connection.back.send(Push(b"message", channel, message))
        return len(listening)

    # Faults.

    def hang(self) -> None:
        """Stand still, as after SIGSTOP; the clock goes on."""
        if self.state == "up":
            self._note("hang", "hangs")
            self.state = "hung"

    def resume(self) -> None:
        """Go on after `hang`, and execute what has come meanwhile."""
        if self.state != "hung":
            return
        self._note("resume", f"goes on, with {len(self._backlog)} messages to read")
        self.state = "up"
        waiting: dict[Connection, list[Any]] = {}
        for connection, message in self._backlog:
            waiting.setdefault(connection, []).append(message)
        self._backlog.clear()
        while waiting:
            connection = self._luck.choice(list(waiting))
            self._serve(connection, waiting[connection].pop(0))
            if not waiting[connection]:
                del waiting[connection]

    def crash(self, *, dark: bool = False) -> None:
        """End the process; `dark` if the whole machine is gone, so that nobody even says so."""
        if self.state in ("down", "dark"):
            return
        self._note("crash", "crashes and is dark" if dark else "crashes")
        self.state = "dark" if dark else "down"
        self._backlog.clear()
        self._channels.clear()
        for connection in list(self._connections):
            connection.reset(silently=dark)
        if not dark:
            self._connections.clear()

    def restart(self, *, forget: bool = False) -> None:
        """Come back after `crash` as another process, with the data or without."""
        if self.state not in ("down", "dark"):
            return
        self._note("restart", "restarts without its data" if forget else "restarts with its data")
        self.state = "up"
        if forget:
            self.store.flush()
        for connection in self._connections:
            connection.lighten()
        self._connections.clear()
        self._begin(uptime=0.0)

    def flush(self) -> None:
        """Forget everything, as by FLUSHALL: no connection notices."""
        self._note("flush", "forgets everything")
        self.store.flush()

    def drift(self, rate: float) -> None:
        """Let the clock count that many seconds per second."""
        self._note("drift", f"has a clock that runs at {rate:.4f}")
        self.clock.change(rate=rate)
        self._sim.look_at_rates()

    def jump(self, seconds: float) -> None:
        """Let the clock jump; one that jumps ahead breaks what all promises rest on, for it ends claims early."""
        self._note("jump", f"has a clock that jumps by {seconds:+.3f} s")
        self.clock.change(jump=seconds)
        if seconds > 0:
            self._sim.waive_clocks(f"the clock of {self.name} jumped ahead")

    def _note(self, kind: str, text: str) -> None:
        self._sim.saw(Faulted(self._sim.now, f"node {kind}", f"{self.name} {text}"))
