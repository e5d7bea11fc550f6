"""The actions and records of one owner, under locks that work, that fail, and that exclude no owner."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from redsync import AcquireTimeout, AsyncClient, LeaseLostError, QuorumError
from redsync.testing.harness.blocking import Blocking, run
from redsync.testing.harness.exclusion import judge_exclusion, most_at_once
from redsync.testing.harness.holds import holds_of
from redsync.testing.harness.journal import Journal, now_ns, read
from redsync.testing.harness.ledger import Ledger
from redsync.testing.harness.orders import Order
from redsync.testing.harness.owner import Owner, World
from redsync.testing.harness.tasks import Task

AT_ONCE = Task(1.0, 0.0)


class FakeClient:
    """Makes one lock that excludes no owner, or fails on request: the n-th entry raises `errors[n]`."""

    def __init__(self, errors=None, *, exits=None, remaining=2.0):
        self.errors = errors or {}
        self.exit_error = exits
        self.remaining = remaining
        self.entered = 0
        self.depth = 0

    def get_lock(self, name, **options):
        self.options = options
        return self

    async def __aenter__(self):
        error = self.errors.get(self.entered)
        self.entered += 1
        if error is not None:
            raise error
        self.depth += 1
        until = now_ns() / 1e9 + self.remaining
        state = SimpleNamespace(tally=None, valid_until=until, fencing_token=None, holder="stranger")
        return SimpleNamespace(_state=state, remaining=lambda: self.remaining, lost=not self.remaining)

    async def __aexit__(self, *_):
        self.depth -= 1
        if not self.depth and self.exit_error is not None:
            raise self.exit_error

    async def acquire(self, timeout, lease):
        await self.__aenter__()
        return True

    async def release(self):
        await self.__aexit__()

    def hold_count(self):
        return self.depth


class NoLock:
    """Makes locks that exclude no owner."""

    def get_lock(self, name, **options):
        return FakeClient()


@pytest.fixture
def play(tmp_path):
    """Return a function that lets an owner make some attempts; it returns the lines that they wrote."""

    async def sleep(seconds):
        threading.Event().wait(seconds)

    def play(client, task=AT_ONCE, *, times=1, number=1, name="lock:0", sleep=sleep, how=run):
        path = tmp_path / f"process-{number}.0.journal"
        order = Order(
            urls=[], names=[name], directory=str(tmp_path), journal=str(path), first=0, owners=1, seed="7", look=0.01
        )

        async def act():
            owner = Owner(number, order, World(client, Journal(path).note, sleep))
            owner._choose = lambda rng, lease: task
            left = iter([1.0] * times)
            await owner.fight(lambda: next(left, 0.0))
            owner.close()

        done = how(act())
        return done if how is not run else read(path)

    return play


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path, 0, "lock:0")
    yield ledger
    ledger.close()


def events(lines):
    return [line["event"] for line in lines]


# Under a lock.


def test_owner_counts_under_the_lock_and_records_it(play, ledger):
    client = FakeClient()
    began = now_ns()
    lines = play(client, Task(1.0, 0.0, levels=3))
    inside = ["acquired", "re-entered", "re-entered", "left", "left", "writes", "done"]
    assert events(lines) == ["asks", *inside, "released"]
    (hold,) = holds_of(lines)
    assert began <= hold.asked <= hold.since <= hold.granted < hold.ended <= now_ns()
    assert (hold.kept, hold.written, hold.gone, ledger.read_counter()) == (True, 1, "released", 1)
    assert [(entry.kind, entry.key) for entry in ledger.entries()] == [("BEGIN", hold.key), ("END", hold.key)]
    assert client.depth == 0


def test_owner_looks_at_its_hold_while_it_works(play):
    looks = [line for line in play(FakeClient(), Task(1.0, 0.03)) if line["event"] == "looked"]
    assert len(looks) > 1
    assert all(line["remaining"] == 2 * 10**9 and not line["lost"] for line in looks)


def test_owner_survives_extend_when_too_few_nodes_answer(play):
    async def fail():
        raise QuorumError("lock:0", "too few")

    class Failing(FakeClient):
        async def __aenter__(self):
            hold = await super().__aenter__()
            hold.extend = fail
            return hold

    assert "unsure" in events(play(Failing(), Task(1.0, 0.0, extends=1.0)))


def test_owner_asks_for_what_its_task_says(play):
    client = FakeClient()
    play(client, Task(0.5, 0.0, 0.7))
    assert (client.options["timeout"], client.options["lease"]) == (0.5, 0.7)
    play(client, Task(float("inf"), 0.0))
    assert client.options["timeout"] == 1.0, "the rest of the run"


def test_owners_with_real_locks_are_found_in_order(play, redsync_client, redsync_nodes, ledger, tmp_path):
    async def as_tasks():
        async with AsyncClient(redsync_nodes.urls, restart_guard=0) as client:
            await play(client, task, number=3, times=15, sleep=asyncio.sleep, how=lambda steps: steps)

    task = Task(20.0, 0.001, levels=2)
    fight(play, Blocking(redsync_client), task, beside=lambda: asyncio.run(as_tasks()))
    holds = all_holds(tmp_path)
    assert len(holds) == 4 * 15
    assert judge_exclusion(holds, {"lock:0": ledger.entries()}, {"lock:0": ledger.read_counter()}) == []
    assert ledger.read_counter() == 4 * 15


def test_owners_without_locks_are_caught_by_each_witness(play, ledger, tmp_path):
    fight(play, NoLock(), Task(1.0, 0.002))
    holds = all_holds(tmp_path)
    found = judge_exclusion(holds, {"lock:0": ledger.entries()}, {"lock:0": ledger.read_counter()})
    assert {violation.promise for violation in found} == {"overlap", "overlap in the ledger", "lost updates"}
    assert most_at_once(holds)[0] > 1


def fight(play, client, task, beside=lambda: None):
    threads = [
        threading.Thread(target=play, args=(client, task), kwargs={"number": number, "times": 15})
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    beside()
    for thread in threads:
        thread.join()


def all_holds(directory):
    return [hold for path in directory.glob("*.journal") for hold in holds_of(read(path))]


# In trouble.


@pytest.mark.parametrize(
    ("error", "told"), [(AcquireTimeout("lock:0", 2.0), "busy"), (QuorumError("lock:0", "too few"), "no quorum")]
)
def test_owner_survives_failed_acquires(play, ledger, error, told):
    assert events(play(FakeClient({0: error}))) == ["asks", told]
    assert ledger.entries() == []


def test_owner_survives_lack_of_quorum_at_reentry(play):
    lines = play(FakeClient({2: QuorumError("lock:0", "too few")}), Task(1.0, 0.0, levels=3))
    assert events(lines) == ["asks", "acquired", "re-entered", "unsure", "left", "writes", "done", "released"]


def test_owner_of_lost_hold_writes_nothing(play, ledger):
    lines = play(FakeClient(exits=LeaseLostError("lock:0", "lost"), remaining=0.0))
    (hold,) = holds_of(lines)
    assert (hold.kept, hold.written, hold.gone, ledger.read_counter()) == (False, 0, "lost", 0)
    assert [entry.kind for entry in ledger.entries()] == ["BEGIN"]


def test_hold_that_only_its_release_found_lost_was_believed_to_the_end(play):
    (hold,) = holds_of(play(FakeClient(exits=LeaseLostError("lock:0", "lost"))))
    assert (hold.gone, hold.kept, hold.written) == ("lost", True, 1)
    assert hold.believed_until == hold.ended


def test_counter_is_left_alone_when_the_hold_is_about_to_end(play, ledger):
    (hold,) = holds_of(play(FakeClient(remaining=0.1)))
    assert (hold.gone, hold.kept, hold.written) == ("released", True, 0)
    assert [entry.kind for entry in ledger.entries()] == ["BEGIN", "END"]


def test_acquire_error_raised_inside_a_hold_is_a_bug(play):
    with pytest.raises(AssertionError, match="raised inside a hold"):
        play(FakeClient(exits=AcquireTimeout("lock:0", 1.0)))


def test_choices_are_repeated_with_the_seed(tmp_path):
    def choices(number):
        order = Order(
            urls=[], names=["lock:0", "lock:1"], directory=str(tmp_path), journal="", first=0, owners=1, seed="7"
        )
        owner = Owner(number, order, World(None, Journal(tmp_path / "x").note, asyncio.sleep))
        return [(owner.rng.choice(order.names), owner._choose(owner.rng, 2.0)) for _ in range(10)]

    assert choices(1) == choices(1)
    assert choices(1) != choices(2)
