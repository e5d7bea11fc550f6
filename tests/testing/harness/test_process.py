"""A client process works when it may, ends when told to or when abandoned, and reports failures."""

import os
import subprocess
from pathlib import Path

import pytest

from redsync.testing.harness.crew import COMMAND, Crew, RunFailedError
from redsync.testing.harness.holds import holds_of
from redsync.testing.harness.journal import now_ns, read
from redsync.testing.harness.ledger import Ledger
from redsync.testing.harness.orders import Order
from tests.support.locks import PATIENCE


def crew_of(urls, directory, **changes):
    def make_order(client, first, journal):
        given = {"urls": urls, "names": ["lock:0"], "owners": 2, "seed": "1", "work": "nested", "restart_guard": 0.0}
        given["flavour"] = ["threads", "asyncio"][client]
        return Order(directory=str(directory), journal=str(journal), first=first, **{"warm": 20.0, **given, **changes})

    return Crew(directory, make_order)


def test_order_survives_its_line():
    order = Order(urls=["a"], names=["lock:0"], directory=".", journal="x", first=3, owners=2, seed="7", lease=1.5)
    assert Order.of(order.line()) == order
    assert order.line().count(b"\n") == 1


def test_processes_of_either_flavour_work_only_in_their_time(redsync_nodes, tmp_path, eventually):
    with crew_of(redsync_nodes.urls, tmp_path, last=True) as crew:
        crew.start(0)
        crew.start(1)
        crew.await_all("ready")
        assert crew.working()
        assert not crew.noted("acquired")
        begin = now_ns() + 100_000_000
        end = begin + 300_000_000
        crew.go(begin, end)
        eventually(lambda: not crew.working())
        assert crew.said() == ""
    journals = [read(life.journal) for life in crew.lives]
    holds = [hold for lines in journals for hold in holds_of(lines)]
    assert {hold.worker for hold in holds} == {0, 1, 2, 3}
    assert begin <= min(hold.asked for hold in holds)
    # A worker checks the time, then asks: each may be late once, if it is delayed in between.
    late = [hold.worker for hold in holds if hold.asked >= end]
    assert len(late) == len(set(late))
    ledger = Ledger(tmp_path, 0, "lock:0")
    assert ledger.read_counter() == len(holds) > 5
    ledger.close()
    for lines in journals:
        assert sum(line["event"] == "last" and line["got"] for line in lines) == 2
        assert (lines[-1]["event"], lines[-1]["threads"], lines[-1]["sockets"]) == ("closed", [], 0)


def test_processes_work_until_they_are_told_to_finish(redsync_nodes, tmp_path):
    with crew_of(redsync_nodes.urls, tmp_path) as crew:
        crew.start(0)
        crew.go()
        crew.await_all("acquired")
        crew.finish()
        assert crew.lives[0].process.returncode == 0


def test_process_ends_with_the_process_that_started_it(redsync_nodes, tmp_path):
    with crew_of(redsync_nodes.urls, tmp_path) as crew:
        crew.start(0)
        crew.go()
        crew.await_all("acquired")
        crew.lives[0].process.stdin.close()
        assert crew.lives[0].process.wait(PATIENCE) == 1


def test_process_fails_when_an_owner_does(redsync_nodes, tmp_path, eventually):
    (tmp_path / "lock-0.ledger").write_text("damaged\n")
    with crew_of(redsync_nodes.urls, tmp_path) as crew:
        crew.start(0)
        crew.go()
        with pytest.raises(RunFailedError, match=r"status 1; it said:\n(.*\n)*.*Error"):
            eventually(lambda: not crew.working())
        assert "Traceback" in crew.said()


def test_process_without_an_order_ends_and_imports_no_file_of_its_directory(tmp_path):
    (tmp_path / "redsync.py").write_text("raise SystemExit(9)")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(COMMAND, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False)
    assert done.returncode == 1
