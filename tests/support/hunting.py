"""Looking for a seed with which a checker catches a protocol that was broken on purpose."""

from collections.abc import Iterable

import pytest

from redsync._core.memory import Birth
from redsync._core.scripts import Script
from redsync._drivers.nodes import Node
from redsync.testing.simulator import SimulationError
from redsync.testing.simulator.simulation import Checker
from tests.simulation.runs import simulate


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
            assert f"replay it with python -m tests.simulation --seed {seed}" in str(found)
            assert "the trace ends with\n" in str(found)
            return found.complaints[0]
    pytest.fail(f"{tried} runs, and nothing was found")


def break_script(name: str, *replacements: tuple[str, str]) -> dict[str, str]:
    """Return a script's source with replaced text, for `Trial(scripts=...)`."""
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
