"""Several sets of links in one simulated client, as in a client for threads: each call borrows a free one.

The driver for asyncio uses one set for everything. A client for threads has one for its maintenance, and lends others
to its callers, see `redsync._drivers.pool`. Their commands have no order between sets, so this tries what keeps it
safe: the numbers of claims, `redsync._drivers.pending_releases`, and that former connections are ended on the nodes.

As there, a call keeps its set until it waits, a cancelled round costs the set, and a round that finds none goes out
over the maintenance's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from redsync._core.effects import Broadcast
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.aio import AioCall
from redsync._drivers.handshake_connections import TIMEOUTS, open_connection
from redsync._drivers.handshakes import join
from redsync._drivers.link_sets import Shared
from redsync._drivers.links import AnyLink
from redsync._drivers.nodes import INTERRUPTED, Node, reason_of
from redsync._drivers.pending_releases import keep_behind
from redsync._drivers.requests import Request
from redsync.testing.simulator.runner import WatchedLinks, WatchedMaintenance

if TYPE_CHECKING:
    from tests.simulation.trial_runner import TrialRunner

_GRACE: Final = 0.05
"""Seconds that a call waits for more nodes once a quorum is connected, as `pool.GRACE`."""

_PAUSE: Final = 0.1
"""Seconds after a failed connection until a set tries again."""


class _Links(WatchedLinks):
    """A set whose releases wait for other sets."""

    _runner: TrialRunner

    def send(self, *requests: Request) -> None:
        """Send requests, and report them."""
        super().send(*requests)
        if (sets := self._runner.sets) is not None:
            for request in requests:
                sets.keep_behind(request, self)


class LendingMaintenance(WatchedMaintenance):
    """A maintenance that also maintains the sets that calls borrow."""

    _runner: TrialRunner

    async def _read(self) -> float:
        if self._runner.sets is not None:
            await self._runner.sets.read()
        return await super()._read()

    def _owes(self) -> bool:
        sets = self._runner.sets
        return super()._owes() or (sets is not None and any(link_set.owes for link_set in sets.all))

    async def stop(self) -> None:
        """End the task and all connections."""
        try:
            await super().stop()
        finally:
            if self._runner.sets is not None:
                self._runner.sets.end()

    def _make_set(self, shared: Shared) -> _Links:
        return _Links(self._runner, shared, self._loop, self._on_broken)


class LentLinks(_Links):
    """A set that is lent to one call at a time.

    Attributes:
        connecting: The indexes of the nodes to which a connection is being made.
        retry_at: For each node, the instant from which it may be connected.
    """

    def __init__(self, runner: TrialRunner, shared: Shared) -> None:
        super().__init__(runner, shared, runner.sim.loop, lambda *_: None)
        self.connecting: Final[set[int]] = set()
        self.retry_at: Final = [0.0] * len(shared.nodes)

    def deliver(self, node: Node, now: float) -> None:
        """Send no pending releases."""

    def _note_connected(self, link: AnyLink) -> None:
        """Record nothing: a node is up while the maintenance is connected to it."""


class Sets:
    """The sets that a simulated client lends to its calls, and what they need of its maintenance.

    Attributes:
        all: All that have not ended.
        joining: The tasks that connect them.
    """

    def __init__(self, runner: TrialRunner, maintenance: WatchedMaintenance, shared: Shared, count: int) -> None:
        """Make none yet; at most `count`."""
        self._runner: Final = runner
        self._maintenance: Final = maintenance
        self._shared: Final = shared
        self._count: Final = count
        shared.releases.others = lambda: self.all
        self._free: Final[list[LentLinks]] = []
        self._lent: Final[dict[AioCall, LentLinks]] = {}
        self.joining: Final[set[asyncio.Task[None]]] = set()
        self.all: Final[list[LentLinks]] = []

    # For calls.

    async def borrow(self, call: AioCall, effect: Broadcast) -> None:
        """Lend a free set to a call that has none; there may be no free one."""
        if call not in self._lent and (self._free or len(self.all) < self._count):
            if self._free:
                link_set = self._free.pop()
            else:
                link_set = LentLinks(self._runner, self._shared)
                self.all.append(link_set)
            self._lent[call] = link_set
            await self._connect_missing(link_set, 0.0 if effect.deliver_to else effect.timeout)

    def links(self, call: AioCall) -> WatchedLinks:
        """Return the set over which a call sends."""
        return self._lent.get(call, self._maintenance.own)

    def keep_behind(self, request: Request, links: WatchedLinks) -> None:
        """Keep a release for the nodes that have not answered over another set."""
        if request.effect.deliver_to:
            keep_behind(request, links, self._shared, self._maintenance.own)

    def take_back(self, call: AioCall) -> None:
        """Take a call's set back, if it has one."""
        if call in self._lent:
            self._free.append(self._lent.pop(call))

    def throw_away(self, call: AioCall) -> None:
        """End a call's set, because an exception struck in its round."""
        if call in self._lent:
            link_set = self._lent.pop(call)
            self.all.remove(link_set)
            link_set.end(INTERRUPTED, orderly=False)
            # Before the rollback goes out, over the same links.
            self.end_former(self._shared.clock())

    async def _connect_missing(self, link_set: LentLinks, timeout: float) -> None:
        """Connect nodes that are known to be up; wait for a quorum, and briefly for the others."""
        clock, quorum = self._shared.clock, self._runner.session.quorum
        now = clock()
        until = now + timeout
        for node in self._shared.nodes:
            index = node.index
            missing = node.connected and link_set.links[index] is None and index not in link_set.connecting
            if missing and link_set.retry_at[index] <= now:
                link_set.connecting.add(index)
                task = asyncio.get_running_loop().create_task(self._connect(link_set, node))
                self.joining.add(task)
                task.add_done_callback(self.joining.discard)
        while link_set.connecting and (now := clock()) < until:
            if sum(link is not None for link in link_set.links) >= quorum:
                until = min(until, now + _GRACE)
            await asyncio.sleep(0.01)

    async def _connect(self, link_set: LentLinks, node: Node) -> None:
        timeout, index = self._maintenance.connect_timeout, node.index
        generation = node.generation
        try:
            async with asyncio.timeout(TIMEOUTS * timeout):
                connection = await open_connection(node.make_connection(timeout))
                try:
                    link = link_set.make_link(node, connection, await connection.run(join(node, generation)))
                    link.generation = generation
                    if node.needed:
                        hold_back(link, node.needed, self._runner.timing.node_timeout)
                    if link_set.closed:
                        raise ConnectionError("its set has ended")
                except BaseException:
                    connection.close()
                    raise
            link_set.install(link)
        except Exception as problem:
            reason_of(problem, node.address, node.down_reason)
            link_set.retry_at[index] = self._shared.clock() + _PAUSE
        finally:
            link_set.connecting.discard(index)

    # For the maintenance.

    async def read(self) -> None:
        """Look for silent nodes."""
        for link_set in list(self.all):
            if link_set.owes:
                link_set.look(await link_set.read_all())

    def end_former(self, now: float) -> None:
        """End former connections on their nodes."""
        for node in self._shared.nodes:
            if self._maintenance.own.links[node.index] is not None:
                self._maintenance.own.deliver(node, now)

    def end(self) -> None:
        """End all sets: the client was closed."""
        for task in self.joining:
            task.cancel()
        for link_set in self.all:
            link_set.end("the client was closed", orderly=True)
        self.all.clear()
        self._free.clear()
        self._lent.clear()
