"""The asyncio driver on real nodes: blocked loops, callbacks, interruptions, memory."""

import asyncio
import gc
import select
import signal
import threading
import time
from _thread import interrupt_main

import pytest

from redsync import ClientClosedError, NodeChanged
from redsync._core.effects import Signal
from redsync._drivers import aio
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.aio_maintenance import AioMaintenance
from tests.aio_support import (
    ENDLESS,
    both_loops,
    claims,
    client_of,
    in_loop,
    run,
    structures,
    take,
    turns,
    until,
    uvloop_in_sweeps,
)
from tests.drivers.conftest import LOOKS, stand_by
from tests.support.injection import Interruption
from tests.support.locks import PATIENCE, states


@pytest.fixture
def make_client(nodes, events):
    return lambda **options: client_of(nodes, **{"listeners": [events.append], **options})


@both_loops
def test_no_thread_is_started(nodes, loop):
    before = set(threading.enumerate())
    seen = set()

    async def main():
        async with client_of(nodes, listeners=[lambda _: seen.update(threading.enumerate())]) as client:
            seen.update(threading.enumerate())
            async with client.get_lock("x"), client.get_mutex("y"):
                seen.update(threading.enumerate())
            nodes.kill(0)
            await until(lambda: states(client)[0] == "down")
            nodes.restart(0)
            await until(lambda: states(client)[0] == "up")
        seen.update(threading.enumerate())

    run(main, loop)
    assert seen == before


# A blocked loop.


def block(client):
    """Block the loop for longer than the node timeout of 0.25 s, and until all answers have come, which stay unread."""
    time.sleep(0.3)
    for link in client.runner.life.links.links:
        if link.pending:
            assert select.select([link.fileno], [], [], PATIENCE)[0]


@pytest.mark.parametrize("pending", ["round", "straggler"])
@uvloop_in_sweeps
@in_loop
async def test_blocked_loop_does_not_mistake_unread_answers_for_silence(make_client, events, pending, loop):
    async with make_client(node_timeout=0.25) as client:
        await until(lambda: states(client) == ["up"] * 3)  # it waits only briefly for a node beyond the quorum
        lock = client.get_lock("x")
        for i in range(3):
            taking = asyncio.create_task(lock.acquire(False))
            # In some of these turns the command is in flight, in others the first answers have come.
            await turns(1 + i if pending == "straggler" else 1)
            block(client)
            assert await taking is True
            await turns(5)
            block(client)
            await asyncio.sleep(0.01)
        assert not [event for event in events if isinstance(event, NodeChanged)]
        assert states(client) == ["up"] * 3


# Callbacks.


@in_loop
async def test_callback_that_raises_a_cancellation_does_not_end_the_maintenance(make_client, raw, events, caplog):
    def cancel(hold):
        raise asyncio.CancelledError

    async with make_client(lease=3.0) as client:
        await client.get_lock("x", on_lost=cancel).acquire()
        for node in raw:
            node.delete("redsync:x")
        await until(lambda: events)
        assert "CancelledError" in caplog.records[-1].getMessage()
        async with client.get_lock("y") as hold:
            before = hold._state.valid_until
            await until(lambda: hold._state.valid_until > before)


@in_loop
async def test_log_filter_that_raises_about_a_callback_costs_no_connection(make_client, raw, events, monkeypatch):
    def cancel(hold):
        raise asyncio.CancelledError

    def broken(record):
        raise ValueError("the application's")

    monkeypatch.setattr(aio.log, "filters", [broken])
    async with make_client(lease=3.0) as client:
        await until(lambda: states(client) == ["up"] * 3)
        links = list(client.runner.life.links.links)
        await client.get_lock("x", on_lost=cancel).acquire()
        for node in raw:
            node.delete("redsync:x")
        await until(lambda: events)
        await turns(5)
        assert client.runner.life.links.links == links


def test_callback_that_exits_ends_the_loop_and_holds_are_released(make_client, raw):
    def leave(hold):
        raise SystemExit(3)

    async def main():
        client = make_client(lease=3.0)
        await client.get_lock("other", lease=60.0).acquire()
        await client.get_lock("x", on_lost=leave).acquire()
        for node in raw:
            node.delete("redsync:x")
        await asyncio.sleep(ENDLESS)

    with pytest.raises(SystemExit) as caught:
        asyncio.run(main())
    assert caught.value.code == 3
    assert claims(raw) == []


# Interruptions.


@in_loop
async def test_release_whose_answers_an_interruption_elsewhere_has_cost_is_no_loss(make_client, raw, monkeypatch):
    """It is sent again, and nodes that have executed it say that they keep no claim."""
    reported, receive = [], AioLinkSet.receive
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))

    def strike(*args):
        if not reported and asyncio.current_task() is None:
            raise RuntimeError("a signal handler's")
        receive(*args)

    async with make_client() as client:
        lock = client.get_lock("x")
        assert await lock.acquire(timeout=PATIENCE)
        await until(lambda: not client.runner.life.links.owes)
        monkeypatch.setattr(AioLinkSet, "receive", strike)
        await lock.release()
        await until(lambda: claims(raw) == [])
    assert reported == ["a signal handler's"]


@pytest.fixture
def interrupt_maintenance(monkeypatch):
    """Return a function that lets a method of the client's own task, or of its links, raise once."""

    def interrupt(name, error=KeyboardInterrupt, where=AioMaintenance):
        def strike(*_):
            monkeypatch.undo()
            raise error

        monkeypatch.setattr(where, name, strike)

    return interrupt


@pytest.mark.parametrize("connects", [True, False], ids=["in its first connects", "later"])
def test_client_outlives_an_interruption_of_its_own_task(make_client, interrupt_maintenance, connects):
    """As in a notebook, whose loop runs on after Ctrl-C."""

    async def waste_time(client):
        await take(client.get_lock("y"))
        await asyncio.sleep(ENDLESS)

    async def is_renewed(client):
        async with client, client.get_lock("x") as hold:
            before = hold._state.valid_until
            await until(lambda: hold._state.valid_until > before)

    with asyncio.Runner() as runner:
        client = make_client(lease=3.0)
        if not connects:
            runner.run(take(client.get_lock("y")))
        interrupt_maintenance("_catch_up")
        with pytest.raises(KeyboardInterrupt):
            runner.run(waste_time(client))
        runner.run(asyncio.wait_for(is_renewed(client), PATIENCE))


def test_client_whose_own_task_was_interrupted_connects_again_at_once(make_client, interrupt_maintenance, promptly):
    """Rounds wait for that, but with a short lease not for long."""

    async def waste_time(client):
        await take(client.get_lock("x"))
        await asyncio.sleep(ENDLESS)

    async def seconds(client):
        began = time.monotonic()
        async with client, client.get_lock("x"):
            return time.monotonic() - began

    def go_on():
        with asyncio.Runner() as runner:
            client = make_client()
            runner.run(take(client.get_lock("x")))
            interrupt_maintenance("_catch_up")
            with pytest.raises(KeyboardInterrupt):
                runner.run(waste_time(client))
            return runner.run(seconds(client))

    promptly(go_on, 0.05)


@pytest.mark.parametrize(("where", "name"), [(AioMaintenance, "_catch_up"), (AioLinkSet, "receive")])
def test_exit_in_own_code_ends_the_loop_and_holds_are_released(make_client, raw, interrupt_maintenance, where, name):
    async def main():
        client = make_client()
        await client.get_lock("x").acquire()
        interrupt_maintenance(name, SystemExit, where)
        await client.get_lock("y").acquire()
        await asyncio.sleep(ENDLESS)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert claims(raw) == []


def test_client_whose_task_could_not_begin_is_closed(make_client, interrupt_maintenance):
    with asyncio.Runner() as runner:
        lock = make_client().get_lock("x")
        interrupt_maintenance("run")
        with pytest.raises(KeyboardInterrupt):
            runner.run(lock.acquire())
        with pytest.raises(ClientClosedError):
            runner.run(asyncio.wait_for(lock.acquire(), PATIENCE))


class _Strike:
    """Deleted as the last thing that a function does, it has a signal handled after the function has returned."""

    __del__ = interrupt_main


@in_loop
async def test_protocol_is_told_of_an_interruption_between_two_effects(make_client, monkeypatch):
    """Where the driver's loop starts over; a protocol that is not told can't clean up."""
    performed = []

    def handler(*_):
        raise Interruption

    def protocol():
        try:
            yield Signal(b"work")
            yield Signal(b"more work")
        except Interruption:
            yield Signal(b"clean up")
            raise

    def perform(effect, _):
        performed.append(effect.key)
        if len(performed) == 1:
            strike = _Strike()
            del strike

    async with make_client() as client:
        monkeypatch.setattr(client.runner, "perform", perform)
        before = signal.signal(signal.SIGINT, handler)
        try:
            with pytest.raises(Interruption):
                await client.runner.drive(protocol(), aio.AioCall(client.runner.life))
        finally:
            monkeypatch.undo()
            signal.signal(signal.SIGINT, before)
    assert performed == [b"work", b"clean up"]


# Memory.


@in_loop
async def test_waiter_does_not_use_more_memory_with_each_look(make_client):
    """A standby may ask every second for months."""
    async with make_client() as client:
        more = await client.runner.run(stand_by(client.runner.owner()))
        assert more < LOOKS / 2


def test_acquire_and_release_leave_no_growing_structure(nodes):
    async def main():
        async with client_of(nodes.urls[:1]) as client:
            lock = client.get_lock("x")

            async def pairs(n):
                for _ in range(n):
                    await lock.acquire()
                    await lock.release()

            await pairs(300)
            gc.collect()
            before = len(gc.get_objects())
            await pairs(1_500)
            await asyncio.sleep(0.3)
            await pairs(10)
            gc.collect()
            assert structures(client) == {}
            assert len(gc.get_objects()) - before < 1000

    run(main)
