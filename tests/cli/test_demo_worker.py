"""The demo's workers: what they do under a real lock, and that without one they are caught."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from redsync import AcquireTimeout, HoldLost, LeaseLostError, QuorumError
from redsync.cli.demo_checks import interval_overlaps, ledger_overlaps, lost_updates
from redsync.cli.demo_ledger import HELD, LOST, NO_QUORUM, TIMEOUT, JournalReader, Ledger, now_ns
from redsync.cli.demo_worker import Losses, Order, Worker


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path, 0, "demo:1")
    yield ledger
    ledger.close()


class FakeClient:
    """Makes one lock that excludes nobody, or fails as told: the n-th entry raises `errors[n]`."""

    def __init__(self, errors=None, *, exits=None, remaining=2.0):
        self.errors = errors or {}
        self.exit_error = exits
        self.remaining = remaining
        self.entered = 0
        self.depth = 0

    def get_lock(self, name, *, timeout):
        self.name = name
        return self

    def __enter__(self):
        error = self.errors.get(self.entered)
        self.entered += 1
        if error is not None:
            raise error
        self.depth += 1
        return SimpleNamespace(name=self.name, owner="somebody:1", remaining=lambda: self.remaining)

    def __exit__(self, *_):
        self.depth -= 1
        if not self.depth and self.exit_error is not None:
            raise self.exit_error


class NoLock:
    """Makes locks that exclude nobody."""

    def get_lock(self, name, *, timeout):
        return FakeClient().get_lock(name, timeout=timeout)


def lost_event(until_ns):
    return HoldLost("demo:1", "somebody:1", "planted", SimpleNamespace(valid_until=until_ns / 1e9))


def worker_of(client, ledger, losses=None, *, levels=1, number=1):
    worker = Worker(number, client, [ledger], losses or Losses(), seed=1)
    worker._chance.randint = lambda _low, _high: levels
    return worker


# Under a lock


def test_worker_increments_under_the_lock_and_tells(ledger):
    client = FakeClient()
    began = now_ns()
    attempt = worker_of(client, ledger, levels=3).attempt()
    assert attempt.outcome == HELD
    assert began <= attempt.asked <= attempt.granted < attempt.ended <= now_ns()
    assert (attempt.kept, attempt.reentries, attempt.quorum_errors) == (1, 2, 0)
    assert (attempt.read, attempt.written, ledger.read_counter()) == (0, 1, 1)
    assert [(entry.kind, entry.key) for entry in ledger.entries()] == [("BEGIN", attempt.key), ("END", attempt.key)]
    assert client.depth == 0


def test_worker_repeats_its_choices_with_the_seed(ledger, tmp_path):
    ledgers = [ledger, Ledger(tmp_path, 1, "demo:2")]

    def choices(number, seed):
        worker = Worker(number, FakeClient(), ledgers, Losses(), seed)
        return [(attempt.name, attempt.reentries) for attempt in (worker.attempt() for _ in range(10))]

    assert choices(1, 7) == choices(1, 7)
    assert choices(1, 7) != choices(2, 7)
    ledgers[1].close()


@pytest.mark.slow
def test_workers_with_real_locks_are_found_in_order(ledger, redsync_nodes):
    losses = Losses()
    with redsync_nodes.client(lease=2.0, listeners=[losses]) as client:
        attempts = fight(lambda _: client, ledger, losses)
    assert len(attempts) == sum(attempt.outcome == HELD for attempt in attempts) > 20
    assert verdicts(attempts, ledger) == (0, 0, 0)
    assert ledger.read_counter() == len(attempts)


def test_workers_without_locks_are_caught_by_each_judge(ledger):
    attempts = fight(lambda _: NoLock(), ledger, Losses())
    by_clock, by_ledger, updates = verdicts(attempts, ledger)
    assert by_clock > 10
    assert by_ledger > 10
    assert updates > 10


def fight(client_of, ledger, losses):
    attempts = []

    def work(number):
        worker = worker_of(client_of(number), ledger, losses, number=number)
        attempts.extend(worker.attempt() for _ in range(15))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return attempts


def verdicts(attempts, ledger):
    counted = lost_updates(attempts, ledger.read_counter())
    return len(interval_overlaps(attempts)), len(ledger_overlaps(ledger.entries())), counted


# In trouble


def test_worker_survives_timeout(ledger):
    attempt = worker_of(FakeClient({0: AcquireTimeout("demo:1", 2.0)}), ledger).attempt()
    assert (attempt.outcome, attempt.granted, attempt.written) == (TIMEOUT, 0, 0)
    assert ledger.entries() == []


def test_worker_survives_lack_of_quorum(ledger):
    attempt = worker_of(FakeClient({0: QuorumError("demo:1", "too few")}), ledger).attempt()
    assert (attempt.outcome, attempt.granted, attempt.quorum_errors) == (NO_QUORUM, 0, 1)


def test_worker_survives_lack_of_quorum_at_reentry(ledger):
    attempt = worker_of(FakeClient({2: QuorumError("demo:1", "too few")}), ledger, levels=3).attempt()
    assert (attempt.outcome, attempt.reentries, attempt.quorum_errors) == (HELD, 1, 1)
    assert attempt.kept == 1
    assert ledger.entries() == []


def test_lost_hold_ends_where_it_was_lost_and_writes_nothing(ledger):
    losses = Losses()
    lost_at = now_ns()
    client = FakeClient(exits=LeaseLostError("demo:1", "lost"), remaining=0.0)
    threading.Timer(0.05, losses, [lost_event(lost_at)]).start()  # another thread may tell of it a moment later
    attempt = worker_of(client, ledger, losses).attempt()
    assert (attempt.outcome, attempt.kept, attempt.written, ledger.read_counter()) == (LOST, 0, 0, 0)
    assert attempt.ended == pytest.approx(lost_at, abs=1000)
    assert [entry.kind for entry in ledger.entries()] == ["BEGIN"]


def test_lost_hold_ends_when_it_was_told_of_before_its_time(ledger):
    losses = Losses()
    losses(lost_event(now_ns() + 10**9))
    told = now_ns()
    client = FakeClient(exits=LeaseLostError("demo:1", "lost"), remaining=0.0)
    assert worker_of(client, ledger, losses).attempt().ended <= told


def test_hold_that_only_its_release_found_lost_was_believed_to_the_end(ledger):
    client = FakeClient(exits=LeaseLostError("demo:1", "lost"))
    attempt = worker_of(client, ledger).attempt()
    assert (attempt.outcome, attempt.kept, attempt.written) == (LOST, 1, 1)
    assert attempt.ended > attempt.granted


def test_counter_is_left_alone_when_the_hold_is_about_to_end(ledger):
    attempt = worker_of(FakeClient(remaining=0.1), ledger).attempt()
    assert (attempt.outcome, attempt.kept, attempt.written) == (HELD, 1, 0)
    assert [entry.kind for entry in ledger.entries()] == ["BEGIN", "END"]


def test_loss_that_nobody_tells_of_is_a_bug(ledger, monkeypatch):
    monkeypatch.setattr("redsync.cli.demo_worker._TELL_PATIENCE", 0.01)
    client = FakeClient(exits=LeaseLostError("demo:1", "lost"), remaining=0.0)
    with pytest.raises(AssertionError, match="no HoldLost event"):
        worker_of(client, ledger).attempt()


def test_losing_what_is_not_held_is_a_bug(ledger):
    with pytest.raises(AssertionError, match="did not hold"):
        worker_of(FakeClient({0: LeaseLostError("demo:1", "lost")}), ledger).attempt()


# The process


def start(order):
    process = subprocess.Popen(
        [sys.executable, "-m", "redsync.cli.demo_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    if order is not None:
        process.stdin.write(json.dumps(asdict(order)) + "\n")
        process.stdin.flush()
    return process


def order_for(nodes, directory, **changes):
    given = {"urls": nodes.urls, "lease": 2.0, "names": ["demo:1"], "process": 3, "threads": 2, "seed": 1}
    return Order(directory=str(directory), **given | changes)


def await_ready(process, directory):
    deadline = time.monotonic() + 20
    while not (directory / "process-3.ready").exists():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_process_works_in_its_time_only(redsync_nodes, tmp_path):
    with start(order_for(redsync_nodes, tmp_path)) as process:
        await_ready(process, tmp_path)
        begin = now_ns() + 100_000_000
        end = begin + 300_000_000
        process.stdin.write(f"{begin} {end}\n")
        process.stdin.flush()
        assert process.wait(10) == 0
        assert process.stdout.read() == ""
    attempts = JournalReader(tmp_path).read()
    assert {attempt.worker for attempt in attempts} == {6, 7}
    assert begin <= min(attempt.asked for attempt in attempts)
    assert max(attempt.asked for attempt in attempts) < end
    ledger = Ledger(tmp_path, 0, "demo:1")
    assert ledger.read_counter() == len(attempts) > 5
    ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("working", [False, True])
def test_process_ends_with_the_demo(redsync_nodes, tmp_path, working):
    with start(order_for(redsync_nodes, tmp_path)) as process:
        await_ready(process, tmp_path)
        if working:
            process.stdin.write(f"{now_ns()} {now_ns() + 60 * 10**9}\n")
        process.stdin.close()
        assert process.wait(10) == 1


def test_process_ends_without_an_order():
    with start(None) as process:
        process.stdin.close()
        assert process.wait(10) == 1


@pytest.mark.slow
def test_process_fails_when_a_worker_does(redsync_nodes, tmp_path):
    with start(order_for(redsync_nodes, tmp_path)) as process:
        await_ready(process, tmp_path)
        (tmp_path / "lock-0.ledger").write_text("damaged\n")
        process.stdin.write(f"{now_ns()} {now_ns() + 10**8}\n")
        process.stdin.flush()
        assert process.wait(10) == 1
        assert "Traceback" in process.stdout.read()
