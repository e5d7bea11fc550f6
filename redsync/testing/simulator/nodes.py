"""Virtual nodes: servers that execute the shipped scripts, crash, hang, forget, and have clocks of their own.

A hung node takes what it is sent and executes it when it goes on: in order for each connection, in any order between
them. A node in trouble answers by errors: whatever it is asked, or only where a script writes, as real ones do.
A node that is down refuses connections; one that is dark does not even do that. It comes back as another process, with
its data, without, or with data of before: from a snapshot, or an append-only file that lost its end. Keys expire by its
clock, also while it is down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import hiredis

from redsync._core.effects import Command
from redsync._core.memory import BIRTH_KEY, LOOK, Birth
from redsync._core.scripts import Script
from redsync._drivers.greetings import INITIALIZE
from redsync._drivers.nodes import NodeInfo
from redsync.testing.simulator.happenings import Executed, Faulted, Refused
from redsync.testing.simulator.network import CLOSED, Connection
from redsync.testing.simulator.scripting import run_script
from redsync.testing.simulator.store import Refusal, Store
from redsync.testing.simulator.timeline import Clock
from redsync.testing.simulator.values import Entry

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Greeting", "Push", "VirtualNode"]

_EPOCH = 1_700_000_000.0

_LATEST = 30
"""How many of the latest states are kept, one for each command."""

_SNAPSHOT_EVERY = 0.2
"""Seconds between two states of longer ago."""


class Greeting(NamedTuple):
    """The first message of a connection.

    Attributes:
        channel: What the client listens to.
        former: The connections that it gave up, for the node to end.
    """

    channel: bytes
    former: tuple[Connection, ...] = ()


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
        trouble: The error by which it answers everything; None if it does not.
        ends_former: Whether clients may end the connections that they gave up.
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
        self.trouble: str | None = None
        self.ends_former = True
        self._scripts: Final = scripts
        self._channels: Final[dict[bytes, dict[Connection, None]]] = {}
        self._connections: Final[dict[Connection, None]] = {}
        self._backlog: Final[list[tuple[Connection, Any]]] = []
        # States with their instants: the latest, and some of longer ago.
        self._latest: Final[deque[tuple[float, dict[bytes, Entry]]]] = deque(maxlen=_LATEST)
        self._snapshots: Final[list[tuple[float, dict[bytes, Entry]]]] = []
        self._crashed_at = 0.0
        self._begin(uptime=86400.0)

    def _begin(self, uptime: float) -> None:
        self.run_id = f"{self._luck.getrandbits(160):040x}"
        self.store.run_id = self.run_id.encode()
        self._sim.trace.name_process(self.store.run_id[:16], self.name)
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
            script, keys, args = message.script, message.keys, message.words
            self._remember_state()
            if self.trouble is None:
                reply = run_script(self._scripts.get(script.name, script), self.store, keys, args)
            else:
                reply = hiredis.ReplyError(self.trouble)
            done = self._sim.now, self.index, connection.client, script.name, keys, args, reply
            if self._refuses(reply):
                self._sim.saw(Refused(*done))
            else:
                self._sim.saw(Executed(*done, connection.given_up))
            connection.back.send(reply)
        elif message is CLOSED:
            self._drop(connection)
        else:
            assert isinstance(message, Greeting), "a connection begins with a greeting"
            if self.trouble is not None:
                connection.back.send(hiredis.ReplyError(self.trouble))
                return
            for former in message.former:
                if self.ends_former and former in self._connections:
                    self._drop(former)
                    former.reset()
            self._connections[connection] = None
            self._channels.setdefault(message.channel, {})[connection] = None
            connection.back.send(self._describe())

    def _refuses(self, reply: Any) -> bool:
        """Whether a reply is an error of a node in trouble, and not what the script itself says."""
        troubled = self.trouble is not None or self.store.refusal is not None
        return troubled and reply.__class__ is hiredis.ReplyError and not str(reply).startswith("FORGETFUL")

    def _drop(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        for listening in self._channels.values():
            listening.pop(connection, None)

    def _describe(self) -> NodeInfo:
        reply = run_script(self._scripts.get(INITIALIZE.name, INITIALIZE), self.store, (BIRTH_KEY,), (LOOK,))
        process, birth = Birth.initialized(reply)
        # A server subtracts whole seconds.
        uptime = float(int(self.clock.now()) - int(self._started_at))
        return NodeInfo(self.run_id, "virtual", uptime, True, birth, process)

    def _remember_state(self) -> None:
        """Keep what there is now for a restart with older data."""
        now = self._sim.now
        if not self._snapshots or now - self._snapshots[-1][0] >= _SNAPSHOT_EVERY:
            self._snapshots.append((now, self.store.copy()))
        self._latest.append((now, self.store.copy()))

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
        self._crashed_at = self._sim.now
        self.state = "dark" if dark else "down"
        self._backlog.clear()
        self._channels.clear()
        for connection in list(self._connections):
            connection.reset(silently=dark)
        if not dark:
            self._connections.clear()

    def restart(self, *, forget: bool = False, lost: float = 0.0) -> None:
        """Come back after `crash` as another process, with the data or without.

        Args:
            forget: All data is gone.
            lost: Of the last so many seconds before the crash nothing is left; what there was before is.
        """
        if self.state not in ("down", "dark"):
            return
        self.state = "up"
        if forget:
            self.store.flush()
            self._note("restart empty", "restarts without its data")
        elif lost:
            self._go_back(self._crashed_at - lost)
            self._note("restart older", f"restarts without the last {lost:.3f} s of its data")
        else:
            self._note("restart", "restarts with its data")
        for connection in self._connections:
            connection.lighten()
        self._connections.clear()
        self._begin(uptime=0.0)

    def refuse(self, code: str) -> None:
        """Answer by errors from now on: "BUSY" and "LOADING" to everything, any other code to scripts that write."""
        self._note("refuse", f"answers {code}")
        everything = code in {"BUSY", "LOADING"}
        text = f"{code} the node is in trouble"
        self.trouble = text if everything else None
        self.store.refusal = None if everything else Refusal(text)

    def recover(self) -> None:
        """Execute everything again after `refuse`."""
        if self.trouble is not None or self.store.refusal is not None:
            self._note("recover", "executes everything again")
            self.trouble = self.store.refusal = None

    def _go_back(self, instant: float) -> None:
        states = [(at, state) for at, state in [*self._snapshots, *self._latest] if at <= instant]
        self.store.load(max(states, key=lambda item: item[0])[1] if states else {})
        # What was after that has never been.
        self._snapshots[:] = [(at, state) for at, state in self._snapshots if at <= instant]
        self._latest.clear()

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
