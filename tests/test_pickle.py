"""Pickled locks and clients: they carry a name, options and the nodes' URLs, and never a hold."""

import copy
import math
import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest
import redis

from redsync import Client, ClientClosedError


def again(thing, protocol=None):
    return pickle.loads(pickle.dumps(thing, protocol))


def test_client_and_lock_are_the_same_within_their_process(client, make_client, nodes, other):
    names = ["x", b"\x00\xff", "ä"]
    assert again(make_client(lease=10)) is not client
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert again(client, protocol) is client
        locks = [client.get_lock(name, on_lost=print) for name in names]
        assert all(url.encode() in pickle.dumps(locks) for url in nodes.urls)
        twins = again(locks, protocol)
        assert [(twin.name, twin._on_lost) for twin in twins] == [(name, print) for name in names]
        for lock, twin in zip(locks, twins, strict=True):
            with lock:
                assert twin.hold_count() == 1
                assert not other.do(twin.acquire, False)
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(client.get_lock("x", on_lost=lambda hold: None))


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


@pytest.mark.parametrize(
    ("name", "given", "use", "look", "found"),
    [
        ("semaphore", [3], ["acquire"], "available", 2),
        ("rate_limiter", [2, 86_400], ["acquire"], "available", 1),
        ("count_down_latch", [], ["try_set_count", 2], "count", 2),
    ],
)
def test_synchronizer_that_counts_comes_back_without_what_was_acquired(client, name, given, *, use, look, found):
    thing = getattr(client, f"get_{name}")("x", *given)
    method, *arguments = use
    acquired = getattr(thing, method)(*arguments)
    copy = again(thing)
    assert type(copy) is type(thing)
    assert getattr(copy, look)() == found
    if name == "semaphore":
        with pytest.raises(TypeError, match="pickle the semaphore instead"):
            pickle.dumps(acquired)


def test_options_of_a_pair_and_a_backoff_come_back(client):
    pair = client.get_read_write_lock("x", timeout=0.1, lease=9.0)
    copied = again(pair)
    assert (copied.name, copied.read_lock._options) == ("x", pair.read_lock._options)
    with pair.write_lock:
        assert again(pair).write_lock.owned(), "of this thread, from any object"
    polling = again([client.get_mutex("x", backoff=math.sqrt), client.get_mutex("y")])
    assert [lock._options["backoff"] for lock in polling] == [math.sqrt, None]


def test_copy_of_a_lock_keeps_its_client(nodes):
    """Even one that can't be pickled, as it was made of clients of redis-py."""
    given = [redis.Redis(port=port) for port in nodes.ports]
    with Client(given, restart_guard=0) as client, copy.deepcopy(client.get_lock("x", timeout=5)) as hold:
        assert hold.owner.startswith(client.id)
        assert copy.copy(client) is client


def take(lock, other, client):
    with lock as hold:
        return os.getpid(), hold.owner, client.id, other.locked(), client.prefix


def test_lock_has_its_own_client_in_a_spawned_process(client):
    lock, other = client.get_lock("x"), client.get_lock("y")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool, other as mine:
        with lock:
            assert pool.submit(lock.acquire, False).result(30) is False
        pid, owner, client_id, locked, prefix = pool.submit(take, lock, other, client).result(30)
    assert pid != os.getpid()
    assert owner.partition(":")[0] == client_id != client.id
    assert owner != mine.owner
    assert (locked, prefix) == (True, client.prefix)
