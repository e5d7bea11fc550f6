"""The event loop in virtual time: unchanged asyncio, machines that pause and crash, and their clocks."""

import asyncio

import pytest

from redsync.testing.simulator import Simulation, loop
from redsync.testing.simulator.loop import NoRealIOError

SIMULATION = {"seed": 1}


def test_asyncio_works_unchanged(sim):
    async def program():
        queue = asyncio.Queue()

        async def produce():
            for i in range(3):
                await asyncio.sleep(1.0)
                await queue.put(i)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            seen = [await queue.get() for _ in range(3)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.Event().wait()
        seen += await asyncio.gather(asyncio.sleep(1.0, "a"), asyncio.sleep(0.5, "b"))
        return seen

    task = sim.machine("a").start(program())
    sim.run()
    assert task.result() == [0, 1, 2, "a", "b"]
    assert sim.now == pytest.approx(6.0)


def test_real_threads_are_refused(sim):
    async def program():
        await asyncio.to_thread(print)

    sim.machine("a").start(program())
    with pytest.raises(NoRealIOError, match="run_in_executor"):
        sim.run()


def test_crashed_machine_never_runs_again(sim):
    steps = []

    async def step():
        try:
            while True:
                await asyncio.sleep(1.0)
                steps.append(sim.now)
        finally:
            steps.append("the end")

    a = sim.machine("a")
    a.start(step())
    sim.run(until=2.5)
    a.crash()
    sim.run(until=9.0)
    assert steps == pytest.approx([1.0, 2.0])


def test_timers_follow_the_clock_of_their_machine(sim):
    ends = []

    async def sleep():
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(10.0)
        ends.append((sim.now, asyncio.get_running_loop().time() - before))

    a = sim.machine("a")
    a.start(sleep())
    sim.run(until=1.0)
    a.drift(0.5)
    sim.run(until=3.0)
    a.jump(4.0)
    sim.run()
    # 1 s at full rate, 2 s at half of it, a jump of 4 s, the last 4 s at half of it again.
    assert ends == [(pytest.approx(11.0), pytest.approx(10.0))]


def test_programs_of_paused_machine_clean_up_at_close():
    """Even if callbacks are pending there."""
    ended = []

    async def program():
        try:
            await asyncio.sleep(1.0)
        finally:
            ended.append(True)

    with Simulation(seed=1) as sim:
        a = sim.machine("a")
        a.start(program())
        sim.run(until=0.5)
        a.pause()
        a.start(program())  # pending there, and never begins
        sim.run(until=2.0)
        assert not ended
        sim.close()
    assert ended == [True]


def test_program_that_loops_forever_is_an_error(sim, monkeypatch):
    monkeypatch.setattr(loop, "_MOST_STEPS", 1000)

    async def spin():
        while True:  # noqa: ASYNC110  (the loop is the point)
            await asyncio.sleep(0)

    sim.machine("a").start(spin())
    with pytest.raises(RuntimeError, match="loops forever"):
        sim.run()
