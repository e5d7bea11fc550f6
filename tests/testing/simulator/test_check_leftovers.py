"""The checker of leftovers: it finds temporary objects that a client's transport keeps."""

import asyncio
import math

import pytest
from redsync._drivers.aio_links import open_link
from redsync._drivers.aio_transport import AioTransport
from redsync._drivers.alarms import Alarms
from redsync._drivers.outboxes import Outbox

from redsync._core.effects import Command, Tell
from redsync._core.keys import wake_channel
from redsync._core.scripts import Script
from redsync._drivers.aio_maintenance import AioMaintenance
from redsync._drivers.dialects import PLAIN
from redsync._drivers.greetings import end_former, greet, load_scripts, subscribe
from redsync._drivers.links import Link
from redsync._drivers.requests import Request, Retry, Sleeper
from redsync._drivers.wakeups import Wakeups
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Leftovers
from tests.support.hunting import connect, hunt


def do_nothing(*_args):
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


def test_checker_finds_commands_that_stay_in_the_outbox(monkeypatch):
    monkeypatch.setattr(AioTransport, "_flush", do_nothing)
    assert "commands in its outbox" in hunt(Leftovers, range(2, 12))


def test_checker_finds_refused_commands_that_are_not_sent_again(monkeypatch):
    monkeypatch.setattr(Outbox, "_retry", do_nothing)
    assert "refused commands that are not sent again" in hunt(Leftovers, range(4, 20))


def test_checker_finds_sleepers_without_a_timer(monkeypatch):
    monkeypatch.setattr(Alarms, "_enter_new", do_nothing)
    assert "asleep without a timer for their deadline" in hunt(Leftovers, range(10))


# Connections.


def test_checker_finds_connection_that_stays_open_when_its_connect_is_cancelled(monkeypatch):
    async def connect_and_forget(maintenance, node):
        link = await open_link(node, maintenance._connect_timeout)
        maintenance._registry.meet(node, await link.talk(greet(node, 1.0, raw=link.raw)))
        link.tag = await link.talk(end_former(node))
        await link.talk(load_scripts())
        await link.talk(subscribe(PLAIN, wake_channel(maintenance._client_id), raw=link.raw))
        maintenance.transport.install(link)

    monkeypatch.setattr(AioMaintenance, "_connect_link", connect_and_forget)
    assert "1 connections to node-" in hunt(Leftovers, range(8, 20))


def test_checker_finds_connection_that_is_discarded_and_stays_open(monkeypatch):
    give_up_node()
    monkeypatch.setattr(Link, "reset", do_nothing)
    monkeypatch.setattr("redsync._drivers.aio_links.StreamLink.reset", do_nothing)
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
    pending = runner.transport.links[0].pending
    pending.append(Request(Tell(Command(Script.load("lock_release"), (b"x",), (b"a:1:1", 0)), None), None))
    finds(sim, "leftovers: a has left 1 requests waiting for replies of node-1")
    sim.nodes[0].hang()
    sim.check()
    sim.nodes[0].resume()
    pending.clear()


def test_sleepers_are_leftovers(sim, runner):
    sleeper = Sleeper()
    runner.transport._asleep[sleeper] = math.inf
    finds(sim, "1 asleep that were woken\n.*1 sleepers, and no protocol runs")
    del runner.transport._asleep[sleeper]


def test_round_and_bell_are_leftovers(sim, runner):
    runner.transport._rounds += 1
    finds(sim, "1 rounds under way, and 0 asleep for one")
    runner.transport._rounds -= 1
    runner.transport.wakeups._bells[b"x"] = [Sleeper()]
    finds(sim, "a bell for b'x' without a sleeper\n.*1 bells, and no protocol runs")
    runner.transport.wakeups._bells.clear()


def test_timer_is_a_leftover(sim, runner):
    maintenance = runner._maintenance
    timer = sim.loop.call_later(1.0, maintenance._wake, context=sim.machines[0].context.copy())
    finds(sim, "2 timers of its maintenance")
    timer.cancel()
    sim.check()


def test_resend_and_ended_task_are_leftovers(sim, runner):
    link = runner.transport.links[0]
    link.healing.append(None)
    finds(sim, "1 commands that were to be sent again after NOSCRIPT")
    link.healing.clear()
    runner._left.add(sim.machines[0].tasks[0])
    finds(sim, "1 tasks that have ended")
    runner._left.clear()


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
    monkeypatch.setattr(AioTransport, "dispose", do_nothing)
    close(sim, runner)
    finds(sim, "3 links, and is closed")
    sim.machines[0].crash()


def test_checker_finds_maintenance_that_outlives_its_closed_client(sim, runner, monkeypatch):
    async def stop():
        pass

    monkeypatch.setattr(runner._maintenance, "stop", stop)
    close(sim, runner)
    finds(sim, "3 links, and is closed\n.*1 maintenance tasks, and is closed\n.*1 timers of its maintenance")
    sim.machines[0].crash()


def test_connect_that_is_cancelled_before_its_first_step_is_forgotten(sim, runner):
    maintenance = runner._maintenance

    async def stop_at_once():
        runner.transport._table.discard(runner.transport.links[0], "given up")
        maintenance._registry._retry_at[0] = 0.0
        maintenance._connect_missing()
        assert list(maintenance._connecting) == [0]
        await maintenance.stop()

    sim.machines[0].start(stop_at_once())
    sim.run()
    assert not maintenance._connecting
