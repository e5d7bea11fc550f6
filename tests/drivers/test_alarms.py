"""Alarms: many deadlines, one timer; each rings, none early, and woken sleepers leave no entries behind."""

import asyncio
import math
import random

import pytest
from redsync._drivers.alarms import Alarms

from redsync._drivers.process import clock
from redsync._drivers.requests import Sleeper
from tests.aio_support import both_loops, in_loop, turns, until
from tests.support.sweeps import new_seed


class Bell(Sleeper):
    """A sleeper that records when it is woken."""

    def __init__(self):
        self.rang_at = None

    def wake(self):
        assert self.rang_at is None, "once"
        self.rang_at = clock()


class Rig(Alarms):
    """Alarms, and the lines that the transport inlines."""

    def __init__(self):
        super().__init__(asyncio.get_running_loop(), clock, lambda sleeper: sleeper.wake())

    def set(self, at, bell):
        if at < self.next:
            self.arm(at)
        self.asleep[bell] = at
        return bell

    def drop(self, bell):
        alarm = self.asleep.pop(bell)
        if isinstance(alarm, list):
            alarm[2] = None


async def rung(bells):
    await until(lambda: all(bell.rang_at is not None for bell in bells))


@both_loops
@in_loop
async def test_alarm_rings_at_its_instant_and_not_before(loop):
    alarms, rng = Rig(), random.Random(new_seed())
    bells = []
    for _ in range(200):
        at = clock() + rng.random() * 0.05
        bells.append((at, alarms.set(at, Bell())))
        if not rng.randrange(10):
            await turns(1)
    await rung([bell for _, bell in bells])
    assert all(at <= bell.rang_at < at + 2 for at, bell in bells)
    assert alarms._heap == []


@in_loop
async def test_alarm_set_for_the_earliest_instant_rings_first():
    alarms, late, early = Rig(), Bell(), Bell()
    alarms.set(clock() + 30, late)
    alarms.set(clock() + 0.01, early)
    await rung([early])
    assert late.rang_at is None
    alarms.clear()


@in_loop
async def test_alarms_of_one_instant_all_ring():
    alarms, at = Rig(), clock() + 0.01
    await rung([alarms.set(at, Bell()) for _ in range(20)])


@in_loop
async def test_alarm_in_the_past_rings_soon():
    alarms = Rig()
    await rung([alarms.set(clock() - 10, Bell())])


@in_loop
async def test_sleeper_that_woke_before_does_not_delay_the_others():
    alarms, woken = Rig(), Bell()
    alarms.set(clock() + 0.005, woken)
    kept = alarms.set(clock() + 0.01, Bell())
    alarms.drop(woken)
    await rung([kept])
    assert woken.rang_at is None
    assert alarms._heap == []


@in_loop
async def test_sleeper_without_a_deadline_is_not_woken():
    alarms = Rig()
    never = alarms.set(math.inf, Bell())
    assert alarms.next == math.inf
    await rung([alarms.set(clock(), Bell())])
    assert (never.rang_at, alarms._heap) == (None, [])


@in_loop
async def test_sleeper_that_sleeps_again_is_woken_at_its_new_deadline_only():
    alarms, again = Rig(), Bell()
    early = alarms.set(clock(), Bell())
    alarms.set(clock() + 3600, again)
    await rung([early])
    assert len(alarms._heap) == 1, "it has its entry"
    alarms.drop(again)
    at = clock() + 0.01
    alarms.set(at, again)
    await rung([again])
    assert again.rang_at >= at
    assert alarms._heap == []


@in_loop
async def test_alarms_that_an_interruption_prevented_are_caught_up():
    class Interrupting(Bell):
        def wake(self):
            self.wake = super().wake
            raise KeyboardInterrupt

    alarms, at = Rig(), clock()
    bells = [alarms.set(at, bell) for bell in (Bell(), Interrupting(), Bell())]
    with pytest.raises(KeyboardInterrupt):
        alarms._ring()
    alarms.catch_up()
    assert None not in [bell.rang_at for bell in bells]
    assert (alarms._heap, alarms.next) == ([], math.inf)


@in_loop
async def test_only_sleepers_that_are_asleep_when_it_rings_get_an_entry():
    alarms, far = Rig(), clock() + 3600
    for _ in range(1000):
        alarms.drop(alarms.set(far, Bell()))
    assert alarms._heap == []
    alarms.set(far, Bell())
    for _ in range(3):
        await rung([alarms.set(clock() + 0.001, Bell())])
    assert [alarm[0] for alarm in alarms._heap] == [far]
    alarms.clear()


@in_loop
async def test_cleared_alarms_do_not_ring():
    alarms = Rig()
    bell = alarms.set(clock() + 0.005, Bell())
    alarms.clear()
    await asyncio.sleep(0.02)
    assert bell.rang_at is None
    assert not [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]


@pytest.mark.parametrize("kept", [0, 500, 5000])
@in_loop
async def test_entries_of_woken_sleepers_with_far_deadlines_do_not_pile_up(kept):
    alarms, far = Rig(), clock() + 3600
    for _ in range(kept):
        alarms.set(far, Bell())
    for _ in range(20):
        woken = [alarms.set(far + 1, Bell()) for _ in range(1000)]
        await rung([alarms.set(clock(), Bell())])
        for bell in woken:
            alarms.drop(bell)
    await rung([alarms.set(clock(), Bell())])
    assert len(alarms._heap) <= 2 * kept + 3001
    assert sum(alarm[2] is not None for alarm in alarms._heap) == kept
    alarms.clear()


@in_loop
async def test_one_timer_serves_all_alarms():
    alarms, scheduled = Rig(), asyncio.get_running_loop()._scheduled
    before = sum(not handle.cancelled() for handle in scheduled)
    for i in range(1000):
        alarms.set(clock() + 10 + i, Bell())
    assert sum(not handle.cancelled() for handle in scheduled) == before + 1
    alarms.clear()
