"""The maintenance task of an asyncio client: first connections, a failing watchdog, interrupted wake-ups."""

import asyncio
import logging
import sys

import pytest
import redis.asyncio

from redsync import NodeChanged
from redsync._drivers import aio_maintenance
from redsync._drivers.aio_maintenance import AioMaintenance
from redsync._drivers.any_maintenance import Stopped
from redsync._drivers.environment import clock
from redsync._drivers.nodes import make_nodes
from tests.aio_support import ENDLESS, in_loop, other_tasks, turns, until
from tests.support.injection import Interruption
from tests.support.locks import PATIENCE
from tests.support.scripted import StandIn


def make(urls, *, node_timeout=0.25, restart_guard=0.0, events=None):
    life = StandIn(make_nodes(urls, redis.asyncio.Redis), clock, node_timeout, restart_guard=restart_guard)
    if events is not None:
        life.on_event = events.append
    maintenance = AioMaintenance(life, asyncio.get_running_loop())
    life.wake = maintenance.wake
    return maintenance


def states(maintenance):
    return [status.state for status in maintenance.statuses()]


class Watch:
    """A watchdog that sleeps until stopped, and counts its starts and wake-ups."""

    def __init__(self, maintenance, failures=0):
        self.maintenance, self.failures = maintenance, failures
        self.begun = self.woken = 0

    async def __call__(self):
        self.begun += 1
        if self.begun <= self.failures:
            raise KeyError("mine")
        while True:
            await self.maintenance.sleep(clock() + ENDLESS)
            self.woken += 1


async def started(maintenance, watch, has_begun=None):
    """Let a task run the maintenance, and stop it at the end; return the task once it has begun."""

    async def main():
        try:
            await maintenance.run(watch, lambda: None)
        except Stopped:
            pass
        finally:
            await maintenance.stop()

    task = asyncio.create_task(main())
    await until(has_begun or (lambda: watch.begun))
    return task


async def stop(maintenance, task):
    maintenance.abandon()
    await task


@pytest.mark.parametrize("holds", [["a hold"], []], ids=["held", "released meanwhile"])
@in_loop
async def test_start_with_a_hold_stops_waiting_for_hung_nodes(nodes, raw, *, holds):
    """A round proceeds where nodes may be new and one is silent, and its claim needs the watchdog."""
    for node in raw:
        node.delete("redsync_birth")
    nodes.pause(1)
    maintenance = make(nodes.urls, node_timeout=60.0, restart_guard=1.0)
    watch = Watch(maintenance)
    beginning = asyncio.create_task(started(maintenance, watch))
    await until(lambda: states(maintenance) == ["quarantined", "down", "quarantined"])
    await asyncio.sleep(0.1)
    assert not watch.begun
    maintenance._life.session.holds += holds
    maintenance.alarm()
    task = await asyncio.wait_for(beginning, PATIENCE)
    nodes.resume(1)
    await stop(maintenance, task)


@in_loop
async def test_interrupted_wake_does_not_end_all_later_ones(nodes, monkeypatch):
    loop, struck = asyncio.get_running_loop(), []

    class Once(asyncio.Future):
        """A future whose first result is interrupted by a signal's handler."""

        def set_result(self, result):
            if not struck:
                struck.append(self)
                raise TimeoutError
            super().set_result(result)

    maintenance = make(nodes.urls, node_timeout=PATIENCE)
    task = await started(maintenance, Watch(maintenance))
    loop.set_exception_handler(lambda *_: None)
    monkeypatch.setattr(loop, "create_future", lambda: Once(loop=loop))
    maintenance.wake()
    await turns(50)
    monkeypatch.undo()
    maintenance.wake()
    await turns(5)
    assert struck
    await asyncio.wait_for(stop(maintenance, task), PATIENCE)


@pytest.mark.parametrize("delays", [[50.0], [70.0, 0.0]])
@in_loop
async def test_slow_credential_provider_takes_no_time_from_the_handshake(nodes, monkeypatch, delays):
    """One that seems to hang is asked again."""
    loop, late = asyncio.get_running_loop(), []
    now = loop.time

    class Slow(redis.CredentialProvider):
        async def get_credentials_async(self):
            late.append(delays[len(late)])
            await asyncio.sleep(0 if late[-1] < 60 else PATIENCE)
            return "default", ""

    monkeypatch.setattr(loop, "time", lambda: now() + sum(late))
    maintenance = make([redis.asyncio.Redis.from_url(nodes.urls[0], credential_provider=Slow())])
    await stop(maintenance, await started(maintenance, Watch(maintenance), lambda: states(maintenance) == ["up"]))
    assert late == delays


@in_loop
async def test_one_task_at_a_time_connects_a_node(nodes):
    maintenance, most = make(nodes.urls), []
    nodes.pause(0)
    task = await started(maintenance, Watch(maintenance))
    for _ in range(30):
        maintenance.alarm()
        await asyncio.sleep(0.001)
        most.append(sum(task.get_name().startswith("redsync-connect-") for task in other_tasks()))
    assert max(most) == 1
    nodes.resume(0)
    await until(lambda: states(maintenance) == ["up"] * 3)
    await stop(maintenance, task)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks are not eager")
@in_loop
async def test_node_whose_connects_fail_at_once_in_eager_tasks_is_tried_again(nodes, monkeypatch):
    open_connection, failures = aio_maintenance.open_connection, []

    async def open_late(connection):
        if len(failures) < 2 * len(nodes.ports):
            failures.append(connection)
            raise ConnectionRefusedError
        return await open_connection(connection)

    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    monkeypatch.setattr(aio_maintenance, "open_connection", open_late)
    maintenance = make([url.replace("127.0.0.1", "localhost") for url in nodes.urls])  # asyncio may race for a name
    task = await started(maintenance, Watch(maintenance))
    await until(lambda: states(maintenance) == ["up"] * 3)
    await stop(maintenance, task)


@in_loop
async def test_close_ends_though_a_cancellation_is_swallowed_while_a_sentinel_is_connected(monkeypatch):
    """redis-py sends through `asyncio.wait_for`, which swallows some of them on Python 3.11."""
    opened = []

    async def open_connection(connection):
        opened.append(connection)
        try:
            await asyncio.sleep(ENDLESS)
        except asyncio.CancelledError:
            raise ConnectionResetError from None

    monkeypatch.setattr(aio_maintenance, "open_connection", open_connection)
    maintenance = make("redis+sentinel://127.0.0.1:1/mymaster")
    task = await started(maintenance, Watch(maintenance), lambda: opened)
    await asyncio.wait_for(stop(maintenance, task), PATIENCE)
    assert len(opened) == 1


def test_sentinel_is_asked_again_after_an_interruption(monkeypatch):
    asked = []

    async def open_connection(connection):
        asked.append(connection)
        raise KeyboardInterrupt if len(asked) == 1 else ConnectionResetError

    async def is_asked_again():
        maintenance = make("redis+sentinel://127.0.0.1:1/mymaster")
        await stop(maintenance, await started(maintenance, Watch(maintenance), lambda: len(asked) > 2))

    monkeypatch.setattr(aio_maintenance, "open_connection", open_connection)
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(is_asked_again())
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(task)
        runner.run(asyncio.wait_for(task, PATIENCE))


@in_loop
async def test_refusing_node_is_tried_again_with_pauses(nodes):
    events = []
    maintenance = make(nodes.urls, events=events)
    nodes.kill(0)
    tried, note = [], maintenance._registry.note_tried
    maintenance._registry.note_tried = lambda node, error: (tried.append(node.index), note(node, error))
    started_at = clock()
    task = await started(maintenance, Watch(maintenance))
    await until(lambda: tried.count(0) >= 4)
    assert clock() - started_at >= sum(0.05 / 4 * 2**i for i in range(3)), "at least a quarter of each pause"
    nodes.restart(0)
    await until(lambda: states(maintenance) == ["up"] * 3)
    await until(lambda: [event.state for event in events] == ["down", "up"])
    assert all(isinstance(event, NodeChanged) for event in events)
    await stop(maintenance, task)


@in_loop
async def test_alarm_that_a_signal_handler_interrupts_does_not_stop_the_maintenance(nodes, monkeypatch):
    """In a finalizer Python swallows the exception, so the loop runs on."""
    maintenance = make(nodes.urls)
    watch = Watch(maintenance)
    task = await started(maintenance, watch)

    def strike(*_, **__):
        monkeypatch.undo()
        raise Interruption

    monkeypatch.setattr(maintenance._loop, "call_soon", strike)
    with pytest.raises(Interruption):
        maintenance.alarm()
    maintenance.alarm()
    await until(lambda: watch.woken)
    await stop(maintenance, task)


@in_loop
async def test_failed_watchdog_is_restarted_with_a_log_message(nodes, caplog):
    maintenance = make(nodes.urls)
    watch = Watch(maintenance, failures=2)
    task = await started(maintenance, watch)
    await until(lambda: watch.begun == 3)
    await stop(maintenance, task)
    failed = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(failed) == 2
    assert "please report this" in failed[0].getMessage()


@in_loop
async def test_failed_watchdog_is_restarted_though_a_log_filter_raises(nodes, monkeypatch, capsys):
    def broken(record):
        raise ValueError("the application's")

    monkeypatch.setattr(aio_maintenance.log, "filters", [broken])
    maintenance = make(nodes.urls)
    watch = Watch(maintenance, failures=1)
    task = await started(maintenance, watch)
    await until(lambda: watch.begun == 2 or task.done())
    await stop(maintenance, task)
    assert "the application's" in capsys.readouterr().err
