"""Virtual nodes: what they refuse, when keys end, and which clocks waive promises."""

import sys

import pytest

from redsync._core.scripts import Script
from redsync.testing.simulator import scripting
from redsync.testing.simulator.commands import UnknownCommandError
from redsync.testing.simulator.scripting import run_script
from redsync.testing.simulator.store import Store
from tests.simulation.stores import execute

SIMULATION = {"seed": 9, "lease": 2.0, "node_timeout": 0.1}


@pytest.mark.parametrize("call", ["call", "pcall"])
def test_command_that_virtual_nodes_lack_is_an_exception(sim, call):
    with pytest.raises(UnknownCommandError, match="'blpop'"):
        write(sim, 0, f"return redis.{call}('blpop', 'k', 0)")
    assert write(sim, 0, "return 1") == 1


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


def test_clock_that_jumps_ahead_waives_exclusion(sim):
    sim.nodes[0].jump(-1.0)
    assert not sim.waived
    sim.nodes[0].jump(1.0)
    assert "exclusion" in sim.waived


def test_clocks_further_apart_than_drift_factor_waive_exclusion(sim):
    sim.nodes[0].drift(1.005)
    assert not sim.waived
    sim.nodes[1].drift(0.994)
    assert "exclusion" in sim.waived


def write(sim, node, *words):
    """Execute a script that writes, tries to write, or only reads, on a node in trouble; return the reply."""
    script = Script("words", " ".join(words).encode(), b"".join(word.encode() for word in words))
    return run_script(script, sim.nodes[node].store, (b"key",), ())


def test_node_that_can_not_write_refuses_scripts_that_do(sim):
    sim.nodes[0].refuse("MISCONF")
    reply = write(sim, 0, "redis.call('set', KEYS[1], 'x') return 1")
    assert str(reply).startswith("MISCONF")
    assert write(sim, 0, "return redis.call('exists', KEYS[1])") == 0
    assert write(sim, 0, "return redis.pcall('del', KEYS[1]).err and 1 or 2") == 1
    sim.nodes[0].recover()
    assert write(sim, 0, "redis.call('set', KEYS[1], 'x') return 1") == 1


def test_node_without_memory_refuses_commands_that_need_some_unless_the_script_has_written(sim):
    sim.nodes[0].refuse("OOM")
    assert str(write(sim, 0, "redis.call('set', KEYS[1], 'y') return 1")).startswith("OOM")
    assert write(sim, 0, "redis.call('del', KEYS[1]) return 2") == 2
    assert write(sim, 0, "redis.call('del', KEYS[1]) redis.call('set', KEYS[1], 'z') return 3") == 3
