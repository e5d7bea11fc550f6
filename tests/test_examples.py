"""Each example runs as its user would run it, without warnings, and prints what it promises."""

import os
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from tests.support.trouble import version_of
from tests.support.warm import LIBRARY, WarmPython

EXAMPLES = Path(__file__).parents[1] / "examples"

SAYS = {
    "async_lock.py": r"""
        Ada works
        Ada is done
        Bob works
        Bob is done
        Eve was cancelled: True
        Dan works for an hour
        an operator force-releases the lock: True
        Dan was stopped because the lock was lost
        """,
    "first_lock.py": r"""
        (Ada|Bob) writes the report; the lock is valid for 30 s and is renewed
        \1 is done
        (Ada|Bob) writes the report; .*
        \2 is done
        Eve writes the report; .*
        busy: doing something else meanwhile
        Eve is done
        free again
        """,
    "fenced_write.py": r"""
        Ada reads 100 and is paused
        Bob has a higher token: True
        Bob writes: True
        Ada resumes and writes: False
        Ada learns that the lock was lost, too late for her write
        the balance is 70
        """,
    "watch_a_hold.py": r"""
        copying file 1
        (copying file \d+
        )*an operator force-releases the lock: True
        (copying file \d+
        )*on_lost: 'files' is lost
        (copying file \d+
        )*stopped: the hold of lock 'files' was lost: .*
        """,
    "nodes_come_and_go.py": r"""
        nodes: down, down, up, up, up
        two of five are dead: .*
        they are back, .*
        three of five are dead: lock 'job': .*
        one is back: the same client acquires the lock: True
        """,
    "semaphore.py": r"""
        downloaded: 0 1 2 3 4 5 6 7 8 9 10 11
        3 at a time
        free next to the big one: 1
        two more: None
        free again: 3
        """,
    "rate_limited_client.py": r"""
        the next call is allowed in [01]\.\d s
        24 calls; at most (9|10) in any second
        """,
    "pytest_exclusive.py": r"""
        run 1: 6 passed
        run 2: 6 passed
        """,
    "read_mostly_cache.py": r"""
        20 readers missed it, 1 computed it
        4 updates between the reads of 4 readers, 0 of them seen incomplete
        """,
    "django_once.py": r"""
        paid twice at once:
        200 paid
        409 already paid
        while another machine holds the lock:
        423 the order is locked
        not run: another machine runs it
        sent order 1
        """,
    "celery_once.py": r"""
        two deliveries:
        charged
        charged already
        one more, later:
        charged already
        the worker ended with status 0
        """,
    "fastapi_lock.py": r"""
        free: 200 \{"paid":"order 1"\}
        held by another machine: 423 \{"detail":"the resource is locked"\}
        lock lost during the request: 503 \{"detail":"the lock service is unavailable"\}
        too many: 429 \{"detail":"too many requests"\}
        """,
    "apscheduler_once.py": r"""
        5 firings on two machines, 5 runs
        """,
    "flask_lock.py": r"""
        free: 200 OK
        held by another machine: 423 LOCKED
        search: 200 OK ?
        search: 200 OK ?
        search: 429 TOO MANY REQUESTS 6[01]
        """,
    "cron_once.py": r"""
        the report, written on machine 1
        machine 2 wrote '' and ended with status 0
        still held on machine 1: True
        status of machine 1: 0
        free again: True
        """,
    "dogpile_mutex.py": r"""
        8 readers have \{'report number 1'\}, computed 1 time
        while one reader computes: report number 1
        then: report number 2
        without a quorum of nodes: an invoice anyway
        """,
    "leader_election.py": r"""
        three candidates, 1 leads
        the leader was killed, and another one leads: True
        that one got SIGTERM, and the last one leads: True
        the number of the term has grown: True
        the lock was force-released: the leader steps down
        no other candidate is left, and it leads again: True
        """,
    "gunicorn_workers.py": r"""
        workers: 2 clients: 2
        one of them answers: True
        one was killed, and its successor is another client: True
        one of them answers: True
        clients closed: 2
        gunicorn ended with status 0
        """,
    "own_unit_test_with_fakeredis.py": r"""
        test_shop_sells_what_it_has: passed
        test_shop_never_sells_more_to_many_customers: passed
        """,
}


FRAMEWORKS = {
    "celery_once.py",
    "django_once.py",
    "dogpile_mutex.py",
    "fastapi_lock.py",
    "flask_lock.py",
    "gunicorn_workers.py",
}
"""These test a framework."""

LONG = {"cron_once.py", "leader_election.py", "rate_limited_client.py"}


def marks(name):
    if name in FRAMEWORKS:
        return [pytest.mark.framework, pytest.mark.sweep]
    return pytest.mark.sweep if name in LONG else ()


CASES = [pytest.param(name, marks=marks(name)) for name in SAYS]

RUN_BY = {"gunicorn/gunicorn.conf.py": "gunicorn_workers.py", "gunicorn/shop.py": "gunicorn_workers.py"}

PAGES = [path for path in sorted((EXAMPLES.parent / "docs").rglob("*.md")) if "--8<--\nexamples/" in path.read_text()]
INCLUDED = re.compile(
    r"^<!-- skip: tests/test_examples\.py runs it -->\n```python\n--8<--\nexamples/(\S+)\n--8<--\n```$", re.MULTILINE
)


def run(*arguments, **environment):
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def python():
    with WarmPython("-W", "error", modules=[*LIBRARY, "tests.support.patient"]) as python:
        yield python


def unindented(text):
    return re.sub(r"(?m)^ +", "", text)


def pattern_of(name):
    return unindented(SAYS[name].strip()) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_example_prints_what_it_promises_without_warnings(name, raw, python, tmp_path):
    if name == "celery_once.py" and version_of(raw[0]) < (6, 2):
        pytest.skip("Celery itself needs Redis 6.2: its broker reads a sorted set by ZRANGE with BYSCORE")
    # Programs of frameworks need a new process, not a fork of this one; and their workers may print any warning.
    path = EXAMPLES / name
    own = {"PYTEST_ADDOPTS": "-p no:asyncio"}  # it runs pytest, and warns of its own settings
    done = run("-W", "error", str(path)) if name in FRAMEWORKS else python.run(path, tmp_path, **own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(pattern_of(name), unindented(done.stdout)), done.stdout
    # Without logging configuration, a loss is reported there.
    assert all(
        re.match("lost the hold of '(files|report|account:7|order:2|leader)'", line)
        for line in done.stderr.splitlines()
    ), done.stderr


@pytest.mark.parametrize("path", PAGES, ids=attrgetter("name"))
def test_page_shows_the_output_of_the_example_that_it_includes(path):
    text = path.read_text()
    names = INCLUDED.findall(text)
    assert len(names) == text.count("--8<--\nexamples/")
    for name in names:
        assert re.search(f"```text\n{pattern_of(RUN_BY.get(name, name))}```", unindented(text)), name


def test_every_example_is_run():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SAYS)
