"""Delivery: a command that a node is owed arrives there.

A command that a node is owed (see `Broadcast.owed_to`), above all a release, is settled there when

* the node has executed it, or a later one about the same claim;
* it is pointless, because its `owed_until` has passed;
* the node has lost its memory since, or the client was closed, or its machine has crashed.

Until then

* the client keeps it: for the end of the loop's turn, as sent and not answered, or as a pending release. This holds at
  every instant, so the checker finds a lost command long before its claim expires;
* without faults, the client owes it for at most `bound`: 10 s by a clock that may be slow, after which the client
  abandons a silent connection, and the pauses between two tries to connect. The time starts again with each delayed
  packet that arrives over the connection, because a reply now and then keeps it from being silent.

A command that arrives over an abandoned connection counts as arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import hiredis

from redsync._drivers.pending_releases import is_refused
from redsync._drivers.requests import Request
from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.happenings import Executed, Faulted, Sent
from redsync.testing.simulator.letters import connection_of

if TYPE_CHECKING:
    from redsync.testing.simulator.letters import WatchedLinks
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["Delivery"]

_UNDELAYED = 0.1
"""The longest time in seconds that an undelayed packet is under way."""

_PAUSES = 5.0
"""Seconds for some tries to connect, each with its pause, and to send refused commands again."""


class Delivery(Checker):
    """No command that a node is owed is lost on its way."""

    name = "delivery"
    watches = (Sent, Executed, Faulted)
    every = 0.1

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._owed: Final[dict[tuple[str, int], dict[Request, float]]] = {}
        self._arrived: Final[dict[tuple[str, int], float]] = {}
        """The arrival time of the latest delayed packet over the connection of a client to a node."""

    @property
    def bound(self) -> float:
        """Seconds for which a node may be owed a command without faults."""
        return self.silence + _PAUSES

    def see(self, happening: Sent | Executed | Faulted) -> None:
        """Record owed and arriving commands."""
        match happening:
            case Sent(request=Request() as request):
                for node in self.sim.nodes if request.effect.owed_to else ():
                    if request.owed(1 << node.index):
                        self._owed.setdefault((happening.client, node.index), {})[request] = happening.at
            case Executed(request=Request() as request):
                if not isinstance(happening.reply, hiredis.ReplyError) or not is_refused(str(happening.reply)):
                    self._settle((happening.client, happening.node), request)
            case Faulted():
                if happening.loses_memory:
                    for whose in self._owed:
                        if self.sim.nodes[whose[1]].name == happening.who:
                            self._owed[whose] = {}
            case _:
                pass

    def look(self) -> Iterable[str]:
        """Look for owed commands that were lost or are late."""
        if any(self._owed.values()):
            for machine in self.sim.machines:
                for runner in machine.runners if not machine.crashed else ():
                    if not runner.closed:
                        yield from self._look_at(runner)

    def _settle(self, whose: tuple[str, int], executed: Request) -> None:
        owed = self._owed.get(whose)
        if owed:
            claim, number = executed.claim, executed.number
            self._owed[whose] = {p: at for p, at in owed.items() if p.claim != claim or p.number > number}

    def _look_at(self, runner: SimulatedRunner) -> Iterator[str]:
        now, calm = runner.now(), self.sim.calm.lasted()
        for node in self.sim.nodes:
            whose = runner.name, node.index
            owed = {request: at for request, at in self._owed.get(whose, {}).items() if request.effect.owed_until > now}
            self._owed[whose] = owed
            if not owed:
                continue
            kept, arrived = _kept(runner, node.index), self._watch(whose, runner)
            for request, sent_at in owed.items():
                what = f"#{request.number} of {runner.name} ({request.command.script.name if request.command else ''})"
                if kept.get(request.claim, -1) < request.number:
                    yield f"{node.name} is owed {what}, and the client no longer keeps it"
                elif node.is_well and min(calm, self.sim.now - max(sent_at, arrived)) > self.bound:
                    yield f"{node.name} has been owed {what} for {self.sim.now - sent_at:.3f} s"

    def _watch(self, whose: tuple[str, int], runner: SimulatedRunner) -> float:
        """Return the arrival time of the latest delayed packet that a look has seen on the current connection."""
        for link in (links.links[whose[1]] for links in runner.link_sets):
            if link is None:
                continue
            connection = connection_of(link)
            arrives = max(connection.there.arrives, connection.back.arrives)
            if arrives > self.sim.now + _UNDELAYED:
                self._arrived[whose] = arrives
        return self._arrived.get(whose, 0.0)


def _kept(runner: SimulatedRunner, index: int) -> dict[tuple[object, ...], int]:
    """Return the number of the latest command about each claim that a node has yet to get."""
    links = runner.links
    assert links is not None, "it has sent a command"
    link, releases = links.links[index], links._shared.releases._of_node[index]
    kept: dict[tuple[object, ...], int] = {}
    for request in [
        *releases.requests.values(),
        *releases.under_way,
        *(link.pending if link is not None else ()),
        *links._batch,
        *_under_way(runner.link_sets[1:], index),
    ]:
        kept[request.claim] = max(kept.get(request.claim, 0), request.number)
    return kept


def _under_way(sets: Iterable[WatchedLinks], index: int) -> Iterator[Request]:
    """Yield what other sets have sent to a node, or will send behind that."""
    for links in sets:
        if (link := links.links[index]) is not None:
            yield from link.pending
        yield from links._batch
        yield from (request for node, request in links.following if node == index)
