"""Pickled locks and clients: they carry a name, options and the nodes' URLs, and never a hold."""

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

from redsync import ClientClosedError, LeaseLostError, QuorumError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def again(thing, protocol=None):
    return pickle.loads(pickle.dumps(thing, protocol))


def run_python(program, pickled):
    """Run a program in a fresh process; it finds what was pickled in `thing`."""
    preamble = "import pickle, sys\nthing = pickle.load(sys.stdin.buffer)\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", preamble + program],
        input=pickled,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_client_is_shared_within_its_process(client, protocol):
    assert again(client, protocol) is client


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["x", b"\x00\xff", "ä"])
def test_lock_is_the_same_lock_within_its_process(client, other, protocol, name):
    lock = client.get_lock(name)
    twin = again(lock, protocol)
    assert twin.name == name
    with lock:
        assert twin.hold_count() == 1
        assert not other.do(twin.acquire, False)
    assert other.do(twin.acquire, False)
    assert not lock.acquire(False)


def test_lock_carries_on_lost(client, raw):
    lost = []
    lock = client.get_lock("x", on_lost=lost.append)
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(client.get_lock("x", on_lost=lambda hold: None))
    twin = copy.copy(lock)
    twin.acquire()
    for node in raw:
        node.flushall()
    with pytest.raises(LeaseLostError):
        twin.extend()
    assert len(lost) == 1


def test_pickle_names_the_nodes_and_no_owner(client, nodes):
    with client.get_lock("x") as hold:
        pickled = pickle.dumps(client.get_lock("x"))
        assert hold.owner.encode() not in pickled
        assert client.id.encode() not in pickled
        assert all(url.encode() in pickled for url in nodes.urls)


def test_hold_is_never_pickled(client):
    with client.get_lock("x") as hold, pytest.raises(TypeError):
        pickle.dumps(hold)


def test_lock_of_a_closed_client_comes_back_with_a_new_client(make_client):
    client = make_client()
    pickled = pickle.dumps([client.get_lock("x"), client])
    client.close()
    lock, twin = pickle.loads(pickled)
    with twin:
        assert twin.id != client.id
        assert lock.acquire(False)
    with pytest.raises(ClientClosedError):
        client.get_lock("x").acquire(False)


def test_client_with_other_settings_is_not_shared(make_client):
    first, second = make_client(lease=10), make_client(lease=20)
    assert again(first) is first
    assert again(second) is second


def test_lock_has_its_own_client_in_another_process(client):
    program = """
lock, other, client = thing
with lock as hold:
    print(hold.owner, client.id, other.locked(), client.prefix.decode())
"""
    locks = [client.get_lock("x"), client.get_lock("y"), client]
    with client.get_lock("y") as mine:
        owner, client_id, locked, prefix = run_python(program, pickle.dumps(locks))
    assert owner.partition(":")[0] == client_id != client.id
    assert owner != mine.owner
    assert (locked, prefix) == ("True", "redsync:")


def test_lock_travels_to_a_spawned_process(client, eventually):
    lock = client.get_lock("x")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with lock:
            assert pool.submit(lock.acquire, False).result(30) is False
        assert pool.submit(lock.acquire, False).result(30) is True
        assert pool.submit(os.getpid).result(30) != os.getpid()


def test_votes_of_an_error_survive_pickling(client, nodes):
    for i in range(3):
        nodes.kill(i)
    with pytest.raises(QuorumError) as info:
        client.get_lock("x").acquire(False)
    twin = again(info.value)
    assert twin.votes == info.value.votes
    assert str(twin) == str(info.value)
