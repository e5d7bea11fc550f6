"""The scheduler takes threads through all interleavings."""

import math
import re
from ast import literal_eval
from functools import partial

import pytest

from tests.support.interleaving.explore import explore, explore_by_chance, replay
from tests.support.interleaving.system import Lock
from tests.support.interleaving.world import Fault


def counting(world):
    """Two threads add to a counter, each under a different lock."""
    count = [0]

    def add():
        with Lock(world):
            seen = count[0]
        with Lock(world):
            count[0] = seen + 1

    world.thread("a", add)
    world.thread("b", add)

    def judge():
        assert count[0] == 2, "an update was lost"

    return judge


def test_search_needs_a_preemption_to_lose_an_update():
    assert explore(counting, 0).schedules == 2
    with pytest.raises(Fault, match="an update was lost") as found:
        explore(counting, 1)
    choices = literal_eval(re.search(r"choices (\[.*?\])", str(found.value))[1])
    with pytest.raises(Fault, match="an update was lost"):
        replay(counting, choices, 1)
    replay(counting, [], 1)


def test_random_schedule_is_named_by_its_seed(seed):
    with pytest.raises(Fault, match="an update was lost") as found:
        explore_by_chance(counting, seed, 1000)
    (number,) = re.findall(r"^seed (\d+):", str(found.value))
    with pytest.raises(Fault, match="an update was lost"):
        explore_by_chance(counting, int(number), 1)


def test_search_tries_every_schedule_once():
    """Two threads of three steps each: twenty ways to merge them, two of them without preemption."""
    seen = []

    def scenario(world):
        steps = []

        def walk(name):
            for _ in range(2):
                world.point("step")
                steps.append(name)
            world.point("step")
            steps.append(name)

        world.thread("a", partial(walk, "a"))
        world.thread("b", partial(walk, "b"))
        return lambda: seen.append("".join(steps))

    assert explore(scenario, 0).schedules == 2
    seen.clear()
    explore(scenario, 6)
    assert len(set(seen)) == math.comb(6, 3)


def test_two_locks_in_opposite_order_are_a_deadlock():
    def scenario(world):
        first, second = Lock(world), Lock(world)

        def take(one, other):
            with one, other:
                pass

        world.thread("a", partial(take, first, second))
        world.thread("b", partial(take, second, first))
        return lambda: None

    assert explore(scenario, 0).schedules == 2
    with pytest.raises(Fault, match="deadlock: a, b wait for something that never comes"):
        explore(scenario, 1)


def test_clock_stops_until_all_threads_wait():
    instants = []

    def scenario(world):
        world.patient = True
        instants.clear()

        def wait(seconds):
            gate = Lock(world)
            gate.acquire()
            assert not gate.acquire(timeout=seconds)
            instants.append(world.now)

        world.thread("a", partial(wait, 2.0))
        world.thread("b", partial(wait, 3.0))

        def judge():
            assert instants == [2.0, 3.0]

        return judge

    explore(scenario, 2)


def test_error_of_a_thread_propagates_with_the_schedule():
    def scenario(world):
        world.thread("a", lambda: 1 / 0)
        world.thread("b", lambda: Lock(world).acquire())
        return lambda: None

    with pytest.raises(Fault, match=r"a got ZeroDivisionError.*\nat 0 s, choices \["):
        explore(scenario, 0)
