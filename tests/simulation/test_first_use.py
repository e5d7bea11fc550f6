"""The first use of an AsyncClient without `async with` waits for connections, but no longer than its caller would."""

import pytest

from redsync import QuorumError

SIMULATION = {"seed": 6, "nodes": 3, "restart_guard": 0.0}

CALLS = {
    "lock": lambda client: client.get_lock("x").acquire(timeout=0.1),
    "latch": lambda client: client.get_count_down_latch("x").wait(timeout=0.1),
}


def test_first_try_that_does_not_wait_succeeds_with_nodes_far_away(sim, machine):
    for node in sim.nodes:
        route = sim.network.route(machine, node)
        route.there.shortest = route.back.shortest = 0.04
    task = machine.start(machine.client().get_lock("x").acquire(False))
    sim.run()
    assert task.result() is True


@pytest.mark.parametrize("kind", CALLS)
def test_timeout_of_a_first_use_holds_although_nodes_hang(sim, machine, kind):
    async def program():
        with pytest.raises(QuorumError):
            await CALLS[kind](machine.client())
        return sim.now

    sim.partition(machine, 0, 1)
    task = machine.start(program())
    sim.run()
    assert task.result() < 0.15
