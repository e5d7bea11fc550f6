"""Leftovers: a client's transport removes everything temporary once it is no longer needed.

A client is *settled* at instants when its machine has nothing to run. At every such instant

* each connection that the client has made and not abandoned is in use, or being made;
* the client waits for replies only while something is under way, or the node has yet to answer;
* nothing waits for the end of the loop's turn, every pending release that was sent waits for its answer, and commands
  are kept only for nodes whose connections were thrown away;
* for each bell and each round, a task sleeps on a gate that is not open, and the timer rings by its deadline;
* it remembers no task that has ended.

While none of its protocols runs, a client has no mailbox and no bell, its retry queue and its crowds are empty, and
only its own rounds have sleepers. At the end of a run it has at most one timer for all sleepers, and one for its
maintenance.

A closed client has no link, no task, no timer and no sleeper.

Not seen: leftovers on a crashed or paused machine, and connections that programs make themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from redsync._drivers.links import AnyLink
from redsync._drivers.requests import Request
from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.letters import WatchedLinks, WatchedMaintenance, connection_of

if TYPE_CHECKING:
    from redsync.testing.simulator.nodes import VirtualNode
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["Leftovers"]

_INEXACT: Final = 1e-6
"""Seconds by which the instant of a timer may differ from a deadline, because sums of floats are inexact."""


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
                    if runner.maintenance is not None:
                        yield runner, runner.maintenance

    def _look_at(self, runner: SimulatedRunner, maintenance: WatchedMaintenance) -> Iterator[str]:
        links = maintenance.own
        left = [*self._connections(runner, maintenance), *self._sleepers(runner, links), *_entries(links)]
        left += _tasks(runner)
        for each in runner.link_sets:
            for link in each.links:
                if link is not None:
                    left += self._replies(link)
        if not runner.life.active:
            left += _idle(runner, links)
        if _is_closed(runner):
            left += _closed(maintenance)
        for what in left:
            yield f"{runner.name} has left {what}"

    def _connections(self, runner: SimulatedRunner, maintenance: WatchedMaintenance) -> Iterator[str]:
        used = [connection_of(link) for links in runner.link_sets for link in links.links if link is not None]
        joining = 0 if runner.sets is None else len(runner.sets.joining)
        for indices, servers in self.sim.world.apart():
            open_ones = [
                connection
                for server in servers
                for connection in self.sim.network.route(runner.machine, server).connections
                if connection.maker is runner and not connection.given_up and connection not in used
            ]
            if len(open_ones) > len(indices & set(maintenance._connecting)) + joining:
                yield f"{len(open_ones)} connections to {servers[0].name} open that are not in use"

    def _replies(self, link: AnyLink) -> Iterator[str]:
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

    def _sleepers(self, runner: SimulatedRunner, links: WatchedLinks) -> Iterator[str]:
        asleep = links._asleep
        rings_at = self._timers(runner).get(id(links), math.inf)
        unwatched = sum(rings_at > until + _INEXACT for _, until in asleep.values())
        if unwatched:
            yield f"{unwatched} asleep without a timer for their deadline"
        woken = sum(gate.done() for gate, _ in asleep.values())
        if woken:
            yield f"{woken} asleep that were woken"
        rounds = sum(isinstance(sleeper, Request) for sleeper in asleep)
        if links._rounds > rounds:
            yield f"{links._rounds} rounds under way, and {rounds} asleep for one"
        for key, bells in runner.life.wakeups._bells.items():
            if any(bell not in asleep for bell in bells):
                yield f"a bell for {key!r} without a sleeper"

    def _timers(self, runner: SimulatedRunner) -> dict[int, float]:
        """Return when the timers of a machine ring, by the identities of the objects whose methods they call."""
        return {
            id(getattr(action._callback, "__self__", None)): action.when()
            for _, _, host, action, args in self.sim.timeline.entries
            if host is runner.machine and args is None and not action.cancelled()
        }

    def _look_at_timers(self, runner: SimulatedRunner, maintenance: WatchedMaintenance) -> Iterator[str]:
        timers = alarms = 0
        for _, _, host, action, args in self.sim.timeline.entries:
            if host is runner.machine and args is None and not action.cancelled():
                whose = getattr(action._callback, "__self__", None)
                timers += whose is maintenance
                alarms += any(whose is links for links in runner.link_sets)
        most = 0 if _is_closed(runner) else 1
        if timers > most:
            yield f"{runner.name} has left {timers} timers of its maintenance"
        if alarms > most * len(runner.link_sets):
            yield f"{runner.name} has left {alarms} timers of its sleepers"


def _is_closed(runner: SimulatedRunner) -> bool:
    life = runner.life
    return (
        runner.closed and not life.active and all(task is None or task.done() for task in (life._opening, life.closing))
    )


def _entries(links: WatchedLinks) -> Iterator[str]:
    if links._batch:
        yield f"{len(links._batch)} commands that were to be sent at the end of the turn"
    if links._kept and not links.returning:
        yield f"{len(links._kept)} commands that are kept for no node"
    for link, releases in zip(links.links, links._shared.releases._of_node, strict=True):
        lost = [request for request in releases.under_way if link is None or request not in link.pending]
        if lost:
            yield f"{len(lost)} refused commands that are not sent again"


def _tasks(runner: SimulatedRunner) -> Iterator[str]:
    ended = sum(task.done() for task in (*runner.life._left, *runner.life.owners._owners))
    if ended:
        yield f"{ended} tasks that have ended"


def _idle(runner: SimulatedRunner, links: WatchedLinks) -> Iterator[str]:
    """While no protocol runs, look for entries that only protocols make."""
    wakeups, crowds = runner.life.wakeups, runner.session.crowds
    asleep = sum(not isinstance(sleeper, Request) for sleeper in links._asleep)
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
    links = maintenance.own
    counts = {
        "links": sum(link is not None for link in links.links),
        "connecting tasks": len(maintenance._connecting),
        "maintenance tasks": int(maintenance._task is not None and not maintenance._task.done()),
        "sleepers": len(links._asleep),
    }
    for name, count in counts.items():
        if count:
            yield f"{count} {name}, and is closed"
