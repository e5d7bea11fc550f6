"""Threads on one transport under every schedule with few preemptions; with more threads, some schedules by seed.

Each schedule is checked: all threads return, and none waits for its deadline (unless that is the scenario). One thread
at a time leads, and none when none waits. Each reply reaches the command that it answers. Each node executes an owner's
commands in their order, and none twice. Nothing is left behind. `tests/support/interleaving` does it.
"""

from functools import partial

import pytest

from tests.support.interleaving.explore import explore, explore_by_chance
from tests.support.interleaving.scenarios import (
    breaking,
    closing,
    deadlines,
    forgetting,
    messages,
    overtaking,
    ringing,
    rounds,
    tending,
)
from tests.support.interleaving.signals import Strikes
from tests.support.interleaving.world import SHARED
from tests.support.sweeps import swept

TWO = {
    "two rounds": rounds("a0", "b0"),
    "rounds one after the other": rounds("a0 a1", "b0 b1"),
    "a node that reads slowly": rounds("a0 a1", "b0", room=60),
    "a round and the maintenance": tending("a0"),
    "two deadlines": deadlines(0.3, 0.5),
    "the end of the client": closing("a0"),
    "a bell": ringing(),
    "messages": messages(nodes=1),
    "a script that was forgotten": forgetting("a0", "b0"),
    "a script that was forgotten by an owner in a hurry": overtaking("a0"),
    "a connection that is closed": breaking("a", reconnecting=True),
    "a connection that is reset": breaking("a", reset=True, reconnecting=True),
}
"""Scenarios for all schedules with two preemptions, of a few thousand."""

LARGER = {
    "two rounds on two nodes": rounds("a0", "b0", nodes=2),
    "two deadlines of slow threads": deadlines(0.3, 0.5, hurried=True),
    "three rounds": rounds("a0", "b0", "c0"),
    "two rounds and the maintenance": tending("a0", "b0"),
    "three deadlines": deadlines(0.3, 0.5, 0.4),
    "a bell during a round": ringing("a0"),
    "messages on two nodes": messages(),
}
"""Scenarios for all schedules with one preemption."""

LARGEST = {
    "three owners in a row": rounds("a0 a1", "b0 b1", "c0 c1", nodes=2),
    "nodes that read slowly": rounds("a0 a1", "b0 b1", "c0 c1", nodes=2, room=60),
    "rounds at the end of the client": closing("a0", "b0"),
    "three deadlines of slow threads": deadlines(0.3, 0.5, 0.4, hurried=True),
    "three rounds and the maintenance": tending("a0 a1", "b0", "c0", nodes=2),
    "three and a script that was forgotten": forgetting("a0 a1", "b0 b1", "c0", nodes=2),
    "an owner in a hurry, and two others": overtaking("a0 a1", "b0"),
    "three and a connection that is closed": breaking("abc", reconnecting=True),
    "three and a connection that is reset": breaking("abc", reset=True, reconnecting=True),
}
"""Scenarios with some schedules, chosen by seed."""


def by_name(scenarios):
    return pytest.mark.parametrize("scenario", scenarios.values(), ids=list(scenarios))


SIGNALS = ["interrupting", "interrupting_the_last", "handling", "handling_and_interrupting"]


@by_name({**TWO, **LARGER})
def test_all_schedules_with_one_preemption_end_well(scenario):
    print(explore(scenario, 1))


@by_name(LARGEST)
def test_schedules_by_seed_end_well(scenario, seed):
    print(explore_by_chance(scenario, seed, 30))


@pytest.mark.parametrize("strike", [*SIGNALS[:3], *swept(SIGNALS[3])])
def test_signal_at_any_point_of_a_thread_does_not_affect_the_others(strike):
    """The thread cleans up after a handler's error; a handler that calls the client gets its replies."""
    strikes = Strikes()
    schedules = strikes.explore(getattr(strikes, strike)(), partial(explore, bound=1))
    print(f"{schedules} schedules, {strikes.struck} with a signal, at {strikes.points}")
    assert {"acquire", "send"} <= strikes.points


def test_two_threads_may_change_at_each_line_of_sending():
    """State shared without the mutex; in `leadership` that is only whether a sleeper is done, for sweeps."""
    print(explore(rounds("a0", "b0"), 1, lines=("outboxes",)))


# More. On a busy machine a switch between threads takes long.


def sweep(test):
    return pytest.mark.sweep(pytest.mark.timeout(600)(test))


@sweep
@by_name(TWO)
def test_all_schedules_with_two_preemptions_end_well(scenario):
    print(explore(scenario, 2))


@sweep
@pytest.mark.parametrize("scenario", [rounds("a0", "b0"), tending("a0"), ringing(), closing("a0")])
def test_two_threads_may_change_at_each_line_of_the_driver(scenario):
    print(explore(scenario, 1, lines=SHARED))


@sweep
@by_name(LARGEST)
def test_more_schedules_by_seed_end_well(scenario, seed):
    print(explore_by_chance(scenario, seed, 1000))


@sweep
@by_name({**TWO, **LARGER})
def test_schedules_by_seed_with_changes_at_each_line_end_well(scenario, seed):
    print(explore_by_chance(scenario, seed, 100, lines=SHARED))


@sweep
@pytest.mark.parametrize("strike", SIGNALS)
@pytest.mark.parametrize(("nodes", "others"), [(1, "bc"), (2, "b"), (2, "bc")])
def test_signal_at_any_point_costs_nothing_under_schedules_by_seed(strike, nodes, others, seed):
    strikes = Strikes()
    search = partial(explore_by_chance, seed=seed, runs=50)
    print(strikes.explore(getattr(strikes, strike)(nodes, others), search), "schedules")
