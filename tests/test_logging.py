"""What the library logs: one line per change of a node, an error for a lost hold only, and never into the void."""

import logging
import os
import subprocess
import sys

import pytest

from redsync import LeaseLostError, QuorumError

NAMES = ["redsync", "redsync.watchdog", "redsync.node"]


@pytest.fixture
def lines(caplog):
    """Return a function that gives what was logged so far: logger, level, message."""
    caplog.set_level(logging.DEBUG, "redsync")

    def lines(level=logging.DEBUG):
        return [
            (record.name, record.levelname, record.getMessage())
            for record in caplog.records
            if record.name.split(".")[0] == "redsync" and record.levelno >= level
        ]

    return lines


def run_python(nodes, program):
    """Run a program that has not configured logging, and return what it wrote to stderr."""
    preamble = (
        "import time\nfrom redsync import Client, LeaseLostError\n"
        f"client = Client({nodes.urls!r}, restart_guard=0, lease=0.6)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", preamble + program],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env=environment,
    )
    return done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_logger_has_no_handler_and_no_level_of_its_own(client, name):
    logger = logging.getLogger(name)
    assert logger.handlers == []
    assert logger.level == logging.NOTSET
    assert logger.propagate


def test_nothing_above_info_is_logged_when_all_goes_well(make_client, lines, other):
    client = make_client()
    lock = client.get_lock("x")
    with lock, lock:
        other.do(lock.acquire, timeout=0.3)
        lock.extend()
    client.close()
    assert lines(logging.WARNING) == []


def test_node_that_goes_and_comes_is_one_line_each(make_client, nodes, lines, eventually):
    client = make_client(node_timeout=0.1)
    address = f"127.0.0.1:{nodes.ports[2]}"
    nodes.kill(2)
    eventually(lambda: client.nodes()[2].state == "down")
    for _ in range(20):
        with client.get_lock("x"):
            pass
    eventually(lambda: lines(logging.WARNING))
    nodes.restart(2)
    eventually(lambda: client.nodes()[2].state == "up")
    eventually(lambda: len(lines(logging.INFO)) >= 2)
    for _ in range(20):
        with client.get_lock("x"):
            pass
    assert [(name, level) for name, level, _ in lines(logging.INFO)] == [
        ("redsync.node", "WARNING"),
        ("redsync.node", "INFO"),
    ]
    down, up = (message for _, _, message in lines(logging.INFO))
    assert address in down
    assert "down" in down
    assert address in up
    assert "up" in up


def test_hung_node_is_one_line_each_way(make_client, nodes, lines, eventually):
    client = make_client(node_timeout=0.1)
    nodes.pause(4)
    for _ in range(5):
        with client.get_lock("x"):
            pass
    eventually(lambda: lines(logging.WARNING))
    for _ in range(20):
        with client.get_lock("x"):
            pass
    nodes.resume(4)
    eventually(lambda: len(lines(logging.INFO)) == 2)
    (name, level, message), (_, back, _) = lines(logging.INFO)
    assert (name, level, back) == ("redsync.node", "WARNING", "INFO")
    assert f"127.0.0.1:{nodes.ports[4]}" in message
    assert "suspect" in message


def test_missing_quorum_is_no_error_in_the_log(client, nodes, lines, eventually):
    for i in range(3):
        nodes.kill(i)
    with pytest.raises(QuorumError):
        client.get_lock("x").acquire(timeout=0.2)
    eventually(lambda: len(lines(logging.WARNING)) == 3)
    assert {(name, level) for name, level, _ in lines(logging.WARNING)} == {("redsync.node", "WARNING")}
    assert lines(logging.ERROR) == []


def test_nodes_that_are_down_from_the_start_are_one_line_each(make_client, nodes, lines, eventually):
    nodes.kill(0)
    client = make_client()
    eventually(lambda: lines(logging.WARNING))
    with client.get_lock("x"):
        pass
    assert len(lines(logging.WARNING)) == 1


def test_lost_hold_is_one_error(client, raw, lines):
    lock = client.get_lock("lost one")
    with pytest.raises(LeaseLostError), lock, lock as hold:  # noqa: PT012  # the body of the lock
        for node in raw:
            node.flushall()
        owner = hold.owner
        with pytest.raises(LeaseLostError):
            hold.extend()
    ((name, level, message),) = lines(logging.WARNING)
    assert (name, level) == ("redsync.watchdog", "ERROR")
    assert "'lost one'" in message
    assert owner in message


def test_warnings_reach_stderr_when_logging_is_not_configured(nodes):
    nodes.kill(0)
    stderr = run_python(
        nodes,
        """
while client.nodes()[0].state == "up":
    time.sleep(0.01)
time.sleep(0.2)
client.close()
""",
    )
    assert len(stderr.splitlines()) == 1
    assert f"127.0.0.1:{nodes.ports[0]}" in stderr
    assert "down" in stderr


def test_lost_hold_reaches_stderr_when_logging_is_not_configured(nodes):
    stderr = run_python(
        nodes,
        """
try:
    with client.get_lock("job", lease=0.3) as hold:
        hold.wait_lost()
except LeaseLostError:
    pass
client.close()
""",
    )
    assert len(stderr.splitlines()) == 1
    assert "'job'" in stderr


def test_silence_is_kept_on_stderr_when_all_goes_well(nodes):
    assert run_python(nodes, 'with client.get_lock("x"): pass\nclient.close()\n') == ""
