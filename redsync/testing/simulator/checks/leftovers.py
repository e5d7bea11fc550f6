"""Leftovers: a client's transport removes everything temporary once it is no longer needed.

A client is *settled* at instants when its machine has nothing to run. At every such instant

* each connection that the client has made and not abandoned is in use, or being made;
* the client waits for replies only while something is under way, or the node has yet to answer;
* its outbox is empty, and every command that a node refused to execute is about to be sent again;
* for each bell and each round, a task sleeps on a future that is not done, and a timer rings by the deadline of each;
* it remembers no task that has ended.

While none of its protocols runs, a client has no mailbox and no bell, its retry queue and its crowds are empty, and
only its own rounds have sleepers. At the end of a run it has at most one timer for its alarms and one for its
maintenance.

A closed client has no link, no task, no timer and no sleeper.

Not seen: leftovers on a crashed or paused machine, and connections that programs make themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from redsync._drivers.links import Link
from redsync._drivers.requests import Request
from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.letters import WatchedMaintenance, connection_of

if TYPE_CHECKING:
    from redsync._drivers.aio_transport import AioTransport
    from redsync.testing.simulator.nodes import VirtualNode
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["Leftovers"]


class Leftovers(Checker):
    """No connection, future, timer or queue entry is left behind."""

    name = "leftovers"
    every = 0.1

    def look(self) -> Iterable[str]:
        """Look at all clients."""
        for runner, maintenance in self._settled():
            yield from self._look_at(runner, maintenance)

    def finish(self) -> Iterable[str]:
        """Look at all clients, and at all timers."""
        yield from self.look()
        for runner, maintenance in self._settled():
            yield from self._look_at_timers(runner, maintenance)

    def _settled(self) -> Iterator[tuple[SimulatedRunner, WatchedMaintenance]]:
        for machine in self.sim.machines:
            if not (machine.crashed or machine.paused or machine.ready):
                for runner in machine.runners:
                    if isinstance(runner._maintenance, WatchedMaintenance):
                        yield runner, runner._maintenance

    def _look_at(self, runner: SimulatedRunner, maintenance: WatchedMaintenance) -> Iterator[str]:
        transport = maintenance.transport
        left = [*self._connections(runner, maintenance), *_sleepers(transport), *_entries(transport), *_tasks(runner)]
        for link in transport.links:
            if link is not None:
                left += self._replies(link)
        if not runner._active:
            left += _idle(runner, transport)
        if _is_closed(runner):
            left += _closed(maintenance)
        for what in left:
            yield f"{runner.name} has left {what}"

    def _connections(self, runner: SimulatedRunner, maintenance: WatchedMaintenance) -> Iterator[str]:
        used = [connection_of(link) for link in maintenance.transport.links if link is not None]
        for indices, servers in self.sim.world.apart():
            open_ones = [
                connection
                for server in servers
                for connection in self.sim.network.route(runner.machine, server).connections
                if connection.maker is runner and not connection.given_up and connection not in used
            ]
            if len(open_ones) > len(indices & set(maintenance._connecting)):
                yield f"{len(open_ones)} connections to {servers[0].name} open that are not in use"

    def _replies(self, link: Link) -> Iterator[str]:
        """Look for replies that the client waits for although nothing is under way."""
        connection, servers = connection_of(link), self._servers(link.index)
        under_way = connection.there.size or connection.back.size or connection.waits_for_room
        if (
            link.pending
            and connection.open
            and not under_way
            and all(server.has_answered(connection) for server in servers)
        ):
            yield f"{len(link.pending)} requests waiting for replies of {servers[0].name}, which has replied to all"

    def _servers(self, index: int) -> Sequence[VirtualNode]:
        return next(servers for indices, servers in self.sim.world.apart() if index in indices)

    def _look_at_timers(self, runner: SimulatedRunner, maintenance: WatchedMaintenance) -> Iterator[str]:
        most = 0 if _is_closed(runner) else 1
        for whose, name in ((maintenance, "maintenance"), (maintenance.transport._alarms, "alarms")):
            timers = 0
            for _, _, host, action, args in self.sim.timeline.entries:
                if host is runner.machine and args is None and not action.cancelled():
                    timers += getattr(action._callback, "__self__", None) is whose
            if timers > most:
                yield f"{runner.name} has left {timers} timers of its {name}"


def _is_closed(runner: SimulatedRunner) -> bool:
    ends = (runner._opening, runner._closing)
    return runner.closed and not runner._active and all(task is None or task.done() for task in ends)


def _sleepers(transport: AioTransport) -> Iterator[str]:
    asleep = transport._asleep
    deadlines = [at[0] if isinstance(at, list) else at for at in asleep.values()]
    unwatched = sum(deadline < transport._alarms.next for deadline in deadlines)
    if unwatched:
        yield f"{unwatched} asleep without a timer for their deadline"
    woken = sum(sleeper.gate is None for sleeper in asleep)
    if woken:
        yield f"{woken} asleep that were woken"
    rounds = sum(isinstance(sleeper, Request) for sleeper in asleep)
    if transport._rounds > rounds:
        yield f"{transport._rounds} rounds under way, and {rounds} asleep for one"
    for key, bells in transport.wakeups._bells.items():
        if any(bell not in asleep for bell in bells):
            yield f"a bell for {key!r} without a sleeper"


def _entries(transport: AioTransport) -> Iterator[str]:
    outbox = transport._outbox
    if outbox.items or outbox.batch:
        yield f"{len(outbox.items) + len(outbox.batch)} commands in its outbox"
    for link in transport.links:
        if link is None:
            continue
        if link.healing:
            yield f"{len(link.healing)} commands that were to be sent again after NOSCRIPT"
        if link.again.under_way and link.again.at == math.inf and link.again._last not in link.pending:
            yield f"{len(list(link.again))} refused commands that are not sent again"


def _tasks(runner: SimulatedRunner) -> Iterator[str]:
    ended = sum(task.done() for task in (*runner._left, *runner._owners._owners))
    if ended:
        yield f"{ended} tasks that have ended"


def _idle(runner: SimulatedRunner, transport: AioTransport) -> Iterator[str]:
    """While no protocol runs, look for entries that only protocols make."""
    wakeups, crowds = transport.wakeups, runner.session.crowds
    asleep = sum(not isinstance(sleeper, Request) for sleeper in transport._asleep)
    retries = len(wakeups._retries._waiting) + len(wakeups._retries._going)
    counts = {
        "mailboxes": len(wakeups._mailboxes),
        "bells": len(wakeups._bells),
        "retries": retries,
        "sleepers": asleep,
        "waiters in crowds": len(crowds.under_way) + len(crowds._front),
    }
    for name, count in counts.items():
        if count:
            yield f"{count} {name}, and no protocol runs"


def _closed(maintenance: WatchedMaintenance) -> Iterator[str]:
    transport = maintenance.transport
    counts = {
        "links": sum(link is not None for link in transport.links),
        "connecting tasks": len(maintenance._connecting),
        "maintenance tasks": int(maintenance._task is not None and not maintenance._task.done()),
        "sleepers": len(transport._asleep),
        "alarms": len(transport._alarms._heap),
    }
    for name, count in counts.items():
        if count:
            yield f"{count} {name}, and is closed"
