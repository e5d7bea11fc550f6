"""The third driver: every driver's duties to the protocols, and the abilities of a simulated client."""

import asyncio

import pytest

from redsync._core.effects import Wait, wait
from redsync._core.quorum import Choice
from redsync.exceptions import ClientClosedError
from redsync.testing.simulator import Simulation
from redsync.testing.simulator.happenings import Executed, Sent

SIMULATION = {"seed": 11, "lease": 2.0, "node_timeout": 0.1}


def executed(sim, script):
    return [h for h in sim.trace.happenings if isinstance(h, Executed) and h.script == script]


def test_suspect_node_gets_only_owed_commands(sim):
    async def program(client):
        for _ in range(3):
            async with client.get_lock("x"):
                await asyncio.sleep(0.2)

    a = sim.machine("a")
    a.start(program(a.client()))
    sim.run(until=0.05)
    sim.nodes[0].hang()
    sim.run()
    to_node = [h for h in sim.trace.happenings if isinstance(h, Sent) and h.nodes & 1 and h.at > 0.5]
    assert to_node
    assert {h.script for h in to_node} <= {"lock_abandon", "lock_release"}


def test_close_releases_everything_and_all_waiters(sim):
    async def hold(client):
        await client.get_lock("x").acquire()
        await asyncio.Event().wait()

    async def wait(client):
        await asyncio.sleep(0.1)
        with pytest.raises(ClientClosedError):
            await client.get_lock("x").acquire()

    async def close(client):
        await asyncio.sleep(1.0)
        await client.close()
        await client.close()
        with pytest.raises(ClientClosedError):
            await client.get_lock("x").acquire()

    a = sim.machine("a")
    client = a.client()
    holder = a.start(hold(client))
    a.start(wait(client))
    a.start(close(client))
    sim.run(until=2.0)
    assert all(node.store.execute(b"EXISTS", b"redsync:x", client.runner.session.record_key) == 0 for node in sim.nodes)
    holder.cancel()
    sim.run()


def test_time_passes_before_a_look_at_the_clock(sim):
    """Mostly little, now and then much; sometimes the machine is paused."""
    took, ran = [], []

    def look(now):
        return (yield from wait(Wait(now))).at - now

    async def program(client):
        await client.get_lock("x").acquire()
        while len(took) < 400:
            took.append(await client.runner.run(look(client.runner.now())))

    async def other():
        while len(took) < 400:
            ran.append(len(took))
            await asyncio.sleep(0.0003)

    a = sim.machine("a")
    sim.slowness = 0.15
    a.start(program(a.client()))
    a.start(other())
    sim.run()
    slow = [seconds for seconds in took if seconds > 0.001]
    assert 20 < len(slow) < 80
    assert max(slow) > 2.0
    beside = [took[i] > 0.001 and ran.count(i) > 2 for i in range(400)]
    assert 5 < sum(beside) < len(slow) - 5, "in the others the machine was paused"


def test_clients_have_identities_by_the_seed():
    def identities(seed):
        with Simulation(seed) as sim:
            return [sim.machine(name).client().id for name in "ab"]

    assert identities(1) == identities(1) != identities(2)
    assert len(set(identities(1))) == 2


def test_second_client_of_a_machine_has_its_own_name(sim):
    a = sim.machine("a")
    assert [a.client().runner.name, a.client().runner.name] == ["a", "a.2"]


async def look_at_everything(client, hung):
    """Return how many seconds each read-only call took while these nodes hung."""
    read_write = client.get_read_write_lock("rw")
    semaphore, limiter = client.get_semaphore("s", 2), client.get_rate_limiter("r", 2, per=9.0)
    questions = {
        "inspect": lambda: client.inspect("x"),
        "locked": client.get_lock("x").locked,
        "read locked": read_write.read_lock.locked,
        "available": semaphore.available,
        "permits": semaphore.permits,
        "holders": semaphore.holders,
        "resize": lambda: semaphore.resize(3),
        "successes": limiter.available,
        "retry after": limiter.retry_after,
        "count": client.get_count_down_latch("l").count,
        "force release": client.get_lock("x").force_release,
        "read force release": read_write.read_lock.force_release,
    }
    loop, taken = asyncio.get_running_loop(), {}
    for name, ask in questions.items():
        for node in hung:
            node.hang()
        begun_at = loop.time()
        await ask()
        taken[name] = loop.time() - begun_at
        for node in hung:
            node.resume()
        # Nothing is owed any more, so no node is suspected yet.
        await asyncio.sleep(0.1)
    return taken


def test_looks_wait_for_hung_minority_only_briefly():
    taken = {}

    async def program(client):
        await client.get_lock("x").acquire()
        await client.get_semaphore("s", 2).acquire()
        taken.update(await look_at_everything(client, [sim.nodes[1], sim.nodes[4]]))

    with Simulation(seed=11, nodes=5, lease=900.0, node_timeout=5.0) as sim:
        a = sim.machine("a")
        a.start(program(a.client()))
        sim.run(100)
    assert len(taken) == 12
    assert {name: seconds for name, seconds in taken.items() if seconds > 0.15} == {}


def test_look_hears_minority_that_is_slower_than_others():
    told = []

    async def program(client):
        await client.get_lock("x").acquire()
        for node in (1, 4):
            sim.slow(a, node, seconds=0.004)
        sim.nodes[2].hang()
        told.extend([await client.inspect("x"), await client.inspect("x")])

    with Simulation(seed=11, nodes=5, lease=900.0, node_timeout=1.0) as sim:
        a = sim.machine("a")
        a.start(program(a.client()))
        sim.run(10)
    for info in told:
        assert [vote.choice for vote in info.votes].count(Choice.GRANTED) == 4, info
        assert (info.votes[2].choice, info.votes[2].detail) == (Choice.FAILED, "not waited for")


def test_owners_are_the_same_whatever_was_simulated_before():
    def owners():
        with Simulation(seed=11) as sim:
            client = sim.machine("a").client()
            return [client.runner.new_owner().wire for _ in range(2)]

    first = owners()
    assert owners() == first
    assert len(set(first)) == 2
