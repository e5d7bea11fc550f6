"""A client process works when it may, ends when told to or when abandoned, and reports failures."""

import pytest

from tests.chaos.counters import read_counters
from tests.chaos.held_intervals import holds_of
from tests.chaos.history import read
from tests.chaos.jobs import Job
from tests.chaos.process_pool import ProcessPool, RunFailedError
from tests.support.locks import PATIENCE


def crew_of(urls, directory, **changes):
    def make_order(client, first, history):
        given = {"urls": urls, "names": ["lock:0"], "owners": 2, "seed": "1", "work": "nested", "restart_guard": 0.0}
        given["flavour"] = ["threads", "asyncio"][client]
        return Job(directory=str(directory), history=str(history), first=first, **{"warm": 20.0, **given, **changes})

    return ProcessPool(directory, make_order)


def test_processes_of_either_flavour_work_until_they_are_told_to_finish(redsync_nodes, tmp_path, eventually):
    with crew_of(redsync_nodes.urls, tmp_path, last=True) as pool:
        pool.start(0)
        pool.start(1)
        pool.await_all("ready")
        assert not pool.noted("acquired")
        pool.go()
        eventually(
            lambda: {hold.worker for life in pool.lives for hold in holds_of(read(life.history))} == {0, 1, 2, 3}
        )
        assert pool.working()
        pool.finish()
        assert pool.said() == ""
    histories = [read(life.history) for life in pool.lives]
    holds = [hold for lines in histories for hold in holds_of(lines)]
    assert read_counters(tmp_path, ["lock:0"])["lock:0"] == len(holds)
    for lines in histories:
        assert sum(line["event"] == "last" and line["got"] for line in lines) == 2
        assert (lines[-1]["event"], lines[-1]["threads"], lines[-1]["sockets"]) == ("closed", [], 0)


def test_process_ends_with_the_process_that_started_it(redsync_nodes, tmp_path):
    with crew_of(redsync_nodes.urls, tmp_path) as pool:
        pool.start(0)
        pool.go()
        pool.await_all("acquired")
        pool.lives[0].process.stdin.close()
        assert pool.lives[0].process.wait(PATIENCE) == 1


def test_process_fails_when_an_owner_does(redsync_nodes, tmp_path, eventually):
    (tmp_path / "lock-0.counter").write_text("damaged\n")
    with crew_of(redsync_nodes.urls, tmp_path) as pool:
        pool.start(0)
        pool.go()
        with pytest.raises(RunFailedError, match=r"status 1; it said:\n(.*\n)*.*Error"):
            eventually(lambda: not pool.working())
        assert "Traceback" in pool.said()
