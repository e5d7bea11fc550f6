"""The library's log: one line for each change of a node, an error only for a lost hold, and no record is dropped."""

import logging
import os
import subprocess
import sys

import pytest


@pytest.fixture
def lines(caplog):
    """Return a function that returns the records so far: logger, level, message."""
    caplog.set_level(logging.DEBUG, "redsync")

    def lines(level=logging.DEBUG):
        return [
            (record.name, record.levelname, record.getMessage())
            for record in caplog.records
            if record.name.split(".")[0] == "redsync" and record.levelno >= level
        ]

    return lines


def test_nothing_above_info_is_logged_without_failures(make_client, lines, other):
    client = make_client()
    lock = client.get_lock("x")
    with lock, lock:
        other.do(lock.acquire, timeout=0.3)
        lock.extend()
    client.close()
    assert lines(logging.WARNING) == []


def test_node_that_goes_down_and_comes_back_is_one_line_each(make_client, nodes, lines, eventually):
    client = make_client()
    address = f"127.0.0.1:{nodes.ports[2]}"
    nodes.kill(2)
    eventually(lambda: client.nodes()[2].state == "down")
    for _ in range(20):
        with client.get_lock("x"):
            pass
    nodes.restart(2)
    eventually(lambda: client.nodes()[2].state == "up")
    eventually(lambda: len(lines(logging.INFO)) >= 2)
    for _ in range(20):
        with client.get_lock("x"):
            pass
    (down, up) = lines(logging.INFO)
    assert down[:2] == ("redsync.node", "WARNING")
    assert f"{address} is down" in down[2]
    assert up[:2] == ("redsync.node", "INFO")
    assert f"{address} is up" in up[2]


def test_only_warnings_and_losses_reach_stderr_without_logging_configuration(nodes):
    program = f"""if True:
        import os, signal, sys, time
        from redsync import Client, LeaseLostError
        events = []  # a listener hears of what has been logged
        with Client({nodes.urls!r}, restart_guard=0, listeners=[events.append]) as client:
            with client.get_lock("x"):
                pass
            print("so far silence", file=sys.stderr)
            try:
                with client.get_lock("job", lease=0.3) as hold:
                    hold.wait_lost()
            except LeaseLostError:
                pass
            os.kill({nodes.pids[0]}, signal.SIGKILL)
            while "down" not in str(events):
                time.sleep(0.01)
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    silence, lost, down = done.stderr.splitlines()
    assert silence == "so far silence"
    assert "'job'" in lost
    assert f"127.0.0.1:{nodes.ports[0]} is down" in down
