"""Programs in virtual time: they run as usual, end when they should, and report errors."""

import asyncio
import gc
import weakref

import pytest

from redsync.testing.simulator import Simulation, SimulationError
from tests.simulation.trial import Trial


def test_run_raises_error_of_program_with_hint_how_to_replay_it():
    async def fail():
        await asyncio.sleep(1.0)
        raise LookupError("mine")

    with Simulation(seed=4) as sim:
        sim.machine("a").start(fail())
        with pytest.raises(LookupError, match="mine") as caught:
            sim.run()
        assert "Simulation(seed=4)" in caught.value.__notes__[0]


def test_run_finds_deadlock():
    async def wait_for_nothing():
        await asyncio.Event().wait()

    with Simulation(seed=1) as sim:
        sim.machine("a").start(wait_for_nothing(), name="idler")
        with pytest.raises(SimulationError, match="deadlock: no event is left, and idler on a wait"):
            sim.run()


def test_run_until_instant_stops_there():
    with Simulation(seed=1) as sim:
        sim.machine("a").start(asyncio.sleep(10.0))
        sim.run(until=4.0)
        assert sim.now == 4.0
        sim.run()
        assert sim.now == 10.0


def test_time_passes_even_when_no_event_is_left():
    with Simulation(seed=1) as sim:
        sim.run(until=3.0)
        assert sim.now == 3.0
        sim.run(until=2.0)
        assert sim.now == 3.0, "it never goes back"


def test_trace_shows_senders_receivers_commands_and_votes():
    async def program(client):
        async with client.get_lock("x"):
            await asyncio.sleep(0.1)

    with Trial(seed=2, lease=2.0, restart_guard=0.0) as sim:
        a = sim.machine("a")
        a.start(program(a.client()))
        sim.nodes[2].crash()
        sim.run()
        text = sim.trace.text()
    refused = "Error 111 connecting to node-3:6379. Connect call failed."
    for line in (
        "*** node-3 crashes\n",
        f"a is not connected to node-3: {refused}\n",
        "a asks node-1,2: #2 lock_acquire(redsync:x | a:1:1 1 2000 0)\n",
        "node-1 executes for a: lock_acquire(redsync:x | a:1:1 1 2000 0) -> 1\n",
        f"a counts #3: WON: node-1 granted, node-2 granted, node-3 failed ({refused})\n",
    ):
        assert line in text
    assert sim.trace.text(last=2) == "".join(f"{line}\n" for line in text.splitlines()[-2:])


def simulate():
    """Run a simulation, and return a weak reference to it."""
    with Simulation(seed=1) as sim:
        machine = sim.machine("a")
        client = machine.client()

        async def work():
            async with client.get_lock("x"):
                pass

        machine.start(work())
        sim.run()
        return weakref.ref(sim)


def test_simulation_with_clients_is_collected_when_it_is_over():
    """A campaign makes a hundred thousand."""
    gone = simulate()
    gc.collect()
    assert gone() is None
