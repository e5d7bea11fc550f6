"""The same owners, journals and checkers on virtual machines: exact, with all faults, for every kind."""

import pytest

from redsync._core.latches import LatchState
from redsync._kinds import KINDS
from redsync.testing.harness.exclusion import disorder, judge_exclusion, most_at_once
from redsync.testing.harness.holds import holds_of
from redsync.testing.harness.journal import nanoseconds
from redsync.testing.harness.latches import judge_latches
from redsync.testing.harness.ledger import read_ledgers
from redsync.testing.harness.losses import judge_losses
from redsync.testing.harness.orders import Order
from redsync.testing.harness.owner import Owner
from redsync.testing.simulator import Simulation
from redsync.testing.simulator.faults import Nemesis
from redsync.testing.simulator.workers import world_of
from tests.support.sweeps import swept

OFTEN = ["lock", "mutex", "read_write_lock", "semaphore"]
SELDOM = [kind.noun for kind in KINDS.values() if kind.like == "lock" and kind.noun not in OFTEN]
LATCH = "count_down_latch:0"
LEASE, PERMITS, SECONDS = 2.0, 2, 6.0


def nothing(sim):
    """Cause no faults."""


def by_chance(sim):
    Nemesis(sim, until=SECONDS - 2.0, every=0.5).start()


class Run:
    """Three machines with two owners each, in virtual time."""

    def __init__(self, directory, name, seed, *, work="mixed", faults=by_chance, guard=LEASE, last=True):
        self.name, self.lines = name, []
        self._order = Order(
            urls=[], names=[name], directory=str(directory), journal="", first=0, owners=1, seed=str(seed), work=work,
            lease=LEASE, last=last, limit=PERMITS, look=0.1,
        )  # fmt: skip
        with Simulation(seed, nodes=5, lease=LEASE, restart_guard=guard, checkers=[]) as self.sim:
            machines = [self.sim.machine(name) for name in "abc"]
            for number in range(6):
                machine = machines[number % 3]
                machine.start(self._live(Owner(number, self._order, self._world(machine, f"owner-{number}"))))
            faults(self.sim)
            self.sim.run()
        self.entries, self.counters = read_ledgers(directory, [name])
        self.counter = self.counters[name]
        self.holds = holds_of(self.lines)

    def _world(self, machine, who):
        def note(event, **fields):
            self.lines.append({"event": event, "at": self.now(), **fields})
            machine.tell(who, event, **fields)

        return world_of(machine, machine.client(), note)

    def now(self):
        return nanoseconds(self.sim.now)

    async def _live(self, owner):
        await owner.fight(lambda: SECONDS - self.sim.now)
        if self._order.last:
            await owner.finish()
        owner.close()

    def broken(self):
        found = judge_exclusion(self.holds, self.entries, self.counters, PERMITS)
        return {violation.promise for violation in found}


@pytest.mark.parametrize(("kind", "at_once"), [("fenced_lock", 1), ("semaphore", PERMITS)])
def test_promises_hold_without_faults(tmp_path, kind, at_once):
    run = Run(tmp_path, f"{kind}:0", 1, faults=nothing)
    assert run.broken() == set()
    assert len(run.holds) > 10
    assert judge_losses(run.holds, []) == []
    assert all(line["got"] for line in run.lines if line["event"] == "last")
    assert (run.counter > 0) == (kind != "semaphore")
    assert most_at_once(run.holds)[0] == at_once
    assert all(hold.token for hold in run.holds) == (kind == "fenced_lock")
    assert disorder(run.holds) == []


@pytest.mark.parametrize("kind", [*OFTEN, *swept(*SELDOM)])
def test_promises_hold_whatever_happens(tmp_path, kind):
    run = Run(tmp_path, f"{kind}:0", 2)
    assert run.broken() == set()
    assert len(run.holds) > 5


def test_writers_downgrade_to_readers(tmp_path):
    holds = Run(tmp_path, "read_write_lock:0", 1, work="eager", faults=nothing).holds
    assert {hold.mode for hold in holds} == {"read", "write"}
    written = {(hold.worker, hold.number) for hold in holds if hold.mode == "write"}
    assert any(hold.mode == "read" and (hold.worker, hold.number - 1) in written for hold in holds)


def test_successes_of_a_rate_limiter_are_recorded(tmp_path):
    lines = Run(tmp_path, "rate_limiter:0", 1, work="eager", faults=nothing, last=False).lines
    assert sum(line["event"] == "success" for line in lines) > SECONDS


@pytest.mark.parametrize(("guard", "broken"), [(0.0, {"overlap"}), (LEASE, set())])
def test_checkers_find_nodes_that_forget_without_a_guard(tmp_path, guard, broken):
    run = Run(tmp_path, "lock:0", 1, work="leased", faults=forget_a_quorum, guard=guard)
    assert run.broken() & {"overlap"} == broken


def forget_a_quorum(sim):
    for at in (2.7, 3.7):
        sim.run(until=at)
        for node in sim.nodes[:3]:
            node.crash()
            node.restart(forget=True)


def opened_early(run):
    # Each owner has its own client.
    owners = [[line for line in run.lines if line["worker"] == number] for number in range(6)]
    return judge_latches((lines, None) for lines in owners)


def test_latches_open_when_all_was_counted_and_for_all_in_the_end(tmp_path):
    run = Run(tmp_path, LATCH, 2)
    assert opened_early(run) == []
    assert [line["got"] for line in run.lines if line["event"] == "last"] == 6 * [True]
    assert sum(line["event"] == "opened" for line in run.lines) > 10


def test_checker_finds_latches_that_open_when_all_but_one_has_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(LatchState, "count", property(lambda state: max(state.size - 1 - len(state.arrivals), 0)))
    assert "at most" in str(opened_early(Run(tmp_path, LATCH, 1, faults=nothing))[0])
