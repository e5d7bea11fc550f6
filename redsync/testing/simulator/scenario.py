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
- `split P`: the probability that bytes arrive in two pieces.
- `clients`: each is one task on its own machine.

The events follow, each with its instant of true time in seconds; the times rise.

| statement | meaning |
|---|---|
| `a acquires x [within S] [for S]` | wait, `within` a timeout; `for` a lease of its own |
| `a tries x` | acquire without waiting |
| `a reads x [within S]` | wait for a read lock; `a acquires x` is for the write lock, where the kind is `read-write` |
| `a releases x`, `a extends x`, `a gives up` | the last one cancels what `a` is doing |
| `a pauses`, `resumes`, `crashes`, `goes dark`, `jumps S` | the machine of `a`, or its clock |
| `node 1 hangs`, `resumes`, `crashes`, `goes dark`, `restarts`, `restarts empty`, `forgets`, `jumps S` | a node |
| `node 1 restarts without the last S seconds` | a node that comes back with older data |
| `node 1 answers BUSY`, `recovers` | errors for all commands (also `LOADING`), for all keys (`MOVED`), or for writes |
| `node 1 forgets its scripts`, `ends a connection`, `ignores new connections` | the last one until it recovers |
| `nodes 1 2 change places` | they swap addresses; all connections to them end |
| `Sentinels promote 1b`, `1c is not told`, `1c is told` | a decision, and whether a server hears of it |
| `Sentinels of 1 list no replicas for S seconds` | they were reset |
| `slot of 1 moves to 4[, a key every S at most]` | the slot of node 1 moves to the 4th shard, key by key |
| `slot of 1 stays` | it stops moving, as soon as all keys are back |
| `slot of 1 goes to 4 without its keys` | they are lost |
| `server 1b crashes`, `hangs`, `resumes`, `restarts` | one server of a group |
| `1a 1c reach only each other`, `servers of 1 reach each other` | the network between the servers of a group |
| `a is cut off from servers 1b 1c Sentinels` | the network to some of them, and to all Sentinels |
| `a is cut off from 1 2`, `a is S seconds from 1 2`, `a reaches 1 2`, `all is well` | the network |
| `a loses requests to 1 2`, `a loses replies from 1 2` | connections that break silently |
| `a loses ends of requests to 1 2`, `a loses ends of replies from 1 2` | connections that end in the middle of one |
| `expect a holds x`, `expect nobody holds x` | what clients believe |
| `expect a waits`, `expect a: acquired x, released x` | `a` is busy; its last outcomes |
| `expect nodes keep x: a a -` | whose claim each node keeps |

A client says `acquired`, `busy`, `no quorum for`, `released`, `extended`, `lost`, `not owner of`, `cancelled` and `told
of loss of`, each with the lock's name. A busy client queues further requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, Final, NamedTuple

from redsync._kinds import KINDS
from redsync.exceptions import RedsyncError
from redsync.testing.simulator.simulation import Simulation
from redsync.testing.simulator.stage import Stage, UnmetError

__all__ = ["Scenario", "ScenarioError"]


def _kind(word: str) -> str:
    if word not in KINDS or KINDS[word].like not in ("lock", "read-write"):
        raise ValueError(word)
    return word


def _yes_or_no(word: str) -> bool:
    if word not in ("yes", "no"):
        raise ValueError(word)
    return word == "yes"


_SETTINGS: Final[dict[str, Callable[[str], Any]]] = {
    "seed": int,
    "nodes": int,
    "replicas": int,
    "cluster": _yes_or_no,
    "lease": float,
    "guard": float,
    "kind": _kind,
    "kill": _yes_or_no,
    "kept": _yes_or_no,
    "retransmits": _yes_or_no,
    "split": float,
}
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
    "crashes": methodcaller("crash"),
    "goes dark": methodcaller("crash", dark=True),
}
_OF_SERVERS: Final = {
    "crashes": methodcaller("crash"),
    "hangs": methodcaller("hang"),
    "resumes": methodcaller("resume"),
    "restarts": methodcaller("restart"),
}
_OF_NODES: Final = {
    **_OF_SERVERS,
    "goes dark": methodcaller("crash", dark=True),
    "restarts empty": methodcaller("restart", forget=True),
    "forgets": methodcaller("flush"),
    "recovers": methodcaller("recover"),
    "forgets its scripts": methodcaller("forget_scripts"),
    "ends a connection": methodcaller("kick"),
    "ignores new connections": methodcaller("ignore"),
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
    "SERVERS reach only each other": lambda _, servers: servers[0].group.isolate(servers),
    "Sentinels of NODES list no replicas for SECONDS seconds": Stage.reset,
    "servers of NODES reach each other": Stage.join,
    "WHO is cut off from servers SERVERS(?P<sentinels> Sentinels)?": Stage.cut_off,
    r"slot of SLOT moves to SHARD(?:, a key every (?P<pause>[\d.]+) at most)?": Stage.move,
    "slot of SLOT stays": lambda stage, slot: stage.cluster.moves[slot].abort(),
    "slot of SLOT goes to SHARD without its keys": lambda stage, slot, shard: stage.cluster.seize(slot, shard),
    r"WHO acquires LOCK(?: within (?P<timeout>[\d.]+))?(?: for (?P<lease>[\d.]+))?": Stage.acquire,
    r"WHO reads LOCK(?: within (?P<timeout>[\d.]+))?": lambda _, who, lock, timeout: who.ask(
        who.read, lock, timeout=timeout
    ),
    "WHO tries LOCK": lambda _, who, lock: who.ask(who.acquire, lock, blocking=False),
    "WHO releases LOCK": lambda _, who, lock: who.ask(who.release, lock),
    "WHO extends LOCK": lambda _, who, lock: who.ask(who.extend, lock),
    "WHO gives up": lambda _, who: who.give_up(),
    f"WHO (?P<verb>{'|'.join(_OF_MACHINES)})": lambda _, who, verb: _OF_MACHINES[verb](who.machine),
    "WHO jumps SECONDS": lambda _, who, seconds: who.machine.jump(seconds),
    "WHO is cut off from NODES": lambda stage, who, nodes: stage.sim.partition(who.machine, *nodes),
    "WHO is SECONDS seconds from NODES": Stage.slow,
    "WHO reaches NODES": lambda stage, who, nodes: stage.sim.heal(who.machine, *nodes),
    "WHO loses requests to NODES": lambda stage, who, nodes: stage.sim.lose(who.machine, *nodes, there=1.0),
    "WHO loses replies from NODES": lambda stage, who, nodes: stage.sim.lose(who.machine, *nodes, back=1.0),
    "WHO loses ends of requests to NODES": lambda stage, who, nodes: stage.sim.tear(who.machine, *nodes, there=1.0),
    "WHO loses ends of replies from NODES": lambda stage, who, nodes: stage.sim.tear(who.machine, *nodes, back=1.0),
    r"expect (?P<holder>\w+) holds LOCK": Stage.expect_holds,
    "expect WHO waits": Stage.expect_waits,
    "expect WHO: (?P<said>.+)": Stage.expect_said,
    "expect nodes keep LOCK: (?P<owners>.+)": Stage.expect_kept,
}
"""The effects of statements, by their form, in which capital words stand for the variable parts.

Each function gets the stage and what the words name, see `Stage.find`.
"""

_FORMS: Final = [(_form(form), perform) for form, perform in _STATEMENTS.items()]


class _Statement(NamedTuple):
    line: int
    at: float
    text: str
    perform: Callable[[Stage], object]


class Scenario:
    """One story, made from its text; errors call it `name`.

    Raises:
        ScenarioError: The text has a mistake.
    """

    def __init__(self, text: str, name: str = "scenario") -> None:
        self.name: Final = name
        self._settings: Final[dict[str, Any]] = {"seed": 1, "nodes": 3, "lease": 2.0, "kind": "lock"}
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
                self._settings[first] = _SETTINGS[first](rest)
                return
            at = float(first)
        except ValueError:
            raise self._error(number, f"neither a setting nor an instant: {first} {rest}") from None
        if self._statements and at < self._statements[-1].at:
            raise self._error(number, f"{at:g} comes after {self._statements[-1].at:g}: times must rise")
        self._statements.append(_Statement(number, at, rest, self._understand(number, rest)))

    def _understand(self, number: int, text: str) -> Callable[[Stage], object]:
        for form, function in _FORMS:
            found = form.fullmatch(text)
            if found is not None:
                words = found.groupdict()
                who = words.get("who") or words.get("holder") or "nobody"
                if who not in (*self._clients, "nobody"):
                    raise self._error(number, f"{who!r} is not one of the clients: {' '.join(self._clients)}")
                nodes = self._settings["nodes"]
                shards = nodes + self._settings.get("cluster", False)
                servers = [int(name[:-1]) for name in words.get("servers", words.get("server", "")).split()]
                numbers = [*map(int, words.get("nodes", words.get("node", "")).split())]
                numbers += [min(each, nodes) for each in servers]
                if not all(1 <= number <= nodes for number in numbers) or max(servers, default=1) > shards:
                    raise self._error(number, f"nodes are numbered from 1 to {nodes}: {text}")
                return lambda stage: function(stage, **stage.find(words))
        raise self._error(number, f"no statement looks like this: {text}")

    def _error(self, number: int, problem: str) -> ScenarioError:
        return ScenarioError(f"{self.name}:{number}: {problem}")

    def run(self, scripts: Mapping[str, str] | None = None) -> Simulation:
        """Run the story; return the finished simulation, with its trace. Scripts as for `Simulation`.

        Raises:
            ScenarioError: An expectation was not met.
            SimulationError: A promise was broken.
        """
        settings = self._settings
        guard = settings.get("guard", settings["lease"])
        options = {"lease": settings["lease"], "restart_guard": guard}
        number = {"nodes": settings["nodes"], "replicas": settings.get("replicas")}
        number["cluster"] = settings.get("cluster", False)
        replay = f"Scenario.read({self.name!r}).run()"
        with Simulation(settings["seed"], replay=replay, scripts=scripts, **number, **options) as sim:
            for node in sim.servers:
                node.ends_former = settings.get("kill", True)
            for group in sim.groups:
                group.slowness = 0.0
            sim.network.retransmits = settings.get("retransmits", False)
            sim.network.kept = float(settings.get("kept", False))
            sim.network.split = settings.get("split", 0.0)
            stage = Stage(sim, self._clients, settings["kind"])
            for statement in self._statements:
                sim.run(until=statement.at)
                try:
                    statement.perform(stage)
                except UnmetError as unmet:
                    tail = f"the trace ends with\n{sim.trace.text(_LAST_LINES)}"
                    raise self._error(statement.line, f"{statement.text}: {unmet}\n\n{tail}") from None
        return sim
