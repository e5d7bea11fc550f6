"""Clients of a simulation."""

import gc
import weakref

from redsync.testing import Simulation


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
