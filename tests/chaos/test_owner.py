"""Owners with real locks of both flavours are found in order; owners without locks are caught by each witness."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from redsync import AsyncClient
from tests.chaos.blocking import Blocking, run
from tests.chaos.counters import read_counters
from tests.chaos.held_intervals import holds_of
from tests.chaos.history import History, now_ns, read
from tests.chaos.jobs import Job
from tests.chaos.judges import judge_exclusion, most_at_once
from tests.chaos.owner import Owner, World
from tests.chaos.owner_work import Task


class NoLock:
    """Makes locks that exclude no owner."""

    def get_lock(self, name, **options):
        return self

    async def __aenter__(self):
        state = SimpleNamespace(tally=None, valid_until=now_ns() / 1e9 + 2.0, fencing_token=None, holder="stranger")
        return SimpleNamespace(_state=state, remaining=lambda: 2.0, lost=False)

    async def __aexit__(self, *_):
        pass

    def hold_count(self):
        return 1


@pytest.fixture
def fight(tmp_path):
    """Return a function that lets three threads, and perhaps a task, fight for a lock; it returns their holds."""

    async def act(client, task, number, sleep):
        path = tmp_path / f"process-{number}.0.history"
        order = Job(urls=[], names=["lock:0"], directory=str(tmp_path), history=str(path), first=0, owners=1, seed="7")
        owner = Owner(number, order, World(client, History(path).note, sleep))
        owner._choose = lambda rng, lease: task
        left = iter([1.0] * 15)
        await owner.fight(lambda: next(left, 0.0))
        owner.close()

    async def sleep(seconds):
        threading.Event().wait(seconds)

    def fight(client, task, beside=lambda act: None):
        threads = [threading.Thread(target=run, args=(act(client, task, number, sleep),)) for number in range(3)]
        for thread in threads:
            thread.start()
        beside(act)
        for thread in threads:
            thread.join()
        return [hold for path in tmp_path.glob("*.history") for hold in holds_of(read(path))]

    return fight


def test_owners_with_real_locks_are_found_in_order(fight, redsync_client, redsync_nodes, tmp_path):
    task = Task(20.0, 0.001, levels=2)

    async def fight_as_task(act):
        async with AsyncClient(redsync_nodes.urls, restart_guard=0) as client:
            await act(client, task, 3, asyncio.sleep)

    holds = fight(Blocking(redsync_client), task, beside=lambda act: asyncio.run(fight_as_task(act)))
    counters = read_counters(tmp_path, ["lock:0"])
    assert len(holds) == counters["lock:0"] == 4 * 15
    assert judge_exclusion(holds, counters) == []


def test_owners_without_locks_are_caught_by_each_witness(fight, tmp_path):
    holds = fight(NoLock(), Task(1.0, 0.002))
    found = judge_exclusion(holds, read_counters(tmp_path, ["lock:0"]))
    assert {violation.promise for violation in found} == {"overlap", "lost updates"}
    assert most_at_once(holds)[0] > 1
