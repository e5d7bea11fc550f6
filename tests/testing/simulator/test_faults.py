"""Faults at random: all kinds of them happen, and in the end all is well."""

from redsync.testing.simulator import Simulation
from redsync.testing.simulator.faults import Nemesis
from redsync.testing.simulator.happenings import Faulted


def unleash(seed, **options):
    sim = Simulation(seed, nodes=5, lease=2.0)
    for name in "abc":
        sim.machine(name)
    with sim:
        Nemesis(sim, until=60.0, every=0.2, **options).start()
        sim.run(until=60.0)
        return sim


def test_all_kinds_of_faults_happen():
    kinds = {h.kind for h in unleash(1).trace.happenings if isinstance(h, Faulted)}
    network = {"partition", "delay", "loss", "heal"}
    lives = "crash", "restart", "restart empty", "restart older", "hang", "resume", "refuse", "recover", "flush"
    nodes = {f"node {kind}" for kind in (*lives, "drift", "jump")}
    machines = {f"machine {kind}" for kind in ("pause", "resume", "crash", "drift", "jump")}
    assert kinds == network | nodes | machines


def test_in_the_end_all_is_well():
    for seed in range(5):
        sim = unleash(seed)
        assert {node.state for node in sim.nodes} == {"up"}
        assert not any(machine.paused and not machine.crashed for machine in sim.machines)
        assert not any(sim.network.route(machine, node).troubled for machine in sim.machines for node in sim.nodes)
        assert not all(machine.crashed for machine in sim.machines)


def test_exclusion_is_waived_only_by_faults_beyond():
    assert not any(unleash(seed).waived for seed in range(5))
    assert "exclusion" in unleash(1, beyond=True).waived


def test_outlasting_faults_are_mostly_of_the_network():
    happened = [h for h in unleash(1, outlasting=True).trace.happenings if isinstance(h, Faulted)]
    network = sum(h.kind in {"partition", "delay"} for h in happened)
    assert network > sum(h.kind in {"node crash", "node hang", "machine pause"} for h in happened)
    assert any("up to 120.000 s" in h.text for h in happened)
