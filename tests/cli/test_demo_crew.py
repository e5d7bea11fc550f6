"""The demo's worker processes: how their end is noticed, and that none outlives the demo."""

import os
import time

import pytest

from redsync.cli.demo_crew import Crew, RunFailedError
from redsync.cli.demo_ledger import JournalReader, now_ns
from redsync.cli.demo_worker import Order


def orders(urls, directory, processes=2):
    return [Order(urls, 2.0, ["demo:1"], str(directory), process, 1, 1) for process in range(processes)]


def eventually(condition, within=20.0):
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_crew_works_when_it_may_and_ends(redsync_nodes, tmp_path):
    with Crew(orders(redsync_nodes.urls, tmp_path)) as crew:
        crew.start()
        assert not crew.ready()
        eventually(crew.ready)
        assert crew.working()
        assert JournalReader(tmp_path).read() == []
        crew.go(now_ns(), now_ns() + 200_000_000)
        eventually(lambda: not crew.working())
        assert crew.said() == ""
    assert {attempt.worker for attempt in JournalReader(tmp_path).read()} == {0, 1}


@pytest.mark.slow
def test_crew_tells_why_a_worker_failed(tmp_path):
    with Crew(orders([], tmp_path, 1)) as crew:
        crew.start()
        with pytest.raises(RunFailedError, match=r"worker process 0 ended with status 1; it said:\n(.*\n)*.*Error"):
            eventually(lambda: not crew.working())
        crew.go(now_ns(), now_ns())
        assert "Error" in crew.said()


def test_crew_leaves_no_process(tmp_path):
    with Crew(orders(["redis://127.0.0.1:1"], tmp_path)) as crew:
        crew.start()
        pids = [process.pid for process in crew._processes]
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))
