"""Virtual nodes: what they refuse, when keys end, and which clocks waive promises."""

import asyncio
import sys

import pytest

from redsync._core.scripts import Script
from redsync.testing.simulator import scripting
from redsync.testing.simulator.commands import UnknownCommandError
from redsync.testing.simulator.scripting import run_script
from redsync.testing.simulator.store import Store
from tests.simulation.stores import execute

SIMULATION = {"seed": 9, "lease": 2.0, "node_timeout": 0.1}


def run(sim, source):
    """Execute a script on the first node; return the reply."""
    return run_script(Script("words", source.encode(), source.encode()), sim.nodes[0].store, (b"key",), ())


@pytest.mark.parametrize("call", ["call", "pcall"])
def test_command_that_virtual_nodes_lack_is_an_exception(sim, call):
    with pytest.raises(UnknownCommandError, match="'blpop'"):
        run(sim, f"return redis.{call}('blpop', 'k', 0)")
    assert run(sim, "return 1") == 1


def test_missing_lupa_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lupa.lua51", None)
    with pytest.raises(ImportError, match=r'pip install "redsync-toolkit\[simulator\]"'):
        scripting._Interpreter()


def test_key_lasts_to_its_last_millisecond_by_the_node_s_own_clock():
    now = [1_700_000_000.25]
    store = Store(lambda: now[0])
    assert execute(store, b"time") == [b"1700000000", b"250000"]
    execute(store, b"set", b"k", b"v", b"px", b"1500")
    assert execute(store, b"ttl", b"k") == 2
    now[0] += 1.5
    assert execute(store, b"pttl", b"k") == 0
    now[0] = 1_700_000_001.751
    assert (execute(store, b"get", b"k"), execute(store, b"pttl", b"k")) == (None, -2)


@pytest.mark.parametrize(
    ("fault", "harmless", "harmful"),
    [("jump", -1.0, 1.0), ("drift", 1.005, 1.011)],
)
def test_clock_that_is_wrong_by_more_than_clients_allow_for_waives_exclusion(sim, fault, harmless, harmful):
    getattr(sim.nodes[0], fault)(harmless)
    assert not sim.waived
    getattr(sim.nodes[0], fault)(harmful)
    assert "exclusion" in sim.waived


@pytest.mark.parametrize(
    ("trouble", "source", "reply"),
    [
        ("MISCONF", "redis.call('set', KEYS[1], 'x') return 1", "MISCONF"),
        ("MISCONF", "return redis.call('exists', KEYS[1])", "0"),
        ("MISCONF", "return redis.pcall('del', KEYS[1]).err and 1 or 2", "1"),
        ("OOM", "redis.call('set', KEYS[1], 'x') return 1", "OOM"),
        ("OOM", "redis.call('del', KEYS[1]) return 2", "2"),
        ("OOM", "redis.call('del', KEYS[1]) redis.call('set', KEYS[1], 'x') return 3", "3"),
    ],
)
def test_node_in_trouble_refuses_writes_or_those_that_need_memory_unless_the_script_has_written(
    sim, trouble, source, reply
):
    sim.nodes[0].refuse(trouble)
    assert str(run(sim, source)).startswith(reply)
    sim.nodes[0].recover()
    assert run(sim, "redis.call('set', KEYS[1], 'x') return 1") == 1


def test_restart_with_older_data_loses_what_was_executed_in_those_seconds_and_nothing_else(sim, machine):
    async def hold(client, name):
        async with client.get_lock(name):
            await asyncio.sleep(10.0)

    client, node = machine.client(), sim.nodes[0]
    for name in ("early", "late"):
        machine.start(hold(client, name))
        sim.run(until=sim.now + 0.5)
    found = []
    for lost in (0.1, 0.7):
        node.crash()
        node.restart(lost=lost)
        found.append([key for key in (b"redsync:early", b"redsync:late") if node.store.find(key) is not None])
    assert found == [[b"redsync:early", b"redsync:late"], [b"redsync:early"]]
