"""Programs in virtual time: they run as usual, end when they should, and report errors."""

import asyncio

import pytest

from redsync.testing.simulator import Simulation, SimulationError


async def take_turns(client, log, rounds=3):
    lock = client.get_lock("x")
    for _ in range(rounds):
        async with lock:
            log.append("in")
            await asyncio.sleep(0.3)
            log.append("out")


def test_run_lets_two_machines_take_turns():
    log = []
    with Simulation(seed=1, lease=2.0) as sim:
        for name in "ab":
            machine = sim.machine(name)
            machine.start(take_turns(machine.client(), log))
        sim.run()
        assert log == ["in", "out"] * 6
        assert sim.now > 6 * 0.3


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
