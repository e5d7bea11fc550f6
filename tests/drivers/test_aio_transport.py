"""The transport for asyncio, on real nodes, without the layers above it."""

import asyncio
import itertools
import math
import select
from collections import Counter

import pytest
import redis.asyncio
from redsync._drivers.aio_links import open_link
from redsync._drivers.aio_transport import AioTransport

from redsync._core.effects import Broadcast, Command, Tell
from redsync._core.ownership import Owner
from redsync._drivers.dialects import PLAIN
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.greetings import subscribe
from redsync._drivers.process import clock
from redsync._drivers.requests import Mailbox, Request, Sleeper
from tests.aio_support import both_loops, in_loop, turns, until
from tests.support.locks import PATIENCE

ENDLESS = 30


class AioRig:
    """A transport with a client's arguments, but without maintenance: a test connects and tends it itself."""

    def __init__(self, urls, node_timeout=0.25):
        self.nodes = make_nodes(urls, redis.asyncio.Redis)
        self.broken = []
        self.transport = AioTransport(
            self.nodes,
            clock,
            node_timeout,
            asyncio.get_running_loop(),
            on_broken=lambda node, reason: self.broken.append((node.index, reason)),
            on_change=lambda: None,
        )
        self.owner = Owner("rig", 1)

    async def connect(self, *indices):
        for i in indices or range(len(self.nodes)):
            link = await open_link(self.nodes[i], 2.0)
            await link.talk(subscribe(PLAIN, b"wake", raw=True))
            self.transport.install(link)
        return self

    def request(self, script, *args, key=b"list", decide=None, timeout=5.0, **options):
        command = Command(script, (key,), args)
        effect = Broadcast(command, self.owner, lambda reply: True, timeout, decide=decide, **options)
        tally = effect.tally([node.address for node in self.nodes])
        tally.sent_at = clock()
        return Request(effect, tally)

    async def ask(self, *args, **options):
        request = self.request(*args, **options)
        self.transport.send(request)
        if not request.done:
            await self.transport.wait(request, clock() + request.effect.timeout)
            if not request.done:
                await self.transport.end_round(request, request.effect.timeout)
        if request.tally.open:
            await self.transport.linger(request, request.tally, clock() + request.effect.timeout)
        return request.tally

    def tell(self, script, *args, owed_to=0, owed_until=0.0):
        self.transport.send(Request(Tell(Command(script, (b"list",), args), self.owner, owed_to, owed_until), None))

    async def settle(self):
        while await self.transport.tend():  # noqa: ASYNC110  (nothing tells of the last reply)
            await asyncio.sleep(0.001)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        self.transport.close()
        self.transport.dispose()
        await turns(3)


@pytest.fixture
def append(make_script, raw):
    script = make_script("append", "redis.call('rpush', KEYS[1], ARGV[1]) return 1")
    for node in raw:
        node.script_load(script.source)
    return script


def lists(raw):
    return [node.lrange("list", 0, -1) for node in raw]


@both_loops
@in_loop
async def test_round_ends_at_its_verdict_and_the_loop_reads_later_replies(nodes, append, raw, loop):
    async with AioRig(nodes.urls) as rig:
        await rig.connect()
        nodes.pause(2)
        tally = await rig.ask(append, b"a", timeout=ENDLESS)
        assert (tally.won, tally.granted) == (True, 2)
        nodes.resume(2)
        await rig.settle()
        assert lists(raw) == [["a"]] * 3


@both_loops
@in_loop
async def test_round_without_answers_ends_at_its_deadline(nodes, append, loop):
    async with AioRig(nodes.urls, node_timeout=0.05) as rig:
        await rig.connect()
        for i in range(3):
            nodes.pause(i)
        started_at = clock()
        tally = await rig.ask(append, b"a", timeout=0.1)
        assert clock() - started_at >= 0.1
        assert tally.without_quorum
        assert "no answer within 0.1 s" in {vote.detail for vote in tally.votes}
        assert all(link.suspect for link in rig.transport.links)
        # Rounds do not wait for a suspect node, and it gets only what it is owed.
        started_at = clock()
        tally = await rig.ask(append, b"b", timeout=ENDLESS)
        assert tally.without_quorum
        assert clock() - started_at < ENDLESS / 3
        assert tally.sent == 0
        for i in range(3):
            nodes.resume(i)
        await rig.settle()
        assert not any(link.suspect for link in rig.transport.links)


@in_loop
async def test_commands_of_one_turn_share_a_write_while_a_round_is_in_flight(nodes, append, raw, all_votes):
    async with AioRig(nodes.urls) as rig:
        await rig.connect()
        writes = Counter()
        for link in rig.transport.links:

            def counted(data, send=link.send, index=link.index):
                writes[index] += 1
                return send(data)

            link.send = counted
        asked = [asyncio.create_task(rig.ask(append, b"%d" % i, decide=all_votes)) for i in range(10)]
        await asyncio.gather(*asked)
        assert max(writes.values()) <= 3
        assert lists(raw) == [[str(i) for i in range(10)]] * 3


# Reading.


@in_loop
async def test_replies_read_before_an_interruption_are_handed_out(nodes, append):
    def interrupted():
        raise KeyboardInterrupt

    async with AioRig(nodes.urls) as rig:
        await rig.connect()
        request = rig.request(append, b"a")
        rig.transport.send(request)
        for link in rig.transport.links:
            select.select([link.fileno], [], [], PATIENCE)
        rig.transport.links[2].read = interrupted
        with pytest.raises(KeyboardInterrupt):
            rig.transport._read()
        await rig.settle()
        assert request.tally.granted == 2
        assert [index for index, _ in rig.broken] == [2]


@in_loop
async def test_tasks_woken_inside_the_step_of_another_run_on_in_the_next_turn(nodes):
    """As in a loop that runs inside another."""

    async def sleep(future):
        await future

    loop = asyncio.get_running_loop()
    async with AioRig(nodes.urls) as rig:
        futures = [loop.create_future() for _ in range(2)]
        tasks = [asyncio.create_task(sleep(future)) for future in futures]
        await turns(1)
        rig.transport.released.extend(futures)
        rig.transport._resume()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)


@in_loop
async def test_step_that_a_signal_handler_ends_with_an_error_of_the_same_type_runs_once(nodes):
    steps = []

    class Struck:
        def run(self, step, future):
            step(future)
            raise RuntimeError("a handler's")

    async with AioRig(nodes.urls) as rig:
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        rig.transport.released.append(future)
        rig.transport._step = future, steps.append, Struck()
        with pytest.raises(RuntimeError, match="handler"):
            rig.transport._resume()
        await turns(2)
    assert steps == [future]


def test_task_that_exits_leaves_the_other_woken_tasks_to_the_loop(nodes):
    resumed = []

    async def sleep(future, error=None):
        await future
        resumed.append(future)
        if error is not None:
            raise error

    async def begin():
        rig = await AioRig(nodes.urls).__aenter__()
        futures = [loop.create_future() for _ in range(3)]
        tasks = [loop.create_task(sleep(*each)) for each in zip(futures, (None, SystemExit(), None), strict=True)]
        await turns(1)
        rig.transport.released.extend(futures)
        return rig, futures, tasks

    loop = asyncio.new_event_loop()
    rig, futures, tasks = loop.run_until_complete(begin())
    loop.call_soon(rig.transport._resume)
    with pytest.raises(SystemExit):
        loop.run_until_complete(turns(1))
    assert resumed == futures[:2]
    loop.run_until_complete(turns(2))
    assert resumed == futures
    assert [task.done() for task in tasks] == [True] * 3
    assert isinstance(tasks[1].exception(), SystemExit)
    loop.run_until_complete(rig.__aexit__(None, None, None))
    loop.close()


@in_loop
async def test_task_of_which_the_wakeup_was_interrupted_runs_on_and_a_cancelled_one_only_once(nodes):
    """Even if it is cancelled in between."""
    loop, ended = asyncio.get_running_loop(), []

    async def sleep(future):
        try:
            await future
        finally:
            ended.append(future)
        await asyncio.sleep(0)

    async with AioRig(nodes.urls) as rig:
        for is_removed, is_cancelled in itertools.product((False, True), repeat=2):
            future = loop.create_future()
            task = asyncio.create_task(sleep(future))
            await turns(1)
            ((step, context),) = future._callbacks
            rig.transport.released.append(future)
            rig.transport._step = future, step, context
            if is_removed:
                # As far as an interrupted `_resume` may have come.
                future.remove_done_callback(step)
                future.set_result(None)
            if is_cancelled:
                task.cancel()
            await rig.transport.tend()
            await asyncio.wait([task], timeout=PATIENCE)
            assert task.done()
            assert task.cancelled() == is_cancelled
            assert ended.pop() is future
            assert not ended


@in_loop
async def test_rounds_are_sent_at_once_after_one_whose_write_was_interrupted(nodes, append, all_votes, monkeypatch):
    """A signal's handler may raise as soon as the loop calls for that write."""
    async with AioRig(nodes.urls) as rig:
        await rig.connect()
        asking = asyncio.create_task(rig.ask(append, b"a", decide=all_votes))
        await turns(1)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "call_soon", lambda *_: None)
            rig.tell(append, b"interrupted")
        await asking
        await rig.settle()
        tallies = await asyncio.gather(*[rig.ask(append, b"b", decide=all_votes) for _ in range(2)])
        assert [tally.granted for tally in tallies] == [3, 3]


# Sleeping.


@both_loops
@in_loop
async def test_sleeper_sleeps_until_it_is_done_or_its_deadline(nodes, loop):
    async with AioRig(nodes.urls) as rig:
        sleeper, instant = Sleeper(), clock() + 0.02
        await rig.transport.wait(sleeper, instant)
        assert clock() >= instant
        bell = Mailbox()
        sleeping = asyncio.create_task(rig.transport.wait(bell, math.inf))
        await turns(3)
        rig.transport._awaken(bell)
        await turns(3)
        assert not sleeping.done(), "a look is not enough"
        bell.signal(1)
        rig.transport._awaken(bell)
        await sleeping
        assert not rig.transport._asleep


@in_loop
async def test_closed_transport_ends_sleeps_but_lets_rounds_finish(nodes, append):
    async with AioRig(nodes.urls) as rig:
        await rig.connect()
        sleeping = asyncio.create_task(rig.transport.wait(Sleeper(), math.inf))
        nodes.pause(0)
        nodes.pause(1)
        asking = asyncio.create_task(rig.ask(append, b"a", timeout=ENDLESS))
        await asyncio.sleep(0.01)
        rig.transport.close()
        await sleeping
        await rig.transport.wait(Sleeper(), math.inf)
        assert not asking.done()
        nodes.resume(0)
        assert (await asking).won
        nodes.resume(1)


@in_loop
async def test_disposed_transport_fails_requests_in_flight(nodes, append):
    async with AioRig(nodes.urls) as rig:
        await rig.connect()
        for i in range(3):
            nodes.pause(i)
        asking = asyncio.create_task(rig.ask(append, b"a", timeout=ENDLESS))
        await asyncio.sleep(0.01)
        rig.transport.close()
        rig.transport.dispose()
        tally = await asking
        assert "the client was closed" in {vote.detail for vote in tally.votes}
        assert rig.transport.links == [None] * 3
        for i in range(3):
            nodes.resume(i)


@both_loops
@in_loop
async def test_message_of_a_node_wakes_its_listener(nodes, raw, loop):
    async with AioRig(nodes.urls) as rig:
        await rig.connect()
        wakeups = rig.transport.wakeups
        wakeups.subscribe(b"key")
        waiting = asyncio.create_task(
            rig.transport.wait_for_wakeup(wakeups.wait_for_nodes(b"key", clock() + ENDLESS, 2, ENDLESS))
        )
        await turns(3)
        raw[0].publish("wake", "0 another key")
        raw[0].publish("wake", "0 key")
        await until(lambda: wakeups._mailboxes[b"key"].signals)
        assert not waiting.done()
        raw[1].publish("wake", "0 key")
        assert await waiting == (2, 0)
        # A message from before the sleep is not lost, and the sleep waits briefly for the others.
        wakeups.subscribe(b"key")
        raw[2].publish("wake", "0 key")
        await until(lambda: wakeups._mailboxes[b"key"].signals)
        assert await rig.transport.wait_for_wakeup(wakeups.wait_for_nodes(b"key", clock() + ENDLESS, 2, 0.01)) == (1, 0)
        wakeups.unsubscribe(b"key")


@both_loops
@in_loop
async def test_new_link_takes_everything_owed_no_matter_how_much(nodes, make_script, raw, loop):
    """More than fits the system's buffers: the limit is for a node that does not read."""
    length = make_script("length", "redis.call('rpush', KEYS[1], #ARGV[1]) return 1")
    raw[2].script_load(length.source)
    sizes = range(1_000_000, 1_000_020)
    async with AioRig(nodes.urls) as rig:
        await rig.connect(0, 1)
        for size in sizes:
            rig.tell(length, b"x" * size, owed_to=0b100, owed_until=1e12)
            await rig.settle()
        await rig.connect(2)
        await rig.settle()
        assert raw[2].lrange("list", 0, -1) == [str(size) for size in sizes]
        assert rig.broken == []
