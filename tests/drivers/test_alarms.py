"""Alarms: many deadlines, one timer; each is kept, none rings early, and what was dropped does not pile up."""

import asyncio
import math
import random

import pytest

from redsync._drivers.alarms import Alarms
from redsync._drivers.process import clock
from redsync._drivers.requests import Sleeper
from tests.aio_support import both_loops, in_loop, new_seed, turns, until


class Bell(Sleeper):
    """A sleeper that notes when it is woken."""

    def __init__(self):
        self.rang_at = None

    def wake(self):
        assert self.rang_at is None, "once"
        self.rang_at = clock()


def make():
    return Alarms(asyncio.get_running_loop(), clock)


@both_loops
@in_loop
async def test_alarm_rings_at_its_instant_and_not_before(loop):
    alarms, rng = make(), random.Random(new_seed())
    bells = []
    for _ in range(200):
        at = clock() + rng.random() * 0.05
        bells.append((at, Bell()))
        alarms.set(at, bells[-1][1])
        if not rng.randrange(10):
            await turns(1)
    await until(lambda: all(bell.rang_at is not None for _, bell in bells))
    assert all(at <= bell.rang_at < at + 2 for at, bell in bells)
    assert alarms._heap == []


@in_loop
async def test_alarm_that_is_set_for_earlier_than_all_others_rings_first():
    alarms, late, early = make(), Bell(), Bell()
    alarms.set(clock() + 30, late)
    alarms.set(clock() + 0.01, early)
    await until(lambda: early.rang_at is not None)
    assert late.rang_at is None
    alarms.clear()


@in_loop
async def test_alarms_of_one_instant_all_ring():
    alarms, bells, at = make(), [Bell() for _ in range(20)], clock() + 0.01
    for bell in bells:
        alarms.set(at, bell)
    await until(lambda: all(bell.rang_at is not None for bell in bells))


@in_loop
async def test_alarm_in_the_past_rings_soon():
    alarms, bell = make(), Bell()
    alarms.set(clock() - 10, bell)
    await until(lambda: bell.rang_at is not None)


@in_loop
async def test_alarm_that_is_dropped_does_not_ring_and_hinders_no_other():
    alarms, dropped, kept = make(), Bell(), Bell()
    alarm = alarms.set(clock() + 0.005, dropped)
    alarms.set(clock() + 0.01, kept)
    alarms.drop(alarm)
    await until(lambda: kept.rang_at is not None)
    assert dropped.rang_at is None
    assert alarms._heap == []


@in_loop
async def test_alarm_may_be_dropped_after_it_rang_and_when_it_never_will():
    alarms, bell = make(), Bell()
    rang = alarms.set(clock(), bell)
    await until(lambda: bell.rang_at is not None)
    alarms.drop(rang)
    never = alarms.set(math.inf, Bell())
    assert alarms._heap == []
    alarms.drop(never)


@in_loop
async def test_alarms_that_are_cleared_do_not_ring():
    alarms, bell = make(), Bell()
    alarms.set(clock() + 0.005, bell)
    alarms.clear()
    await asyncio.sleep(0.02)
    assert bell.rang_at is None
    assert not [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]


@pytest.mark.parametrize("kept", [0, 500, 5000])
@in_loop
async def test_dropped_alarms_of_far_instants_do_not_pile_up(kept):
    alarms, far = make(), clock() + 3600
    bells = [Bell() for _ in range(kept)]
    for bell in bells:
        alarms.set(far, bell)
    for _ in range(20_000):
        alarms.drop(alarms.set(far + 1, Bell()))
    assert len(alarms._heap) <= 2 * kept + 2001
    assert sum(alarm[2] is not None for alarm in alarms._heap) == kept
    soon = Bell()
    alarms.set(clock() + 0.001, soon)
    await until(lambda: soon.rang_at is not None)
    alarms.clear()


@in_loop
async def test_one_timer_serves_all_alarms():
    alarms, scheduled = make(), asyncio.get_running_loop()._scheduled
    before = sum(not handle.cancelled() for handle in scheduled)
    for i in range(1000):
        alarms.set(clock() + 10 + i, Bell())
    assert sum(not handle.cancelled() for handle in scheduled) == before + 1
    alarms.clear()
