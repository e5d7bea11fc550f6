"""dogpile.cache with mutexes across processes: all readers continue without nodes, or without the mutex.

`examples/dogpile_mutex.py` shows that one reader computes, while the others wait or get the old value.
"""

import math
import threading

import pytest
from dogpile.cache import make_region

from redsync import AsyncClient
from redsync.contrib.dogpile import RedsyncProxy

pytestmark = [pytest.mark.framework, pytest.mark.sweep]


@pytest.fixture
def make_cache(make_client):
    """Return a function that returns another machine's region; all share one store."""
    store = {}

    def make_cache(**options):
        proxy = RedsyncProxy(make_client(n=3), **options)
        return make_region().configure("dogpile.cache.memory", arguments={"cache_dict": store}, wrap=[proxy])

    return make_cache


def test_dead_nodes_cost_no_entry(nodes, make_cache):
    cache = make_cache()
    for killed in range(3):
        nodes.kill(killed)
        assert cache.get_or_create(f"report {killed}", lambda: "value") == "value"
    # Callers that continued without the mutex have released nothing.
    mutex = cache.backend.get_mutex("report")
    assert mutex.acquire()
    mutex.release()
    assert mutex._without == []


def test_reader_out_of_patience_computes_and_does_not_release_the_mutex(make_cache, make_client):
    cache = make_cache(patience=0.05)
    creator = make_client(n=3).get_mutex("dogpile:report")
    assert creator.acquire(False)
    assert cache.get_or_create("report", lambda: "mine") == "mine"
    creator.release()  # raises if the reader had released it


def test_value_of_another_program_under_a_mutex_costs_no_entry(make_cache, raw):
    for node in raw[:3]:
        node.rpush("redsync:dogpile:report", "value")
    assert make_cache().get_or_create("report", lambda: "value") == "value"


@pytest.mark.parametrize("old", [True, False])
def test_creator_that_is_too_slow_costs_the_readers_of_its_process_no_error(make_cache, other, eventually, old):
    cache = make_cache(patience=1.0, max_hold=0.5)
    begun, go_on = threading.Event(), threading.Event()

    def compute_slowly():
        begun.set()
        assert go_on.wait(20)
        return "slow"

    if old:
        cache.set("report", "old")
    creator = other.start(cache.get_or_create, "report", compute_slowly, expiration_time=0)
    assert begun.wait(20)
    mutex = cache.backend.get_mutex("report")
    eventually(lambda: not mutex.locked())
    for _ in range(3):
        assert cache.get_or_create("report", lambda: "new", expiration_time=0) == ("old" if old else "new")
    go_on.set()
    assert creator.result(20) == "slow"
    assert cache.get_or_create("report", lambda: "newer", expiration_time=0) == "newer"


def test_lost_mutex_costs_no_entry(make_cache, make_client):
    cache = make_cache()

    def compute():
        make_client(n=3).get_mutex("dogpile:report").force_release()
        return "value"

    assert cache.get_or_create("report", compute) == "value"


def test_keys_of_any_length_have_a_mutex_each(make_cache):
    cache = make_cache()
    first, same, second = (cache.backend.get_mutex(letter * 5000) for letter in "aab")
    assert first.acquire(wait=False)
    assert not same.acquire(wait=False)
    assert second.acquire(wait=False)
    first.release()
    second.release()


def test_bad_options_are_refused_at_once(make_client):
    client = make_client(n=1)
    for patience in (-1, math.inf, math.nan, None, "1"):
        with pytest.raises(ValueError, match="patience must be a number of seconds"):
            RedsyncProxy(client, patience=patience)
    with pytest.raises(ValueError, match="max_hold"):
        RedsyncProxy(client, max_hold=0)
    with pytest.raises(ValueError, match="bytes"):
        RedsyncProxy(client, prefix="x" * 300)
    with pytest.raises(TypeError, match=r"client must be a redsync\.Client, not a value of type AsyncClient"):
        RedsyncProxy(AsyncClient("redis://127.0.0.1:1"))
