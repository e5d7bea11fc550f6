"""The checkers of permits: they find counters, slots without a quorum, and every other way to grant one too many."""

import asyncio

import pytest

from redsync._core.permits import PermitState, write_slots
from redsync._core.quorum import Verdict
from redsync._protocols.shrinking import Taken
from redsync._protocols.slot_claims import SlotClaim
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Exclusion, Liveness, PermitBound, Renewal, Slots
from redsync.testing.simulator.checks.rounds import Claim
from redsync.testing.simulator.checks.vacancy import Vacancy
from redsync.testing.simulator.happenings import Executed
from tests.support.hunting import break_script, contend, hunt
from tests.support.naive import NAIVE


def count_grants(self, tally):
    """Judge by a majority of nodes with any free slot each."""
    if tally.granted >= tally.quorum:
        return Verdict.WON
    return Verdict.LOST if None not in tally.choices else Verdict.PENDING


async def take(_machine, client):
    if permit := await client.get_semaphore("x", 2).acquire(False):
        await asyncio.sleep(1.0)
    return bool(permit)


def test_checker_finds_counter_on_each_node_where_slots_keep_the_bound():
    assert contend(PermitBound, None, take) <= 2
    with pytest.raises(
        SimulationError, match=r"permit bound: at .* 3 permits of 'redsync:x' are held where there are 2"
    ):
        contend(PermitBound, NAIVE, take)


def test_checker_finds_slots_without_a_quorum(monkeypatch):
    monkeypatch.setattr(SlotClaim, "decide", count_grants)
    complaint = hunt(Exclusion, range(22, 62), kind="semaphore")
    assert " slot " in complaint
    assert "is held by" in complaint


def test_checker_finds_renewal_of_returned_slots(monkeypatch):
    renewal_of = PermitState.renewal_of

    def name_all(holds, leases_ms):
        call = renewal_of(holds, leases_ms)
        args = list(call.args)
        args[2 : 4 * len(holds) : 4] = [write_slots(state.slots) for state in holds]
        return call._replace(args=tuple(args))

    monkeypatch.setattr(PermitState, "renewal_of", name_all)
    assert ", and has " in hunt(Renewal, range(9, 209), kind="semaphore")


async def take_beyond(client, limit):
    """Acquire a permit whose slot is beyond a limit, and keep it for a while."""
    semaphore = client.get_semaphore("x", 10)
    others = []
    while min((permit := await semaphore.acquire())._state.slots) < limit:
        others.append(permit)
    for other in others:
        await other.release()
    await asyncio.sleep(3.0)
    await permit.release()


async def shrink(client, limit):
    semaphore = client.get_semaphore("x", 10)
    await semaphore.resize(limit)
    return await semaphore.acquire(False)


def shrink_under_bare_majorities():
    """Let three have permits beyond a limit of 3, each on another two of three nodes, and a fourth ask for one."""
    with Simulation(seed=1, checkers=[PermitBound], lease=4.0, restart_guard=0.0) as sim:
        for node, name in enumerate("abc"):
            machine = sim.machine(name)
            sim.partition(machine, node)
            machine.start(take_beyond(machine.client(), 3))
        sim.run(until=1.5)
        machine = sim.machine("d")
        task = machine.start(shrink(machine.client(), 3))
        sim.run(until=2.5)
        got = task.result()
        sim.run()
    return got


def test_checker_finds_permit_too_many_after_a_shrink(monkeypatch):
    assert shrink_under_bare_majorities() is None
    monkeypatch.setattr(Taken, "reserved", lambda *_: frozenset())
    with pytest.raises(SimulationError, match=r"permit bound: at .* 4 permits of 'redsync:x' .* where there are 3"):
        shrink_under_bare_majorities()


async def hold_two(client):
    semaphore = client.get_semaphore("x", 10)
    await semaphore.resize(2)
    permits = [await semaphore.acquire() for _ in range(2)]
    await asyncio.sleep(12.0)
    for permit in permits:
        await permit.release()


async def take_all(client):
    semaphore = client.get_semaphore("x", 10)
    while await semaphore.acquire(False):
        pass


def test_checker_finds_grants_under_replaced_limits():
    """Each node believes the limit in the request."""
    condition = "its_version and (its_version > version or its_version == version and its_limit ~= limit or "
    other = break_script("semaphore_acquire", (condition, "its_version and ("))
    with Simulation(seed=1, scripts=other, checkers=[PermitBound], lease=4.0, restart_guard=0.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold_two(a.client()))
        sim.run(until=1.0)
        b.start(take_all(b.client()))
        with pytest.raises(SimulationError, match="permits of 'redsync:x' are held where there are 2"):
            sim.run()


def restart_one_by_one(scripts=None):
    """Restart nodes without their data, one after the other, while two hold all permits that a resize has left."""
    with Simulation(seed=1, scripts=scripts, checkers=[PermitBound], lease=2.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold_two(a.client()))
        sim.run(until=1.0)
        for i, node in enumerate(sim.nodes):
            node.crash()
            node.restart(forget=True)
            sim.run(until=4.0 + 3.0 * i)
        b.start(take_all(b.client()))
        sim.run()


def test_checker_finds_renewals_that_leave_the_limit_behind():
    restart_one_by_one()
    broken = break_script(
        "semaphore_renew", ("    write_limit(KEYS[6 * j], limit, version, lease)\n", "    local _ = 0\n")
    )
    with pytest.raises(SimulationError, match=r"permit bound: at .* permits of 'redsync:x' are held where there are 2"):
        restart_one_by_one(broken)


@pytest.mark.parametrize(("script", "first"), [("semaphore_release", 14), ("semaphore_abandon", 1)])
def test_checker_finds_scripts_that_leave_slots_marked(script, first):
    broken = break_script(script, ("return mark(slots or '', 0)", "return 0"))
    assert "are marked as taken" in hunt(Slots, range(first, first + 40), kind="semaphore", scripts=broken)


def test_checker_finds_free_permit_that_no_waiter_gets():
    broken = break_script("semaphore_acquire", ("+ had - wants", "+ had - wants - 1"))
    with Simulation(seed=1, scripts=broken, checkers=[Liveness], lease=2.0, restart_guard=2.0) as sim:
        a = sim.machine("a")
        a.start(hold(a.client(), 1, 1.0))
        with pytest.raises(SimulationError, match=r"liveness: 'redsync:x' has been free for 1\d\.\d+ s"):
            sim.run()
        a.crash()


# By hand.


async def hold(client, permits, seconds, n=1):
    async with await client.get_semaphore("x", permits).acquire(n=n):
        await asyncio.sleep(seconds)


def test_too_many_permits_are_named_with_their_owners():
    with Simulation(seed=3, lease=2.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold(a.client(), 2, 5.0, n=2))
        sim.run(until=1.0)
        a.pause()
        for node in sim.nodes:
            node.jump(10.0)  # so its permits are gone, though their owner still believes in them
        sim.waived.clear()
        sim.waive("exclusion", "it would also complain")
        b.start(hold(b.client(), 2, 1.0))
        with pytest.raises(SimulationError, match=r"permit bound: .* there are 2: 2 by a:1 on a, 1 by b:1 on b"):
            sim.run()


def test_permits_on_crashed_machines_are_not_counted():
    with Simulation(seed=3, lease=2.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold(a.client(), 1, 60.0))
        sim.run(until=1.0)
        a.crash(dark=True)
        for node in sim.nodes:
            node.jump(10.0)
        sim.waived.clear()
        b.start(hold(b.client(), 1, 1.0))
        sim.run()


LIMIT_KEYS = tuple(b"redsync:x redsync_queue redsync_places redsync_slots redsync_taken redsync_limit".split())


def test_semaphore_is_free_if_the_smallest_limit_that_a_node_knows_has_room():
    with Simulation(seed=1, nodes=3, checkers=()) as sim:
        vacancy, claim = Vacancy(sim), Claim(LIMIT_KEYS[0], b"a:1", 3, 2.0)
        vacancy.note_asked(claim, None, None)
        vacancy.note_executed(Executed(0.0, 0, "a", "semaphore_resize", LIMIT_KEYS, (), None))
        taken = []
        for limits in ((4, 4, 4), (4, 2, 4)):
            for node, permits in zip(sim.nodes, limits, strict=True):
                node.store.execute(b"set", LIMIT_KEYS[5], b"7 %d" % permits)
            taken.append(vacancy.is_taken(claim.key, b"", [(claim.key, claim.owner, b"")]))
        sim.nodes[1].store.flush()
        taken.append(vacancy.is_taken(claim.key, b"", [(claim.key, claim.owner, b"")]))
    assert taken == [False, True, False]
