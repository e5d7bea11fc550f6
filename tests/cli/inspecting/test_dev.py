"""`redsync dev`: nodes that live as long as the command."""

import json
import re
import socket

import pytest

from redsync import Client


def listens(url):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(re.search(r":(\d+)/", url)[1]))) == 0


def test_dev_prints_exports_and_ends_its_servers_at_ctrl_c(start, tmp_path):
    command = start("dev", "-n", "3", TMPDIR=str(tmp_path))
    exports = dict(re.findall(r"^export (\w+)=(.*)$", command.read_until("GUARD=0\n"), re.MULTILINE))
    assert exports["REDSYNC_RESTART_GUARD"] == "0"
    urls = exports["REDSYNC_URLS"].split(",")
    assert len(urls) == 3
    with Client(urls, restart_guard=0) as client:
        assert client.get_lock("x").acquire(timeout=10)
        client.get_lock("x").release()
    command.interrupt()
    assert command.end() == 0
    assert not any(map(listens, urls))
    assert list(tmp_path.iterdir()) == []


def test_dev_ends_its_servers_when_it_is_killed(start, eventually, tmp_path):
    command = start("dev", "--json", TMPDIR=str(tmp_path))
    urls = json.loads(command.read_until("\n"))["urls"]
    assert all(map(listens, urls))
    command.kill()
    command.end()
    eventually(lambda: not any(map(listens, urls)), within=20)
    eventually(lambda: not list(tmp_path.iterdir()), within=20)


@pytest.mark.parametrize("command", ["dev", "demo"])
def test_server_that_does_not_start_is_named_with_status_69(command, redsync, tmp_path):
    done = redsync(command, REDSYNC_SERVER="/nowhere/redis-server")
    assert (done.status, "/nowhere/redis-server" in done.err) == (69, True)
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\necho out of order\nexit 3\n")
    server.chmod(0o700)
    done = redsync(command, REDSYNC_SERVER=str(server))
    assert (done.status, "Traceback" in done.err) == (69, False)
    assert "ended early with status 3" in done.err
    assert "out of order" in done.err
