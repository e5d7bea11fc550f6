"""Each example runs as its user would run it, without warnings, and prints what it or its page promises."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from redsync import LeaseLostError
from tests.support.nursery import LIBRARY, WarmPython
from tests.support.trouble import version_of

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
        )*(on_lost: 'files' is lost
        (copying file \d+
        )*stopped: the hold of lock 'files' was lost: .*|stopped: .*
        on_lost: 'files' is lost)
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


RUN_BY = {"gunicorn/gunicorn.conf.py": "gunicorn_workers.py", "gunicorn/shop.py": "gunicorn_workers.py"}

PAGES = [path.read_text() for path in sorted((EXAMPLES.parent / "docs").rglob("*.md"))]
INCLUDED = re.compile(
    r"^<!-- skip: tests/test_examples\.py runs it -->\n```python\n--8<--\nexamples/(\S+)\n--8<--\n```$", re.MULTILINE
)


def shown(page):
    """Return the output that a page shows for each example that it includes."""
    blocks = [(included[1], page[included.end() :]) for included in INCLUDED.finditer(page)]
    return {RUN_BY.get(name, name): rest.split("```text\n")[1].partition("```")[0] for name, rest in blocks}


SHOWN = {name: output for page in PAGES for name, output in shown(page).items()}

CASES = [pytest.param(name, marks=marks(name)) for name in (*SAYS, *SHOWN)]


def run(*arguments, **environment):
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def python():
    with WarmPython("-W", "error", modules=[*LIBRARY, "tests.support.patient"]) as python:
        yield python


def without_blanks(text):
    """Return text without the blanks at the beginning and the end of its lines."""
    return re.sub(r"(?m)^ +| +$", "", text)


def pattern_of(name):
    if name in SAYS:
        return without_blanks(SAYS[name].strip()) + "\n"
    # A limiter may be late by a hundredth of a second.
    return re.escape(without_blanks(SHOWN[name])).replace(r"REQUESTS\ 61", r"REQUESTS\ 6[01]")


@pytest.mark.parametrize("name", CASES)
def test_example_prints_what_it_promises_without_warnings(name, raw, python, tmp_path):
    if name == "celery_once.py" and version_of(raw[0]) < (6, 2):
        pytest.skip("Celery itself needs Redis 6.2: its broker reads a sorted set by ZRANGE with BYSCORE")
    # Programs of frameworks need a new process, not a fork of this one; and their workers may print any warning.
    path = EXAMPLES / name
    own = {"PYTEST_ADDOPTS": "-p no:asyncio"}  # it runs pytest, and warns of its own settings
    done = run("-W", "error", str(path)) if name in FRAMEWORKS else python.run(path, tmp_path, **own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(pattern_of(name), without_blanks(done.stdout)), done.stdout
    # Without logging configuration, a loss is reported there.
    assert all(
        re.match("lost the hold of '(files|report|account:7|order:2|leader)'", line)
        for line in done.stderr.splitlines()
    ), done.stderr


@pytest.mark.sweep
def test_application_for_gunicorn_answers_without_nodes(monkeypatch):
    monkeypatch.setenv("REDSYNC_URLS", "redis://127.0.0.1:1")
    shop, statuses = runpy.run_path(str(EXAMPLES / "gunicorn/shop.py")), []
    assert shop["app"]({}, lambda status, _: statuses.append(status)) == [b"busy\n"]
    assert statuses == ["503 Service Unavailable"]
    shop["locks"]().close()


def test_every_example_is_run():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted([*SAYS, *SHOWN])
    assert not [page for page in PAGES if len(INCLUDED.findall(page)) < page.count("--8<--\nexamples/")]


def test_cache_that_loses_its_write_lock_keeps_no_lock(client):
    lock = client.get_read_write_lock("x")
    cache = runpy.run_path(str(EXAMPLES / "read_mostly_cache.py"))["Cache"](client, "x", {})
    with pytest.raises(LeaseLostError), cache.reading("key", lock.write_lock.force_release):
        pass
    assert not lock.read_lock.locked()
