"""Virtual nodes: servers that execute the shipped scripts, crash, hang, forget, and have their own clocks.

A hung node buffers messages and executes them when it resumes: in order for each connection, in any order between
connections. A node in trouble answers errors, as real nodes do: either to all commands, or only to scripts that write.

A node that is down refuses connections; a dark one does not even do that. It comes back as another process: with its
data, without, or with older data from a snapshot or an append-only file that lost its end. Keys expire by its clock,
even while it is down.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import hiredis

from redsync._core.scripts import Script
from redsync._drivers.greetings import INITIALIZE
from redsync.testing.simulator.happenings import Executed, Faulted, Refused
from redsync.testing.simulator.network import ACCEPTED, CONNECT, Connection, Mark
from redsync.testing.simulator.scripting import run_script, script_of
from redsync.testing.simulator.sessions import Session
from redsync.testing.simulator.store import Refusal, Store
from redsync.testing.simulator.timeline import Clock
from redsync.testing.simulator.values import Entry

if TYPE_CHECKING:
    from redsync.testing.simulator.letters import Letter
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["VirtualNode"]

_EPOCH = 1_700_000_000.0

_LATEST = 30
"""The number of latest states that a node keeps, one per command."""

_SNAPSHOT_EVERY = 0.2
"""Seconds between two older states that a node keeps."""


class VirtualNode:
    """One server.

    Attributes:
        index: Its index among the nodes.
        name: Its name in the trace and in URLs: `node-1` has index 0; a server of a group also has a letter.
        clock: Its clock, in seconds since 1970.
        store: Its data.
        state: "up", "hung", "down" or "dark".
        trouble: The error that it answers to every command; None if it does not.
        ends_former: True if clients may end their abandoned connections.
        ignores: True if it accepts new connections and never reads from them.
        replaced: The scripts that it executes instead of shipped ones, by name.
        scripts: The scripts that its present process has loaded, by digest.
        run_id: The identity of its present process.
    """

    _SESSION: ClassVar[Any] = Session
    _MESSAGE = b"message"
    _server = ""

    def __init__(
        self,
        sim: Simulation,
        index: int,
        scripts: Mapping[str, Script],
        letter: str = "",
    ) -> None:
        self.index: Final = index
        self.name: Final = f"node-{index + 1}{letter}"
        self._sim: Final = sim
        self._rng: Final = sim.random_for(self.name)
        self._wire: Final = sim.random_for(f"{self.name} wire")
        self.clock: Final = Clock(sim.timeline, _EPOCH + self._rng.uniform(-1.0, 1.0))
        self.store: Final = Store(self.clock.now, self._publish)
        self.state = "up"
        self.trouble: str | None = None
        self.ends_former = True
        self.ignores = False
        self.replaced: Final = scripts
        self.scripts: Final[dict[bytes, Script]] = {}
        self._channels: Final[dict[bytes, dict[Session, None]]] = {}
        self._sessions: Final[dict[Connection, Session]] = {}
        self._numbers: Final = itertools.count(1)
        self._backlog: Final[list[tuple[Connection, bytes | Mark]]] = []
        # States with their instants: the latest, and some older ones.
        self._latest: Final[deque[tuple[float, dict[bytes, Entry]]]] = deque(maxlen=_LATEST)
        self._snapshots: Final[list[tuple[float, dict[bytes, Entry]]]] = []
        self._crashed_at = 0.0
        self._begin(uptime=86400.0)

    def _begin(self, uptime: float) -> None:
        self.scripts.clear()
        self.run_id = f"{self._rng.getrandbits(160):040x}"
        self.store.run_id = self.run_id.encode()
        self._sim.trace.name_process(self.store.run_id[:16], self.name)
        self._started_at = self.clock.now() - uptime

    @property
    def is_well(self) -> bool:
        """True if it executes all commands."""
        return self.state == "up" and self.trouble is None and self.store.refusal is None

    # Serving.

    def receive(self, connection: Connection, message: bytes | Mark) -> None:
        """Receive a message from the network."""
        if self.state not in {"up", "hung"}:
            connection.reset(silently=self.state == "dark")
        elif message is CONNECT:
            self._accept(connection)
        elif self.state == "hung":
            # Its kernel accepts connections, and buffers the bytes.
            self._backlog.append((connection, message))
        elif isinstance(message, bytes):
            session = self._sessions.get(connection)
            if session is not None:
                session.take(message)
        else:
            self._drop(connection)

    def _accept(self, connection: Connection) -> None:
        self._sessions[connection] = self._SESSION(self, connection, next(self._numbers), ignored=self.ignores)
        connection.back.send(ACCEPTED)

    def _drop(self, connection: Connection) -> None:
        session = self._sessions.pop(connection, None)
        if session is not None:
            for channel in session.channels:
                self._channels[channel].pop(session, None)

    # For sessions.

    def load(self, source: bytes) -> Script:
        """Store a script, or the one that replaces it; return the stored script."""
        script = script_of(source)
        self.scripts[script.sha] = self.replaced.get(script.name, script)
        return script

    def execute(self, session: Session, script: Script, words: Sequence[bytes], sent: Letter | None) -> Any:
        """Execute a script, and return its reply."""
        at = self._sim.now
        self._remember_state(at)
        split = 3 + int(words[2])
        keys: tuple[bytes, ...] = tuple(words[3:split])
        args: tuple[bytes | int, ...] = tuple(words[split:])
        reply = run_script(script, self.store, keys, args)
        if session.connection.requests is None and script.name == INITIALIZE.name:
            return reply  # part of the handshake
        if sent is not None:
            keys, args = sent.keys, sent.args
        number = 0 if sent is None else sent.number
        done = at, self.place_of(session), session.connection.client, script.name, keys, args, reply
        if self._refuses(reply):
            self._sim.saw(Refused(*done))
        else:
            request = None if sent is None else sent.request
            self._sim.saw(Executed(*done, session.connection.given_up, number, request, self._server))
        return reply

    def note_refused(self, session: Session, sent: Letter | None, reply: Any) -> None:
        """Record a script that was refused without execution."""
        if sent is not None:
            client, script = session.connection.client, sent.script
            self._sim.saw(Refused(self._sim.now, self.place_of(session), client, script, sent.keys, sent.args, reply))

    def place_of(self, _session: Session) -> int:
        """Return the index of the node for which it executes the current command of a session."""
        return self.index

    def end_session(self, number: int) -> Any:
        """End a connection by its number, as CLIENT KILL does."""
        for connection, session in self._sessions.items():
            if session.number == number:
                if not self.ends_former:
                    return hiredis.ReplyError("NOPERM this user has no permissions to run the 'client|kill' command")
                self.end(connection)
                return 1
        return 0

    def end(self, connection: Connection) -> None:
        """End a connection; everything under way on it is lost."""
        self._drop(connection)
        connection.reset()

    def has_answered(self, connection: Connection) -> bool:
        """Return whether it has answered everything received over a connection."""
        session = self._sessions.get(connection)
        return self.state == "up" and (session is None or not session.blocked)

    def describe(self) -> bytes:
        """Return the server's description of itself, as INFO does."""
        # A server subtracts whole seconds.
        uptime = int(self.clock.now()) - int(self._started_at)
        told = {"redis_version": "7.4.0", "run_id": self.run_id, "uptime_in_seconds": uptime}
        return "".join(["# Server\r\n", *(f"{name}:{value}\r\n" for name, value in told.items())]).encode()

    def listen(self, channel: bytes, session: Session) -> None:
        """Subscribe a session to a channel."""
        self._channels.setdefault(channel, {})[session] = None

    def unlisten(self, channel: bytes, session: Session) -> None:
        """Unsubscribe a session from a channel."""
        self._channels.get(channel, {}).pop(session, None)

    def _refuses(self, reply: Any) -> bool:
        """Return whether a reply is an error of a node in trouble, and not of the script itself."""
        troubled = self.store.refusal is not None
        return troubled and reply.__class__ is hiredis.ReplyError and not str(reply).startswith("FORGETFUL")

    def _remember_state(self, now: float) -> None:
        """Keep the present state, for a restart with older data."""
        state = now, self.store.copy()
        if not self._snapshots or now - self._snapshots[-1][0] >= _SNAPSHOT_EVERY:
            self._snapshots.append(state)
        self._latest.append(state)

    def listeners(self, channel: bytes) -> int:
        """Return how many of this node's connections subscribe to a channel."""
        return len(self._channels.get(channel, ()))

    def _publish(self, channel: bytes, message: bytes) -> int:
        listening = self._channels.get(channel, ())
        for session in listening:
            session.push(self._MESSAGE, channel, message)
        return len(listening)

    # Faults.

    def hang(self) -> None:
        """Hang, as after SIGSTOP; the clock continues."""
        if self.state == "up":
            self._note("hang", "hangs")
            self.state = "hung"

    def resume(self) -> None:
        """Continue after `hang`: first execute what arrived meanwhile."""
        if self.state != "hung":
            return
        self._note("resume", f"resumes, with {len(self._backlog)} messages to read")
        self.state = "up"
        waiting: dict[Connection, list[bytes | Mark]] = {}
        for connection, message in self._backlog:
            waiting.setdefault(connection, []).append(message)
        self._backlog.clear()
        while waiting:
            connection = self._rng.choice(list(waiting))
            self.receive(connection, waiting[connection].pop(0))
            if not waiting[connection]:
                del waiting[connection]

    def crash(self, *, dark: bool = False) -> None:
        """End the process; `dark` if the whole machine is gone, so that connections are not even refused."""
        if self.state in ("down", "dark"):
            return
        self._note("crash", "crashes and is dark" if dark else "crashes")
        self._crashed_at = self._sim.now
        self.state = "dark" if dark else "down"
        self._backlog.clear()
        self._channels.clear()
        for connection in list(self._sessions):
            connection.reset(silently=dark)
        if not dark:
            self._sessions.clear()

    def restart(self, *, forget: bool = False, lost: float = 0.0) -> None:
        """Come back after `crash` as another process, with or without the data.

        Args:
            forget: True if all data is gone.
            lost: The seconds before the crash whose changes are lost; older ones remain.
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
        for connection in self._sessions:
            connection.lighten()
        self._sessions.clear()
        self._begin(uptime=0.0)

    def refuse(self, code: str) -> None:
        """Answer errors from now on.

        "BUSY" and "LOADING" refuse the commands that real servers refuse then; "MOVED" and "CLUSTERDOWN" refuse
        commands with keys; any other code refuses scripts that write.
        """
        self._note("refuse", f"answers {code}")
        everything = code in {"BUSY", "LOADING", "MOVED", "CLUSTERDOWN"}
        text = "MOVED 866 node-0:6379" if code == "MOVED" else f"{code} the node is in trouble"
        self.trouble = text if everything else None
        self.store.refusal = None if everything else Refusal(text)

    def ignore(self) -> None:
        """Accept connections and answer nothing that arrives over them, like a proxy whose server is gone."""
        self._note("ignore", "ignores new connections")
        self.ignores = True

    def recover(self) -> None:
        """Execute everything again after `refuse`, and answer new connections after `ignore`."""
        if self.trouble is not None or self.store.refusal is not None or self.ignores:
            self._note("recover", "recovers")
            self.trouble = self.store.refusal = None
            self.ignores = False

    def kick(self) -> None:
        """End a connection, as an operator may with CLIENT KILL."""
        if self.state == "up" and self._sessions:
            connection = self._wire.choice(list(self._sessions))
            self._note("kick", f"ends a connection of {connection.client}")
            self.end(connection)

    def _go_back(self, instant: float) -> None:
        states = [(at, state) for at, state in [*self._snapshots, *self._latest] if at <= instant]
        self.store.load(max(states, key=lambda item: item[0])[1] if states else {})
        # Later states never happened.
        self._snapshots[:] = [(at, state) for at, state in self._snapshots if at <= instant]
        self._latest.clear()

    def flush(self) -> None:
        """Forget everything, as after FLUSHALL: no connection notices."""
        self._note("flush", "forgets everything")
        self.store.flush()

    def forget_scripts(self) -> None:
        """Forget all scripts, as after SCRIPT FLUSH: calls by digest get NOSCRIPT."""
        self._note("scripts", "forgets all scripts")
        self.scripts.clear()

    def drift(self, rate: float) -> None:
        """Let the clock count that many seconds per second."""
        self._note("drift", f"changes its clock rate to {rate:.4f}")
        self.clock.change(rate=rate)
        self._sim.look_at_rates()

    def jump(self, seconds: float) -> None:
        """Let the clock jump; a jump ahead ends claims early, which breaks the assumption of all promises."""
        self._note("jump", f"jumps its clock by {seconds:+.3f} s")
        self.clock.change(jump=seconds)
        if seconds > 0:
            self._sim.waive_clocks(f"the clock of {self.name} jumped ahead")

    def _note(self, kind: str, text: str) -> None:
        self._sim.saw(Faulted(self._sim.now, f"node {kind}", f"{self.name} {text}"))
