"""The pytest fixtures, as a project that uses redsync gets them: in a separate pytest run."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest on a test file; the plugin is named, so redsync does not have to be installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(source, *options):
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess("-p", "redsync.testing.pytest_plugin", "-W", "error", *options)

    return run


def test_nodes_are_empty_whatever_the_test_before_did_and_clients_and_nodes_are_closed(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run("""
        import os, signal
        import pytest
        from redsync.exceptions import ClientClosedError
        from redsync.testing.servers import ask

        pids, clients = [], []

        def harm_nothing(nodes): pass
        def write(nodes): assert ask(nodes.ports[0], "SET key value") == b"+OK\\r\\n"
        def kill(nodes): os.kill(nodes.pids[0], signal.SIGKILL)
        def pause(nodes): nodes.pause(0)

        @pytest.mark.parametrize("harm", [write, kill, pause, harm_nothing])
        def test_harm(redsync_nodes, harm):
            assert [ask(port, "DBSIZE") for port in redsync_nodes.ports] == [b":0\\r\\n"] * 5
            pids.append(redsync_nodes.pids)
            harm(redsync_nodes)

        def test_healthy_nodes_are_kept():
            assert pids[0] == pids[1]
            assert pids[1][1:] == pids[2][1:] == pids[3][1:]

        def test_client(redsync_client, redsync_nodes):
            redsync_nodes.kill(0)
            with redsync_client.get_lock("name"):
                assert redsync_client.get_lock("name").locked()
            clients.append(redsync_client)

        def test_client_is_closed():
            with pytest.raises(ClientClosedError):
                clients[0].get_lock("name").acquire()

        def test_failing(redsync_nodes):
            redsync_nodes.pause(0)
            assert False
    """).assert_outcomes(passed=7, failed=1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("redsync-nodes-")] == []


def test_nodes_fixture_fails_with_advice_when_there_is_no_server(run, monkeypatch):
    monkeypatch.setenv("REDSYNC_SERVER", "/no/such")
    result = run("def test_any(redsync_nodes): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ServerNotFoundError: REDSYNC_SERVER='/no/such' is not an executable file*"])


def test_plugin_imports_almost_nothing():
    program = """
import sys, pytest
names = ("asyncio", "hiredis", "redis", "redsync")
before = set(sys.modules)
import redsync.testing.pytest_plugin
print(*sorted(name for name in set(sys.modules) - before if name.startswith(names)))
"""
    out = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == ["redsync", "redsync.testing", "redsync.testing.pytest_plugin"]
