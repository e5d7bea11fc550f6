"""The trace: one readable line per happening."""

import asyncio

from redsync.testing.simulator import Simulation


def test_trace_shows_senders_receivers_commands_and_votes():
    async def program(client):
        async with client.get_lock("x"):
            await asyncio.sleep(0.1)

    with Simulation(seed=2, lease=2.0, restart_guard=0.0) as sim:
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
        "a hears from node-2: #2 -> 1\n",
        f"a counts #3: WON: node-1 granted, node-2 granted, node-3 failed ({refused})\n",
    ):
        assert line in text
    assert sim.trace.text(last=2) == "".join(f"{line}\n" for line in text.splitlines()[-2:])
