"""APScheduler on several machines: processes whose clocks differ, and a node that is killed meanwhile."""

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from apscheduler.events import EVENT_ALL, EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from redsync import AsyncClient, QuorumError
from redsync.contrib.apscheduler import RedsyncExecutor

pytestmark = [pytest.mark.framework, pytest.mark.sweep]

MACHINE = """
import sys
import apscheduler.schedulers.base as base, apscheduler.executors.base as executors
from datetime import UTC, datetime, timedelta
from pathlib import Path

shift = timedelta(seconds=float(sys.argv[1]))

class Shifted(datetime):
    @classmethod
    def now(cls, zone=None):
        return datetime.now(zone) + shift

import redsync.contrib.apscheduler as ours
base.datetime = executors.datetime = ours.datetime = Shifted

from apscheduler.schedulers.blocking import BlockingScheduler
from redsync import Client

def work(number=[0]):
    with Path("ran").open("a") as file:
        file.write(f"{sys.argv[2]}\\n")

client = Client(sys.argv[4:], restart_guard=0.0)
scheduler = BlockingScheduler(executors={"default": ours.RedsyncExecutor(client)}, timezone=UTC)
start = datetime.fromisoformat(sys.argv[3])
for n in range(20):
    at = start + timedelta(seconds=0.1 * n)
    scheduler.add_job(work, "date", run_date=at, id=f"work {n}", misfire_grace_time=60)
print("ready", flush=True)
scheduler.start()
"""


@contextmanager
def machine(directory, name, shift, start, urls):
    """Run a machine whose clock is ahead by `shift` seconds."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", MACHINE, str(shift), name, start.isoformat(), *urls]
    with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_each_firing_runs_on_one_machine_whatever_their_clocks(tmp_path, nodes, eventually):
    start = datetime.now(UTC) + timedelta(seconds=2.0)
    ran = tmp_path / "ran"
    with ExitStack() as stack:
        for name, shift in (("fast", 0.7), ("right", 0.0), ("slow", -0.7)):
            stack.enter_context(machine(tmp_path, name, shift, start, nodes.urls[:3]))
        eventually(lambda: ran.exists() and len(ran.read_text().split()) >= 5)
        nodes.kill(0)
        # Until the slowest clock is a little past the last firing.
        eventually(lambda: datetime.now(UTC) > start + timedelta(seconds=0.1 * 20 + 0.7 + 0.5))
    assert len(ran.read_text().split()) == 20


@pytest.fixture
def make_scheduler(make_client, eventually):
    """Return a function that starts the scheduler of another machine, with the events of its listeners."""

    def stop(scheduler):
        # APScheduler's thread fails if it is stopped between the start of a job and its removal.
        eventually(lambda: not [job for job in scheduler.get_jobs() if job.next_run_time <= datetime.now(UTC)])
        scheduler.shutdown()

    with ExitStack() as stack:

        def make_scheduler(n=3, **options):
            executor = RedsyncExecutor(make_client(n=n), **options)
            scheduler = BackgroundScheduler(executors={"default": executor}, timezone=UTC)
            scheduler.heard = []
            scheduler.add_listener(scheduler.heard.append, EVENT_ALL)
            scheduler.start()
            stack.callback(stop, scheduler)
            return scheduler

        yield make_scheduler


def outcomes(scheduler):
    told = {EVENT_JOB_EXECUTED: "executed", EVENT_JOB_ERROR: "error", EVENT_JOB_MISSED: "missed"}
    return [told[event.code] for event in list(scheduler.heard) if event.code in told]


def test_claim_outlives_the_job_and_its_failure(make_scheduler, eventually):
    one, two = make_scheduler(), make_scheduler()
    ran = []

    def fail():
        ran.append("x")
        raise RuntimeError("on purpose")

    at = datetime.now(UTC)
    one.add_job(fail, "date", run_date=at, id="x", misfire_grace_time=60)
    eventually(lambda: outcomes(one) == ["error"])
    two.add_job(fail, "date", run_date=at, id="x", misfire_grace_time=60)
    # The machine runs its next firing after the one that it left to the other machine.
    two.add_job(ran.append, "date", args=["y"], run_date=at + timedelta(seconds=0.1), id="y", misfire_grace_time=60)
    eventually(lambda: outcomes(two) == ["executed"])
    assert ran == ["x", "y"]


def test_late_machine_leaves_the_firing_to_others(make_scheduler, eventually):
    late, in_time = make_scheduler(), make_scheduler()
    at = datetime.now(UTC) - timedelta(seconds=2.0)
    ran = threading.Event()
    late.add_job(ran.set, "date", run_date=at, id="x", misfire_grace_time=1)
    eventually(lambda: outcomes(late) == ["missed"])
    in_time.add_job(ran.set, "date", run_date=at, id="x", misfire_grace_time=60)
    assert ran.wait(20)


def test_machine_whose_claim_takes_too_long_leaves_the_firing_to_others(make_scheduler, raw, eventually):
    late, in_time = make_scheduler(), make_scheduler()
    ran = threading.Event()
    at = datetime.now(UTC) - timedelta(seconds=0.95)
    for node in raw[:3]:
        node.client_pause(100, all=False)  # Servers look every 100 ms whether it is over.
    late.add_job(ran.set, "date", run_date=at, id="x", misfire_grace_time=1)
    eventually(lambda: outcomes(late) == ["missed"])
    assert not ran.is_set()
    in_time.add_job(ran.set, "date", run_date=at, id="x", misfire_grace_time=60)
    assert ran.wait(20)


def test_too_few_nodes_are_an_error_without_a_run(make_scheduler, nodes, eventually):
    scheduler = make_scheduler()
    nodes.kill(0)
    nodes.kill(1)
    ran = []
    scheduler.add_job(ran.append, args=["x"], id="x", misfire_grace_time=60)
    eventually(lambda: outcomes(scheduler) == ["error"])
    [event] = [event for event in scheduler.heard if event.code == EVENT_JOB_ERROR]
    assert isinstance(event.exception, QuorumError)
    assert not ran


def test_same_time_in_another_zone_is_the_same_firing(make_scheduler, eventually):
    from zoneinfo import ZoneInfo

    one, two = make_scheduler(), make_scheduler()
    at = datetime.now(UTC)
    ran = []
    one.add_job(ran.append, args=["one"], run_date=at, trigger="date", id="x", misfire_grace_time=60)
    eventually(lambda: ran == ["one"])
    elsewhere = at.astimezone(ZoneInfo("Asia/Tokyo"))
    two.add_job(ran.append, args=["two"], run_date=elsewhere, trigger="date", id="x", misfire_grace_time=60)
    two.add_job(ran.append, args=["later"], run_date=at, trigger="date", id="y", misfire_grace_time=60)
    eventually(lambda: "later" in ran)
    assert ran == ["one", "later"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trigger": "cron", "second": "*"}, "needs an id that is the same on all machines"),
        ({"trigger": "cron", "second": "*", "jitter": 1, "id": "x"}, "with jitter each machine has different times"),
        (
            {"trigger": OrTrigger([CronTrigger(second="*", jitter=1)]), "id": "x"},
            "with jitter each machine has different",
        ),
        ({"trigger": "cron", "second": "*", "misfire_grace_time": None, "id": "x"}, "must be less than the 300 s"),
        ({"trigger": "cron", "second": "*", "misfire_grace_time": 300, "id": "x"}, "not 300: a late machine would"),
    ],
)
def test_job_without_common_firings_is_refused(make_scheduler, caplog, eventually, options, said):
    scheduler = make_scheduler()
    scheduler.add_job(time.monotonic, **options)
    eventually(lambda: said in caplog.text)
    assert outcomes(scheduler) == []


def test_bad_options_are_refused_at_once(make_client):
    for options in ({"kept": 0}, {"prefix": "x" * 600}):
        with pytest.raises(ValueError, match=r"seconds|bytes"):
            RedsyncExecutor(make_client(n=1), **options)
    with pytest.raises(TypeError, match=r"client must be a redsync\.Client, not a value of type AsyncClient"):
        RedsyncExecutor(AsyncClient("redis://127.0.0.1:1"))
