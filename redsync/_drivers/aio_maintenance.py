"""Maintenance of an asyncio client: one task that does the work that no caller waits for.

It runs the watchdog protocol. While the watchdog sleeps, it reconnects nodes with growing pauses, delivers pending
releases, looks for nodes that owe replies, and reports changes of nodes' states. Each connect has its own task, one at
a time per node.

A loop that ends cancels all its tasks. The maintenance then closes the client, which releases its holds while that is
still possible.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redsync._core.events import Event
from redsync._core.keys import wake_channel
from redsync._core.memory import FIRST_USE, Processes
from redsync._core.timing import Timing
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.aio_channels import AioChannel, open_channel, open_fake_channel
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.aio_watches import AioWatches
from redsync._drivers.greetings import end_former, greet, load_scripts, subscribe
from redsync._drivers.link_sets import Shared
from redsync._drivers.links import AnyLink, speak
from redsync._drivers.maintenance import PAUSE_AFTER_FAILURE, STRAGGLERS, TICK, Stopped
from redsync._drivers.node_registry import NodeRegistry
from redsync._drivers.nodes import TIMEOUTS, Node, NodeStatus
from redsync._drivers.redis_py import Addresses

__all__ = ["AioMaintenance"]

log = logging.getLogger("redsync.watchdog")


class AioMaintenance:
    """The links of one client and the task that keeps it alive. Everything happens in the loop's thread.

    Attributes:
        links: The client's set of links.
    """

    def __init__(
        self,
        *,
        shared: Shared,
        client_id: str,
        random: Callable[[], float],
        timing: Timing,
        processes: Processes,
        tell: Callable[[Event], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._shared: Final = shared
        self._nodes: Final = shared.nodes
        self._clock: Final = shared.clock
        self._client_id: Final = client_id
        self._node_timeout: Final = timing.node_timeout
        self._connect_timeout: Final = max(4 * timing.node_timeout, 1.0)
        self._loop: Final = loop
        self.links = self._make_links(shared)
        self._addresses: Final = [Addresses() for _ in self._nodes]
        self._watches: Final = AioWatches(self._nodes, self._connect_timeout, self._clock, self._on_moved)
        self._registry: Final = NodeRegistry(
            self._nodes,
            self.links,
            self._clock,
            restart_guard=timing.restart_guard,
            processes=processes,
            tell=tell,
            wake=self.wake,
            random=random,
        )
        self._connecting: Final[dict[int, asyncio.Task[None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._stopping = self._hurried = self._alarmed = False
        self._patient_until = math.inf

    def _make_links(self, shared: Shared) -> AioLinkSet:
        return AioLinkSet(shared, self._loop, self._on_broken)

    # Life.

    async def start(
        self, watch: Callable[[], Awaitable[object]], on_cancelled: Callable[[], Awaitable[object]]
    ) -> None:
        """Wait briefly for the first connections, and start the task.

        Args:
            watch: Runs the watchdog.
            on_cancelled: Closes the client.

        Raises:
            ConfigurationError: Two nodes are the same server.
            Exception: A programming error while connecting.
        """
        self._watches.start()
        self._connect_missing()
        registry = self._registry
        deadline = self._clock() + self._connect_timeout
        await self._wait_until(deadline, lambda: self._hurried or registry.is_heard() or registry.has_quorum())
        if not registry.may_be_first_use():
            deadline = min(deadline, self._clock() + STRAGGLERS)
        await self._wait_until(deadline, lambda: self._hurried or registry.is_heard())
        await self._initialize_first()
        registry.require_usable()
        self._task = self._loop.create_task(self._main(watch, on_cancelled), name="redsync-maintenance")
        # Let it begin now: a task cancelled before its first step never runs, and would not close the client.
        await asyncio.sleep(0)

    async def _initialize_first(self) -> None:
        """Initialize new nodes before the first claims, which wait briefly for that."""
        registry, timeout = self._registry, self._node_timeout
        end = self._clock() + FIRST_USE + timeout
        while self._clock() < end and not self._hurried:
            request = registry.initialize(self.links.send_soon)
            if request is not None:
                await self.links.wait(request, self._clock() + timeout)
                if not request.done:
                    self.links.close_round(request, "no answer in time")
            elif registry.initialize_at < end:
                await self._wait_until(registry.initialize_at, lambda: self._hurried)
            else:
                break

    async def _main(
        self, watch: Callable[[], Awaitable[object]], on_cancelled: Callable[[], Awaitable[object]]
    ) -> None:
        try:
            while True:
                try:
                    await watch()
                except Exception:
                    # An unrelated error must not cost a hold: log it, and continue with a new watchdog.
                    log.exception("the watchdog failed and starts again; please report this")
                    self.links.throw_away()
                    await asyncio.sleep(PAUSE_AFTER_FAILURE)
        except Stopped:
            return
        except asyncio.CancelledError:
            # This task waits for the close, so the close must not wait for this task.
            self._task = None
            if not self._stopping:
                await on_cancelled()
            raise

    async def stop(self) -> None:
        """End the task and all connections; a cancellation meanwhile propagates when that is done."""
        self._stopping = True
        self.wake()
        ending = [*self._connecting.values(), *self._watches.tasks]
        for task in ending:
            task.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            ending.append(self._task)
        cancelled: asyncio.CancelledError | None = None
        ended = False
        while not ended:
            try:
                ended = await self._wait_for_end(ending)
            except asyncio.CancelledError as error:
                cancelled = error
        # A task cancelled before its first step never runs, and does not remove itself.
        self._connecting.clear()
        self.links.end("the client was closed", orderly=True)
        if cancelled is not None:
            raise cancelled

    async def _wait_for_end(self, ending: Sequence[asyncio.Future[Any]]) -> bool:
        """Wait for tasks, pending releases, and replies that nodes still owe; return True when that is done."""
        if pending := [task for task in ending if not task.done()]:
            await asyncio.wait(pending)
        # Rollbacks may be in flight. Closing a socket with unread replies resets the connection and would lose them.
        self._patient_until = min(self._patient_until, self._clock() + self._node_timeout)
        links, count = self.links.links, self._shared.releases.count
        while self._clock() < self._patient_until:
            owing = await self._tend()
            if not (owing or any(link is not None and count(link.index) for link in links)):
                break
            await asyncio.sleep(0.001)
        return True

    def hurry(self) -> None:
        """Stop waiting for first connections: a round proceeds without them, and its claim needs the watchdog."""
        self._hurried = True
        self.wake()

    def is_current(self) -> bool:
        """Return True in the maintenance's own task."""
        return self._task is not None and self._task is asyncio.current_task()

    def alarm(self) -> None:
        """Make the watchdog look at once."""
        self._alarmed = True
        self.wake()

    def _on_broken(self, node: Node, reason: str) -> None:
        self._registry.note_broken(node, reason)
        self.wake()

    def _on_moved(self, node: Node) -> None:
        self._registry.move(node)
        self.wake()

    def wake(self) -> None:
        """Make the task look at once."""
        # Tasks that outlive their closed loop come here when they are garbage-collected.
        if self._waiting is not None and not self._waiting.done() and not self._loop.is_closed():
            self._waiting.set_result(None)

    async def _wait_for(self, seconds: float) -> None:
        """Sleep for at most `seconds`, or until `wake`."""
        self._waiting = waiting = self._loop.create_future()
        timer = self._loop.call_later(seconds, self.wake)
        try:
            await waiting
        finally:
            timer.cancel()

    async def _wait_until(self, deadline: float, ready: Callable[[], bool]) -> None:
        while not ready() and self._clock() < deadline:
            await self._wait_for(deadline - self._clock())

    async def sleep(self, until: float) -> None:
        """Do the maintenance's work until an instant or an alarm.

        Raises:
            Stopped: The client is closing.
        """
        registry, releases = self._registry, self._shared.releases
        while True:
            owing = await self._tend()
            registry.initialize(self.links.send_soon)
            registry.tell_changes()
            self._connect_missing()
            if self._stopping:
                raise Stopped
            now = self._clock()
            if self._alarmed or now >= until:
                self._alarmed = False
                return
            soon = min(until, registry.next_try(self._connecting), registry.initialize_at)
            if releases.some:
                soon = min(soon, *(releases.due_at(node.index) for node in self._nodes if node.connected), math.inf)
            await self._wait_for(min(max(soon - now, 0.001), self._node_timeout / 2 if owing else TICK))

    async def _tend(self) -> bool:
        """Deliver due releases, and look for links that must be replaced; return True while nodes owe replies."""
        links, now = self.links, self._clock()
        links.recover()
        for node in self._nodes:
            link = links.links[node.index]
            if link is not None and link.generation != node.generation:
                links.discard(link, node.moved() or node.excuse)
            elif link is not None and self._shared.releases.some:
                links.deliver(node, now)
        if links.owes:
            links.look(await links.read_all())
        return links.owes

    # Nodes.

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        count = self._shared.releases.count
        return [status._replace(pending=count(i)) for i, status in enumerate(self._registry.statuses())]

    def _connect_missing(self) -> None:
        if not self._stopping:
            for node in self._registry.due(self._connecting):
                name = f"redsync-connect-{node.address}"
                self._connecting[node.index] = self._loop.create_task(self._connect(node), name=name)

    async def _connect(self, node: Node) -> None:
        error: str | None = None
        limit = asyncio.timeout(TIMEOUTS * self._connect_timeout)
        try:
            async with limit:
                await self._connect_link(node)
        except Exception as problem:
            late = TimeoutError("did not finish the handshake in time") if limit.expired() else problem
            error = self._registry.note_failure(node, late)
        finally:
            self._connecting.pop(node.index, None)
        self._registry.note_tried(node, error)
        if error is not None:
            self.links.note_failed(node, error)
        self.wake()

    async def _connect_link(self, node: Node) -> None:
        await self._watches.locate(node)
        channel = await open_fake_channel(node)
        if channel is None:
            channel = await open_channel(node.make_connection(self._connect_timeout), self._addresses[node.index])
        try:
            self._registry.meet(node, await channel.talk(greet(node, self._node_timeout, raw=channel.raw)))
            # Before anything else is sent: a late command of a former connection must not come behind it.
            tag = await channel.talk(end_former(node))
            await channel.talk(load_scripts())
            await channel.talk(subscribe(node.dialect, wake_channel(self._client_id), raw=channel.raw))
            link = self._link(node, channel, tag)
        except BaseException:
            channel.close()
            raise
        self._shared.releases.clear_pause(node.index)
        self.links.install(link)

    def _link(self, node: Node, channel: AioChannel, tag: tuple[str, int] | None) -> AnyLink:
        link = self.links.make_link(node, channel, tag)
        if node.is_lent:
            speak(link)
        if node.needed:
            hold_back(link, node.needed, self._node_timeout)
        return link
