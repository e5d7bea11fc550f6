"""The set of links of a client for asyncio, on real nodes, without the layers above it."""

import asyncio
import itertools
import math
import os
import threading
from collections import Counter

import pytest
import redis.asyncio

from redsync import ClientClosedError
from redsync._core.effects import Broadcast, Command, Tell
from redsync._core.ownership import Owner
from redsync._core.quorum import Verdict
from redsync._drivers.aio_channels import AioChannel, open_channel
from redsync._drivers.aio_link_sets import AioLinkSet, StreamLink
from redsync._drivers.channels import pack
from redsync._drivers.dialects import PLAIN
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.greetings import subscribe
from redsync._drivers.link_sets import Shared
from redsync._drivers.links import BACKLOG_LIMIT
from redsync._drivers.nodes import INTERRUPTED
from redsync._drivers.pending_releases import PendingReleases
from redsync._drivers.process import clock
from redsync._drivers.redis_py import Addresses
from redsync._drivers.requests import Mailbox, Request, Sleeper
from redsync._drivers.wakeups import Wakeups
from tests.aio_support import both_loops, in_loop, turns, until
from tests.support.locks import PATIENCE

ENDLESS = 30
LATER = 1e12

over_both = pytest.mark.parametrize("links", ["sockets", "streams"])
"""Over plain sockets, and over asyncio transports, as with TLS."""


class Streams(AioLinkSet):
    """Links over asyncio transports."""

    WATCHES = False


class Rig:
    """A set with a client's arguments, but without maintenance: a test connects and tends it itself."""

    def __init__(self, urls, links="sockets", node_timeout=0.25):
        self.nodes = make_nodes(urls, redis.asyncio.Redis)
        self.broken = []
        guard = threading.RLock()
        self.releases = PendingReleases(len(self.nodes), guard)
        self.wakeups = Wakeups(guard, clock, Sleeper.wake)
        shared = Shared(
            self.nodes,
            clock,
            node_timeout,
            self.releases,
            self.wakeups,
            itertools.count(1).__next__,
            (),
            lambda: None,
            lambda node: None,
        )
        kind = Streams if links == "streams" else AioLinkSet
        self.set = kind(shared, asyncio.get_running_loop(), lambda node, why: self.broken.append((node.index, why)))
        self.owner = Owner("rig", 1)

    @property
    def links(self):
        return self.set.links

    async def open(self, i):
        channel = await open_channel(self.nodes[i].make_connection(2.0), Addresses())
        await channel.ask(pack("HELLO", "3"))
        await channel.talk(subscribe(PLAIN, b"wake", raw=True))
        return self.set.make_link(self.nodes[i], channel, None)

    async def connect(self, *indices):
        for i in indices or range(len(self.nodes)):
            self.set.install(await self.open(i))
        return self

    def request(self, script, *args, key=b"list", decide=None, timeout=5.0, **options):
        command = Command(script, (key,), args)
        effect = Broadcast(command, self.owner, lambda reply: True, timeout, decide=decide, **options)
        tally = effect.tally([node.address for node in self.nodes])
        tally.sent_at = clock()
        return Request(effect, tally)

    async def carry(self, request):
        self.set.send_soon(request)
        if not request.done:
            await self.set.wait(request, clock() + request.effect.timeout)
            if not request.done:
                self.set.close_round(request, f"no answer within {request.effect.timeout:g} s")
        if request.tally.open:
            await self.set.linger(request, request.tally, clock() + request.effect.timeout)
        return request.tally

    async def ask(self, *args, **options):
        return await self.carry(self.request(*args, **options))

    def tell(self, script, *args, owed_to=0, owed_until=LATER):
        request = Request(Tell(Command(script, (b"list",), args), self.owner, owed_to, owed_until), None)
        self.set.send_soon(request)
        return request

    async def settle(self):
        while self.set.owes:
            await self.set.read_all()
            await asyncio.sleep(0.001)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        self.set.end_sleeps()
        self.set.end("the client was closed", orderly=True)
        await turns(3)


async def connected(urls):
    return await Rig(urls).connect()


@pytest.fixture
def append(make_script, raw):
    script = make_script("append", "redis.call('rpush', KEYS[1], ARGV[1]) return 1")
    for node in raw:
        node.script_load(script.source)
    return script


@pytest.fixture
def all_votes():
    """Decides once every node has voted."""
    return lambda tally: Verdict.PENDING if None in tally.cast else Verdict.WON


def lists(raw):
    return [node.lrange("list", 0, -1) for node in raw]


@over_both
@both_loops
@in_loop
async def test_round_ends_at_its_verdict_and_the_loop_reads_later_replies(nodes, append, raw, loop, links):
    async with Rig(nodes.urls, links) as rig:
        await rig.connect()
        nodes.pause(2)
        tally = await rig.ask(append, b"a", timeout=ENDLESS)
        assert (tally.won, tally.granted) == (True, 2)
        nodes.resume(2)
        await rig.settle()
        assert lists(raw) == [["a"]] * 3


@over_both
@both_loops
@in_loop
async def test_round_without_answers_ends_at_its_deadline(nodes, append, loop, links):
    async with Rig(nodes.urls, links, node_timeout=0.05) as rig:
        await rig.connect()
        for i in range(3):
            nodes.pause(i)
        started_at = clock()
        tally = await rig.ask(append, b"a", timeout=0.1)
        assert clock() - started_at >= 0.1
        assert tally.without_quorum
        assert "no answer within 0.1 s" in {vote.detail for vote in tally.votes}
        assert all(link.suspect for link in rig.links)
        # Rounds do not wait for a suspect node, and it gets only what it is owed.
        started_at = clock()
        tally = await rig.ask(append, b"b", timeout=ENDLESS)
        assert tally.without_quorum
        assert clock() - started_at < ENDLESS / 3
        assert tally.sent == 0
        for i in range(3):
            nodes.resume(i)
        await rig.settle()
        assert not any(link.suspect for link in rig.links)


@in_loop
async def test_commands_of_one_turn_share_a_write_while_a_round_is_in_flight(nodes, append, raw, all_votes):
    async with Rig(nodes.urls) as rig:
        await rig.connect()
        writes = Counter()
        for link in rig.links:

            def counted(data, write=link.write, index=link.index):
                writes[index] += 1
                write(data)

            link.write = counted
        asked = [asyncio.create_task(rig.ask(append, b"%d" % i, decide=all_votes)) for i in range(10)]
        await asyncio.gather(*asked)
        assert max(writes.values()) <= 3
        assert lists(raw) == [[str(i) for i in range(10)]] * 3


# Sleeping.


@both_loops
@in_loop
async def test_sleeper_sleeps_until_it_is_done_or_its_deadline(nodes, loop):
    async with Rig(nodes.urls) as rig:
        sleeper, instant = Sleeper(), clock() + 0.02
        await rig.set.sleep(sleeper, instant)
        assert clock() >= instant
        bell = Mailbox()
        sleeping = asyncio.create_task(rig.set.sleep(bell, math.inf))
        await turns(3)
        bell.wake()
        await turns(3)
        assert not sleeping.done(), "a look is not enough"
        bell.signal(1)
        await sleeping
        assert not rig.set._asleep


@in_loop
async def test_end_of_sleeps_lets_rounds_finish(nodes, append):
    async with Rig(nodes.urls) as rig:
        await rig.connect()
        sleeping = asyncio.create_task(rig.set.sleep(Sleeper(), math.inf))
        nodes.pause(0)
        nodes.pause(1)
        asking = asyncio.create_task(rig.ask(append, b"a", timeout=ENDLESS))
        await asyncio.sleep(0.01)
        rig.set.end_sleeps()
        await sleeping
        await rig.set.sleep(Sleeper(), math.inf)
        assert not asking.done()
        nodes.resume(0)
        assert (await asking).won
        nodes.resume(1)


@in_loop
async def test_ended_set_fails_requests_in_flight(nodes, append):
    async with Rig(nodes.urls) as rig:
        await rig.connect()
        for i in range(3):
            nodes.pause(i)
        asking = asyncio.create_task(rig.ask(append, b"a", timeout=ENDLESS))
        await asyncio.sleep(0.01)
        rig.set.end("the client was closed", orderly=True)
        tally = await asking
        assert "the client was closed" in {vote.detail for vote in tally.votes}
        assert rig.links == [None] * 3
        for i in range(3):
            nodes.resume(i)


async def sleep_through(rig, waits):
    """Sleep through the waits and return their result."""
    while True:
        try:
            sleeper, until = next(waits)
        except StopIteration as stop:
            return stop.value
        await rig.set.sleep(sleeper, until)


@over_both
@both_loops
@in_loop
async def test_message_of_a_node_wakes_its_listener(nodes, raw, loop, links):
    async with Rig(nodes.urls, links) as rig:
        await rig.connect()
        wakeups = rig.wakeups
        wakeups.subscribe(b"key")
        waiting = asyncio.create_task(sleep_through(rig, wakeups.wait_for_nodes(b"key", clock() + ENDLESS, 2, ENDLESS)))
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
        assert await sleep_through(rig, wakeups.wait_for_nodes(b"key", clock() + ENDLESS, 2, 0.01)) == (1, 0)
        wakeups.unsubscribe(b"key")


@over_both
@both_loops
@in_loop
async def test_new_link_takes_everything_owed_no_matter_how_much(nodes, make_script, raw, loop, links):
    """More than fits the system's buffers: the limit is for a node that does not read."""
    length = make_script("length", "redis.call('rpush', KEYS[1], #ARGV[1]) return 1")
    raw[2].script_load(length.source)
    sizes = range(1_000_000, 1_000_020)
    async with Rig(nodes.urls, links) as rig:
        await rig.connect(0, 1)
        for size in sizes:
            rig.tell(length, b"x" * size, owed_to=0b100, owed_until=1e12)
            await rig.settle()
        await rig.connect(2)
        await rig.settle()
        assert raw[2].lrange("list", 0, -1) == [str(size) for size in sizes]
        assert rig.broken == []


# Streams.


@both_loops
@in_loop
async def test_node_that_does_not_read_is_disconnected(nodes, append, loop):
    async with Rig(nodes.urls, "streams") as rig:
        await rig.connect(0)
        nodes.pause(0)
        for _ in range(BACKLOG_LIMIT // 100_000 + 200):
            if rig.broken:
                break
            rig.tell(append, b"x" * 100_000)
            await asyncio.sleep(0)
        assert "does not read" in rig.broken[0][1]
        nodes.resume(0)


@both_loops
@in_loop
async def test_end_of_a_stream_is_that_of_its_link(nodes, loop):
    async with Rig(nodes.urls, "streams") as rig:
        await rig.connect()
        nodes.kill(1)
        await until(lambda: rig.broken)
        assert rig.broken == [(1, "closed the connection")]
        assert [link is None for link in rig.links] == [False, True, False]
        nodes.restart(1)


@in_loop
async def test_connection_that_ended_during_its_handshake_makes_no_link(nodes):
    async with Rig(nodes.urls) as rig:
        channel = AioChannel()
        channel.eof_received()
        with pytest.raises(ConnectionError, match="closed the connection"):
            rig.set.make_link(rig.nodes[0], channel, None)


@over_both
@in_loop
async def test_replies_that_lie_unread_are_not_missing(nodes, append, all_votes, links):
    """As after the process was suspended, or a task has computed for long."""
    async with Rig(nodes.urls, links, node_timeout=0.01) as rig:
        await rig.connect()
        first = rig.request(append, b"a", decide=all_votes, timeout=0.01)
        asking = asyncio.create_task(rig.carry(first))
        await turns(1)
        block_until_answered(rig)
        second = rig.request(append, b"b", decide=all_votes)
        rig.set.send_soon(second)
        rig.set.flush()
        assert second.tally.sent == 0b111, "no node is taken for silent"
        assert (await asking).granted == 3
        assert not any(link.suspect for link in rig.links)
        await rig.carry(second)


def block_until_answered(rig):
    """Block the loop for longer than all timeouts."""
    threading.Event().wait(0.1)
    assert clock() - max(link.since for link in rig.links) > 0.05


# Interruptions.


class Struck(Exception):
    """A signal handler's exception: a task that it strikes ends, of a callback the loop only reports it."""


@pytest.fixture
def strike(monkeypatch):
    """Return a function that lets the n-th call of a set's method raise, before or after its work."""

    def strike(name, n=1, *, after=False):
        method, calls = getattr(AioLinkSet, name), itertools.count(1)

        def struck(links, *args, **options):
            due = next(calls) == n
            if due and not after:
                raise Struck
            result = method(links, *args, **options)
            if due:
                raise Struck
            return result

        monkeypatch.setattr(AioLinkSet, name, struck)

    return strike


POINTS = [
    *(("take_in", n, False) for n in (1, 2, 3)),
    *(("_hand_out", n, after) for n in (1, 3) for after in (False, True)),
    *(("_count", n, after) for n in (1, 2) for after in (False, True)),
    *(("_post", n, after) for n in (3, 4) for after in (False, True)),
    *(("send", n, after) for n in (1, 2) for after in (False, True)),
]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point[0]} {point[1]}{' after' * point[2]}")
@over_both
@in_loop
async def test_interruption_costs_the_connections_and_no_other_task(nodes, append, raw, *, strike, links, point):
    """The rounds of other tasks are sent again; releases become pending."""
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    async with Rig(nodes.urls, links) as rig:
        await rig.connect()
        await rig.ask(append, b"warm", timeout=PATIENCE)
        await rig.settle()
        strike(*point[:2], after=point[2])
        tasks = [asyncio.create_task(rig.ask(append, name, timeout=PATIENCE)) for name in (b"a", b"b")]
        await turns(1)
        rig.tell(append, b"release", owed_to=0b111)
        await until(lambda: rig.broken)
        assert rig.broken == [(i, INTERRUPTED) for i in range(3)]
        assert rig.set.returning == 0b111
        # As the maintenance does.
        rig.set.recover()
        await rig.connect()
        assert rig.set.returning == 0
        tallies = await asyncio.gather(*tasks, return_exceptions=True)
        await rig.settle()
        struck = [tally for tally in (*tallies, *reported) if isinstance(tally, Struck)]
        assert len(struck) == 1
        for tally in tallies:
            assert tally in struck or (tally.won and tally.granted >= 2)
        assert all("release" in node.lrange("list", 0, -1) for node in raw)


def test_keyboard_interrupt_in_the_loops_callback_passes_through_the_loop(nodes, append, monkeypatch):
    """The code that runs the loop again finds all in order."""

    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        rig = runner.run(connected(nodes.urls))
        asking = loop.create_task(rig.ask(append, b"a", timeout=PATIENCE))
        monkeypatch.setattr(AioLinkSet, "take_in", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait([asking]))
        assert not any(rig.links)
        runner.run(rig.connect())
        assert runner.run(asyncio.wait_for(asking, PATIENCE)).won
        runner.run(rig.settle())
        runner.run(rig.__aexit__(None, None, None))


@in_loop
async def test_round_fails_where_a_returning_node_does_not_come_back(nodes, append):
    async with Rig(nodes.urls) as rig:
        await rig.connect()
        for i in range(3):
            nodes.pause(i)
        asking = asyncio.create_task(rig.ask(append, b"a", timeout=ENDLESS))
        await turns(2)
        rig.set.throw_away()
        later = asyncio.create_task(rig.ask(append, b"b", timeout=ENDLESS))
        await turns(2)
        for node in rig.nodes[:2]:
            assert not asking.done()
            assert not later.done()
            rig.set.note_failed(node, "connection refused")
        assert (await asking).without_quorum
        assert {vote.detail for vote in (await later).votes[:2]} == {"connection refused"}
        rig.set.note_failed(rig.nodes[2], "connection refused")
        assert not rig.set._kept
        for i in range(3):
            nodes.resume(i)


@in_loop
async def test_closed_set_keeps_nothing_for_nodes_that_were_to_return(nodes, append):
    """Not even a round that no task waits for, as the maintenance sends."""
    async with Rig(nodes.urls) as rig:
        await rig.connect()
        for i in range(3):
            nodes.pause(i)
        rig.set.send_soon(rig.request(append, b"a"))
        await turns(2)
        rig.set.throw_away()
        assert rig.set._kept
        rig.set.end("the client was closed", orderly=True)
        assert not rig.set._kept
        for i in range(3):
            nodes.resume(i)


@in_loop
async def test_cancelled_round_is_not_sent_again(nodes, append, raw):
    async with Rig(nodes.urls) as rig:
        await rig.connect()
        for i in range(3):
            nodes.pause(i)
        asking = asyncio.create_task(rig.ask(append, b"a", timeout=ENDLESS))
        await turns(2)
        rig.set.throw_away()
        asking.cancel()
        await asyncio.wait([asking])
        assert not rig.set._kept
        for i in range(3):
            nodes.resume(i)
        await rig.connect()
        await rig.ask(append, b"b")
        await rig.settle()


@in_loop
async def test_commands_of_before_and_after_an_interruption_keep_their_order(nodes, append, raw, all_votes):
    """A claim that is sent again must not come behind its rollback."""
    async with Rig(nodes.urls) as rig:
        await rig.connect()
        rig.set.throw_away()
        asking = asyncio.create_task(rig.ask(append, b"claim", decide=all_votes, timeout=ENDLESS))
        await turns(1)
        rig.tell(append, b"rollback", owed_to=0b111)
        await rig.connect()
        assert (await asking).granted == 3
        await rig.settle()
        assert lists(raw) == [["claim", "rollback"]] * 3


@in_loop
async def test_maintenance_catches_up_on_wakeups_and_writes_that_an_interruption_has_cost(nodes, append, monkeypatch):
    async with Rig(nodes.urls) as rig:
        await rig.connect()
        bell = Mailbox()
        sleeping = asyncio.create_task(rig.set.sleep(bell, math.inf))
        first = asyncio.create_task(rig.ask(append, b"a", timeout=ENDLESS))
        await turns(1)
        with monkeypatch.context() as patched:
            # The loop's callback is interrupted before its first line.
            patched.setattr(asyncio.get_running_loop(), "call_soon", lambda *_, **__: None)
            rig.tell(append, b"b")
        bell.done = True
        rig.set.recover()
        await sleeping
        assert (await first).won
        await rig.settle()
        assert not rig.set._batch


@in_loop
async def test_maintenance_lets_a_woken_task_run_on_that_an_interruption_has_left_asleep(nodes, monkeypatch):
    async with Rig(nodes.urls) as rig:
        bell = Mailbox()
        sleeping = asyncio.create_task(rig.set.sleep(bell, math.inf))
        await turns(1)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "call_soon", lambda *_, **__: None)
            bell.done = True
            bell.wake()
        await turns(3)
        assert not sleeping.done()
        rig.set.recover()
        rig.set.recover()
        await sleeping
        assert not rig.set._asleep


def test_task_that_ends_the_loop_costs_no_other_woken_task(nodes):
    bells = [Mailbox(), Mailbox()]

    async def sleep(rig, bell, error=None):
        await rig.set.sleep(bell, math.inf)
        if error is not None:
            raise error

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        rig = runner.run(connected(nodes.urls))
        first = loop.create_task(sleep(rig, bells[0], KeyboardInterrupt()))
        second = loop.create_task(sleep(rig, bells[1]))
        runner.run(turns(1))
        for bell in bells:
            bell.done = True
            bell.wake()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait([second]))
        assert isinstance(first.exception(), KeyboardInterrupt)
        runner.run(asyncio.wait_for(second, PATIENCE))
        assert all(rig.links)
        runner.run(rig.__aexit__(None, None, None))


@in_loop
async def test_interruption_of_what_cleans_up_after_one_is_made_good(nodes, append, monkeypatch):
    async with Rig(nodes.urls) as rig:
        await rig.connect()
        rig.tell(append, b"a", owed_to=0b111)
        discard, strikes = AioLinkSet.discard, iter([Struck(), None])

        def struck(links, link, reason, **options):
            if (error := next(strikes, None)) is not None:
                raise error
            discard(links, link, reason, **options)

        monkeypatch.setattr(AioLinkSet, "discard", struck)
        with pytest.raises(Struck):
            rig.set.throw_away()
        assert any(rig.links)
        rig.set.recover()
        assert not any(rig.links)
        assert [rig.releases.count(i) for i in range(3)] == [1, 1, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@over_both
@in_loop
async def test_child_of_a_fork_writes_and_reads_nothing(nodes, append, raw, links):
    async with Rig(nodes.urls, links) as rig:
        await rig.connect()
        request = rig.request(append, b"a")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    rig.set.send_soon(request)
                except ClientClosedError:
                    for link in rig.links:
                        rig.set.hear(link, b"")
                    rig.set.throw_away()
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222  (it ends at once)
        assert (await rig.carry(request)).won
        await rig.settle()
        assert lists(raw) == [["a"]] * 3
        assert rig.broken == []
        assert all(isinstance(link, StreamLink) for link in rig.links) == (links == "streams")
