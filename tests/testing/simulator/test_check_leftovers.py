"""The checker of leftovers: it finds temporary objects that a client's transport keeps."""

import asyncio
import math

import pytest

from redsync._core.effects import Command, Tell
from redsync._core.scripts import Script
from redsync._drivers.aio_channels import open_channel
from redsync._drivers.aio_link_sets import AioLinkSet, Gate, StreamLink
from redsync._drivers.aio_maintenance import AioMaintenance
from redsync._drivers.link_sets import AnyLinkSet
from redsync._drivers.redis_py import Addresses
from redsync._drivers.requests import Request, Retry, Sleeper
from redsync._drivers.wakeups import Wakeups
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Leftovers
from redsync.testing.simulator.loop import VirtualLoop
from tests.support.hunting import connect, hunt


def do_nothing(*_args, **_options):
    pass


# Entries.


@pytest.mark.parametrize(("kind", "complaint"), [(bytes, "mailboxes"), (Retry, "retries")])
def test_checker_finds_mailbox_or_turn_to_ask_again_that_is_never_forgotten(monkeypatch, kind, complaint):
    unsubscribe = Wakeups.unsubscribe
    monkeypatch.setattr(
        Wakeups,
        "unsubscribe",
        lambda wakeups, kept: None if isinstance(kept, kind) else unsubscribe(wakeups, kept),
    )
    assert f"{complaint}, and no protocol runs" in hunt(Leftovers, range(10))


def test_checker_finds_commands_that_are_never_sent(monkeypatch):
    monkeypatch.setattr(AioLinkSet, "flush", do_nothing)
    assert "commands that were to be sent at the end of the turn" in hunt(Leftovers, range(2, 12))


def test_checker_finds_refused_commands_that_are_not_sent_again(monkeypatch):
    monkeypatch.setattr(AnyLinkSet, "deliver", lambda links, node, now: links._shared.releases.take(node.index, now))
    assert "refused commands that are not sent again" in hunt(Leftovers, range(4, 20))


def test_checker_finds_sleepers_without_a_timer(monkeypatch):
    call_later = VirtualLoop.call_later

    def call_never(loop, delay, callback, *args, **options):
        timer = call_later(loop, delay, callback, *args, **options)
        if isinstance(getattr(callback, "__self__", None), AioLinkSet):
            timer.cancel()
        return timer

    monkeypatch.setattr(VirtualLoop, "call_later", call_never)
    assert "asleep without a timer for their deadline" in hunt(Leftovers, range(10))


# Connections.


def test_checker_finds_connection_that_stays_open_when_its_connect_is_cancelled(monkeypatch):
    async def connect_and_forget(maintenance, node):
        channel = await open_channel(node.make_connection(maintenance.connect_timeout), Addresses())
        tag = await channel.talk(maintenance._introduce(node, raw=True))
        maintenance.own.install(maintenance.own.make_link(node, channel, tag))

    monkeypatch.setattr(AioMaintenance, "_connect_link", connect_and_forget)
    assert "1 connections to node-" in hunt(Leftovers, range(8, 20))


def test_checker_finds_connection_that_is_discarded_and_stays_open(monkeypatch):
    give_up_node()
    monkeypatch.setattr(StreamLink, "reset", do_nothing)
    with pytest.raises(SimulationError, match=r"leftovers: a has left \d connections to node-1 open"):
        give_up_node()


def give_up_node():
    """Let a node hang until the client abandons its connection."""
    with Simulation(seed=1, checkers=[Leftovers], lease=2.0, restart_guard=0.0) as sim:
        machine = sim.machine("a")
        client = machine.client()

        async def visit():
            for _ in range(20):
                async with client.get_lock("x"):
                    await asyncio.sleep(1.0)

        machine.start(visit())
        sim.run(until=1.5)
        sim.nodes[0].hang()
        sim.run(until=15.0)
        sim.nodes[0].resume()
        sim.run()


# By hand.


SIMULATION = {"seed": 1, "checkers": [Leftovers], "lease": 2.0, "restart_guard": 0.0}


@pytest.fixture
def runner(sim):
    runner = connect(sim)
    sim.check()
    return runner


def finds(sim, text):
    with pytest.raises(SimulationError, match=text):
        sim.check()


def test_request_that_nothing_under_way_answers_is_a_leftover(sim, runner):
    pending = runner.links.links[0].pending
    pending.append(Request(Tell(Command(Script.load("lock_release"), (b"x",), (b"a:1:1", 0)), None), None))
    finds(sim, "leftovers: a has left 1 requests waiting for replies of node-1")
    sim.nodes[0].hang()
    sim.check()
    sim.nodes[0].resume()
    pending.clear()


def test_sleepers_are_leftovers(sim, runner):
    sleeper, gate = Sleeper(), Gate(runner.links, sim.loop)
    gate.set_result(None)
    runner.links._asleep[sleeper] = gate, math.inf
    finds(sim, "1 asleep that were woken\n.*1 sleepers, and no protocol runs")
    del runner.links._asleep[sleeper]


def test_round_and_bell_are_leftovers(sim, runner):
    runner.links._rounds += 1
    finds(sim, "1 rounds under way, and 0 asleep for one")
    runner.links._rounds -= 1
    runner.life.wakeups._bells[b"x"] = [Sleeper()]
    finds(sim, "a bell for b'x' without a sleeper\n.*1 bells, and no protocol runs")
    runner.life.wakeups._bells.clear()


def test_timers_are_leftovers(sim, runner):
    for callback, count, complaint in (
        (runner.maintenance.wake, 1, "2 timers of its maintenance"),
        (runner.links._ring, 2, "2 timers of its sleepers"),
    ):
        context = sim.machines[0].context
        timers = [sim.loop.call_later(1.0, callback, context=context.copy()) for _ in range(count)]
        finds(sim, complaint)
        for timer in timers:
            timer.cancel()
        sim.check()


def test_kept_command_and_ended_task_are_leftovers(sim, runner):
    runner.links._kept[None] = None
    finds(sim, "1 commands that are kept for no node")
    runner.links._kept.clear()
    runner.life._left.add(sim.machines[0].tasks[0])
    finds(sim, "1 tasks that have ended")
    runner.life._left.clear()


def test_waiter_in_a_crowd_is_a_leftover(sim, runner):
    runner.session.crowds.enter(b"x", b"stranger")
    finds(sim, "1 waiters in crowds")
    sim.machines[0].crash()
    sim.check()


def close(sim, runner):
    sim.machines[0].start(runner.close())
    sim.run()
    sim.run(until=sim.now + 0.5)


def test_closed_client_has_nothing(sim, runner):
    close(sim, runner)


def test_checker_finds_what_a_closed_client_keeps(sim, runner, monkeypatch):
    monkeypatch.setattr(AioLinkSet, "end", do_nothing)
    close(sim, runner)
    finds(sim, "3 links, and is closed")
    sim.machines[0].crash()


def test_checker_finds_maintenance_that_outlives_its_closed_client(sim, runner, monkeypatch):
    async def stop():
        pass

    monkeypatch.setattr(runner.maintenance, "stop", stop)
    close(sim, runner)
    finds(sim, "3 links, and is closed\n.*1 maintenance tasks, and is closed\n.*1 timers of its maintenance")
    sim.machines[0].crash()


def test_connect_that_is_cancelled_before_its_first_step_is_forgotten(sim, runner):
    maintenance = runner.maintenance

    async def stop_at_once():
        maintenance.own.discard(maintenance.own.links[0], "given up")
        maintenance._start_connect(maintenance._nodes[0])
        assert list(maintenance._connecting) == [0]
        await maintenance.stop()

    sim.machines[0].start(stop_at_once())
    sim.run()
    assert not maintenance._connecting
