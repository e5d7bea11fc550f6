"""Tests that exclude each other, in several runs with several workers each, and their reports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.framework, pytest.mark.sweep]  # each of them starts pytest

CONFTEST = """
pytest_plugins = ["redsync.contrib.pytest"]
"""

COUNTS = """
import time
from pathlib import Path
import pytest

def count(name):
    # Not atomic but for the lock.
    file = Path(name)
    number = int(file.read_text() if file.exists() else "0") + 1
    time.sleep(0.01)
    file.write_text(str(number))

@pytest.mark.exclusive("one")
@pytest.mark.parametrize("n", range(6))
def test_one(n):
    count("one")

@pytest.mark.exclusive("two", "one")
@pytest.mark.parametrize("n", range(6))
def test_both(n):
    count("one")
    count("two")

@pytest.mark.parametrize("n", range(6))
def test_part(n, exclusive):
    with exclusive("two") as hold:
        count("two")
        hold.check()
"""


class Runs:
    """Runs of pytest in one directory."""

    def __init__(self, directory, urls):
        self.directory = directory
        self.urls = urls
        self._processes = []
        (directory / "conftest.py").write_text(CONFTEST)

    def start(self, text, *arguments):
        (self.directory / "test_it.py").write_text(text)
        lines = "\n  ".join(self.urls)
        (self.directory / "pytest.ini").write_text(
            f"[pytest]\naddopts = -p no:cacheprovider\nredsync_urls =\n  {lines}\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "REDSYNC_RESTART_GUARD": "0"}
        environment.pop("REDSYNC_URLS", None)
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the plugins of others would take most of the time
        command = [sys.executable, "-m", "pytest", "-p", "xdist", "--strict-markers", *arguments]
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def run(self, text, *arguments):
        process = self.start(text, *arguments)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    def end(self):
        """End those that a failed test left: without their nodes they would wait for a lock without limit."""
        for process in self._processes:
            with process:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def runs(tmp_path, nodes):
    runs = Runs(tmp_path, nodes.urls[:3])
    yield runs
    runs.end()


def test_two_runs_with_two_workers_each_take_turns_while_a_node_dies(runs, nodes, eventually):
    processes = [runs.start(COUNTS, "-n", "2") for _ in range(2)]
    eventually((runs.directory / "one").exists)
    nodes.kill(0)
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert "18 passed" in out, out
    assert (runs.directory / "one").read_text() == str(2 * (6 + 6))
    assert (runs.directory / "two").read_text() == str(2 * (6 + 6))


def test_resource_is_held_from_before_the_fixtures_to_after_them(runs):
    status, out = runs.run(
        """
        import pytest

        @pytest.fixture
        def free(pytestconfig, request):
            def locked():
                from redsync import Client
                with Client(pytestconfig.getini("redsync_urls"), restart_guard=0.0) as client:
                    return client.get_lock("pytest:printer").locked()
            assert locked()
            yield locked
            assert locked()

        @pytest.mark.exclusive("printer")
        def test_prints(free):
            assert free()

        def test_free(pytestconfig):
            from redsync import Client
            with Client(pytestconfig.getini("redsync_urls"), restart_guard=0.0) as client:
                assert not client.get_lock("pytest:printer").locked()
        """.replace("\n        ", "\n")
    )
    assert (status, "2 passed" in out) == (0, True), out


BUSY = """
import pytest

@pytest.mark.exclusive("printer", timeout=0.1)
def test_prints(): pass

def test_goes_on(): pass
"""


def test_resource_held_by_others_is_an_error_of_the_setup(runs, make_client):
    with make_client(n=3).get_lock("pytest:printer"):
        status, out = runs.run(BUSY)
    assert status == 1
    assert "1 passed, 1 error" in out
    assert "ERROR at setup of test_prints" in out
    assert "AcquireTimeout: 'pytest:printer' was still held by others" in out


def test_too_few_nodes_are_an_error_of_the_setup(runs, nodes):
    nodes.kill(0)
    nodes.kill(1)
    status, out = runs.run(BUSY)
    assert (status, "1 passed, 1 error" in out) == (1, True), out
    assert "QuorumError" in out


def test_loss_is_an_error_of_the_teardown(runs):
    status, out = runs.run("""
import pytest

@pytest.mark.exclusive("printer")
def test_prints(pytestconfig):
    from redsync import Client
    with Client(pytestconfig.getini("redsync_urls"), restart_guard=0.0) as client:
        client.get_lock("pytest:printer").force_release()
""")
    assert (status, "1 passed, 1 error" in out) == (1, True), out
    assert "ERROR at teardown of test_prints" in out
    assert "LeaseLostError" in out


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("exclusive", "exclusive takes names and timeout"),
        ("exclusive(7)", "exclusive takes names and timeout"),
        ("exclusive('x', wait=1)", "exclusive takes names and timeout"),
        ("exclusive('x', timeout=-1)", "exclusive's timeout must be a number of seconds, not -1"),
    ],
)
def test_bad_marker_stops_the_run_before_any_test(runs, marker, said):
    status, out = runs.run(f"import pytest\n\n@pytest.mark.{marker}\ndef test_it(): pass\n")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert said in out


def test_bad_setting_stops_only_a_run_that_needs_it(runs):
    runs.urls = []
    status, out = runs.run(BUSY)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "redsync_urls: REDSYNC_URLS is not set" in out
    assert runs.run("def test_it(): pass\n")[0] == 0
