"""Looking for a seed with which a checker catches a protocol that was broken on purpose."""

from collections.abc import Iterable

import pytest

from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys
from redsync._core.memory import Birth
from redsync._core.scripts import Script
from redsync._drivers.nodes import Node
from redsync._protocols.lock import LOCK
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Checker
from redsync.testing.simulator.runs import simulate
from tests.support.hold_states import new_forms

__all__ = ["KEYS", "add_hold", "break_script", "connect", "contend", "hunt", "trust_records"]

KEYS = LockKeys.of(b"redsync:", b"x")


def hunt(checker: type[Checker], seeds: Iterable[int], **options) -> str:
    """Return the complaint of the first run in which the checker complains."""
    tried = 0
    for seed in seeds:
        tried += 1
        found = None
        try:
            simulate(seed, checkers=[checker], **options)
        except SimulationError as error:
            found = error
        if found is not None:
            print(f"seed {seed}: {found.complaints[0]}")
            assert found.complaints[0].startswith(f"{checker.name}: ")
            assert f"replay it with python -m redsync.testing.simulator --seed {seed}" in str(found)
            assert "the trace ends with\n" in str(found)
            return found.complaints[0]
    pytest.fail(f"{tried} runs, and nothing was found")


def break_script(name: str, *replacements: tuple[str, str]) -> dict[str, str]:
    """Return a script's source with replaced text, for `Simulation(scripts=...)`."""
    source = Script.load(name).source.decode()
    for old, new in replacements:
        assert old in source
        source = source.replace(old, new)
    return {name: source}


def trust_records(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Let clients believe birth records of any server process; return scripts that do, for a `Simulation`."""

    def initialized(cls, reply):
        record, now_ms, process = reply
        return process, cls.read(record, now_ms / 1000)

    meet = Node.meet
    monkeypatch.setattr(Birth, "initialized", classmethod(initialized))
    monkeypatch.setattr(Node, "meet", lambda node, info, now: meet(node, info._replace(uptime=None), now))
    broken = {}
    for script in Script.shipped():
        source = script.source.decode()
        source = source.replace(" or not string.find(guard, ',' .. process .. ',', 1, true)", "")
        source = source.replace("rest ~= ' ' .. process", "false")
        if source.encode() != script.source:
            broken[script.name] = source
    assert {"lock_acquire", "lock_renew", "node_initialize"} <= set(broken)
    return broken


def add_hold(runner, *, until: float = 5.0, count: int = 1) -> HoldState:
    """Let a new owner of a simulated client believe for that many seconds that it holds `x`."""
    now = runner.now()
    renew_at = ends_at = float("inf")
    owner, forms = runner.new_owner(), new_forms(until)
    state = HoldState(
        "x", LOCK, KEYS, owner, owner.claim(1), count, forms, now + until, renew_at, ends_at, 0b111, now + until
    )
    runner.session.holds.add(state)
    return state


def connect(sim):
    """Return the driver of a client that has connected and acquired a lock once."""
    client = sim.machine("a").client()

    async def visit():
        async with client.get_lock("x"):
            pass

    sim.machines[0].start(visit())
    sim.run()
    sim.run(until=sim.now + 0.5)
    return client.runner


def contend(checker: type[Checker], scripts, take) -> int:
    """Let three clients take one of two, each cut off from another node of three; return how many got it."""
    with Simulation(seed=1, scripts=scripts, checkers=[checker], lease=2.0, restart_guard=0.0) as sim:
        for node, name in enumerate("abc"):
            machine = sim.machine(name)
            sim.partition(machine, node)
            machine.start(take(machine, machine.client()))
        sim.run()
        return sum(task.result() for machine in sim.machines for task in machine.tasks)
