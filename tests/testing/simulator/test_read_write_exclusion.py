"""Readers and writers on virtual nodes, with all faults there are, by chance: nobody reads while another writes.

The seed is printed; `REDSYNC_SEED=... python -m pytest ...` makes those runs again.
"""

import asyncio
import os
import random

import pytest

from redsync import LeaseLostError, QuorumError
from redsync._core.quorum import Tally
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import ALL, Exclusion
from redsync.testing.simulator.faults import Nemesis
from redsync.testing.simulator.runs import _no_logs
from tests.support.hunting import break_script

FAULTS_UNTIL, WORK_UNTIL = 8.0, 10.0


class Work:
    """Workers of one run, and how often they did what."""

    def __init__(self, sim, lease):
        self._sim, self._lease = sim, lease
        self.done = dict.fromkeys(["read", "write", "downgrade", "lost"], 0)

    def start(self, machines, workers):
        for name in "abcd"[:machines]:
            machine = self._sim.machine(name)
            client = machine.client()
            for number in range(workers):
                machine.start(self._work(client, random.Random(machine.random.getrandbits(64))), name=f"{name}{number}")

    async def _work(self, client, luck):
        pair = client.get_read_write_lock("x")
        while self._sim.now < WORK_UNTIL:
            await asyncio.sleep(0.3 * luck.random() ** 2)
            # Each time as another owner, who may be called off.
            task = asyncio.create_task(self._try(pair, luck))
            await asyncio.wait([task], timeout=luck.choice([None, None, None, 0.5]))
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def _try(self, pair, luck):
        way = luck.choice(["read", "read", "read", "write", "downgrade"])
        lock = pair.read_lock if way == "read" else pair.write_lock
        lease = luck.choice([None, None, self._lease * luck.uniform(0.3, 1.0)])
        try:
            if not await lock.acquire(timeout=2 * luck.random(), lease=lease):
                return
            self.done[way] += 1
            await asyncio.sleep(luck.choice([0.1, 0.1, 0.4, 0.4, 2.0]) * luck.random())
            if luck.random() < 0.2 and await lock.acquire(timeout=0.2):
                await lock.release()
            if way == "downgrade" and await pair.read_lock.acquire(timeout=1):
                await lock.release()
                lock = pair.read_lock
                await asyncio.sleep(0.2 * luck.random())
            await lock.release()
        except LeaseLostError:
            self.done["lost"] += 1
        except QuorumError:
            pass


def run(seed, scripts=None, checkers=ALL):
    """Make one run; return what was done in it."""
    replay = f"REDSYNC_SEED={seed} python -m pytest {os.path.relpath(__file__)}"
    sim = Simulation(seed, nodes=(3, 5, 4)[seed % 3], scripts=scripts, checkers=checkers, replay=replay)
    luck = sim.luck("run")
    lease = luck.uniform(0.8, 2.5)
    sim.client_options.update(lease=lease, restart_guard=lease, node_timeout=luck.choice([0.05, 0.1, 0.25]))
    work = Work(sim, lease)
    with _no_logs(), sim:
        work.start(luck.choice([2, 3, 4]), luck.choice([2, 4]))
        Nemesis(sim, until=FAULTS_UNTIL, every=luck.choice([0.3, 0.7, 1.5]), lasting=2 * lease).start()
        sim.run()
    return work.done


def seeds(count):
    first = int(os.environ.get("REDSYNC_SEED") or random.randrange(2**31))
    print("seed", first)
    return range(first, first + (1 if os.environ.get("REDSYNC_SEED") else count))


def test_nobody_reads_while_another_writes_whatever_fails():
    total = {}
    for seed in seeds(12):
        for what, count in run(seed).items():
            total[what] = total.get(what, 0) + count
    assert all(total.values()), total


def find_breach(scripts=None, tries=40):
    for seed in seeds(tries):
        try:
            run(seed, scripts, [Exclusion])
        except SimulationError as error:
            found = error.complaints[0]
            break
    else:
        pytest.fail(f"{tries} runs, and nothing was found")
    assert found.startswith("exclusion: ")


@pytest.mark.parametrize("shared", [True, False])
def test_expiry_that_readers_share_is_found(shared):
    """As where the whole key expires with whoever came last: a short lease ends those of all."""
    longest = "(alone or redis.call('pttl', key) < until_ms - now)"
    scripts = break_script("read_lock_acquire", (longest, "true")) if shared else None

    async def read(client, lease, seconds):
        async with client.get_read_write_lock("x", lease=lease).read_lock:
            await asyncio.sleep(seconds)

    async def write(client):
        await asyncio.sleep(0.2)
        return await client.get_read_write_lock("x").write_lock.acquire(timeout=1.5)

    async def all_of_it(clients):
        long = asyncio.create_task(read(clients[0], 3.0, 2.0))
        await asyncio.sleep(0.1)
        short = asyncio.create_task(read(clients[1], 0.5, 0.1))
        assert not await write(clients[2])
        await asyncio.wait([long, short])

    sim = Simulation(1, scripts=scripts, checkers=[Exclusion], restart_guard=0.0)
    machine = sim.machine("a")
    machine.start(all_of_it([machine.client() for _ in range(3)]))
    if shared:
        with pytest.raises(SimulationError, match="exclusion: "), sim:
            sim.run()
    else:
        with sim:
            sim.run()


@pytest.mark.slow
def test_readers_that_do_not_heed_the_writer_are_found():
    heeds = "elseif score < 0 and first[1] ~= 'w:' .. owner then"
    find_breach(break_script("read_lock_acquire", (heeds, "elseif false then")))


@pytest.mark.slow
def test_quorum_that_counts_refusals_is_found(monkeypatch):
    make = Tally.__init__

    def make_modest(tally, *args, **options):
        make(tally, *args, **options)
        tally.quorum = 1

    monkeypatch.setattr(Tally, "__init__", make_modest)
    find_breach()
