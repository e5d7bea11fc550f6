"""Programs in virtual time: asyncio code runs unchanged by its machine's clock, and ends when it should.

The stories in `tests/scenarios` show the contents of a trace, and the actions of a crashed machine.
"""

import asyncio
import gc
import weakref

import pytest

from redsync.testing.simulator import Simulation, SimulationError, loop
from redsync.testing.simulator.loop import NoRealIOError

SIMULATION = {"seed": 4}


def test_mistakes_of_callers_are_errors_with_a_sentence():
    with Simulation(**SIMULATION) as sim:
        sim.machine("a")
        with pytest.raises(ValueError, match="a machine 'a' already exists"):
            sim.machine("a")
    with pytest.raises(RuntimeError, match="the simulation is over"):
        sim.run()


def test_asyncio_works_unchanged(sim, machine):
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

        async def generate():
            try:
                yield "c"
                yield "d"
            finally:
                await asyncio.sleep(0.5)
                seen.append("closed")

        async for item in generate():
            seen.append(item)
            break
        await asyncio.sleep(1.0)
        return seen

    task = machine.start(program())
    sim.run()
    assert task.result() == [0, 1, 2, "a", "b", "c", "closed"]
    assert sim.now == pytest.approx(7.0)


def test_asynchronous_generator_is_closed_on_the_machine_that_began_it(sim, machine):
    """Whichever machine runs when the garbage collector finds it."""
    closed = []

    async def begin():
        async def generate():
            try:
                yield cycle
            finally:
                closed.append(asyncio.current_task().host.name)

        await anext((cycle := [generate()])[0])

    async def collect():
        gc.collect()
        await asyncio.sleep(1.0)

    for where, program in (machine, begin), (sim.machine("b"), collect):
        where.start(program())
        sim.run()
    assert closed == ["a"]


def test_simulation_inside_a_running_loop_is_refused_and_leaves_that_one_running(sim, machine):
    async def outside():
        with Simulation(**SIMULATION) as inner:
            for one in sim, inner:
                with pytest.raises(RuntimeError, match="outside of coroutines"):
                    one.run(until=1.0)
        await asyncio.sleep(0.001)

    task = machine.start(asyncio.sleep(1.0, "slept"))
    asyncio.run(outside())
    sim.run()
    assert task.result() == "slept"


def test_run_until_an_instant_stops_there_even_when_no_event_is_left(sim, machine):
    machine.start(asyncio.sleep(10.0))
    sim.run(until=4.0)
    assert sim.now == 4.0
    sim.run()
    assert sim.now == 10.0
    sim.run(until=12.0)
    assert sim.now == 12.0
    sim.run(until=11.0)
    assert sim.now == 12.0, "it never goes back"


def test_timers_follow_the_clock_of_their_machine(sim, machine):
    async def sleep():
        clock = asyncio.get_running_loop().time
        before = clock()
        await asyncio.sleep(10.0)
        return sim.now, clock() - before

    task = machine.start(sleep())
    sim.run(until=1.0)
    machine.drift(0.5)
    sim.run(until=3.0)
    machine.jump(4.0)
    sim.run()
    # 1 s at full rate, 2 s at half of it, a jump of 4 s, the last 4 s at half of it again.
    assert task.result() == (pytest.approx(11.0), pytest.approx(10.0))


# Errors.


async def fail():
    await asyncio.sleep(1.0)
    raise LookupError("mine")


async def wait_for_nothing():
    await asyncio.Event().wait()


async def use_a_thread():
    await asyncio.to_thread(print)


async def spin():
    while True:  # noqa: ASYNC110  (the loop is the point)
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("program", "error", "says"),
    [
        (fail, LookupError, "mine"),
        (wait_for_nothing, SimulationError, "deadlock: no event is left, and the program on a wait"),
        (use_a_thread, NoRealIOError, "run_in_executor"),
        (spin, RuntimeError, "loops forever"),
    ],
)
def test_run_raises_the_error_of_a_program_or_says_why_it_does_not_end(
    sim, machine, monkeypatch, *, program, error, says
):
    monkeypatch.setattr(loop, "_MOST_STEPS", 1000)
    machine.start(program(), name="the program")
    with pytest.raises(error, match=says) as caught:
        sim.run()
    if program is fail:
        assert "Simulation(seed=4)" in caught.value.__notes__[0]


# The end.


def test_programs_of_paused_machine_clean_up_at_close(sim, machine):
    """Even if callbacks are pending there."""
    ended = []

    async def program():
        try:
            await asyncio.sleep(1.0)
        finally:
            ended.append(True)

    machine.start(program())
    sim.run(until=0.5)
    machine.pause()
    machine.start(program())  # pending there, and never begins
    sim.run(until=2.0)
    assert not ended
    sim.close()
    assert ended == [True]


def simulate():
    """Run a simulation, and return a weak reference to it."""
    with Simulation(seed=1) as sim:
        machine = sim.machine("a")
        client = machine.client()

        async def work():
            async with client.get_lock("x"):
                pass

        machine.start(work())
        sim.run()
        return weakref.ref(sim)


def test_simulation_with_clients_is_collected_when_it_is_over():
    """A campaign makes a hundred thousand."""
    gone = simulate()
    gc.collect()
    assert gone() is None
