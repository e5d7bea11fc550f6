"""The checkers of rate limiters: they find one success too many in a window, and broken promises of room."""

import asyncio
import math

import pytest

from redsync._core.effects import Command, Tell, tell
from redsync._protocols import rate
from redsync._protocols.slot_claims import WindowClaim
from redsync._protocols.windows import Window
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Promised, SlidingWindow
from redsync.testing.simulator.happenings import Did
from redsync.testing.simulator.runner import SimulatedRunner
from tests.support.hunting import contend, hunt
from tests.support.naive import NAIVE


async def take(machine, client):
    if succeeded := await client.get_rate_limiter("x", 2, 5.0).acquire(False):
        machine.tell("a program", "acquired", name="x", n=1, rate=2, per=5.0)
    return succeeded


def test_checker_finds_counter_on_each_node_where_slots_keep_the_rate():
    assert contend(SlidingWindow, None, take) <= 2
    with pytest.raises(SimulationError, match=r"sliding window: 3 successes of 'x', .* where there are 2 in any 5 s"):
        contend(SlidingWindow, NAIVE, take)


def test_checker_finds_slots_that_are_kept_only_for_the_window(monkeypatch):
    monkeypatch.setattr(Window, "_lease", lambda window, *_: window.per)
    assert "where there are" in hunt(SlidingWindow, range(3, 63), kind="limiter")


def restart_a_node_between_programs_that_wait_unlike():
    """Let one program succeed with two slow rounds; then a node that granted forgets, and another program asks."""
    instants = []

    async def take(machine, client):
        assert await client.get_rate_limiter("x", 1, 3.0).acquire()
        instants.append(machine.sim.now)
        machine.tell("a program", "acquired", name="x", n=1, rate=1, per=3.0)

    with Simulation(seed=1, nodes=3, checkers=[SlidingWindow], lease=1.0, restart_guard=1.0) as sim:
        far, near = sim.machine("far"), sim.machine("near")
        patient, hasty = far.client(node_timeout=2.0), near.client(node_timeout=0.05)
        for machine, client in ((far, patient), (near, hasty)):
            machine.start(client.runner.connect())
        sim.run(until=9.0)
        sim.partition(far, 2)
        for path in (sim.network.route(far, sim.nodes[1]).there, sim.network.route(far, sim.nodes[1]).back):
            path.shortest = 0.45
        far.start(take(far, patient))
        sim.run(until=10.0)
        sim.nodes[0].crash()
        sim.nodes[0].restart(forget=True)
        sim.partition(far, 0)
        sim.run(until=11.5)
        near.start(take(near, hasty))
        sim.run(until=25.0)
    return instants


def test_checker_finds_guard_that_forgets_programs_that_wait_longer_for_nodes(monkeypatch):
    first, second = restart_a_node_between_programs_that_wait_unlike()
    assert second - first > 3.0
    begin = Window.__init__

    def begin_alone(window, per, timing, restart_guard=math.inf):
        begin(window, per, timing, restart_guard)
        window.guard = min(max(timing.restart_guard, window._lease(2 * window._longest)), restart_guard)

    monkeypatch.setattr(Window, "__init__", begin_alone)
    with pytest.raises(SimulationError, match=r"sliding window: 2 successes of 'x', .* where there are 1 in any 3 s"):
        restart_a_node_between_programs_that_wait_unlike()


def stand_still_between_question_and_answer():
    """Let two want one success after the other; the first is paused while the nodes answer."""
    instants = []

    async def take(machine, client):
        await client.get_rate_limiter("x", 1, 5.0).acquire()
        instants.append(machine.sim.now)
        machine.tell("a program", "acquired", name="x", n=1, rate=1, per=5.0)

    with Simulation(seed=1, checkers=[SlidingWindow], restart_guard=0.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        client = a.client()
        a.start(client.runner.connect())
        sim.run()
        sim.run(until=1.0)
        a.start(take(a, client))
        sim.run(until=1.000_01)
        a.pause()
        sim.run(until=4.0)
        b.start(take(b, b.client()))
        a.resume()
        sim.run()
    return instants


def test_checker_finds_rounds_that_count_however_late(monkeypatch):
    first, second = stand_still_between_question_and_answer()
    assert second - first > 5.0
    monkeypatch.setattr(Window, "terms", lambda window, *_: (window._lease(0.01), math.inf, 0.01))
    with pytest.raises(SimulationError, match=r"sliding window: 2 successes of 'x', .* where there are 1 in any 5 s"):
        stand_still_between_question_and_answer()


def test_checker_finds_successes_that_do_not_look_at_the_clock_after_telling_nodes(monkeypatch):
    """Where telling takes long, nodes may have given the slot to the next one when the caller learns of its success."""
    settle = WindowClaim.settle

    def settle_blindly(claim, tally, *args):
        settlement = yield from settle(claim, tally, *args)
        return settlement._replace(at=tally.at)

    monkeypatch.setattr(WindowClaim, "settle", settle_blindly)
    assert "where there are" in hunt(SlidingWindow, range(20), kind="limiter")


def test_checker_finds_limiter_that_returns_reported_successes(monkeypatch):
    acquire = rate.acquire

    def give_back(session, request, *args):
        won = yield from acquire(session, request, *args)
        if won:
            release = Command(request.kind.release, request.keys.all, (request.outcome.state.claim, 0, b""))
            yield from tell(Tell(release, request.owner))
        return won

    monkeypatch.setattr(rate, "acquire", give_back)
    assert "where there are" in hunt(SlidingWindow, range(20), kind="limiter")


def ask_when_told(part, *, after=0.1, per=1.0, node=1.0, machine=1.0, slow=()):
    """Let a program ask after that part of the promised time, by clocks of these rates; return the outcomes.

    Its process takes the times in `slow` before it looks at the clock again.
    """
    outcomes, delays = [], list(slow)

    async def take_time(_runner):
        if delays:
            await asyncio.sleep(delays.pop(0))

    async def ask_when(machine, client):
        limiter = client.get_rate_limiter("x", 1, per)
        for _ in range(2):
            await asyncio.sleep(after)  # until the last node has executed the earlier request
            machine.tell("a program", "wonders", name="x", n=1)
            seconds = await limiter.retry_after()
            machine.tell("a program", "told", name="x", n=1, seconds=seconds)
            await asyncio.sleep(seconds * part)
            machine.tell("a program", "asks", name="x", how="told", n=1)
            outcomes.append("acquired" if await limiter.acquire(False) else "busy")
            machine.tell("a program", outcomes[-1], name="x")

    with pytest.MonkeyPatch.context() as patch, Simulation(seed=1, checkers=[Promised]) as sim:
        patch.setattr(SimulatedRunner, "_take_time", take_time)
        sim.slowness = 1.0
        a = sim.machine("a")
        a.drift(machine)
        for server in sim.servers:
            server.drift(node)
        client = a.client()
        sim.run(until=3.0)
        a.start(ask_when(a, client))
        try:
            sim.run()
        finally:
            a.crash()
    return outcomes


def test_checker_finds_promise_of_room_that_comes_too_early():
    assert ask_when_told(1.0) == ["acquired"] * 2
    with pytest.raises(SimulationError, match=r"retry_after: a program on a learned at .* and was refused at"):
        ask_when_told(0.5)


def test_program_with_the_longest_promised_time_may_be_refused_by_slow_clocks():
    assert ask_when_told(1.0, after=0.005) == ["acquired"] * 2
    assert ask_when_told(1.0, after=0.005, per=10.0, node=0.9951, machine=1.0049) == ["acquired", "busy"]


@pytest.mark.parametrize("per", [0.2, 1.0, 60.0, 600.0])
def test_program_may_take_the_longest_promised_time_literally_after_one_pause(per):
    for slow in ([], [0.1], [4.0]):
        assert ask_when_told(1.0, after=0.005, per=per, slow=slow) == ["acquired"] * 2


def test_program_with_the_longest_promised_time_may_be_refused_after_a_process_was_slow_twice():
    assert ask_when_told(1.0, after=0.005, slow=[0.1, 0.1]) == ["acquired", "busy"]


@pytest.mark.parametrize(("times", "shortest"), [(0, 0.0), (1, 0.001), (2, 0.1)])
def test_checker_finds_nodes_that_keep_a_success_longer_than_its_process_was_slow(times, shortest, monkeypatch):
    needed = Window.needed
    monkeypatch.setattr(Window, "needed", lambda *args: needed(*args) + (0.3 if args[1] > shortest else 0.0))
    with pytest.raises(SimulationError, match=rf"a lets nodes keep a success of 'x' .* slow {times} times before"):
        ask_when_told(1.0, after=0.005, slow=[0.1] * times)


# By hand.


@pytest.mark.parametrize(
    ("instants", "fine"), [((0.0, 0.5, 1.001), True), ((0.0, 0.5, 1.0), False), ((0.0,) * 3, False)]
)
def test_window_is_closed_and_begins_anywhere(instants, fine):
    with Simulation(seed=1, checkers=()) as sim:
        checker, a, b = SlidingWindow(sim), sim.machine("a"), sim.machine("b")
        about = {"name": "x", "n": 1, "rate": 2, "per": 1.0}
        whose = [a, b, a]
        said = [checker.see(Did(at, m, "a program", "acquired", about)) for at, m in zip(instants, whose, strict=True)]
    assert said[:2] == [None, None]
    assert (said[2] is None) is fine
