"""A Celery worker with a real broker: tasks that run one at a time, retries, lost workers, a dead node."""

import enum
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from datetime import time as clock_time
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import celery
import pytest
from celery.exceptions import ImproperlyConfigured
from kombu import pools
from kombu.utils.json import dumps, loads

from redsync import AcquireTimeout, Client
from redsync.contrib.celery import OnceTask, get_client
from redsync.testing import LocalNodes

pytestmark = [pytest.mark.framework, pytest.mark.sweep]

LEASE = 4.0

TASKS = """
import json, os, time
from decimal import Decimal
from pathlib import Path
from celery import Celery
from redsync.contrib.celery import OnceTask

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.update(redsync=json.loads(os.environ["TASKS_REDSYNC"]), broker_connection_retry_on_startup=True)
app.conf.worker_prefetch_multiplier = 1

def note(what):
    with Path("notes").open("a") as file:
        file.write(what + "\\n")

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.005)

@app.task(bind=True, base=OnceTask, once="charge:{order}", once_countdown=Decimal("0.05"), max_retries=0)
def charge(self, order, by="bank"):
    self.hold.check()
    note(f"begin {order} {os.getpid()}")
    wait_for(f"door {order}")
    note(f"end {order} {os.getpid()}")
    return self.hold.name

@app.task(bind=True, base=OnceTask, once_busy="skip")
def report(self, day):
    note(f"report {day}")
    wait_for(f"door {day}")

@app.task(bind=True, base=OnceTask, once="charge:{order}", once_countdown=0.05)
def charge_both(self, order):
    note(f"both {order}")
    if order == 7:
        charge_both(8)

@app.task(bind=True, base=OnceTask, once="retries", max_retries=1)
def fails_first(self):
    note(f"try {self.request.retries}")
    if not self.request.retries:
        raise self.retry(countdown=0.05)
    return self.request.retries

@app.task(bind=True, base=OnceTask, once="lost", acks_late=True, reject_on_worker_lost=True, once_countdown=0.05)
def dies_first(self):
    first = not Path("died").exists()
    Path("died").touch()
    note(f"pid {os.getpid()}")
    if first:
        wait_for("never")
    return "done"
"""


def close(app):
    """Close the connections that Celery leaves open until the process ends."""
    if app.conf.result_backend:
        app.backend.result_consumer.stop()
        app.backend.client.connection_pool.disconnect()
    app.close()
    pools.reset()


def environment_of(directory, broker, setting):
    paths = os.pathsep.join([str(directory), str(Path(__file__).parents[2])])
    return {**os.environ, "BROKER": broker.urls[0], "TASKS_REDSYNC": json.dumps(setting), "PYTHONPATH": paths}


class Site:
    """A broker, a worker with two processes, and the application that sends tasks."""

    def __init__(self, directory, nodes, broker):
        self.directory = directory
        (directory / "tasks.py").write_text(TASKS)
        setting = {"urls": nodes.urls[:3], "restart_guard": 0.0, "lease": LEASE}
        self.app = celery.Celery("tasks", broker=broker.urls[0], backend=broker.urls[0])
        self.log = (directory / "log").open("w")
        command = [sys.executable, "-m", "celery", "--app", "tasks", "worker", "--concurrency", "2"]
        self.worker = subprocess.Popen(
            [*command, "--without-mingle", "--without-gossip", "--without-heartbeat", "--loglevel", "INFO"],
            cwd=directory,
            env=environment_of(directory, broker, setting),
            stdout=self.log,
            stderr=self.log,
        )

    def send(self, task, *arguments, **options):
        return self.app.send_task(f"tasks.{task}", arguments, **options)

    def notes(self, what=""):
        path = self.directory / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(what)]

    def logged(self, text):
        return (self.directory / "log").read_text().count(text)

    def open(self, name):
        (self.directory / f"door {name}").touch()

    def close(self):
        self.worker.terminate()
        try:
            self.worker.wait(30)
        except subprocess.TimeoutExpired:
            self.worker.kill()
            self.worker.wait()
        self.log.close()
        close(self.app)


@pytest.fixture
def site(tmp_path, nodes):
    with LocalNodes(1) as broker:
        site = Site(tmp_path, nodes, broker)
        yield site
        site.close()
    assert site.worker.returncode == 0


def test_deliveries_of_the_same_arguments_take_turns(site, eventually):
    first, second, other = site.send("charge", 7), site.send("charge", 7), site.send("charge", 8)
    # The second delivery leaves its worker process free for the other order.
    eventually(lambda: len(site.notes("begin")) == 2)
    eventually(lambda: site.logged("to be delivered again in 0.05 s: lock 'charge:7' was still held by"))
    assert len(site.notes("begin 7")) == 1
    site.open(7)
    assert [first.get(timeout=60), second.get(timeout=60)] == ["charge:7"] * 2
    assert [line.split()[:2] for line in site.notes() if " 7 " in line] == [["begin", "7"], ["end", "7"]] * 2
    site.open(8)
    assert other.get(timeout=60) == "charge:8"


def test_delivery_may_be_skipped_instead(site, eventually):
    first = site.send("report", "monday")
    eventually(lambda: site.notes("report"))
    site.send("report", "monday")
    eventually(lambda: site.logged("skipped: "))
    site.open("monday")
    assert first.get(timeout=60) is None
    assert site.notes() == ["report monday"]


def test_call_in_the_body_of_the_same_task_raises_and_is_not_put_off(site, make_client):
    with make_client(n=3).get_lock("charge:8"):
        with pytest.raises(Exception, match="charge:8"):
            site.send("charge_both", 7).get(timeout=60)
        assert site.notes() == ["both 7"]


def test_retry_of_the_task_releases_the_lock_and_counts(site):
    assert site.send("fails_first").get(timeout=60) == 1
    assert site.notes() == ["try 0", "try 1"]


def test_task_of_a_lost_worker_runs_again_after_its_lease(site, eventually, make_client):
    result = site.send("dies_first")
    eventually(lambda: site.notes("pid"))
    [line] = site.notes("pid")
    assert make_client(n=3).get_lock("lost").locked()
    killed_at = time.monotonic()
    os.kill(int(line.split()[1]), signal.SIGKILL)
    assert result.get(timeout=60) == "done"
    assert len(set(site.notes("pid"))) == 2
    # The watchdog renews every third of the lease, so two thirds of it were left at least.
    assert time.monotonic() - killed_at > LEASE / 2


def test_dead_node_changes_nothing_and_without_a_quorum_tasks_wait_for_one(site, nodes, eventually):
    site.open(1)
    nodes.kill(0)
    assert site.send("charge", 1).get(timeout=60) == "charge:1"
    nodes.kill(1)
    waiting = site.send("charge", 1)
    eventually(lambda: site.logged("to be delivered again") >= 2)
    nodes.restart(1)
    assert waiting.get(timeout=60) == "charge:1"


# Without a worker.


@pytest.fixture
def app(nodes):
    app = celery.Celery("shop", set_as_current=False)
    app.conf.redsync = {"urls": nodes.urls, "restart_guard": 0.0}
    yield app
    get_client(app).close()
    close(app)


def test_direct_call_holds_the_lock_and_raises_if_it_is_busy(app, make_client):
    @app.task(bind=True, base=OnceTask, shared=False, once="charge:{order}:{by}")
    def charge(self, order, by="bank"):
        return self.hold.name

    assert charge(7) == "charge:7:bank"
    with make_client().get_lock("charge:7:card"):
        assert charge(7) == "charge:7:bank"
        with pytest.raises(AcquireTimeout):
            charge(7, by="card")
        assert isinstance(charge.apply(args=[7, "card"]).result, AcquireTimeout)


def test_direct_calls_at_once_have_a_hold_each(app):
    both = threading.Barrier(2)

    class Together(OnceTask):
        abstract = True

        def push_request(self, *args, **kwargs):
            both.wait(20)
            super().push_request(*args, **kwargs)

    @app.task(bind=True, base=Together, shared=False, once="charge:{order}")
    def charge(self, order):
        return self.hold.name

    @app.task(bind=True, base=OnceTask, shared=False, once="nested:{order}")
    def nested(self, order):
        return [*(nested(order - 1) if order else []), self.hold.name]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(charge, (1, 2))) == ["charge:1", "charge:2"]
    assert nested(1) == ["nested:0", "nested:1"]


def test_name_has_the_task_and_its_arguments_however_they_are_passed_and_ordered(app):
    @app.task(bind=True, base=OnceTask, shared=False)
    def charge(self, order, by="bank"):
        return self.hold.name

    assert charge(7) == charge(order=7) == charge(7, "bank") == charge(by="bank", order=7)
    assert charge(7) != charge(8)
    assert charge({"a": 1, "b": {"x": (2, 3), "y": 4}}) == charge({"b": {"y": 4, "x": [2, 3]}, "a": 1})
    assert charge(7).startswith(f"{__name__}.charge:")
    assert len(charge("x" * 5000)) < 512


class Opaque:
    pass


class Kind(str, enum.Enum):  # noqa: UP042  (a StrEnum formats as its value anyway)
    DAILY = "daily"


@pytest.mark.parametrize(
    "value",
    [
        {2: "a", 10: "b"},
        {1: 1, "a": 2},
        (date(2026, 1, 2), datetime(2026, 1, 2, 3, tzinfo=UTC), clock_time(4, 5), Decimal("1.50"), UUID(int=6)),
        (b"text", b"\xff"),
        Kind.DAILY,
    ],
    ids=["numbers as keys", "mixed keys", "types of kombu", "bytes", "enum"],
)
def test_name_is_the_same_for_a_direct_call_and_a_delivery(app, value):
    @app.task(base=OnceTask, shared=False)
    def build(options): ...

    @app.task(base=OnceTask, shared=False, once="job:{options}")
    def named(options, other=None): ...

    for task in (build, named):
        assert task._name((value,), {}) == task._name((loads(dumps(value)),), {})
    assert named._name((value, Opaque()), {}) == named._name((value,), {})


def test_argument_without_a_form_in_json_is_refused(app):
    @app.task(base=OnceTask, shared=False)
    def build(options): ...

    for value in (Opaque(), [Opaque()], {"a": (Opaque(),)}):
        with pytest.raises(TypeError, match="type Opaque is not JSON serializable"):
            build._name((value,), {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"once": "x:{nummer}"}, "task shop.bad: once: the task has no argument nummer"),
        ({"once": "x:{}"}, "task shop.bad: once: "),
        ({"once": 7}, "task shop.bad: once: expected str"),
        ({"once_busy": "wait"}, "task shop.bad: once_busy must be 'retry' or 'skip', not 'wait'"),
        ({"once_busy": "skip", "acks_late": True}, "task shop.bad: acks_late and"),
        *(
            ({"once_countdown": bad}, "task shop.bad: once_countdown")
            for bad in (-1, math.inf, None, "1", b"5", True, 10**400)
        ),
        ({"once_options": {"timeout": 5}}, "task shop.bad: once_options: .*multiple values for .* 'timeout'"),
        ({"once_options": {"leese": 5}}, "task shop.bad: once_options: .*unexpected keyword argument 'leese'"),
        (
            {"once_options": {"lease": -1}},
            "task shop.bad: once_options: lease must be a positive number of seconds, not -1",
        ),
        ({"once_options": None}, "task shop.bad: once_options: .*None"),
    ],
)
def test_bad_attribute_is_an_error_when_the_task_is_created(app, options, said):
    def bad(number):
        raise AssertionError("never called")

    with pytest.raises(ImproperlyConfigured, match=said):
        # Tasks here are not shared, or each application of a later test would create them again.
        app.task(name="shop.bad", base=OnceTask, lazy=False, shared=False, **options)(bad)


def test_timeout_among_the_options_is_an_error_in_a_handler_too(app):
    def bad(number):
        raise AssertionError("never called")

    try:
        raise RuntimeError("an application's")
    except RuntimeError:
        with pytest.raises(ImproperlyConfigured, match=r"once_options: .*multiple values for .*'timeout'"):
            app.task(name="shop.bad", base=OnceTask, lazy=False, shared=False, once_options={"timeout": 5})(bad)


def test_bad_setting_ends_a_worker_at_its_start(tmp_path, monkeypatch):
    monkeypatch.delenv("REDSYNC_URLS", raising=False)
    (tmp_path / "tasks.py").write_text(TASKS)
    with LocalNodes(1) as broker:
        setting = {"urls": ["redis://127.0.0.1:1"], "leese": 1}
        command = [sys.executable, "-m", "celery", "--app", "tasks", "worker", "--pool", "solo"]
        options = {"cwd": tmp_path, "env": environment_of(tmp_path, broker, setting), "timeout": 60}
        done = subprocess.run(command, capture_output=True, check=False, **options)
    assert done.returncode == 1
    assert (
        b"the setting of redsync.contrib.celery is wrong: redsync: Client.__init__() got an unexpected" in done.stderr
    )


def test_applications_have_a_client_each(app, nodes):
    other = celery.Celery("other", set_as_current=False)
    other.conf.redsync = {"urls": nodes.urls}
    assert isinstance(get_client(app), Client)
    assert get_client(app) is get_client(app) is not get_client(other)
    get_client(other).close()
