"""Inspecting locks: holders, waiters, and their processes."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redsync import LeaseLostError, QuorumError
from tests.support.kinds import KINDS
from tests.support.locks import states
from tests.support.trouble import hanging

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


QUERIES = {
    "inspect": lambda client: client.inspect("x"),
    "locked": lambda client: client.get_lock("x").locked(),
    "force_release": lambda client: client.get_mutex("m").force_release(),
    "break": lambda client: client.force_release("x", "no-owner"),
    "available": lambda client: client.get_semaphore("s", 2).available(),
    "holders": lambda client: client.get_semaphore("s", 2).holders(),
    "retry_after": lambda client: client.get_rate_limiter("r", 1, per=9.0).retry_after(),
}


@pytest.mark.usefixtures("all_nodes_met")
@pytest.mark.parametrize("first", QUERIES)
def test_hung_nodes_delay_queries_by_one_node_timeout_in_all(make_client, nodes, eventually, promptly, first):
    client = make_client(node_timeout=1.0)
    client.get_semaphore("s", 2).acquire()

    def query_all():
        eventually(lambda: states(client) == ["up"] * 5)
        with hanging(nodes, 0, 3):
            started_at = time.monotonic()
            for query in (QUERIES[first], *QUERIES.values()):
                query(client)
            return time.monotonic() - started_at

    promptly(query_all, 1.8)


# A holder's process.


PROGRAM = """
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


def records(raw):
    return [set(node.keys("redsync:client:*")) for node in raw]


def test_inspect_shows_processes_of_remote_and_of_killed_holders(client, nodes, tmp_path, eventually):
    """A record outlives its process for a while, so people can see whose claim has yet to expire."""
    began, path = time.time(), tmp_path / "some_package" / "__main__.py"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    command = [sys.executable, str(path.parent), *nodes.urls]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            child = eventually(lambda: client.inspect("child").holders and client.inspect("child").holders[0].pid)
            assert child != process.pid
            assert Path(f"/proc/{child}").exists()
        finally:
            process.kill()
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


# Names, and the end of one owner's hold.


def test_all_names_are_inspected_whatever_their_kind(client, raw):
    semaphore, latch = client.get_semaphore("semaphore", 3), client.get_count_down_latch("latch")
    assert semaphore.acquire(n=2)
    assert latch.try_set_count(3)
    for node in raw:
        node.rpush("redsync:list", 1)
        node.set("other:lock", "of another prefix", px=60_000)
    with client.get_fenced_lock("lock") as hold, client.get_mutex(b"\xff"), client.get_lock("x" * 512):
        found = {info.name: info for info in client.inspect_all()}
        kinds = {"semaphore": "semaphore", "latch": "latch", "list": "list", "lock": "fenced lock", "x" * 512: "lock"}
        assert {name: info.kind for name, info in found.items()} == {**kinds, b"\xff": "mutex"}
        assert [holder.owner for holder in found["lock"].holders] == [hold.owner]
        assert [info.name for info in client.inspect_all("l*", limit=2)] == ["latch", "list"]
        assert [info.name for info in client.inspect_all(b"\xff")] == [b"\xff"]
    assert client.inspect_all("lock") == []
    for wrong in {"pattern": ""}, {"pattern": "x" * 513}, {"limit": 0}:
        with pytest.raises(ValueError, match="512 bytes" if "pattern" in wrong else "limit must be a positive number"):
            client.inspect_all(**wrong)


def test_names_are_found_among_many_keys_while_a_minority_is_down(client, raw, nodes, eventually):
    for node in raw:
        node.mset({f"redsync:{number}": "x" for number in range(5000)})
    nodes.kill(0)
    with client.get_lock("held"):
        assert [info.name for info in client.inspect_all("h?ld")] == ["held"]
        assert len(client.inspect_all("[14]?")) == 20
    for index in 1, 2:
        nodes.kill(index)
    eventually(lambda: [status.state for status in client.nodes()].count("down") == 3)
    with pytest.raises(QuorumError, match=r"too few nodes answered to list the names like '\*'"):
        client.inspect_all()


@pytest.mark.parametrize("kind", ["lock", "fenced", "mutex", "semaphore", "read"])
def test_hold_of_one_owner_is_broken(client, make_client, kind):
    make, other = KINDS[kind], make_client()
    with contextlib.suppress(LeaseLostError), make(client) as hold:
        owner = hold.id if kind == "semaphore" else hold.owner
        assert not other.force_release("x", other.id)
        assert other.force_release("x", owner)
        assert not other.force_release("x", owner)
        with pytest.raises(LeaseLostError):
            hold.extend()
        assert make(other).acquire(blocking=False)


def test_hold_is_broken_as_people_name_its_owner(client, make_client):
    """As the command line prints it; `tests/cli/inspecting` tests more ways."""
    locks = [client.get_read_write_lock("x").read_lock, make_client().get_read_write_lock("x").read_lock]
    assert all(lock.acquire() for lock in locks)
    process = f"{socket.gethostname()}:{os.getpid()}"
    with pytest.raises(ValueError, match="may be one of 2 owners, give one in full"):
        client.force_release("x", process)
    assert client.force_release("x", client.id[:8])
    assert client.force_release("x", process)
    with pytest.raises(TypeError, match="an owner is str"):
        client.force_release("x", b"owner")
