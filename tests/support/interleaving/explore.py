"""Runs a scenario under many schedules."""

import time
from typing import NamedTuple

from tests.support.interleaving.search import Chance, Replay, Search
from tests.support.interleaving.world import Fault, World

__all__ = ["Explored", "explore", "explore_by_chance", "replay"]


class Explored(NamedTuple):
    """The totals of a search."""

    schedules: int
    points: int
    seconds: float

    def __str__(self):
        return f"{self.schedules} schedules, {self.points} points, {self.seconds:.1f} s"


def explore(scenario, bound, **options):
    """Run a scenario under every schedule with at most `bound` preemptions.

    Args:
        scenario: Takes a world and adds threads to it; returns a function that judges the run when they have ended.
        bound: How often one schedule may preempt a thread that could continue.
        options: For the world.

    Returns:
        The totals of the search.

    Raises:
        Fault: The first schedule that failed.
    """
    policy = Search(bound)
    begun_at, schedules, points = time.monotonic(), 0, 0
    while True:
        points += _run(scenario, policy, options)
        schedules += 1
        if not policy.advance():
            return Explored(schedules, points, time.monotonic() - begun_at)


def explore_by_chance(scenario, seed, runs, **options):
    """Run a scenario under random schedules: one for each of `runs` seeds from `seed` on."""
    begun_at, points = time.monotonic(), 0
    for each in range(seed, seed + runs):
        try:
            points += _run(scenario, Chance(each), options)
        except Fault as fault:
            raise Fault(f"seed {each}: {fault}") from fault
    return Explored(runs, points, time.monotonic() - begun_at)


def replay(scenario, chosen, bound, **options):
    """Run a scenario under one schedule again."""
    _run(scenario, Replay(chosen, bound), options)


def _run(scenario, policy, options):
    world = World(policy, **options)
    judge = scenario(world)
    world.run()
    try:
        judge()
    except AssertionError as error:
        world.fail(str(error), error)
        raise world.fault from error
    return len(world.log)
