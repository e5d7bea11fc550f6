"""The maintenance of an asyncio client: one task that does the work that no caller waits for.

`any_maintenance` has what both flavours do. This task also runs the watchdog protocol, and closes the client, see
`aio`. Each connect has its own task, one at a time per node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.any_maintenance import PAUSE_AFTER_FAILURE, AnyMaintenance, Stopped, WitnessPoll, Work
from redsync._drivers.handshake_connections import TIMEOUTS, open_connection, open_fake_connection
from redsync._drivers.link_sets import Shared
from redsync._drivers.nodes import INTERRUPTED, Node
from redsync._drivers.notifier import quietly
from redsync._drivers.requests import Request

if TYPE_CHECKING:
    from redsync._drivers.any_runner import AnyLife

__all__ = ["AioMaintenance", "reraise"]

_LONGEST_CONNECT = 60.0
"""The most seconds until a connection is authenticated: a credential provider may be slow, or never answer."""

log = logging.getLogger("redsync.watchdog")


class AioMaintenance(AnyMaintenance[AioLinkSet]):
    """The task that keeps one client alive. Everything happens in the loop's thread."""

    def __init__(self, life: AnyLife, loop: asyncio.AbstractEventLoop) -> None:
        """Make a maintenance that has not started."""
        self._loop: Final = loop
        self._news: Final = asyncio.Event()
        super().__init__(self._make_set(life), life)
        self._polling: list[asyncio.Task[None]] = []
        self._connecting: dict[int, asyncio.Task[None]]

    def _make_set(self, shared: Shared) -> AioLinkSet:
        return AioLinkSet(shared, self._loop, self._on_broken)

    # Life.

    async def run(self, watch: Callable[[], Awaitable[object]], on_begun: Callable[[], object]) -> None:
        """Make the first connections, and keep the client alive until it closes; a caller then calls `stop`.

        Args:
            watch: Runs the watchdog.
            on_begun: Called once the first connections are made, or enough time has passed.

        Raises:
            Stopped: `abandon` was called.
            ConfigurationError: Two nodes are the same server.
            Exception: A programming error while connecting.
        """
        self._polling = [
            self._loop.create_task(self._outlive(partial(self._poll, each)), name=each.name) for each in self._polls
        ]
        await self._outlive(lambda: self._do(self.beginning()))
        self._registry.require_usable()
        on_begun()
        await self._outlive(lambda: self._watch(watch))

    async def _watch(self, watch: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await watch()
            except Exception:
                # An unrelated error must not cost a hold: log it, and continue with a new watchdog.
                quietly(log.exception, "the watchdog failed and starts again; please report this")
                self.own.throw_away()
                await asyncio.sleep(PAUSE_AFTER_FAILURE)

    async def _outlive(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work, and again after each KeyboardInterrupt or SystemExit: these only end the loop's run."""
        while True:
            try:
                await work()
            except (Exception, Stopped, asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:
                self.own.throw_away()
                self._loop.call_soon(reraise, error)
                await asyncio.sleep(0)  # until the loop has raised it
            else:
                return

    def abandon(self) -> None:
        """Let `run` end."""
        self._stopping = True
        self.wake()

    async def stop(self) -> None:
        """Wait for tasks, pending releases, and replies that nodes still owe; end all connections.

        If an interruption has just cost the connections, it ends many programs, too: nodes get their releases over new
        ones. A cancellation only ends the wait.
        """
        self._stopping = True
        ending = [*self._connecting.values(), *self._polling]
        for task in ending:
            task.cancel()
        try:
            if ending:
                await asyncio.wait(ending)
            if lost := [node for node in self._nodes if node.down_reason == INTERRUPTED and not node.connected]:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.connect_timeout):
                        await asyncio.gather(*map(self._connect, lost))
            await self._do(self.finishing(self._clock() + self._node_timeout))
        finally:
            # A task cancelled before its first step never runs, and does not remove itself.
            self._connecting.clear()
            self.own.end("the client was closed", orderly=True)

    def wake(self) -> None:
        """Make the task look at once."""
        # Tasks that outlive their closed loop come here when they are garbage-collected.
        if not self._loop.is_closed():
            # The loop sets the event: a signal handler's exception may strike here, in a finalizer, and leave it half
            # set. If it strikes before `call_soon`, the timer ends the wait.
            self._loop.call_soon(self._end_wait)

    def _end_wait(self) -> None:
        """End the wait; the loop calls it."""
        # Cleared first: if an earlier `set` was interrupted, another one would wake no task.
        self._news.clear()
        self._news.set()

    async def sleep(self, until: float) -> None:
        """Do the maintenance's work until an instant or an alarm.

        Raises:
            Stopped: The client is closing.
        """
        await self._do(self.until(until))

    async def _do(self, work: Work) -> None:
        try:
            until = next(work)
            while True:
                await self._wait(until)
                until = work.send(await self._read())
        except StopIteration:
            return

    async def _wait(self, until: float) -> None:
        """Sleep until an instant, or `wake`."""
        if self._news.is_set():
            await asyncio.sleep(0)
        else:
            timer = self._loop.call_later(max(until - self._clock(), 0.001), self._end_wait)
            try:
                await self._news.wait()
            finally:
                timer.cancel()
        self._news.clear()

    async def _read(self) -> float:
        return await self.own.read_all() if self.own.owes else self._clock()

    def _send(self, request: Request) -> None:
        self.own.send_soon(request)

    def _prepare(self) -> None:
        self.own.recover()

    # Nodes.

    def _start_connect(self, node: Node) -> None:
        task = self._loop.create_task(self._connect(node), name=f"redsync-connect-{node.address}")
        if not task.done():  # An eager one may have failed at once.
            self._connecting[node.index] = task

    async def _connect(self, node: Node) -> None:
        error: str | None = None
        limit = asyncio.timeout(_LONGEST_CONNECT)
        try:
            async with limit:
                await self._connect_link(node, limit)
        except Exception as problem:
            late = TimeoutError("did not finish the handshake in time") if limit.expired() else problem
            error = self._registry.note_failure(node, late)
        finally:
            self._connecting.pop(node.index, None)
        self._registry.note_tried(node, error)
        self.wake()

    async def _connect_link(self, node: Node, limit: asyncio.Timeout) -> None:
        connection = await open_fake_connection(node)
        if connection is None:
            connection = await open_connection(node.make_connection(self.connect_timeout))
        try:
            limit.reschedule(self._loop.time() + TIMEOUTS * self.connect_timeout)
            info, connection_id = await connection.run(self._introduce(node))
            self._registry.meet(node, info)
            link = self.own.make_link(node, connection, connection_id)
            self._prepare_link(link)
        except BaseException:
            connection.close()
            raise
        self._life.releases.clear_pause(node.index)
        self.own.install(link)

    # Witnesses, each asked by a task.

    async def _poll(self, poll: WitnessPoll) -> None:
        """Poll a witness until the end."""
        while not self._stopping:  # Its cancellation may be swallowed, see `redis_py.connect`.
            try:
                await self._ask(poll)
            except Exception as error:
                self._note_answer(poll, self._reason_of(poll, error), self._clock())
            await asyncio.sleep(self._ask_every)

    async def _ask(self, poll: WitnessPoll) -> None:
        """Ask a witness over one connection, until that ends."""
        async with asyncio.timeout(_LONGEST_CONNECT):
            connection = await open_connection(self._connection_to(poll))
        with closing(connection):
            while True:
                asked_at = self._clock()
                async with asyncio.timeout(self.connect_timeout):
                    replies = await connection.run(poll.locator.ask())
                self._note_answer(poll, replies, asked_at)
                await asyncio.sleep(self._ask_every)


def reraise(error: BaseException) -> None:
    """Raise an error; called by the loop, which reports it, or ends its run."""
    raise error
