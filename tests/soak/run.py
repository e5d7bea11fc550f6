"""One soak from the first server to the last: sets up, runs clients and nemesis, collects the evidence."""

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from redsync.testing import FaultProxy, LocalNodes
from redsync.testing.harness import journal
from redsync.testing.harness.crew import COMMAND, Crew, Life
from redsync.testing.harness.endings import judge_complaints, judge_leaks, judge_liveness, judge_zombies, zombies
from redsync.testing.harness.exclusion import judge_exclusion
from redsync.testing.harness.holds import Hold, holds_of
from redsync.testing.harness.journal import Journal, Line
from redsync.testing.harness.latches import judge_latches
from redsync.testing.harness.ledger import Entry, read_ledgers
from redsync.testing.harness.losses import judge_hearing, judge_losses
from redsync.testing.harness.nemesis import Fault, Nemesis
from redsync.testing.harness.orders import Order
from redsync.testing.harness.verdicts import Violation, stalls_of
from tests.soak.namespaces import Network
from tests.soak.storm import CONFIG, Storm
from tests.soak.troubles import LEASE, NODES

ROOT = Path(__file__).parents[2]
THREADS = 3
CLAIM_PATIENCE = LEASE + 1.0
PLACE_PATIENCE = 5.0 + 1.0
"""Seconds after the end within which claims and places must be gone. Nodes keep places for 5 s: that of a killed
waiter, even if the node hung and takes it late."""


@dataclass(frozen=True)
class Setting:
    """The contended synchronizers, the clients, and their behaviour.

    Attributes:
        seed: The seed of all choices.
        directory: The directory of all records.
        names: The locks, each as "kind:name".
        clients: The number of processes.
        proxied: Those of them with a proxy before each node.
        work: See `Order`.
        restart_guard: See `Order`.
        sabotage: The way to break the library, see `sabotage`; empty for none.
        lease: See `Order`.
        network: True if clients live behind a router, see `namespaces`; the faults are then those of `storm`.
    """

    seed: object
    directory: Path
    names: Sequence[str]
    clients: int
    proxied: Sequence[int] = ()
    work: str = "mixed"
    restart_guard: float | None = None
    sabotage: str = ""
    lease: float = LEASE
    network: bool = False


@dataclass(frozen=True)
class Witness:
    """One process of a client and its records.

    Attributes:
        workers: Its threads.
        lines: Its journal.
        holds: Its holds.
        killed_at: An instant just before it was killed; None if it finished on request.
        ended_at: An instant after that.
    """

    workers: Sequence[int]
    lines: Sequence[Line]
    holds: Sequence[Hold]
    killed_at: int | None
    ended_at: int | None = None

    @classmethod
    def of(cls, life: Life) -> "Witness":
        """Return the records of one process of a client."""
        lines = journal.read(life.journal)
        holds = holds_of(lines, life.killed_at, life.journal.name)
        return cls(life.owners, lines, holds, life.killed_at, life.ended_at)

    def violations(self, names: Sequence[str]) -> list[Violation]:
        """Return the findings of the judges of a single process."""
        stalls = stalls_of(self.lines)
        found = judge_losses(self.holds, stalls) + judge_hearing(self.lines, self.killed_at)
        found += judge_complaints(self.lines)
        if self.killed_at is None:
            found += judge_liveness(self.lines, names, self.workers, stalls) + judge_leaks(self.lines)
        return found


@dataclass(frozen=True)
class Evidence:
    """The records and leftovers of a run.

    Attributes:
        names: The locks.
        witnesses: All processes of all clients.
        ledgers: The entries appended, by lock.
        counters: The final values of the counters, by lock.
        left: The claims that were left when all was quiet, by node.
        late: The seconds by which the faults were postponed.
    """

    names: Sequence[str]
    witnesses: Sequence[Witness]
    ledgers: Mapping[str, Sequence[Entry]]
    counters: Mapping[str, int]
    left: Mapping[int, Sequence[str]]
    late: float

    @property
    def holds(self) -> list[Hold]:
        return [hold for witness in self.witnesses for hold in witness.holds]

    def violations(self) -> list[Violation]:
        """Return the findings of all judges."""
        found = judge_exclusion(self.holds, self.ledgers, self.counters) + judge_zombies(self.left)
        found += judge_latches((witness.lines, witness.ended_at) for witness in self.witnesses)
        return found + [violation for witness in self.witnesses for violation in witness.violations(self.names)]


def soak(setting: Setting, faults: Sequence[Fault], seconds: float) -> Evidence:
    """Let the clients contend for that long while the faults happen; return the evidence.

    Raises:
        RunFailedError: A client ended by itself, or not at all.
    """
    with contextlib.ExitStack() as stack:
        if setting.network:
            return _soak_behind_router(stack, setting, faults, seconds)
        nodes = stack.enter_context(LocalNodes(NODES))
        proxies = {
            (client, node): stack.enter_context(FaultProxy(nodes.ports[node]))
            for client in setting.proxied
            for node in range(NODES)
        }
        urls = {
            client: [proxies[client, node].url for node in range(NODES)] if client in setting.proxied else nodes.urls
            for client in range(setting.clients)
        }
        crew = stack.enter_context(
            Crew(
                setting.directory,
                lambda client, *place: _order(setting, urls[client], *place),
                lambda _: _command(setting.sabotage),
            )
        )
        nemesis = Nemesis(nodes, crew, proxies, _nemesis_journal(setting))
        return _play(setting, nodes, crew, nemesis, faults, seconds=seconds)


def _soak_behind_router(
    stack: contextlib.ExitStack, setting: Setting, faults: Sequence[Fault], seconds: float
) -> Evidence:
    network = stack.enter_context(Network(setting.clients, NODES))
    bind = {"bind": " ".join(["127.0.0.1", *network.addresses])}
    nodes = stack.enter_context(LocalNodes(NODES, config=CONFIG | bind))
    ways = zip(network.addresses, nodes.ports, strict=True)
    urls = [f"redis://{address}:{port}/0" for address, port in ways]
    crew = stack.enter_context(
        Crew(
            setting.directory,
            lambda _, *place: _order(setting, urls, *place),
            lambda client: [*network.within(client), *_command(setting.sabotage)],
        )
    )
    storm = Storm(nodes, network, crew, _nemesis_journal(setting))
    stack.callback(storm.close)
    return _play(setting, nodes, crew, storm, faults, seconds=seconds)


def _play(
    setting: Setting, nodes: LocalNodes, crew: Crew, nemesis: Nemesis, faults: Sequence[Fault], *, seconds: float
) -> Evidence:
    for client in range(setting.clients):
        crew.start(client)
    crew.go()
    crew.await_all("acquired")  # new nodes grant nothing at first
    nemesis.run(faults, seconds)
    crew.finish()
    return _collect(setting, crew, _left_behind(nodes, setting.lease), nemesis.late)


def _command(sabotage: str) -> Sequence[str]:
    if not sabotage:
        return COMMAND
    return ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.soak.sabotage", sabotage]


def _nemesis_journal(setting: Setting) -> Journal:
    return Journal(setting.directory / "nemesis.journal")


def _order(setting: Setting, urls: Sequence[str], first: int, path: Path) -> Order:
    return Order(
        urls=urls,
        names=setting.names,
        directory=str(setting.directory),
        journal=str(path),
        first=first,
        owners=THREADS,
        seed=str(setting.seed),
        work=setting.work,
        lease=setting.lease,
        restart_guard=setting.restart_guard,
        last=True,
    )


def _collect(setting: Setting, crew: Crew, left: Mapping[int, Sequence[str]], late: float) -> Evidence:
    entries, counters = read_ledgers(setting.directory, setting.names)
    return Evidence(setting.names, [Witness.of(life) for life in crew.lives], entries, counters, left, late)


def _left_behind(nodes: LocalNodes, lease: float = LEASE) -> dict[int, list[str]]:
    """Return the leftovers on the nodes now that all clients are closed, after time for them to go."""
    with contextlib.ExitStack() as stack:
        raw = [stack.enter_context(redis.Redis(port=port, socket_timeout=10.0)) for port in nodes.ports]

        def keys(without: tuple[bytes, ...]) -> dict[int, list[bytes]]:
            return {i: [key for key in node.scan_iter() if not key.startswith(without)] for i, node in enumerate(raw)}

        def wait(timeout: float, without: tuple[bytes, ...] = ()) -> dict[int, list[bytes]]:
            return zombies(lambda: keys(without), timeout, time.monotonic, lambda: time.sleep(0.02))

        claims = wait(CLAIM_PATIENCE + lease - LEASE, without=(b"redsync_queue:", b"redsync_places:"))
        left = claims or wait(PLACE_PATIENCE)
        return {i: [_description(raw[i], key) for key in keys] for i, keys in left.items()}


def _description(node: redis.Redis, key: bytes) -> str:
    """Return a key with its owner and its remaining time."""
    kind = node.type(key)
    read = {b"hash": node.hgetall, b"string": node.get, b"zset": lambda key: node.zrange(key, 0, -1)}
    value = read.get(kind, lambda _: kind)(key)
    return f"{key!r} = {value!r}, {node.pttl(key)} ms left"
