"""The set of links of a client for asyncio, on real nodes, without the layers above it: interruptions."""

import asyncio
import gc
import itertools
import time

import pytest
import redis.asyncio

from redsync._core.effects import Broadcast, Tell
from redsync._core.holds import Owner
from redsync._core.scripts import Command
from redsync._drivers import aio_link_sets
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.environment import clock
from redsync._drivers.handshake_connections import open_connection, pack
from redsync._drivers.handshakes import subscribe
from redsync._drivers.links import BACKLOG_LIMIT
from redsync._drivers.nodes import INTERRUPTED, make_nodes
from redsync._drivers.requests import PLAIN, Request, Waitable
from tests.aio_support import ENDLESS, both_loops, in_loop, turns, until
from tests.drivers.conftest import script
from tests.support.locks import PATIENCE
from tests.support.scripted import StandIn, ask

over_both = pytest.mark.parametrize("links", ["sockets", "streams"])
"""Over plain sockets, and over asyncio transports, as with TLS."""


class Streams(AioLinkSet):
    """Links over asyncio transports."""

    WATCHES = False


class Rig:
    """A set with a client's arguments, but without maintenance: a test connects and tends it itself."""

    def __init__(self, urls, links="sockets"):
        self.nodes = make_nodes(urls, redis.asyncio.Redis)
        self.broken = []
        life = StandIn(self.nodes, clock)
        kind = Streams if links == "streams" else AioLinkSet
        self.set = kind(life, asyncio.get_running_loop(), self._note_broken)
        self.owner = Owner("rig", 1)

    def _note_broken(self, node, reason):
        node.down_reason = reason
        self.broken.append((node.index, reason))

    @property
    def links(self):
        return self.set.links

    async def connect(self, *indices):
        for i in indices or range(len(self.nodes)):
            connection = await open_connection(self.nodes[i].make_connection(2.0))
            await connection.run(ask(pack("HELLO", "3")))
            await connection.run(subscribe(PLAIN, b"wake"))
            self.set.install(self.set.make_link(self.nodes[i], connection, None))
        return self

    async def ask(self, script, word, timeout):
        effect = Broadcast(Command(script, (b"list",), (word,)), self.owner, lambda reply: True, timeout)
        request = Request(effect, effect.tally([node.address for node in self.nodes]))
        request.tally.sent_at = clock()
        deadline = clock() + timeout
        self.set.send_soon(request)
        await self.set.sleep(request, deadline)
        await self.set.repeat(request, deadline)
        if not request.done:
            self.set.close_round(request, f"no answer within {timeout:g} s")
        return request.tally

    def tell(self, script, word, deliver_to=0):
        self.set.send_soon(Request(Tell(Command(script, (b"list",), (word,)), self.owner, deliver_to), None))

    async def read_all_replies(self):
        while self.set.owes:
            await self.set.read_all()
            await asyncio.sleep(0.001)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        self.set.end_sleeps()
        self.set.end("the client was closed", orderly=True)
        await turns(3)


async def connected(urls, links="sockets"):
    return await Rig(urls, links).connect()


@pytest.fixture
def append(raw):
    appending = script("append", "redis.call('rpush', KEYS[1], ARGV[1]) return 1")
    for node in raw:
        node.script_load(appending.source)
    return appending


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


@over_both
@in_loop
async def test_node_never_gets_what_it_had_not_received_over_a_discarded_link(nodes, append, raw, links):
    """Else the kernel would keep sending: this command is more than a node that does not read can receive."""
    async with Rig(nodes.urls, links) as rig:
        await rig.connect(0)
        nodes.pause(0)
        rig.tell(append, b"x" * 1_000_000)
        await turns(3)
        rig.set.discard(rig.links[0], "the test")
        await turns(3)
        nodes.resume(0)
        await until(lambda: not raw[0].client_list(_type="pubsub"))
    assert not raw[0].llen("list")


@in_loop
async def test_request_of_a_finalizer_in_the_middle_of_another_goes_out_once_and_after_it(
    nodes, append, raw, monkeypatch
):
    post, words = AioLinkSet._post, [b"b"]

    def interrupted(*args):
        post(*args)
        if words:
            rig.tell(append, words.pop())

    async with Rig(nodes.urls[:2]) as rig:
        await rig.connect()
        monkeypatch.setattr(AioLinkSet, "_post", interrupted)
        rig.tell(append, b"a")
        await rig.read_all_replies()
    assert [node.lrange("list", 0, -1) for node in raw[:2]] == [["a", "b"]] * 2


@in_loop
async def test_commands_of_one_turn_go_out_together_in_the_order_of_the_calls(nodes, append, raw):
    async with Rig(nodes.urls[:2]) as rig:
        await rig.connect()
        asking = asyncio.create_task(rig.ask(append, b"a", 20.0))
        await asyncio.sleep(0)
        rig.tell(append, b"b")
        rig.tell(append, b"c")
        await asking
        await rig.read_all_replies()
    assert [node.lrange("list", 0, -1) for node in raw[:2]] == [["a", "b", "c"]] * 2


@in_loop
async def test_loop_does_not_watch_a_set_that_has_ended(nodes, monkeypatch):
    """Else it would not watch the next socket that gets the same descriptor."""
    loop, watched = asyncio.get_running_loop(), []
    add = loop.add_reader
    monkeypatch.setattr(
        loop, "add_reader", lambda descriptor, *args: watched.append(descriptor) or add(descriptor, *args)
    )
    async with await connected(nodes.urls):
        assert bool(watched) is AioLinkSet.WATCHES
    assert not any(loop.remove_reader(descriptor) for descriptor in watched)


# Reading.


@in_loop
async def test_replies_are_taken_in_order_though_a_finalizer_reads_in_between(nodes, raw, monkeypatch):
    """A finalizer may send a release, and that reads first what a silent link may have received."""
    push = script("push", "return redis.call('rpush', KEYS[1], ARGV[1])")
    raw[0].script_load(push.source)
    taken, receive = [], AioLinkSet.receive

    def receive_late(links, link, data, now):
        if data == b":1\r\n":
            rig.tell(push, b"b")
            time.sleep(0.05)
            links.read()
        if data:
            taken.append(data)
        receive(links, link, data, now)

    async with Rig(nodes.urls) as rig:
        await rig.connect(0)
        monkeypatch.setattr(AioLinkSet, "receive", receive_late)
        rig.tell(push, b"a")
        await rig.read_all_replies()
    assert taken == [b":1\r\n", b":2\r\n"]


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
    *(("receive", n, after) for n in (1, 2, 3) for after in (False, True)),
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
        await rig.read_all_replies()
        strike(*point[:2], after=point[2])
        tasks = [asyncio.create_task(rig.ask(append, name, timeout=PATIENCE)) for name in (b"a", b"b")]
        await turns(1)
        rig.tell(append, b"release", deliver_to=0b111)
        await until(lambda: rig.broken)
        assert rig.broken == [(i, INTERRUPTED) for i in range(3)]
        # As the maintenance does.
        rig.set.recover()
        await rig.connect()
        tallies = await asyncio.gather(*tasks, return_exceptions=True)
        await rig.read_all_replies()
        struck = [tally for tally in (*tallies, *reported) if isinstance(tally, Struck)]
        assert len(struck) == 1
        for tally in tallies:
            assert tally in struck or (tally.won and tally.granted >= 2)
        assert all("release" in node.lrange("list", 0, -1) for node in raw)


@in_loop
async def test_sleep_whose_end_was_interrupted_ends_when_the_maintenance_looks(nodes, monkeypatch):
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(type(context["exception"])))

    def interrupted(_):
        monkeypatch.undo()
        raise Struck

    async with Rig(nodes.urls) as rig:
        monkeypatch.setattr(aio_link_sets, "_end", interrupted)
        sleep = asyncio.create_task(rig.set.sleep(Waitable(), clock() + 0.02))
        await until(lambda: reported == [Struck])
        rig.set.recover()
        await asyncio.wait_for(sleep, PATIENCE)


@in_loop
async def test_exception_that_strikes_as_a_sleep_begins_delays_no_other(nodes, monkeypatch):
    def interrupted(*_):
        monkeypatch.undo()
        raise Struck

    async with Rig(nodes.urls) as rig:
        sleep = asyncio.create_task(rig.set.sleep(Waitable(), clock() + 0.1))
        await turns(1)
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", interrupted)
        with pytest.raises(Struck):
            await rig.set.sleep(Waitable(), clock() + 0.02)
        await asyncio.wait_for(sleep, PATIENCE)


@in_loop
async def test_sleep_that_begins_after_a_suspension_is_not_late_and_ends_those_that_are(nodes, monkeypatch):
    async with Rig(nodes.urls) as rig:
        sleep = asyncio.create_task(rig.set.sleep(Waitable(), clock() + ENDLESS))
        await turns(1)
        monkeypatch.setattr(rig.set, "_clock", lambda: clock() + 2 * ENDLESS)
        await asyncio.wait_for(rig.set.sleep(Waitable(), rig.set._clock() + 0.02), PATIENCE)
        await asyncio.wait_for(sleep, PATIENCE)


@in_loop
async def test_sleep_ends_soon_after_a_suspension(nodes, monkeypatch):
    """Our clock runs on while the machine is suspended; the loop's timers do not."""
    async with Rig(nodes.urls) as rig:
        sleep = asyncio.create_task(rig.set.sleep(Waitable(), clock() + ENDLESS))
        await turns(1)
        monkeypatch.setattr(rig.set, "_clock", lambda: clock() + 2 * ENDLESS)
        rig.set.recover()
        await asyncio.wait_for(sleep, PATIENCE)


@in_loop
async def test_sleep_that_the_collector_drops_does_not_stop_the_maintenance(nodes):
    """Python 3.11 may collect garbage wherever it allocates: a task in a cycle, for example."""
    rig, thresholds = Rig(nodes.urls[:1]), gc.get_threshold()
    async with rig:
        try:
            for allocations in range(1, 100):
                gc.collect()
                sleeps = [rig.set.sleep(Waitable(), clock() + PATIENCE) for _ in range(4)]
                for sleep in sleeps:
                    sleep.send(None)
                sleeps.append(sleeps)
                gc.set_threshold(allocations)
                del sleep, sleeps
                rig.set.recover()
                gc.set_threshold(*thresholds)
        finally:
            gc.set_threshold(*thresholds)


def test_keyboard_interrupt_in_the_loops_callback_passes_through_the_loop(nodes, append, monkeypatch):
    """The code that runs the loop again finds all in order."""

    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        rig = runner.run(connected(nodes.urls))
        asking = loop.create_task(rig.ask(append, b"a", timeout=PATIENCE))
        monkeypatch.setattr(AioLinkSet, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait([asking]))
        assert not any(rig.links)
        runner.run(rig.connect())
        assert runner.run(asyncio.wait_for(asking, PATIENCE)).won
        runner.run(rig.read_all_replies())
        runner.run(rig.__aexit__(None, None, None))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # Nothing can close asyncio's transport any more.
@over_both
def test_set_can_end_after_its_loop_was_closed(nodes, links):
    loop = asyncio.new_event_loop()
    rig = loop.run_until_complete(connected(nodes.urls, links))
    loop.close()
    rig.set.end("its loop was closed", orderly=True)
    assert rig.links == [None] * len(nodes.ports)
    del rig
    gc.collect()
