"""Acquire and release of other libraries, next to redsync and bare sockets; also with a node down or hung.

Each library runs in its own process (`bench.peer`). The processes take turns; the others wait. Libraries that lock on
one server are measured next to redsync and the floor on one server. Libraries that are not installed are left out;
`make peers` installs them.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from bench.measure import Figure, compare, interleave, say
from bench.peer_locks import PEERS, command, environment, is_installed
from redsync.testing import LocalNodes

Answer: TypeAlias = dict[str, float]

_ONE = ", 1 server"
_OURS = ("floor", "redsync", "redsync asyncio")
_START = 20.0
_PATIENCE = 5.0
"""Seconds after which a late process counts as stuck."""


class Side:
    """The process that measures one library.

    Args:
        name: The library's name in the table.
        urls: The servers.
    """

    def __init__(self, name: str, urls: Sequence[str]) -> None:
        self.name = name
        bare = name.removesuffix(_ONE)
        servers = PEERS[bare].servers if bare in PEERS else len(urls)
        self._process = subprocess.Popen(
            command(bare if bare in PEERS else name, "peer", json.dumps(list(urls[:servers]))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(bare),
        )
        self.is_stuck = False
        if self._read(_START) != "ready":
            self.close()
            raise RuntimeError(f"{name} did not start")

    def measure(self, **order: float) -> Answer:
        """Let the process carry out an order; end a stuck process, which from then on counts as granted no locks."""
        if not self.is_stuck:
            assert self._process.stdin is not None
            print(json.dumps(order), file=self._process.stdin, flush=True)
            if line := self._read(order.get("seconds", 0.0) + _PATIENCE):
                answer: Answer = json.loads(line)
                return answer
            self.is_stuck = True
            self.close()
        return {"p50": 0.0, "p99": 0.0, "cpu": 0.0, "tried": 1, "granted": 0}

    def _read(self, seconds: float) -> str:
        """Return the next line, or "" if it does not come in that time."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return self._process.stdout.readline().strip() if selector.select(seconds) else ""

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def run(*, quick: bool) -> list[Figure]:
    """Measure pairs with all nodes well, then with one of five down, then with one hung."""
    peers = [name for name in PEERS if is_installed(name)]
    if missing := [name for name in PEERS if name not in peers]:
        say(f"    ... left out, not installed (`make peers` installs them): {', '.join(missing)}")
    five = [*_OURS, *(name for name in peers if PEERS[name].servers > 1)]
    one = [f"{name}{_ONE}" for name in ("floor", "redsync", *(name for name in peers if PEERS[name].servers == 1))]
    figures: list[Figure] = []
    with LocalNodes(5) as nodes, _sides([*five, *one], nodes) as sides:
        rounds, pairs = (6, 50) if quick else (30, 100)
        answers = interleave([partial(side.measure, pairs=pairs) for side in sides], rounds)
        by_name = dict(zip((side.name for side in sides), answers, strict=True))
        for group in (five, one):
            figures += _beside(by_name, [name for name in group if name in by_name])
    for what, harm in (("1 node down", LocalNodes.kill), ("1 node hung", LocalNodes.pause)):
        say(f"    ... {what}")
        figures += _in_trouble(five, what, partial(_harm, harm), 0.5 if quick else 1.0)
    return figures


def _harm(harm: Callable[[LocalNodes, int], None], nodes: LocalNodes) -> None:
    harm(nodes, 0)


@contextlib.contextmanager
def _sides(names: Sequence[str], nodes: LocalNodes) -> Iterator[list[Side]]:
    """Start and warm up a process for each name; leave out those that fail."""
    with contextlib.ExitStack() as stack:
        sides = []
        for name in names:
            try:
                side = Side(name, nodes.urls)
            except RuntimeError as error:
                say(f"    ... left out: {error}")
                continue
            stack.callback(side.close)
            if not side.measure(pairs=200)["granted"]:
                say(f"    ... left out: {name} can't lock here")
                continue
            sides.append(side)
        yield sides


def _beside(answers: dict[str, list[Answer]], names: Sequence[str]) -> list[Figure]:
    floor, *others = names
    figures = []
    for name in others:
        for what, key in (("p50", "p50"), ("client CPU", "cpu")):
            ours, bare = ([answer[key] for answer in answers[each]] for each in (name, floor))
            figures.append(compare("peers", f"{name}: {what}", "us", ours, bare))
    return figures


def _in_trouble(names: Sequence[str], what: str, harm: Callable[[LocalNodes], None], seconds: float) -> list[Figure]:
    with LocalNodes(5) as nodes, _sides(names, nodes) as sides:
        harm(nodes)
        for side in sides:
            side.measure(seconds=seconds)  # to let it notice the fault
        answers = interleave([partial(side.measure, seconds=seconds) for side in sides], 3)
        by_name = dict(zip((side.name for side in sides), answers, strict=True))
    floor = _p50(by_name["floor"])
    figures = []
    for name, mine in by_name.items():
        if name == "floor":
            continue
        tried, granted = (sum(answer[key] for answer in mine) for key in ("tried", "granted"))
        figures.append(Figure("peers", f"{name}, {what}: granted", "%", 100 * granted / tried))
        if granted and floor:
            p50 = _p50(mine)
            figures.append(Figure("peers", f"{name}, {what}: p50", "us", p50, floor, p50 / floor))
    return figures


def _p50(answers: Sequence[Answer]) -> float:
    return statistics.median([answer["p50"] for answer in answers if answer["granted"]] or [0.0])
