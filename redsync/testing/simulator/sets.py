"""Several sets of links in one simulated client, as in a client for threads: each call borrows a free one.

The driver for asyncio uses one set for everything. A client for threads has one for its maintenance, and lends others
to its callers, see `redsync._drivers.pool`. Their commands have no order between sets, so this tries what keeps it
safe: the numbers of claims, `redsync._drivers.owing`, and that former connections are ended on the nodes.

As there, a call keeps its set until it waits. A cancelled round costs the set. A release that finds no set goes out
over the maintenance's; here other rounds do so too, instead of waiting in line.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from redsync._core.effects import Broadcast, Tell
from redsync._core.ownership import Owner
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.aio_channels import open_channel
from redsync._drivers.aio_driver import AioCall
from redsync._drivers.greetings import join
from redsync._drivers.link_sets import AnyLinkSet, Shared
from redsync._drivers.links import AnyLink, speak
from redsync._drivers.maintenance import Kill
from redsync._drivers.nodes import INTERRUPTED, TIMEOUTS, Node, reason_of
from redsync._drivers.owing import Owing
from redsync._drivers.redis_py import Addresses
from redsync._drivers.requests import Request
from redsync.testing.simulator.letters import MAKER, WatchedLinks, WatchedMaintenance

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["LentLinks", "Sets"]

_GRACE: Final = 0.05
"""Seconds that a call waits for more nodes once a quorum is connected, as `pool.GRACE`."""

_PAUSE: Final = 0.1
"""Seconds after a failed connection until a set tries again."""


class LentLinks(WatchedLinks):
    """A set that is lent to one call at a time.

    Attributes:
        connecting: The indexes of the nodes to which a connection is being made.
        retry_at: For each node, the instant from which it may be connected.
    """

    def __init__(self, runner: SimulatedRunner, shared: Shared) -> None:
        super().__init__(runner, shared, runner.sim.loop, lambda *_: None)
        self.connecting: Final[set[int]] = set()
        self.retry_at: Final = [0.0] * len(shared.nodes)

    def due(self, node: Node, now: float) -> list[Request]:  # noqa: ARG002  (the maintenance delivers them)
        """Return no pending releases."""
        return []

    def _reload(self, link: AnyLink, request: Request, now: float) -> None:
        AnyLinkSet._reload(self, link, request, now)  # No round waits for a connection that is replaced.

    def _note_connected(self, link: AnyLink) -> None:
        """Record nothing: a node is up while the maintenance is connected to it."""


class Sets:
    """The sets that a simulated client lends to its calls, and what they need of its maintenance.

    Attributes:
        all: All that have not ended.
        joining: The tasks that connect them.
    """

    def __init__(self, runner: SimulatedRunner, maintenance: WatchedMaintenance, shared: Shared, count: int) -> None:
        """Make none yet; at most `count`."""
        self._runner: Final = runner
        self._maintenance: Final = maintenance
        self._shared: Final = shared
        self._count: Final = count
        self._owing: Final = Owing(shared.next_number, nullcontext())
        self._owing.own = maintenance.own
        self._addresses: Final = [Addresses() for _ in shared.nodes]
        self._kills: Final[list[dict[tuple[str, int], Kill]]] = [{} for _ in shared.nodes]
        self._free: Final[list[LentLinks]] = []
        self._lent: Final[dict[AioCall, tuple[LentLinks, Owner | None]]] = {}
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
            self._lent[call] = link_set, effect.owner
            await self._connect_missing(link_set, 0.0 if effect.owed_to else effect.timeout)

    def links(self, call: AioCall, effect: Broadcast | Tell) -> WatchedLinks:
        """Return the set over which a call sends."""
        link_set, _ = self._lent.get(call, (None, None))
        if link_set is None:
            return self._maintenance.own
        self._lent[call] = link_set, effect.owner
        return link_set

    def follow(self, request: Request, links: WatchedLinks) -> None:
        """Let a release follow its claim over other sets."""
        if request.effect.owed_to and self._owing.follow(request, links):
            self._maintenance.wake()

    def give_back(self, call: AioCall) -> None:
        """Take a call's set, if it has one."""
        if call in self._lent:
            link_set, owner = self._lent.pop(call)
            if owner is not None and link_set.owes:
                self._owing.note(owner, link_set)
            link_set.follow(self._shared.clock())
            self._free.append(link_set)

    def throw_away(self, call: AioCall) -> None:
        """End a call's set, because an exception struck in its round."""
        if call in self._lent:
            link_set, _ = self._lent.pop(call)
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
        MAKER.set(self._runner)
        timeout, index = self._maintenance.connect_timeout, node.index
        try:
            async with asyncio.timeout(TIMEOUTS * timeout):
                channel = await open_channel(node.make_connection(timeout), self._addresses[index])
                try:
                    link = link_set.make_link(node, channel, await channel.talk(join(node)))
                    if node.is_lent:
                        speak(link)
                    if node.needed:
                        hold_back(link, node.needed, self._runner.timing.node_timeout)
                    if link_set.closed:
                        raise ConnectionError("its set has ended")
                except BaseException:
                    channel.close()
                    raise
            link_set.install(link)
        except Exception as problem:
            reason_of(problem, node.address, node.excuse)
            link_set.retry_at[index] = self._shared.clock() + _PAUSE
        finally:
            link_set.connecting.discard(index)

    # For the maintenance.

    def follow_up(self, now: float) -> None:
        """Send what must follow."""
        self._maintenance.own.follow(now)
        for link_set in list(self.all):
            link_set.follow(now)

    async def read(self) -> None:
        """Look for silent nodes."""
        for link_set in list(self.all):
            if link_set.owes:
                link_set.look(await link_set.read_all())

    def end_former(self, now: float) -> None:
        """End former connections on their nodes."""
        for node in self._shared.nodes:
            link, kills = self._maintenance.own.links[node.index], self._kills[node.index]
            for tag in [tag for tag, kill in kills.items() if kill.refused or tag not in node.former]:
                del kills[tag]
            if link is None:
                kills.clear()
                continue
            process = None if node.info is None else node.info.run_id
            for tag in sorted(node.former - kills.keys()):
                if tag[0] != process:
                    node.former.discard(tag)  # It has ended with its process.
                else:
                    kills[tag] = Kill(node, tag)
                    self._maintenance.own.send_to(node.index, [kills[tag]], now)

    def end(self) -> None:
        """End all sets: the client was closed."""
        for task in self.joining:
            task.cancel()
        for link_set in self.all:
            link_set.end("the client was closed", orderly=True)
        self.all.clear()
        self._free.clear()
        self._lent.clear()
