"""Scenarios: stories of locks and faults as text files, which run in a simulation and state what they expect.

```text
# The holder is cut off from a majority.
clients a b

0.0   a acquires x
0.5   a is cut off from 1 2
0.6   b acquires x within 5
1.0   expect a holds x
2.5   expect a: acquired x, told of loss of x
4.0   expect b holds x
```

Each line is one statement; `#` begins a comment. Settings come first:

- `seed`, `nodes`, `lease`; `guard`: the restart guard.
- `replicas`: of each node, which makes it a Sentinel group; its servers are called `1a`, `1b` ...
- `cluster yes`: the nodes are masters of a cluster. It has one more master, and `1a` is the first of its first shard.
- `kind`: the kind of all locks: `lock`, a kind like it, such as `fair`, or `read-write`; see `redsync._kinds`.
- `kill no`: clients may not end their abandoned connections on the nodes.
- `kept yes`: machines continue to send what clients abandoned.
- `retransmits yes`: what a partition held waits until its sender tries again.
- `clients`: each is one task on its own machine.

The events follow, each with its instant of true time in seconds; the times rise.

| statement | meaning |
|---|---|
| `a acquires x [within S] [for S]` | wait, `within` a timeout; `for` a lease of its own |
| `a tries x` | acquire without waiting |
| `a reads x [within S]` | wait for a read lock; `a acquires x` is for the write lock, where the kind is `read-write` |
| `a releases x` | release it once |
| `a pauses`, `resumes`, `goes dark` | the machine of `a` |
| `node 1 hangs`, `resumes`, `crashes`, `restarts`, `restarts empty`, `jumps S` | a node, or its clock |
| `node 1 restarts without the last S seconds` | a node that comes back with older data |
| `node 1 answers BUSY`, `recovers` | errors for all commands (also `LOADING`), for all keys (`MOVED`), or for writes |
| `node 1 forgets its scripts` | it answers `NOSCRIPT` |
| `nodes 1 2 change places` | they swap addresses; all connections to them end |
| `Sentinels promote 1b`, `1c is not told`, `1c is told` | a decision, and whether a server hears of it |
| `Sentinels of 1 list no replicas for S seconds` | they were reset |
| `Sentinels of 1 learn nothing` | they answer by what they know |
| `slot of 1 moves to 4[, a key every S at most]` | the slot of node 1 moves to the 4th shard, key by key |
| `slot of 1 goes to 4 without its keys` | they are lost |
| `server 1b crashes`, `hangs` | one server of a group |
| `1a 1c reach only each other`, `servers of 1 reach each other` | the network between the servers of a group |
| `a is cut off from servers 1b 1c Sentinels` | the network to some of them, and to all Sentinels |
| `a is cut off from 1 2`, `a is S seconds from 1 2`, `a reaches 1 2`, `all is well` | the network |
| `a loses requests to 1 2`, `a loses replies from 1 2` | connections that break silently |
| `a loses ends of replies from 1 2` | connections that end in the middle of one |
| `expect a holds x`, `expect nobody holds x` | what clients believe |
| `expect a waits`, `expect a: acquired x, released x` | `a` is busy; its last outcomes |
| `expect nodes keep x: a a -` | whose claim each node keeps |

A client says `acquired`, `busy`, `no quorum for`, `released`, `lost`, `not owner of` and `told of loss of`, each with
the lock's name. A busy client queues further requests.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, Final, NamedTuple

from redsync._core.observing import Event, HoldLost
from redsync._kinds import KINDS
from redsync.exceptions import LeaseLostError, NotOwnedError, QuorumError, RedsyncError
from redsync.testing.simulator.simulation import Checker
from redsync.testing.simulator.store import Hash
from tests.simulation.checks import ALL
from tests.simulation.checks.kept import kept_at
from tests.simulation.groups import GroupServer
from tests.simulation.simulated_clusters import Cluster, Shard
from tests.simulation.trial import Trial


class Actor:
    """One task of one client on its own machine.

    Attributes:
        name: The client's name.
        machine: The machine.
        client: The client.
        said: The outcomes of its requests, in order.
        busy: True while it performs a request.
    """

    def __init__(self, sim: Trial, name: str, kind: str) -> None:
        self.machine: Final = sim.machine(name)
        self.client: Final = self.machine.client(listeners=[self._hear])
        self._writes: Final = self._make_writer if kind == "read-write" else KINDS[kind].maker(self.client)
        self._reads: Final[dict[str, Any]] = {}
        self.said: Final[list[str]] = []
        self.busy = False
        self.name: Final = name
        self._orders: Final[asyncio.Queue[tuple[Callable[..., Awaitable[None]], str, dict[str, Any]]]] = asyncio.Queue()
        self.machine.start(self._work(), name=name)

    # Requests to the actor.

    def ask(self, request: Callable[..., Awaitable[None]], lock: str, **how: Any) -> None:
        """Ask for `acquire`, `read` or `release`, once all earlier requests are done."""
        self._orders.put_nowait((request, lock, how))

    def holds(self, lock: str) -> bool:
        """Return whether it believes that it holds a lock."""
        now = self.machine.clock.now()
        states = list(self.client.runner.session.holds)
        return not self.machine.crashed and any(state.name == lock and state.valid(now) for state in states)

    # Performing them.

    async def _work(self) -> None:
        while True:
            act, lock, how = await self._orders.get()
            self.busy = True
            try:
                await act(lock, **how)
            except QuorumError:
                self._say("no quorum for", lock)
            except LeaseLostError:
                self._say("lost", lock)
            except NotOwnedError:
                self._say("not owner of", lock)
            self.busy = False

    def _make_writer(self, lock: str) -> Any:
        return self.client.get_read_write_lock(lock).write_lock

    def _lock(self, lock: str) -> Any:
        return self._reads.get(lock) or self._writes(lock)

    async def acquire(self, lock: str, **how: Any) -> None:
        """Acquire a lock; options as for `AsyncLock.acquire`."""
        self._reads.pop(lock, None)
        self._say("acquired" if await self._lock(lock).acquire(**how) else "busy", lock)

    async def read(self, lock: str, **how: Any) -> None:
        """Acquire a read lock in the same way; later requests for that name use it."""
        asked = self._reads[lock] = self.client.get_read_write_lock(lock).read_lock
        self._say("acquired" if await asked.acquire(**how) else "busy", lock)

    async def release(self, lock: str) -> None:
        """Release one acquisition."""
        await self._lock(lock).release()
        self._say("released", lock)

    def _hear(self, event: Event) -> None:
        if isinstance(event, HoldLost):
            self._say("told of loss of", str(event.name))

    def _say(self, what: str, lock: str) -> None:
        self.said.append(f"{what} {lock}")
        self.machine.tell(self.name, what, lock=lock)


class UnmetError(Exception):
    """An expectation is not met; str() says what is true instead."""


class ScenarioRunner:
    """A running scenario, with locks of one kind: what its statements name, and what takes more than a line.

    Attributes:
        sim: The simulation.
        actors: The clients, by name.
    """

    def __init__(self, sim: Trial, clients: list[str], kind: str) -> None:
        self.sim: Final = sim
        self.actors: Final = {name: Actor(sim, name, kind) for name in clients}

    def find(self, words: Mapping[str, str | None]) -> dict[str, Any]:
        """Return what the words of a statement name, each under its name; None and other words stay.

        Nodes and shards are numbered from 1, servers are called `1a`, `1b` ... Several nodes become indices.
        """
        return {name: _FIND[name](self, word) if word and name in _FIND else word for name, word in words.items()}

    def server(self, name: str) -> GroupServer:
        """Return a server of a group."""
        group = self.sim.groups[int(name[:-1]) - 1]
        return next(server for server in group.servers if server.name == f"node-{name}")

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        world = self.sim.world
        assert isinstance(world, Cluster), "the story has the setting: cluster yes"
        return world

    def acquire(self, who: Actor, lock: str, timeout: float | None, lease: float | None) -> None:
        """Let a client wait for a lock."""
        who.ask(who.acquire, lock, timeout=timeout, lease=lease)

    def slow(self, who: Actor, seconds: float, nodes: list[int]) -> None:
        """Let packets take longer."""
        self.sim.slow(who.machine, *nodes, seconds=seconds)

    def reset(self, nodes: list[int], seconds: float) -> None:
        """Let the Sentinels of groups forget the replicas for a while."""
        for index in nodes:
            self.sim.groups[index].reset(seconds)

    def deafen(self, nodes: list[int]) -> None:
        """Let the Sentinels of groups learn nothing."""
        for group in [self.sim.groups[index] for index in nodes]:
            for sentinel in group.sentinels:
                group.deafen(sentinel)

    def join(self, nodes: list[int]) -> None:
        """Let all servers of groups reach each other."""
        for index in nodes:
            self.sim.groups[index].heal()

    def cut_off(self, who: Actor, servers: list[GroupServer], sentinels: str | None) -> None:
        """Let no packets through between a machine and servers of one group, and perhaps its Sentinels."""
        self.sim.cut_off(who.machine, [*servers, *(servers[0].group.sentinels if sentinels else ())])

    def move(self, slot: int, shard: Shard, pause: float | None) -> None:
        """Move the slot of a node, key by key; `pause`: seconds between two keys, at most."""
        self.cluster.move(slot, shard, pause=pause or 0.0)

    def expect_holds(self, holder: str, lock: str) -> None:
        """Check which client believes that it holds a lock."""
        holders = [name for name, actor in self.actors.items() if actor.holds(lock)]
        if holders != [name for name in [holder] if name != "nobody"]:
            raise UnmetError(f"{' and '.join(holders) or 'nobody'} does")

    def expect_waits(self, who: Actor) -> None:
        """Check that a client is busy."""
        if not who.busy:
            raise UnmetError(f"{who.name} has said {', '.join(who.said) or 'nothing'}")

    def expect_said(self, who: Actor, said: str) -> None:
        """Check the last outcomes of a client."""
        wanted = [words.strip() for words in said.split(",")]
        if who.said[-len(wanted) :] != wanted:
            raise UnmetError(f"{who.name} has said {', '.join(who.said) or 'nothing'}")

    def expect_kept(self, lock: str, owners: str) -> None:
        """Check whose claims the nodes keep."""
        found = []
        for node in self.sim.nodes:
            fields = kept_at(node, f"redsync:{lock}".encode(), Hash)
            found.append(" ".join(self.sim.trace.named(owner.decode()).partition(":")[0] for owner in fields) or "-")
        if found != owners.split():
            raise UnmetError(f"they keep {' '.join(found)}")


_FIND: Final[dict[str, Callable[[ScenarioRunner, str], Any]]] = {
    "who": lambda stage, name: stage.actors[name],
    "node": lambda stage, number: stage.sim.nodes[int(number) - 1],
    "nodes": lambda _, numbers: [int(number) - 1 for number in numbers.split()],
    "server": ScenarioRunner.server,
    "servers": lambda stage, names: [stage.server(name) for name in names.split()],
    "slot": lambda _, number: int(number) - 1,
    "shard": lambda stage, number: stage.cluster.groups[int(number) - 1],
    **dict.fromkeys(("seconds", "timeout", "lease", "pause"), lambda _, number: float(number)),
}


def _kind(word: str) -> str:
    if word not in KINDS or KINDS[word].like not in ("lock", "read-write"):
        raise ValueError(word)
    return word


def _yes_or_no(word: str) -> bool:
    if word not in ("yes", "no"):
        raise ValueError(word)
    return word == "yes"


_SETTINGS: Final[dict[str, tuple[Callable[[str], Any], Any]]] = {
    "seed": (int, 1),
    "nodes": (int, 3),
    "replicas": (int, None),
    "cluster": (_yes_or_no, False),
    "lease": (float, 2.0),
    "guard": (float, None),
    "kind": (_kind, "lock"),
    "kill": (_yes_or_no, True),
    "kept": (_yes_or_no, False),
    "retransmits": (_yes_or_no, False),
}
"""The functions that read the settings, and their values by default; the guard is then the lease."""

_LAST_LINES = 40


class ScenarioError(RedsyncError, AssertionError):
    """A scenario can't be read, or does not go as expected; str() begins with file and line."""


def _form(pattern: str) -> re.Pattern[str]:
    """Return a statement's pattern, made from a form in which capital words stand for the variable parts."""
    for word, expression in {
        "NODES": r"(?P<nodes>\d+( \d+)*)",
        "NODE": r"node (?P<node>\d+)",
        "SERVERS": r"(?P<servers>\d+[a-z]( \d+[a-z])*)",
        "SERVER": r"(?P<server>\d+[a-z])",
        "SLOT": r"(?P<slot>\d+)",
        "SHARD": r"(?P<shard>\d+)",
        "WHO": r"(?P<who>\w+)",
        "LOCK": r"(?P<lock>\w+)",
        "SECONDS": r"(?P<seconds>[-+]?[\d.]+)",
    }.items():
        pattern = pattern.replace(word, expression)
    return re.compile(pattern)


_OF_MACHINES: Final = {
    "pauses": methodcaller("pause"),
    "resumes": methodcaller("resume"),
    "goes dark": methodcaller("crash", dark=True),
}
_OF_SERVERS: Final = {
    "crashes": methodcaller("crash"),
    "hangs": methodcaller("hang"),
}
_OF_NODES: Final = {
    **_OF_SERVERS,
    "resumes": methodcaller("resume"),
    "restarts": methodcaller("restart"),
    "restarts empty": methodcaller("restart", forget=True),
    "recovers": methodcaller("recover"),
    "forgets its scripts": methodcaller("forget_scripts"),
}


_STATEMENTS: Final[dict[str, Callable[..., object]]] = {
    "all is well": lambda stage: stage.sim.heal(),
    f"NODE (?P<verb>{'|'.join(_OF_NODES)})": lambda _, node, verb: _OF_NODES[verb](node),
    "NODE answers (?P<code>[A-Z]{3,})": lambda _, node, code: node.refuse(code),
    "NODE jumps SECONDS": lambda _, node, seconds: node.jump(seconds),
    "NODE restarts without the last SECONDS seconds": lambda _, node, seconds: node.restart(lost=seconds),
    r"nodes (?P<nodes>\d+ \d+) change places": lambda stage, nodes: stage.sim.swap(*nodes),
    "Sentinels promote SERVER": lambda _, server: server.group.fail_over(server),
    "SERVER is told": lambda stage, server: server.group.tell(server, stage.sim.now),
    "SERVER is not told": lambda _, server: server.group.tell(server, math.inf),
    f"server SERVER (?P<verb>{'|'.join(_OF_SERVERS)})": lambda _, server, verb: _OF_SERVERS[verb](server),
    "SERVER begins a new history": lambda _, server: server.begin_history(),
    "SERVERS reach only each other": lambda _, servers: servers[0].group.isolate(servers),
    "Sentinels of NODES list no replicas for SECONDS seconds": ScenarioRunner.reset,
    "Sentinels of NODES learn nothing": ScenarioRunner.deafen,
    "servers of NODES reach each other": ScenarioRunner.join,
    "WHO is cut off from servers SERVERS(?P<sentinels> Sentinels)?": ScenarioRunner.cut_off,
    r"slot of SLOT moves to SHARD(?:, a key every (?P<pause>[\d.]+) at most)?": ScenarioRunner.move,
    "slot of SLOT goes to SHARD without its keys": lambda stage, slot, shard: stage.cluster.seize(slot, shard),
    r"WHO acquires LOCK(?: within (?P<timeout>[\d.]+))?(?: for (?P<lease>[\d.]+))?": ScenarioRunner.acquire,
    r"WHO reads LOCK(?: within (?P<timeout>[\d.]+))?": lambda _, who, lock, timeout: who.ask(
        who.read, lock, timeout=timeout
    ),
    "WHO tries LOCK": lambda _, who, lock: who.ask(who.acquire, lock, blocking=False),
    "WHO releases LOCK": lambda _, who, lock: who.ask(who.release, lock),
    f"WHO (?P<verb>{'|'.join(_OF_MACHINES)})": lambda _, who, verb: _OF_MACHINES[verb](who.machine),
    "WHO is cut off from NODES": lambda stage, who, nodes: stage.sim.partition(who.machine, *nodes),
    "WHO is cut off from Sentinels": lambda stage, who: stage.sim.cut_off(who.machine, stage.sim.sentinels),
    "WHO is SECONDS seconds from NODES": ScenarioRunner.slow,
    "WHO reaches NODES": lambda stage, who, nodes: stage.sim.heal(who.machine, *nodes),
    "WHO loses requests to NODES": lambda stage, who, nodes: stage.sim.lose(who.machine, *nodes, there=1.0),
    "WHO loses replies from NODES": lambda stage, who, nodes: stage.sim.lose(who.machine, *nodes, back=1.0),
    "WHO loses ends of replies from NODES": lambda stage, who, nodes: stage.sim.tear(who.machine, *nodes, back=1.0),
    r"expect (?P<holder>\w+) holds LOCK": ScenarioRunner.expect_holds,
    "expect WHO waits": ScenarioRunner.expect_waits,
    "expect WHO: (?P<said>.+)": ScenarioRunner.expect_said,
    "expect nodes keep LOCK: (?P<owners>.+)": ScenarioRunner.expect_kept,
}
"""The effects of statements, by their form, in which capital words stand for the variable parts.

Each function gets the stage and what the words name, see `ScenarioRunner.find`.
"""

_FORMS: Final = [(_form(form), perform) for form, perform in _STATEMENTS.items()]


class _Statement(NamedTuple):
    line: int
    at: float
    text: str
    perform: Callable[[ScenarioRunner], object]


class Scenario:
    """One story, made from its text; errors call it `name`.

    Raises:
        ScenarioError: The text has a mistake.
    """

    def __init__(self, text: str, name: str = "scenario") -> None:
        self.name: Final = name
        self._settings: Final[dict[str, Any]] = {word: default for word, (_, default) in _SETTINGS.items()}
        self._clients: list[str] = []
        self._statements: Final[list[_Statement]] = []
        for number, line in enumerate(text.splitlines(), start=1):
            first, _, rest = line.partition("#")[0].strip().partition(" ")
            if first:
                self._read(number, first, " ".join(rest.split()))

    @classmethod
    def read(cls, path: str | Path) -> Scenario:
        """Return the story in a file."""
        return cls(Path(path).read_text(), str(path))

    def _read(self, number: int, first: str, rest: str) -> None:
        if first == "clients":
            self._clients += rest.split()
            return
        try:
            if first in _SETTINGS:
                self._settings[first] = _SETTINGS[first][0](rest)
                return
            at = float(first)
        except ValueError:
            raise self._error(number, f"neither a setting nor an instant: {first} {rest}") from None
        if self._statements and at < self._statements[-1].at:
            raise self._error(number, f"{at:g} comes after {self._statements[-1].at:g}: times must rise")
        self._statements.append(_Statement(number, at, rest, self._understand(number, rest)))

    def _understand(self, number: int, text: str) -> Callable[[ScenarioRunner], object]:
        for form, function in _FORMS:
            found = form.fullmatch(text)
            if found is not None:
                words = found.groupdict()
                return lambda stage: function(stage, **stage.find(words))
        raise self._error(number, f"no statement looks like this: {text}")

    def _error(self, number: int, problem: str) -> ScenarioError:
        return ScenarioError(f"{self.name}:{number}: {problem}")

    def run(self, scripts: Mapping[str, str] | None = None, checkers: Iterable[type[Checker]] = ALL) -> Trial:
        """Run the story; return the finished simulation, with its trace. Scripts and checkers as for `Trial`.

        Raises:
            ScenarioError: An expectation was not met.
            SimulationError: A promise was broken.
        """
        settings = self._settings
        guard = settings["lease"] if settings["guard"] is None else settings["guard"]
        options = {word: settings[word] for word in ("nodes", "replicas", "cluster", "lease")}
        replay = f"Scenario.read({self.name!r}).run()"
        with Trial(
            settings["seed"], replay=replay, scripts=scripts, checkers=checkers, restart_guard=guard, **options
        ) as sim:
            for node in sim.servers:
                node.ends_former = settings["kill"]
            for group in sim.groups:
                group.slowness = 0.0
            sim.network.retransmits = settings["retransmits"]
            sim.network.kept = float(settings["kept"])
            stage = ScenarioRunner(sim, self._clients, settings["kind"])
            for statement in self._statements:
                sim.run(until=statement.at)
                try:
                    statement.perform(stage)
                except LookupError as missing:
                    problem = f"{statement.text}: no client, node or server has that name or number"
                    raise self._error(statement.line, problem) from missing
                except UnmetError as unmet:
                    tail = f"the trace ends with\n{sim.trace.text(_LAST_LINES)}"
                    raise self._error(statement.line, f"{statement.text}: {unmet}\n\n{tail}") from None
        return sim
