"""LocalNodes: starting, killing and pausing, and that nothing outlives the owner."""

import contextlib
import gc
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from redsync.cli import main
from redsync.exceptions import RedsyncError
from redsync.testing import LocalNodes, ServerNotFoundError, ServerStartError, server_group, servers
from redsync.testing.servers import ask, find_server, free_ports, pinned_server, runnable

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


def test_nodes_refuse_a_number_below_one():
    with pytest.raises(ValueError, match="at least one node, not 0"):
        LocalNodes(0)


def test_config_reaches_the_servers_and_a_restart_forgets_what_they_wrote_to_disk():
    with LocalNodes(1, config={"appendonly": "yes", "appendfsync": "always", "save": "900 1"}) as nodes:
        [port] = nodes.ports
        assert b"\r\n900 1\r\n" in ask(port, "CONFIG GET save")
        ask(port, "SET key value")
        nodes.restart(0)
        assert ask(port, "EXISTS key") == b":0\r\n"


def test_nodes_start_when_a_password_is_wanted():
    with LocalNodes(1, config={"requirepass": "secret"}) as nodes:
        assert ask(nodes.ports[0], "PING").startswith(b"-NOAUTH")
        assert nodes.version == ""
        assert repr(nodes).startswith(f"<LocalNodes of {nodes.server} on ports")
        pid = nodes.pids[0]
        nodes.reset()
        assert nodes.pids[0] != pid


def test_start_shows_the_log_when_a_server_ends_early_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(
        ServerStartError, match=r"ended early with status 1; its log ends with\n(.*\n)*.*no-such-setting"
    ) as error:
        LocalNodes(2, config={"no-such-setting": "1"})
    assert isinstance(error.value, RedsyncError)
    assert list(tmp_path.iterdir()) == []


def test_start_gives_up_when_a_server_stays_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(server_group, "_START_TIMEOUT", 0.1)
    silent = write_server(tmp_path / "silent", "echo sleeping\nsleep 60")
    with pytest.raises(ServerStartError, match=r"did not answer in time; its log ends with\nsleeping"):
        LocalNodes(1, server=silent)


def test_start_takes_another_port_when_one_is_taken(nodes, monkeypatch):
    taken = nodes.ports[0]  # by a server that answers, so an answer proves nothing
    monkeypatch.setattr(server_group, "free_ports", lambda: iter([taken, *next_ports]))
    ports = free_ports()
    next_ports = [next(ports) for _ in range(3)]
    with LocalNodes(2) as others:
        assert taken not in others.ports
        assert all(map(ping, others.ports))
    assert ping(taken)


def test_nodes_run_when_the_server_is_wrapped_in_a_script(tmp_path, eventually):
    wrapper = write_server(tmp_path / "wrapped", f'"{find_server()}" "$@"\nexit $?')
    with LocalNodes(1, server=wrapper) as nodes:
        [port] = nodes.ports
        assert ping(port)
        nodes.kill(0)
        eventually(lambda: is_refused(port))


def test_ports_stay_below_the_ephemeral_range(nodes):
    assert all(10_000 <= port < 32_768 for port in nodes.ports)


def test_free_ports_skip_one_that_is_bound(monkeypatch):
    ports = free_ports()
    first, second = next(ports), next(ports)
    with socket.create_server(("127.0.0.1", first)):
        monkeypatch.setattr(servers, "_PORTS", range(first, first + 1))
        with pytest.raises(ServerStartError, match="in use"):
            next(free_ports())
    assert first != second


# Finding a server.


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No server is named, on PATH, or installed."""
    monkeypatch.delenv("REDSYNC_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(servers, "_WHEELS", {})
    return tmp_path


def test_find_server_raises_with_advice_when_there_is_none(bare):
    with pytest.raises(ServerNotFoundError, match=r'pip install "redsync-toolkit\[server\]"') as error:
        LocalNodes()
    assert isinstance(error.value, RedsyncError)
    assert isinstance(error.value, FileNotFoundError)


def test_find_server_keeps_its_order(bare, monkeypatch):
    wheel = bare / "wheel" / "redis-server"
    wheel.parent.mkdir()
    (wheel.parent / "__init__.py").touch()
    wheel.touch()
    monkeypatch.syspath_prepend(bare)
    monkeypatch.setattr(servers, "_WHEELS", {"no_such_wheel": "redis-server", "wheel": "redis-server"})
    assert find_server() == wheel
    valkey = write_server(bare / "valkey-server", "")
    assert find_server() == valkey
    redis = write_server(bare / "redis-server", "")
    assert find_server() == redis
    named = write_server(bare / "named", "")
    monkeypatch.setenv("REDSYNC_SERVER", str(named))
    assert find_server() == named
    assert find_server("valkey-server") == valkey
    assert find_server(valkey) == valkey


def test_pinned_server_is_that_of_a_wheel_whatever_path_has(bare, monkeypatch):
    assert pinned_server() is None
    wheel = bare / "wheel" / "redis-server"
    wheel.parent.mkdir()
    (wheel.parent / "__init__.py").touch()
    wheel.touch()  # without execute permission, as some installers leave it
    monkeypatch.syspath_prepend(bare)
    monkeypatch.setattr(servers, "_WHEELS", {"wheel": "redis-server"})
    write_server(bare / "redis-server", "")
    assert pinned_server() == wheel
    assert find_server(pinned_server()) == wheel
    named = write_server(bare / "named", "")
    monkeypatch.setenv("REDSYNC_SERVER", str(named))
    assert find_server(pinned_server()) == named


def test_tests_run_the_pinned_server_unless_told_otherwise(redsync_nodes, server_path):
    assert redsync_nodes.server == Path(server_path or os.environ["REDSYNC_SERVER"])


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

    monkeypatch.setattr("redsync.testing.LocalNodes", refuse)
    monkeypatch.setattr("redsync.testing.local_nodes.LocalNodes", refuse)
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


@pytest.mark.parametrize("wheel", servers._WHEELS)
def test_find_server_knows_the_wheel(wheel, bare, monkeypatch):
    if find_spec(wheel) is None:
        pytest.skip(f"{wheel} is not installed")
    monkeypatch.undo()
    monkeypatch.delenv("REDSYNC_SERVER", raising=False)
    monkeypatch.setattr(servers, "_COMMANDS", ())
    monkeypatch.setattr(servers, "_WHEELS", {wheel: servers._WHEELS[wheel]})
    assert wheel in find_server().parts


def test_server_runs_when_it_lacks_the_execute_permission(tmp_path, monkeypatch):
    plain = Path(shutil.copyfile(find_server(), tmp_path / "plain-server"))
    plain.chmod(0o600)
    monkeypatch.setattr(server_group, "find_server", lambda server: plain)
    with LocalNodes(1) as nodes:
        assert ping(nodes.ports[0])
    assert not os.access(plain, os.X_OK)


def test_runnable_returns_an_executable_file_as_it_is(tmp_path):
    server = write_server(tmp_path / "server", "")
    assert runnable(server, tmp_path / "unused") == server


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


def test_restart_waits_for_its_port_when_another_process_has_it(nodes):
    nodes.kill(0)
    with socket.create_server(("127.0.0.1", nodes.ports[0])) as squatter:
        leave = threading.Timer(0.1, squatter.close)
        leave.start()
        nodes.restart(0)
        leave.join()
    assert ping(nodes.ports[0])


def test_restart_raises_when_its_port_stays_taken(nodes, monkeypatch):
    monkeypatch.setattr(server_group, "_START_TIMEOUT", 0.1)
    nodes.kill(0)
    with socket.create_server(("127.0.0.1", nodes.ports[0])), pytest.raises(ServerStartError, match="in use"):
        nodes.restart(0)
    assert not nodes.alive(0)


def test_pause_stops_the_node_until_it_is_resumed_however_often(nodes, eventually):
    nodes.pause(0)
    nodes.pause(0)
    assert nodes.alive(0)
    with pytest.raises(TimeoutError):
        ask(nodes.ports[0], "SET late yes", timeout=0.05)
    nodes.resume(0)
    nodes.resume(0)
    eventually(lambda: ask(nodes.ports[0], "EXISTS late") == b":1\r\n")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_pause_returns_when_the_process_is_stopped(nodes):
    nodes.pause(0)
    assert Path(f"/proc/{nodes.pids[0]}/stat").read_text().split()[2] == "T"


@pytest.mark.parametrize("act", ["pause", "resume"])
def test_pause_and_resume_raise_when_the_node_is_dead(act, nodes):
    nodes.kill(0)
    with pytest.raises(RuntimeError, match="node 0 is not running"):
        getattr(nodes, act)(0)


def test_reset_gives_running_and_empty_nodes_whatever_happened():
    with LocalNodes(3) as nodes:
        pids = nodes.pids
        ask(nodes.ports[0], "SET key value")
        nodes.pause(1)
        os.kill(pids[2], signal.SIGKILL)
        nodes.reset()
        assert [ask(port, "DBSIZE") for port in nodes.ports] == [b":0\r\n"] * 3
        assert nodes.pids[0] == pids[0]


def test_alive_notices_a_node_that_ended_by_itself(nodes, eventually):
    ask(nodes.ports[0], "SHUTDOWN NOSAVE")
    eventually(lambda: not nodes.alive(0))
    nodes.restart(0)
    assert ping(nodes.ports[0])


def test_threads_may_kill_nodes_while_others_read():
    failures = []

    def harm(i):
        for act in (nodes.kill, nodes.restart, nodes.pause, nodes.resume, nodes.pause, nodes.restart):
            try:
                act(i)
            except Exception as error:
                failures.append(error)

    with LocalNodes(2) as nodes:
        urls = nodes.urls
        threads = [threading.Thread(target=harm, args=(i,)) for i in (0, 1)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert nodes.urls == urls
            nodes.pids  # noqa: B018  takes the lock
            time.sleep(0.001)
        assert failures == []
        assert all(map(ping, nodes.ports))


def test_index_beyond_the_last_node_raises(nodes):
    for act in (nodes.kill, nodes.restart, nodes.pause, nodes.resume, nodes.alive):
        with pytest.raises(IndexError):
            act(2)


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


def test_collected_nodes_end():
    nodes = LocalNodes(1)
    [pid], [port] = nodes.pids, nodes.ports
    del nodes
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert is_refused(port)


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


def test_killed_owner_leaves_no_server_that_was_about_to_start(tmp_path, monkeypatch, eventually):
    """The owner dies between starting the process and informing the reaper."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = f"""
from redsync.testing.servers import ServerProcess, find_server
from pathlib import Path
server = ServerProcess(find_server(), {next(free_ports())}, Path({str(tmp_path)!r}), {{}})
print(server.pid, flush=True)
time.sleep(60)
"""
    with run_python(program) as owner:
        pid = int(owner.stdout.readline())
        os.killpg(pid, 0)
        owner.kill()
        eventually(lambda: is_gone(pid))
    assert (tmp_path / "server.log").read_bytes() == b""


def is_gone(pid):
    with contextlib.suppress(FileNotFoundError):  # a zombie that init never reaps has ended, too
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


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
