"""Maintenance of an asyncio client: one task that does the work that no caller waits for.

It runs the watchdog protocol. While the watchdog sleeps, it reconnects nodes with growing pauses, looks for nodes that
owe replies, and reports changes of nodes' states. Each connect has its own task, one at a time per node.

A loop that ends cancels all its tasks. The maintenance then closes the client, which releases its holds while that is
still possible.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

from redsync._core.events import Event
from redsync._core.keys import wake_channel
from redsync._core.memory import FIRST_USE, Processes
from redsync._drivers.acknowledgements import hold_back
from redsync._drivers.aio_links import open_link
from redsync._drivers.aio_transport import AioTransport
from redsync._drivers.aio_watches import AioWatches
from redsync._drivers.greetings import end_former, greet, load_scripts, subscribe
from redsync._drivers.handshakes import TIMEOUTS
from redsync._drivers.links import speak
from redsync._drivers.lookups import Lookups
from redsync._drivers.maintenance import PAUSE_AFTER_FAILURE, STRAGGLERS, TICK, Stopped
from redsync._drivers.node_registry import NodeRegistry
from redsync._drivers.nodes import Node, NodeStatus, describe_error
from redsync.exceptions import ConfigurationError

__all__ = ["AioMaintenance"]

log = logging.getLogger("redsync.watchdog")


class AioMaintenance:
    """The transport of one client and the task that keeps it alive. Everything happens in the loop's thread.

    Attributes:
        transport: The client's transport.
    """

    _TRANSPORT: ClassVar = AioTransport

    def __init__(
        self,
        *,
        nodes: Sequence[Node],
        client_id: str,
        clock: Callable[[], float],
        random: Callable[[], float],
        node_timeout: float,
        restart_guard: float,
        processes: Processes,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[Event], None],
    ) -> None:
        self._client_id: Final = client_id
        self._clock: Final = clock
        self._node_timeout: Final = node_timeout
        self._connect_timeout: Final = max(4 * node_timeout, 1.0)
        self._loop: Final = loop
        self.transport: Final[AioTransport] = self._TRANSPORT(
            nodes, clock, node_timeout, loop, on_broken=self._on_broken, on_change=self._wake
        )
        self._lookups: Final = Lookups()
        self._watches: Final = AioWatches(nodes, self._connect_timeout, clock, self._on_moved, self._lookups)
        self._registry: Final = NodeRegistry(
            nodes,
            self.transport,
            clock,
            restart_guard=restart_guard,
            processes=processes,
            tell=tell,
            wake=self._wake,
            random=random,
        )
        self._connecting: Final[dict[int, asyncio.Task[None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._stopping = self._hurried = False
        self._patient_until = math.inf
        self._alarmed = False

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
        if registry.conflict is not None:
            raise ConfigurationError(registry.conflict)
        self._task = self._loop.create_task(self._main(watch, on_cancelled), name="redsync-maintenance")
        # Let it begin now: a task cancelled before its first step never runs, and would not close the client.
        await asyncio.sleep(0)

    async def _initialize_first(self) -> None:
        """Initialize new nodes before the first claims, which wait briefly for that."""
        registry, timeout = self._registry, self._node_timeout
        end = self._clock() + FIRST_USE + timeout
        while self._clock() < end and not self._hurried:
            request = registry.initialize(self.transport.send)
            if request is not None:
                await self.transport.wait(request, self._clock() + timeout)
                if not request.done:
                    await self.transport.end_round(request, timeout)
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
        self._wake()
        ending = [*self._connecting.values(), *self._watches.tasks, *self._lookups.under_way]
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
        self.transport.dispose()
        if cancelled is not None:
            raise cancelled

    async def _wait_for_end(self, ending: Sequence[asyncio.Future[Any]]) -> bool:
        """Wait for tasks, and for replies that nodes still owe; return True when that is done."""
        if pending := [task for task in ending if not task.done()]:
            await asyncio.wait(pending)
        # Rollbacks may be in flight. Closing a socket with unread replies resets the connection and would lose them.
        self._patient_until = min(self._patient_until, self._clock() + self._node_timeout)
        while await self.transport.tend() and self._clock() < self._patient_until:  # noqa: ASYNC110  (no event ends it)
            await asyncio.sleep(0.001)
        return True

    def hurry(self) -> None:
        """Stop waiting for first connections: a round proceeds without them, and its claim needs the watchdog."""
        self._hurried = True
        self._wake()

    def is_current(self) -> bool:
        """Return True in the maintenance's own task."""
        return self._task is not None and self._task is asyncio.current_task()

    def alarm(self) -> None:
        """Make the watchdog look at once."""
        self._alarmed = True
        self._wake()

    def _on_broken(self, node: Node, reason: str) -> None:
        self._registry.note_broken(node, reason)
        self._wake()

    def _on_moved(self, node: Node) -> None:
        self._registry.move(node, self.transport.part)
        self._wake()

    def _wake(self) -> None:
        # Tasks that outlive their closed loop come here when they are garbage-collected.
        if self._waiting is not None and not self._waiting.done() and not self._loop.is_closed():
            self._waiting.set_result(None)

    async def _wait_for(self, seconds: float) -> None:
        """Sleep for at most `seconds`, or until `_wake`."""
        self._waiting = waiting = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake)
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
        registry = self._registry
        while True:
            owing = await self.transport.tend()
            registry.initialize(self.transport.send)
            registry.tell_changes()
            self._connect_missing()
            if self._stopping:
                raise Stopped
            now = self._clock()
            if self._alarmed or now >= until:
                self._alarmed = False
                return
            tick = self._node_timeout / 2 if owing else TICK
            soon = min(until, registry.next_try(self._connecting), self.transport.retry_at, registry.initialize_at)
            await self._wait_for(min(max(soon - now, 0.001), tick))

    # Nodes.

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        return [
            status._replace(pending=self.transport.pending(i)) for i, status in enumerate(self._registry.statuses())
        ]

    def _connect_missing(self) -> None:
        if not self._stopping:
            for node in self._registry.due(self._connecting):
                name = f"redsync-connect-{node.address}"
                self._connecting[node.index] = self._loop.create_task(self._connect(node), name=name)

    async def _connect(self, node: Node) -> None:
        error: str | None = None
        try:
            async with asyncio.timeout(TIMEOUTS * self._connect_timeout):
                await self._connect_link(node)
        except Exception as problem:
            # Any server may answer at that address, and a handshake with nonsense fails in many ways.
            error = describe_error(problem)
            if isinstance(problem, ConfigurationError):
                self._registry.note_conflict(str(problem))
        finally:
            self._connecting.pop(node.index, None)
        self._registry.note_tried(node, error)
        self._wake()

    async def _connect_link(self, node: Node) -> None:
        await self._watches.locate(node)
        link = await open_link(node, self._connect_timeout, self._lookups)
        try:
            self._registry.meet(node, await link.talk(greet(node, self._node_timeout, raw=link.raw)))
            link.tag = await link.talk(end_former(node))
            await link.talk(load_scripts())
            await link.talk(subscribe(node.dialect, wake_channel(self._client_id), raw=link.raw))
        except BaseException:
            link.shut()
            raise
        if node.is_lent:
            speak(link)
        if node.needed:
            hold_back(link, node.needed, self._node_timeout)
        self.transport.install(link)
