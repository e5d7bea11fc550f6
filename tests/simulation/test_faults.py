"""Random faults that a test asks for: older data hits what was just granted, and faults of the wire happen and end.

Runs by seed show that all other kinds happen, and that they end.
"""

import asyncio
import contextlib

from redsync.exceptions import LeaseLostError
from redsync.testing.simulator.faults import Nemesis
from redsync.testing.simulator.trace_events import Executed, Faulted
from tests.simulation.checks.base import who
from tests.simulation.trial import Trial
from tests.simulation.trial_faults import Rewinds


async def hold_one_after_the_other(client):
    for i in range(20):
        with contextlib.suppress(LeaseLostError):
            async with client.get_lock(f"x-{i}"):
                await asyncio.sleep(0.5)


def run_with(injector, **faults):
    """Let two programs run under faults of one sort, and return the simulation."""
    with Trial(1, lease=2.0, restart_guard=0.0) as sim:
        for name in "ab":
            machine = sim.machine(name)
            machine.start(hold_one_after_the_other(machine.client(prefix=name)))
        injector(sim, until=8.0, **faults).start()
        sim.run()
    return sim


def test_nodes_that_rewind_have_forgotten_holds():
    sim = run_with(Rewinds, every=0.5, lasting=2.0)
    executed = [event for event in sim.trace.events if isinstance(event, Executed)]
    granted = {(each.node, each.args[0]) for each in executed if (each.script, each.reply) == ("lock_acquire", 1)}
    missing = ("lock_release", 0), ("lock_renew", [1])
    missed = {(each.node, each.args[0]) for each in executed if (each.script, each.reply) in missing}
    rewinds = [event for event in sim.trace.events if isinstance(event, Faulted) and event.kind == "node restart older"]
    assert len({who(each) for each in rewinds}) == 3
    assert len(granted & missed) > len(rewinds) / 3


def test_faults_of_the_wire_happen_on_request_and_end():
    sim = run_with(Nemesis, every=1e9, wire=0.05)
    happened = [event for event in sim.trace.events if isinstance(event, Faulted)]
    assert {each.kind for each in happened} >= {"node scripts", "node ignore", "node kick", "tear", "room"}
    assert {word for each in happened for word in each.text.split()} >= {"MOVED", "CLUSTERDOWN"}
    assert sim.fault_free.lasted() > 0.0
    assert sim.network.room == 1 << 18
