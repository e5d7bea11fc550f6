"""The events of a simulation; the trace lists them, and each checker sees the kinds it asks for.

Each is a frozen value. Its text is made only when it is read. It names owners as nodes store them; the trace replaces
the clients' UUIDs by their names. Attributes that several have:

| attribute | meaning |
|---|---|
| `at` | the instant, in seconds of true time |
| `client` | the name of the client |
| `node` | the index of the node |
| `number` | the number of the command among those of its client; 0 if no redsync client sent it |
| `script`, `keys`, `args` | the script's name, its KEYS and ARGV |
| `request` | the request of the client's transport; None if no redsync client sent it |
| `reply` | the node's reply, or a `hiredis.ReplyError` |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from redsync._core.observing import Event
    from redsync._core.quorum import Tally
    from redsync._drivers.requests import Request
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = [
    "Connected",
    "Decided",
    "Did",
    "Disconnected",
    "Executed",
    "Faulted",
    "Refused",
    "Sent",
    "Stepped",
    "Told",
    "Trace",
    "TraceEvent",
]


class Sent(NamedTuple):
    """A client sent a command to nodes, or had no node to send it to.

    Attributes:
        nodes: A bit set of the nodes that it was sent to.
        votes: True if the client waits for the nodes' votes.
    """

    at: float
    client: str
    number: int
    script: str
    keys: tuple[bytes, ...]
    args: tuple[bytes | int, ...]
    nodes: int
    votes: bool
    request: Request | None = None

    def __str__(self) -> str:
        asks = "asks" if self.votes else "tells"
        return f"{self.client} {asks} {_nodes(self.nodes)}: #{self.number} {_call(self.script, self.keys, self.args)}"


class Executed(NamedTuple):
    """A node executed a script.

    Attributes:
        stray: True if it came over an abandoned connection, so perhaps after later commands.
        server: The name of the server, where it differs from the node's; in `tests/simulation`.
    """

    at: float
    node: int
    client: str
    script: str
    keys: tuple[bytes, ...]
    args: tuple[bytes | int, ...]
    reply: Any
    stray: bool = False
    number: int = 0
    request: Request | None = None
    server: str = ""

    def __str__(self) -> str:
        call = _call(self.script, self.keys, self.args)
        stray = " (a stray)" if self.stray else ""
        who = self.server or _nodes(1 << self.node)
        return f"{who} executes for {self.client}{stray}: {call} -> {_reply(self.reply)}"


class Refused(NamedTuple):
    """A node in trouble refused a script and changed nothing."""

    at: float
    node: int
    client: str
    script: str
    keys: tuple[bytes, ...]
    args: tuple[bytes | int, ...]
    reply: Any

    def __str__(self) -> str:
        call = _call(self.script, self.keys, self.args)
        return f"{_nodes(1 << self.node)} refuses {self.client}: {call} -> {_reply(self.reply)}"


class Decided(NamedTuple):
    """A round of votes is over for a client.

    Attributes:
        verdict: "won" or "lost".
        choices: Each node's choice: granted, refused, failed, or None.
        replies: Each node's reply, or the reason why it failed.
    """

    at: float
    client: str
    number: int
    verdict: str
    choices: tuple[Any, ...]
    replies: tuple[Any, ...]

    @classmethod
    def of(cls, at: float, client: str, number: int, tally: Tally) -> Decided:
        """Return a tally at that instant; later votes do not change it."""
        return cls(at, client, number, tally.verdict.value, tuple(tally.choices), tuple(tally.replies))

    def __str__(self) -> str:
        votes = ", ".join(
            f"{_nodes(1 << i)} {'-' if choice is None else choice.value}"
            + (f" ({reply})" if choice is not None and choice.value == "failed" else "")
            for i, (choice, reply) in enumerate(zip(self.choices, self.replies, strict=True))
        )
        return f"{self.client} counts #{self.number}: {self.verdict.upper()}: {votes}"


class Connected(NamedTuple):
    """A client has a new connection to a node.

    Attributes:
        unfit: The seconds for which the node takes no part in new grants; infinity if not known yet.
    """

    at: float
    client: str
    node: int
    unfit: float

    def __str__(self) -> str:
        note = f", which may have forgotten claims for {self.unfit:.3f} s" if self.unfit else ""
        return f"{self.client} is connected to {_nodes(1 << self.node)}{note}"


class Disconnected(NamedTuple):
    """A client lost its connection to a node, or did not get one."""

    at: float
    client: str
    node: int
    reason: str

    def __str__(self) -> str:
        return f"{self.client} is not connected to {_nodes(1 << self.node)}: {self.reason}"


class Told(NamedTuple):
    """A client reported an event to its application.

    Attributes:
        runner: The client's driver.
        event: HoldLost, HoldOrphaned or NodeChanged.
    """

    at: float
    runner: SimulatedRunner
    event: Event

    def __str__(self) -> str:
        fields = [getattr(self.event, name) for name in self.event._fields if name != "state"]
        rest = [getattr(self.event, "state", "")] if type(self.event).__name__ == "NodeChanged" else []
        words = ", ".join(str(field) for field in [*fields, *rest] if field != "")
        return f"{self.runner.name} reports: {type(self.event).__name__}: {words}"


class Did(NamedTuple):
    """A program reported an action.

    Attributes:
        machine: The machine that it runs on.
        who: Any name.
        what: A verb, in any words: "acquired", "gave up", ...
        about: Further details, by name.
    """

    at: float
    machine: Machine
    who: str
    what: str
    about: dict[str, Any]

    def __str__(self) -> str:
        about = "".join(f" {name}={value}" for name, value in self.about.items())
        return f"{self.who} on {self.machine.name} {self.what}{about}"


class Faulted(NamedTuple):
    """A fault began or ended.

    Attributes:
        kind: The kind of fault, in one word or a few.
        text: The whole description.
    """

    at: float
    kind: str
    text: str

    def __str__(self) -> str:
        return f"*** {self.text}"


class Stepped(NamedTuple):
    """Protocols of a machine made steps, or its clock jumped; only for checkers, not in the trace."""

    at: float
    machine: Machine


TraceEvent: TypeAlias = Sent | Executed | Refused | Decided | Connected | Disconnected | Told | Did | Faulted | Stepped


def _nodes(bits: int) -> str:
    if not bits:
        return "no node"
    numbers = ",".join(str(i + 1) for i in range(bits.bit_length()) if bits >> i & 1)
    return f"node-{numbers}"


def _call(script: str, keys: Sequence[bytes], args: Sequence[bytes | int]) -> str:
    return f"{script}({' '.join(map(_word, keys))} | {' '.join(map(_word, args))})"


def _word(word: bytes | int) -> str:
    if isinstance(word, int):
        return str(word)
    return word.decode() if word.isascii() and word.decode().isprintable() else f"<{len(word)} bytes>"


def _reply(reply: Any) -> str:
    if isinstance(reply, list):
        return f"[{' '.join(map(_reply, reply))}]"
    return _word(reply) if isinstance(reply, (bytes, int)) else str(reply)


_CLIENT_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_PROCESS = re.compile(r"\b[0-9a-f]{16}\b")


class Trace:
    """The events so far, in order: readable, and byte for byte the same for the same seed.

    Attributes:
        events: All events.
        add: Adds an event.
        names: The clients' names, by UUID.
        processes: The names of server processes, by their identity in birth records.
    """

    def __init__(self) -> None:
        self.events: Final[list[TraceEvent]] = []
        self.add: Final = self.events.append
        self.names: Final[dict[str, str]] = {}
        self.processes: Final[dict[str, str]] = {}

    def name_process(self, process: bytes, node: str) -> None:
        """Name a server process after its node, numbered."""
        count = sum(name.startswith(f"{node}.") for name in self.processes.values())
        self.processes[process.decode()] = f"{node}.{count + 1}"

    def named(self, text: str) -> str:
        """Return a text in which names replace the identities of clients and server processes."""
        text = _CLIENT_ID.sub(lambda match: self.names.get(match[0], match[0]), text)
        return _PROCESS.sub(lambda match: self.processes.get(match[0], match[0]), text)

    def text(self, last: int | None = None) -> str:
        """Return one line per event; with `last`, only for that many last ones."""
        events = self.events if last is None else self.events[-last:]
        return "".join(f"{event.at:11.6f}  {self.named(str(event))}\n" for event in events)
