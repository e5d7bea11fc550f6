"""`retry_after()` of a rate limiter: a caller that waits that long is refused only if another one came meanwhile."""

import asyncio

import pytest

from redsync.testing.simulator import Simulation


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("drift", [0.995, 1.005])
def test_caller_that_waits_as_long_as_it_was_told_is_admitted(drift, n):
    """Even if another client has used the rates up, and with either clock faster."""

    async def use(client):
        limiter = client.get_rate_limiter("x", [(3, 1.0), (7, 4.0)])
        for _ in range(4):
            seconds = await limiter.retry_after(n)
            assert 0.0 <= seconds <= 4.0 * 1.01 + 0.005
            await asyncio.sleep(seconds)
            assert await limiter.acquire(False, n=n)

    with Simulation(1, restart_guard=0.0) as sim:
        machines = [sim.machine(name) for name in "ab"]
        machines[0].drift(drift)
        for machine in machines:
            machine.start(use(machine.client()))
            sim.run()
