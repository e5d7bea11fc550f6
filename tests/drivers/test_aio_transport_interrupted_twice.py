"""Two interruptions of an event loop, the second while the driver for asyncio cleans up after the first.

A signal's handler raises in the loop's thread: in a task's step, which ends that task, or in a callback of the loop.
Then the application runs the loop again. Only struck tasks, and a connection per interruption, may be lost by that:
each request of the others is sent once and gets its own replies, no task sleeps forever, and the next calls work.
"""

import asyncio
import itertools
import random
from contextlib import suppress

import pytest
import redis.asyncio

from redsync._core.effects import Broadcast, Command, Packed, Tell
from redsync._core.ownership import Owner
from redsync._drivers.aio_links import open_link
from redsync._drivers.aio_transport import AioTransport
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.interruptions import INTERRUPTED
from redsync._drivers.process import clock
from redsync._drivers.requests import Request
from tests.support.injection import Interruption, Strikes
from tests.support.locks import PATIENCE
from tests.support.rigs import LATER, MANY, TOO_MANY

ASLEEP = 5.0
"""Seconds after which a task sleeps forever; its round has a later deadline."""

TICK = 0.01
"""Seconds after which the maintenance tends the transport."""


class LoopInterruption(Interruption, KeyboardInterrupt):
    """Passes through the loop; of other exceptions it would only report most."""


class Loop:
    """A loop that runs again after each interruption, and a transport connected to all nodes."""

    def __init__(self, urls, script, numbers):
        self.loop = asyncio.new_event_loop()
        self.nodes = make_nodes(urls, redis.asyncio.Redis)
        self.broken = []
        self.script, self.numbers = script, numbers
        self._owners = {}
        self._count = 0

    def __enter__(self):
        self.run(self._connect())
        return self

    def __exit__(self, *error):
        self.run(self._end())
        self.loop.close()

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    async def _connect(self):
        self.transport = AioTransport(
            self.nodes,
            clock,
            60.0,
            self.loop,
            on_broken=lambda node, reason: self.broken.append((node.index, reason)),
            on_change=lambda: None,
        )
        await self.mend()

    async def mend(self):
        for node, link in zip(self.nodes, self.transport.links, strict=True):
            if link is None:
                self.transport.install(await open_link(node, PATIENCE))

    async def _end(self):
        self.transport.close()
        self.transport.dispose()
        for _ in range(3):
            await asyncio.sleep(0)

    def make(self, trial, name, decide=None):
        """Make an owner's next command: a round with `decide`, else one that the nodes must get."""
        owner = self._owners.setdefault(name, Owner("loop", len(self._owners)))
        number = self._count = self._count % 50 + 1
        command = Command(self.script, (b"%d" % trial,), (b"%d" % number if self.numbers else b"%d:" % number,))
        if decide is None:
            return Request(Tell(command, owner, 0b111, LATER), None)
        effect = Broadcast(command, owner, bool, PATIENCE, decide=decide)
        request = Request(effect, effect.tally([node.address for node in self.nodes]))
        request.tally.sent_at = clock()
        return request

    async def carry(self, request):
        self.transport.send(request)
        if not request.done:
            await self.transport.wait(request, clock() + PATIENCE)

    async def settle(self):
        while await self.transport.tend():  # noqa: ASYNC110  (nothing tells of the last reply)
            await asyncio.sleep(0)
        await self.mend()


class Trial:
    """Rounds of two tasks and a message of a third, interrupted twice; yields the errors."""

    def __init__(self, loop, number, everybody, raw):
        self._loop, self._number, self._everybody, self._raw = loop, number, everybody, raw
        self.strikes = None

    def run(self, *points):
        loop = self._loop
        links, broken = [*loop.transport.links], len(loop.broken)
        requests = {name: loop.make(self._number, name, self._everybody) for name in ("a", "b")}
        requests["c"] = loop.make(self._number, "c")
        self.strikes = strikes = Strikes(*points, error=LoopInterruption)
        tasks = {}

        async def tell():
            loop.transport.send(requests["c"])

        def drive():
            tasks["a"] = loop.loop.create_task(loop.carry(requests["a"]))
            tasks["c"] = loop.loop.create_task(tell())
            tasks["b"] = loop.loop.create_task(loop.carry(requests["b"]))
            waiting = loop.loop.create_task(asyncio.wait(tasks.values(), timeout=TICK))
            while not waiting.done():
                try:
                    loop.run(asyncio.wait([waiting]))
                except LoopInterruption:
                    continue

        strikes.run(drive)
        yield from self._judge(strikes, requests, tasks, links, broken)

    def _judge(self, strikes, requests, tasks, links, broken):
        loop = self._loop
        struck = {name for name, task in tasks.items() if task.done() and isinstance(task.exception(), Interruption)}
        loop.run(loop.settle())
        for name, task in tasks.items():
            loop.run(asyncio.wait([task], timeout=ASLEEP))
            if not task.done():
                task.cancel()
                yield f"{name} sleeps"
        now = [*loop.transport.links]
        doubtful = [i for i, link in enumerate(now) if link.broken is not None]
        lost = [i for i, link in enumerate(links) if now[i] is not link or i in doubtful]
        if len(lost) > len(strikes.where) or not {reason for _, reason in loop.broken[broken:]} <= INTERRUPTED:
            yield f"lost {lost}, reported {loop.broken[broken:]}"
        for name in ("a", "b", "c"):
            requests[f"{name}2"] = loop.make(self._number, name)
            loop.transport.send(requests[f"{name}2"])
        for name in ("d", "e"):
            requests[name] = loop.make(self._number, name, self._everybody)
        try:
            loop.run(asyncio.wait_for(self._both(requests["d"], requests["e"]), ASLEEP))
        except TimeoutError:
            yield "later rounds sleep"
        loop.run(asyncio.wait_for(loop.settle(), PATIENCE))
        if [i for i, link in enumerate(now) if loop.transport.links[i] is not link] != doubtful:
            yield f"lost more: {loop.broken[broken:]}"
        there = [node.lrange(str(self._number), 0, -1) for node in self._raw]
        for name, request in requests.items():
            may_fail = doubtful if name in {"d", "e"} else lost
            yield from self._judge_request(request, name in struck, may_fail, there)

    async def _both(self, *requests):
        await asyncio.gather(*[self._loop.carry(request) for request in requests])

    def _judge_request(self, request, struck, may_fail, there):
        word = request.command.args[0]
        times = [words.count(word.decode()) for words in there]
        if struck and not any(times):
            return
        owed = request.tally is None
        for i, count in enumerate(times):
            least = owed or i not in may_fail
            most = 1 + (owed and i in may_fail)
            if not least <= count <= most:
                yield f"node {i + 1} executed {word} {count} times"
        if not owed:
            right = int(word) if self._loop.numbers else word
            for i, reply in enumerate(request.tally.replies):
                if reply != right and not (i in may_fail and isinstance(reply, str)):
                    yield f"{word} got {request.tally.replies}"


@pytest.fixture(params=[True, False], ids=["numbers", "texts"])
def make_loop(request, nodes, make_script, raw):
    answer = "tonumber(ARGV[1])" if request.param else "ARGV[1]"
    script = make_script("append", f"redis.call('rpush', KEYS[1], ARGV[1]) return {answer}")
    for node in raw:
        node.script_load(script.source)

    def make(count):
        return Loop(nodes.urls[:count], script, request.param)

    return make


def interrupt(loop, trials, everybody, raw):
    """Run trials with these points of interruption; return the errors, and the trials with two."""
    wrong, pairs = [], 0
    for number, points in enumerate(trials):
        trial = Trial(loop, number, everybody, raw)
        wrong += [f"{trial.strikes.where}: {error}" for error in trial.run(*points)]
        pairs += len(trial.strikes.where) == 2
        if not trial.strikes.where or len(wrong) > TOO_MANY:
            break
    print(f"{pairs} pairs")
    return wrong, pairs


def test_two_interruptions_by_seed_cost_other_tasks_nothing(make_loop, all_votes, raw, seed):
    dice = random.Random(seed)
    trials = [(dice.randint(1, 90), dice.randint(1, 30)) for _ in range(40)]
    with make_loop(2) as loop:
        wrong, pairs = interrupt(loop, trials, all_votes, raw[:2])
    assert wrong == []
    assert pairs


@pytest.mark.sweep
@pytest.mark.parametrize("count", [1, 2])
def test_two_interruptions_at_any_point_cost_other_tasks_nothing(count, make_loop, all_votes, raw, seed):
    """The first at any point, the second at some of those that follow."""
    dice = random.Random(seed)
    trials = ((first, dice.randint(1, 30)) for first in itertools.count(1) for _ in range(4))
    with make_loop(count) as loop:
        wrong, pairs = interrupt(loop, trials, all_votes, raw[:count])
    assert wrong == []
    assert pairs > MANY


def test_interruption_leaves_no_task_asleep_whose_round_is_alone(make_loop):
    """Its votes are only counted, see `serving`."""
    asleep, points = [], 0
    with make_loop(3) as loop:
        command = Command(loop.script, (b"alone",), (b"1",), Packed())
        effect = Broadcast(command, Owner("loop", 1), bool, PATIENCE)

        def drive():
            task = loop.loop.create_task(loop.carry(request))
            waiting = loop.loop.create_task(asyncio.wait([task], timeout=TICK))
            while not waiting.done():
                with suppress(LoopInterruption):
                    loop.run(asyncio.wait([waiting]))
            tasks.append(task)

        for point in itertools.count(1):
            # The first rounds of a connection go through the parser, the next ones learn the reply.
            for strikes in None, None, None, Strikes(point, error=LoopInterruption):
                request = Request(effect, effect.tally([node.address for node in loop.nodes]))
                tasks = []
                drive() if strikes is None else strikes.run(drive)
            loop.run(loop.settle())
            loop.run(asyncio.wait(tasks, timeout=ASLEEP / 5))
            if tasks[0].done():
                tasks[0].exception()
            else:
                tasks[0].cancel()
                loop.run(asyncio.wait(tasks))
                asleep += strikes.where
            if not strikes.where:
                break
            points += 1
    assert asleep == []
    assert points > MANY / 2
