"""Virtual nodes: servers that execute the shipped scripts, crash, hang, forget, and have their own clocks.

A hung node buffers messages and executes them when it resumes: in order for each connection, in any order between
connections. A node in trouble answers errors, as real nodes do: either to all commands, or only to writes.

A node that is down refuses connections; a dark one does not even do that. It comes back as another process: with its
data, without, or with older data from a snapshot or an append-only file that lost its end. Keys expire by its clock,
even while it is down.

A session is one connection as the node sees it. It speaks RESP 2 and 3: it executes received commands one by one, and
sends all replies together. A push keeps its place among the replies.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import hiredis

from redsync._core.scripts import Script
from redsync._drivers.handshakes import INITIALIZE
from redsync.testing.simulator.commands import COMMANDS
from redsync.testing.simulator.loop import Clock
from redsync.testing.simulator.network import ACCEPTED, CONNECT, Connection, Mark
from redsync.testing.simulator.scripting import run_script, script_of
from redsync.testing.simulator.store import WRITING, CommandError, Entry, Status, Store, WriteRefusal, format_score
from redsync.testing.simulator.trace_events import Executed, Faulted, Refused

if TYPE_CHECKING:
    from redsync._drivers.requests import Request
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["NOTHING", "Session", "VirtualNode", "encode"]

NOTHING: Final = object()

_DURING: Final = {
    "BUSY": frozenset({b"AUTH", b"HELLO", b"RESET"}),
    "LOADING": frozenset({b"AUTH", b"HELLO", b"RESET", b"SELECT", b"INFO", b"CLIENT", b"SUBSCRIBE", b"UNSUBSCRIBE"}),
}
"""By error, the commands that nodes still execute while they answer that error to all others."""

_UNKEYED: Final = frozenset(
    {b"AUTH", b"HELLO", b"RESET", b"SELECT", b"INFO", b"CLIENT", b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"SCRIPT"}
)
"""Commands without keys, for which no other node could be responsible (MOVED, CLUSTERDOWN)."""

_SCRIPTS: Final = frozenset({b"EVAL", b"EVALSHA"})

_NOT_KNOWN: Final = hiredis.ReplyError("NOSCRIPT No matching script. Please use EVAL.")


class Session:
    """One connection to a node.

    Attributes:
        connection: The connection.
        number: Its number on this node.
        channels: The channels that it subscribes to.
        executed: The number of commands that it has executed since the client began to use the connection.
    """

    def __init__(self, node: VirtualNode, connection: Connection, number: int, *, ignored: bool = False) -> None:
        self._node: Final = node
        self._ignored: Final = ignored
        self.connection: Final = connection
        self.number: Final = number
        self.channels: Final[dict[bytes, None]] = {}
        self.executed = 0
        reader = hiredis.Reader(notEnoughData=NOTHING)
        self._feed: Final = reader.feed
        self._gets: Callable[[], Any] = reader.gets
        self._resp = 2
        self._out: list[bytes] | None = None

    def take(self, data: bytes) -> None:
        """Execute received commands."""
        if self._ignored:
            return
        self._feed(data)
        gets = self._gets
        self._out = out = []
        try:
            while (words := gets()) is not NOTHING:
                if words.__class__ is not list:
                    raise hiredis.ProtocolError("commands are arrays")
                reply = self._execute(words) if words else NOTHING
                if reply is not NOTHING:
                    out.append(encode(reply, self._resp))
        except hiredis.ProtocolError:
            self._node.end(self.connection)
            return
        finally:
            self._out = None
        if out:
            self.connection.back.send(b"".join(out))

    def push(self, *words: bytes | int) -> None:
        """Send a push; to a RESP 2 client, as an ordinary array."""
        data = b"".join((b">" if self._resp == 3 else b"*", b"%d\r\n" % len(words), *(encode(w, 3) for w in words)))
        if self._out is not None:
            self._out.append(data)
        else:
            self.connection.back.send(data, push=True)

    def _execute(self, words: list[bytes]) -> Any:
        name = words[0].upper()
        node = self._node
        log = self.connection.requests
        sent = None
        if log is not None:
            # The handshake is over: the client recorded each command before it sent it.
            self.executed += 1
            sent = log[self.executed - 1] if self.executed <= len(log) else None
        refusal = self._refusal(words)
        if refusal is not None:
            if name == b"EVALSHA":
                node.note_refused(self, sent, refusal)
            return refusal
        if name in _SCRIPTS and not (len(words) > 2 and words[2].isdigit() and int(words[2]) <= len(words) - 3):
            return hiredis.ReplyError("ERR invalid number of keys")
        if name == b"EVALSHA":
            script = node.scripts.get(words[1].lower())
            return _NOT_KNOWN if script is None else node.execute(self, script, words, sent)
        if name == b"EVAL":
            return node.execute(self, node.load(words[1]), words, sent)
        return self._answer(name, words)

    def _refusal(self, words: list[bytes]) -> hiredis.ReplyError | None:
        """Return the error of a node in trouble; None if it executes the command."""
        trouble = self._node.trouble
        if trouble is None or words[0].upper() in _DURING.get(trouble.partition(" ")[0], _UNKEYED):
            return None
        return hiredis.ReplyError(trouble)

    def _answer(self, name: bytes, words: list[bytes]) -> Any:
        handler = _HANDLERS.get(name)
        try:
            if handler is not None:
                return handler(self, *words[1:])
            command, store = COMMANDS.get(name.lower()), self._node.store
            if command is None:
                return hiredis.ReplyError(f"ERR unknown command '{words[0].decode(errors='replace')}'")
            store.read_clock()
            if name.lower() in WRITING:
                self._node.keep_state()
            if store.refusal is not None:
                store.refusal.begin()
                store.refusal.look_at(name)
            reply = command(store, *words[1:])
            return _in_resp3(name, words, reply) if self._resp == 3 else reply
        except CommandError as error:
            return hiredis.ReplyError(str(error))
        except TypeError:
            return hiredis.ReplyError(f"ERR wrong number of arguments for '{name.decode(errors='replace').lower()}'")

    # Commands that scripts do not call.

    def _hello(self, version: bytes = b"", *_options: bytes) -> Any:
        if version and version not in {b"2", b"3"}:
            return hiredis.ReplyError("NOPROTO unsupported protocol version")
        self._resp = int(version or self._resp)
        about: list[Any] = [b"server", b"redis", b"version", b"7.4.0", b"proto", self._resp, b"id", self.number]
        return dict(zip(about[::2], about[1::2], strict=True)) if self._resp == 3 else about

    def _client(self, verb: bytes, *words: bytes) -> Any:
        match verb.upper():
            case b"ID":
                return self.number
            case b"KILL" if words[0].upper() == b"ID":
                return self._node.end_session(int(words[1]))
            case b"SETNAME" | b"SETINFO":
                return Status(b"OK")
        return hiredis.ReplyError(f"ERR unknown subcommand '{verb.decode(errors='replace')}'")

    def _script(self, verb: bytes, *words: bytes) -> Any:
        node = self._node
        match verb.upper():
            case b"LOAD":
                return node.load(words[0]).sha
            case b"EXISTS":
                return [int(sha.lower() in node.scripts) for sha in words]
            case b"FLUSH":
                node.scripts.clear()
                return Status(b"OK")
        return hiredis.ReplyError(f"ERR unknown subcommand '{verb.decode(errors='replace')}'")

    def _subscribe(self, *channels: bytes, word: bytes = b"subscribe") -> Any:
        for channel in channels:
            self.channels[channel] = None
            self._node.listen(channel, self)
            self.push(word, channel, len(self.channels))
        return NOTHING

    def _unsubscribe(self, *channels: bytes) -> Any:
        for channel in channels or tuple(self.channels):
            self.channels.pop(channel, None)
            self._node.unlisten(channel, self)
            self.push(b"unsubscribe", channel, len(self.channels))
        return NOTHING


_HANDLERS: Final[dict[bytes, Callable[..., Any]]] = {
    b"HELLO": Session._hello,
    b"AUTH": lambda *_: Status(b"OK"),
    b"SELECT": lambda *_: Status(b"OK"),
    b"CLIENT": Session._client,
    b"SCRIPT": Session._script,
    b"SUBSCRIBE": Session._subscribe,
    b"UNSUBSCRIBE": Session._unsubscribe,
    b"INFO": lambda session, *_: session._node.describe(),
    b"PING": lambda _, *words: words[0] if words else Status(b"PONG"),
}


def _in_resp3(name: bytes, words: list[bytes], reply: Any) -> Any:
    """Return a command's reply in the form that it has in RESP 3: with maps, pairs, and scores as numbers."""
    if name == b"ZSCORE" and reply is not None:
        return float(reply)
    scored = name in {b"ZRANGE", b"ZRANGEBYSCORE"} and b"WITHSCORES" in [word.upper() for word in words[4:]]
    if name != b"HGETALL" and not scored:
        return reply
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return [[member, float(score)] for member, score in pairs] if scored else dict(pairs)


def encode(reply: Any, resp: int) -> bytes:
    """Return a reply in that version of RESP."""
    kind = reply.__class__
    if kind is int:
        return b":%d\r\n" % reply
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if kind is list:
        return b"*%d\r\n" % len(reply) + b"".join([encode(item, resp) for item in reply])
    if reply is None:
        return b"_\r\n" if resp == 3 else b"$-1\r\n"
    if kind is Status:
        return b"+%b\r\n" % reply
    if kind is float:
        return b",%b\r\n" % format_score(reply)
    if kind is dict:
        return b"%%%d\r\n" % len(reply) + b"".join([encode(word, resp) for pair in reply.items() for word in pair])
    assert isinstance(reply, hiredis.ReplyError), "no other type of reply exists"
    return b"-%b\r\n" % str(reply).replace("\n", " ").encode()


_EPOCH = 1_700_000_000.0

_KEPT = 3000
"""The number of latest states that a node keeps, one per command."""


class VirtualNode:
    """One server.

    Attributes:
        index: Its index among the nodes.
        name: Its name in the trace and in URLs: `node-1` has index 0.
        clock: Its clock, in seconds since 1970.
        store: Its data.
        state: "up", "hung", "down" or "dark".
        trouble: The error that it answers to every command; None if it does not.
        ignores: True if it accepts new connections and never reads from them.
        scripts: The scripts that its present process has loaded, by digest.
        run_id: The identity of its present process.
    """

    # tests/simulation replaces these and `place_of`, and gives a suffix: there a node may be several servers.
    _SESSION: ClassVar[Any] = Session
    _MESSAGE = b"message"
    _server = ""

    def __init__(self, sim: Simulation, index: int, suffix: str = "") -> None:
        self.index: Final = index
        self.name: Final = f"node-{index + 1}{suffix}"
        self._sim: Final = sim
        self._rng: Final = sim.random_for(self.name)
        self._wire: Final = sim.random_for(f"{self.name} wire")
        self.clock: Final = Clock(sim.timeline, _EPOCH + self._rng.uniform(-1.0, 1.0))
        self.store: Final = Store(self.clock.now, self._publish)
        self.state = "up"
        self.trouble: str | None = None
        self.ignores = False
        self.scripts: Final[dict[bytes, Script]] = {}
        self._channels: Final[dict[bytes, dict[Session, None]]] = {}
        self._sessions: Final[dict[Connection, Session]] = {}
        self._numbers: Final = itertools.count(1)
        self._backlog: Final[list[tuple[Connection, bytes | Mark]]] = []
        # The latest states, with their instants.
        self._states: Final[deque[tuple[float, dict[bytes, Entry]]]] = deque(maxlen=_KEPT)
        self._crashed_at = 0.0
        self._begin(uptime=86400.0)

    def _begin(self, uptime: float) -> None:
        self.scripts.clear()
        self.run_id = f"{self._rng.getrandbits(160):040x}"
        self.store.run_id = self.run_id.encode()
        self._sim.trace.name_process(self.store.run_id[:16], self.name)
        self._started_at = self.clock.now() - uptime

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
        """Store a script; return it."""
        script = script_of(source)
        self.scripts[script.sha] = script
        return script

    def keep_state(self) -> None:
        """Keep the present state, for a restart with older data."""
        self._states.append((self._sim.now, self.store.copy()))

    def execute(self, session: Session, script: Script, words: Sequence[bytes], sent: Request | None) -> Any:
        """Execute a script, and return its reply."""
        at = self._sim.now
        self.keep_state()
        split = 3 + int(words[2])
        keys: tuple[bytes, ...] = tuple(words[3:split])
        args: tuple[bytes | int, ...] = tuple(words[split:])
        reply = run_script(script, self.store, keys, args)
        if session.connection.requests is None and script.name == INITIALIZE.name:
            return reply  # part of the handshake
        if sent is not None and sent.command is not None:
            keys, args = sent.command.keys, sent.command.words
        number = 0 if sent is None else sent.number
        done = at, self.place_of(session), session.connection.client, script.name, keys, args, reply
        if self._refuses(reply):
            self._sim.saw(Refused(*done))
        else:
            self._sim.saw(Executed(*done, session.connection.given_up, number, sent, self._server))
        return reply

    def note_refused(self, session: Session, sent: Request | None, reply: Any) -> None:
        """Record a script that was refused without execution."""
        if sent is not None and (command := sent.command) is not None:
            what = session.connection.client, command.script.name, command.keys, command.words, reply
            self._sim.saw(Refused(self._sim.now, self.place_of(session), *what))

    def place_of(self, _session: Session) -> int:
        """Return the index of the node for which it executes the current command of a session."""
        return self.index

    def end_session(self, number: int) -> Any:
        """End a connection by its number, as CLIENT KILL does."""
        for connection, session in self._sessions.items():
            if session.number == number:
                self.end(connection)
                return 1
        return 0

    def end(self, connection: Connection) -> None:
        """End a connection; everything under way on it is lost."""
        self._drop(connection)
        connection.reset()

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
        commands with keys; any other code refuses writes.
        """
        self._note("refuse", f"answers {code}")
        everything = code in {"BUSY", "LOADING", "MOVED", "CLUSTERDOWN"}
        text = "MOVED 866 node-0:6379" if code == "MOVED" else f"{code} the node is in trouble"
        self.trouble = text if everything else None
        self.store.refusal = None if everything else WriteRefusal(text)

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
        # Later commands never happened; each state is from before one.
        while self._states and self._states[-1][0] > instant:
            self.store.load(self._states.pop()[1])

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
        """Let the clock jump; a jump ahead ends claims early, which breaks what some promises assume."""
        self._note("jump", f"jumps its clock by {seconds:+.3f} s")
        self.clock.change(jump=seconds)
        if seconds > 0:
            self._sim.waive_clocks(f"the clock of {self.name} jumped ahead")

    def _note(self, kind: str, text: str) -> None:
        self._sim.saw(Faulted(self._sim.now, f"node {kind}", f"{self.name} {text}"))
