"""Inspecting locks: holders, waiters, and their processes."""

import contextlib
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("both_flavours")


def test_inspect_shows_free_locks_and_what_others_keep(client, raw):
    info = client.inspect("x")
    assert (info.name, info.kind, info.holders, info.waiters) == ("x", "none", (), ())
    assert [vote.node for vote in info.votes] == [status.address for status in client.nodes()]
    assert client.inspect(b"x").name == b"x"
    for node in raw:
        node.rpush("redsync:x", 1)
    info = client.inspect("x")
    assert (info.kind, info.holders) == ("list", ())


def test_inspect_shows_the_holder(client, make_client, other):
    lock = client.get_lock("x")
    with lock as hold, lock:
        info = make_client().inspect("x")
        assert info.kind == "lock"
        assert info.waiters == ()
        (holder,) = info.holders
        assert holder.owner == hold.owner
        assert holder.hold_count == 2
        assert 25 < holder.remaining <= 30
        assert len(info.votes) == 5


@pytest.mark.asyncio_too
def test_inspect_shows_waiters(client, make_worker, eventually):
    lock = client.get_lock("x")

    def wait():
        with lock as hold:
            return hold.owner

    with lock as hold:
        workers = [make_worker(), make_worker()]
        waiters = [worker.start(wait) for worker in workers]
        owners = eventually(lambda: len(client.inspect("x").waiters) == 2 and client.inspect("x").waiters)
        assert [holder.owner for holder in client.inspect("x").holders] == [hold.owner]
    assert sorted(waiter.result(20) for waiter in waiters) == sorted(owners)
    eventually(lambda: client.inspect("x").waiters == ())


COUNTERS = {
    "semaphore": lambda client: client.get_semaphore("x", 2),
    "rate limiter": lambda client: client.get_rate_limiter("x", 2, 0.2),
}


@pytest.mark.parametrize("earlier", COUNTERS)
def test_lock_is_seen_although_the_nodes_know_an_earlier_limit_of_its_name(client, raw, eventually, earlier):
    """They keep a limit for a day after the last permit."""
    with COUNTERS[earlier](client):
        info = client.inspect("x")
        assert (info.kind, info.holders) == (earlier, ())
    eventually(lambda: not any(node.exists("redsync:x") for node in raw))
    assert all(node.exists("redsync_limit:{redsync:x}") for node in raw)
    lock = client.get_lock("x")
    assert client.inspect("x").kind == "none"
    assert not lock.locked()
    assert not lock.force_release()
    lock.acquire()
    info = client.inspect("x")
    assert (info.kind, len(info.holders)) == ("lock", 1)
    assert lock.force_release()
    assert not lock.locked()


@pytest.mark.usefixtures("all_nodes_met")
def test_looks_do_not_wait_for_a_minority_of_hung_nodes(make_client, nodes):
    client = make_client(node_timeout=600.0)
    with client.get_lock("x") as hold, contextlib.ExitStack() as hung:
        for i in (0, 3):
            nodes.pause(i)
            hung.callback(nodes.resume, i)
        info = client.inspect("x")
        assert [holder.owner for holder in info.holders] == [hold.owner]
        assert [vote.choice.value for vote in info.votes] == ["failed", "granted", "granted", "failed", "granted"]
        semaphore = client.get_semaphore("s", 2)
        with semaphore as permit:
            assert (semaphore.available(), semaphore.permits()) == (1, 2)
            semaphore.resize(2)
            assert [holder.id for holder in semaphore.holders()] == [permit.id]
        limiter, pair = client.get_rate_limiter("r", 1, per=9.0), client.get_read_write_lock("rw")
        assert (limiter.available(), limiter.retry_after()) == (1, 0.0)
        assert not pair.read_lock.locked()
        assert not pair.write_lock.force_release()
        assert client.get_count_down_latch("l").count() == 0
        assert client.get_lock("x").locked()
        assert {node.state for node in client.nodes()} == {"up"}, "no call waited until a node was given up"


# A holder's process.


@pytest.fixture
def start_program(nodes, tmp_path):
    """Return a function that runs a program in a new process."""
    processes = []

    def start(program):
        path = tmp_path / "some_package" / "__main__.py"
        path.parent.mkdir()
        path.write_text(textwrap.dedent(program))
        command = [sys.executable, str(path.parent), *nodes.urls]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout.readline() == "ready\n"
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def records(raw):
    return [set(node.keys("redsync:client:*")) for node in raw]


def test_inspect_shows_processes_of_remote_and_of_killed_holders(client, start_program, eventually):
    """A record outlives its process for a while, so people can see whose claim has yet to expire."""
    began = time.time()
    process = start_program(
        """
        import os, sys
        from redsync import Client

        client = Client(sys.argv[1:], restart_guard=0)
        client.get_lock("parent").acquire()
        if os.fork():
            print("ready", flush=True)
            sys.stdin.read()
        else:
            with client.get_lock("child"):
                sys.stdin.read()
            os._exit(0)
        """
    )
    child = eventually(lambda: client.inspect("child").holders and client.inspect("child").holders[0].pid)
    assert child != process.pid
    assert Path(f"/proc/{child}").exists()
    process.kill()
    process.wait()
    (holder,) = client.inspect("parent").holders
    assert (holder.host, holder.pid, holder.program) == (socket.gethostname(), process.pid, "some_package")
    assert began - 1 <= holder.since <= time.time()


def test_record_is_on_all_nodes_until_the_client_is_closed(make_client, raw, eventually):
    client = make_client()
    key = f"redsync:client:{client.id}".encode()
    eventually(lambda: records(raw) == [{key}] * 5)
    assert all(60_000 < node.pttl(key) <= 65_000 for node in raw), "it expires if the client can't remove it"
    client.close()
    eventually(lambda: records(raw) == [set()] * 5)
