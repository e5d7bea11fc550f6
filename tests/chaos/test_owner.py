"""Owners without locks are caught by each witness; the soak and `test_client_process` have those with real locks."""

import threading
from types import SimpleNamespace

from tests.chaos.blocking import run
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


def test_owners_without_locks_are_caught_by_each_witness(tmp_path):
    path = tmp_path / "process.history"
    job = Job(names=["lock:0"], directory=str(tmp_path), history=str(path), seed="7")

    async def sleep(seconds):
        threading.Event().wait(seconds)

    async def fight(number):
        owner = Owner(number, job, World(NoLock(), History(path).note, sleep))
        owner._choose = lambda rng, lease: Task(1.0, 0.002)
        over = iter([False] * 15)
        await owner.fight(lambda: next(over, True))
        owner.close()

    threads = [threading.Thread(target=run, args=(fight(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    holds = holds_of(read(path))
    found = judge_exclusion(holds, read_counters(tmp_path, ["lock:0"]))
    assert {violation.promise for violation in found} == {"overlap", "lost updates"}
    assert most_at_once(holds)[0] > 1
