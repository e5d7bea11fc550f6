"""Letters: the commands that a client's own transport sends, recorded at the client's side for trace and checkers.

The transport runs unchanged. This module observes its parts: what a set of links sends, what the links record before
they send it, and which request gets each reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import hiredis

from redsync._core.effects import Command
from redsync._core.replies import NOTHING
from redsync._drivers.aio_link_sets import AioLinkSet, StreamLink
from redsync._drivers.aio_maintenance import AioMaintenance
from redsync._drivers.link_sets import Shared
from redsync._drivers.links import AnyLink
from redsync._drivers.nodes import Node
from redsync._drivers.requests import Request
from redsync.testing.simulator.happenings import Answered, Connected, Disconnected, Handed, Sent
from redsync.testing.simulator.network import Connection
from redsync.testing.simulator.sockets import VirtualTransport

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["MAKER", "Letter", "WatchedLinks", "WatchedMaintenance", "connection_of"]

MAKER: Final[ContextVar[SimulatedRunner | None]] = ContextVar("redsync_simulated_maker", default=None)
"""The driver whose connections are made in this context."""


class Letter(NamedTuple):
    """A sent command.

    Attributes:
        request: The transport's request.
        number: Its number among those of the client; 0 for commands of the transport itself.
        script: The script's name.
        keys: The script's KEYS.
        args: The script's ARGV.
    """

    request: Request
    number: int
    script: str
    keys: tuple[bytes, ...]
    args: tuple[bytes | int, ...]

    @classmethod
    def of(cls, request: Request) -> Letter:
        """Return a request as it is sent now."""
        command = request.command
        if not isinstance(command, Command):
            return cls(request, 0, "", (), ())
        return cls(request, request.number, command.script.name, command.keys, command.words)


class _Noted(deque[Request]):
    """The requests pending on a link, with a record of all earlier ones.

    Attributes:
        letters: All sent commands.
        fresh: The latest requests; the reader clears it.
        settled: The requests no longer pending; the reader clears it.
        heard: The received replies; the reader clears it.
        connection: The virtual connection.
    """

    def __init__(self, connection: Connection, known: dict[Request, Letter]) -> None:
        super().__init__()
        self.connection = connection
        self.letters: list[Letter] = []
        self._known = known
        self.fresh: set[Request] = set()
        self.settled: list[Request] = []
        self.heard: list[Any] = []

    def hear(self, gets: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function that gets a reply and records it."""
        note = self.heard.append

        def get() -> Any:
            reply = gets()
            if reply is not NOTHING and reply.__class__ is not hiredis.PushNotification:
                note(reply)
            return reply

        return get

    def append(self, request: Request) -> None:
        super().append(request)
        known = self._known
        letter = known.get(request)
        if letter is None:
            letter = known[request] = Letter.of(request)
        self.letters.append(letter)
        self.fresh.add(request)

    def popleft(self) -> Request:
        request = super().popleft()
        self.settled.append(request)
        return request

    def extend(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.append(request)

    def __iadd__(self, requests: Iterable[Request]) -> Self:
        self.extend(requests)
        return self


class WatchedLinks(AioLinkSet):
    """A set of links that reports what it sends, and which request gets each reply."""

    WATCHES = False  # The loop gives asyncio transports to virtual nodes.

    def __init__(self, runner: SimulatedRunner, *settings: Any) -> None:
        super().__init__(*settings)
        self._runner: Final = runner

    def install(self, link: AnyLink) -> None:
        """Start to use a new link, and record everything sent over it."""
        runner, connection = self._runner, connection_of(link)
        connection.client = runner.name
        noted = link.pending = _Noted(connection, runner.letters)
        connection.requests, link.gets = noted.letters, noted.hear(link.gets)
        self._note_connected(link)
        super().install(link)

    def _note_connected(self, link: AnyLink) -> None:
        """Record that a node is up."""
        runner = self._runner
        left = max(link.node.remembers_since + runner.session.timing.restart_guard - runner.now(), 0.0)
        runner.sim.saw(Connected(runner.sim.now, runner.name, link.node.index, left))

    def send(self, *requests: Request) -> None:
        """Send requests, and report them."""
        if (sets := self._runner.sets) is not None:
            for request in requests:
                sets.follow(request, self)
        # For each node its bit, with the set of the requests that it is sent from now on.
        noted = [(link.bit, _noted(link).fresh) for link in self.links if link is not None]
        for _, sent in noted:
            sent.clear()
        super().send(*requests)
        for request in requests:
            if request.command is not None:
                self._tell(request, noted)

    def _tell(self, request: Request, noted: Iterable[tuple[int, set[Request]]]) -> None:
        runner = self._runner
        nodes = sum([bit for bit, sent in noted if request in sent])
        letter = runner.letters.get(request) or Letter.of(request)
        votes = request.tally is not None
        if request.tally is not None:
            runner.numbers[request.tally] = request.number
        said = letter.number, letter.script, letter.keys, letter.args
        runner.sim.saw(Sent(runner.sim.now, runner.name, *said, nodes, votes, request))

    def _hand_out(self, link: AnyLink, now: float) -> bool:
        noted = _noted(link)
        noted.settled.clear()
        noted.heard.clear()
        try:
            return super()._hand_out(link, now)
        finally:
            self._note_answers(link.index, noted)

    def _note_answers(self, index: int, noted: _Noted) -> None:
        sim, client, served = self._runner.sim, self._runner.name, noted.connection.served
        at = sim.now
        for request, reply in zip(noted.settled, noted.heard, strict=False):  # an error may have come in between
            words, said = served.popleft() if served else ([], None)
            sim.saw(Handed(at, client, index, request, reply, words, said))
            if request.tally is not None:
                sim.saw(Answered(at, client, index, request.number, reply))


def _noted(link: AnyLink) -> _Noted:
    assert isinstance(link.pending, _Noted), "the link is in use"
    return link.pending


def connection_of(link: AnyLink) -> Connection:
    """Return the virtual connection of a link."""
    assert isinstance(link, StreamLink), "the loop gives asyncio transports to virtual nodes"
    asyncio_transport = link._transport
    assert isinstance(asyncio_transport, VirtualTransport), "the loop makes no other kind"
    return asyncio_transport.connection


class WatchedMaintenance(AioMaintenance):
    """A maintenance that reports new and lost connections."""

    own: WatchedLinks

    def __init__(self, runner: SimulatedRunner, **settings: Any) -> None:
        self._runner: Final = runner
        super().__init__(**settings)

    def _prepare(self, now: float) -> None:
        super()._prepare(now)
        if self._runner.sets is not None:
            self._runner.sets.end_former(now)

    def _help_others(self, now: float) -> None:
        if self._runner.sets is not None:
            self._runner.sets.follow_up(now)

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

    def _make_set(self, shared: Shared) -> AioLinkSet:
        return WatchedLinks(self._runner, shared, self._loop, self._on_broken)

    def _on_broken(self, node: Node, reason: str) -> None:
        self._tell(node, reason)
        super()._on_broken(node, reason)

    async def _connect(self, node: Node) -> None:
        # Connecting is a separate task, with its own context.
        MAKER.set(self._runner)
        await super()._connect(node)
        if not node.connected:
            self._tell(node, node.excuse)

    def _tell(self, node: Node, reason: str) -> None:
        runner = self._runner
        runner.sim.saw(Disconnected(runner.sim.now, runner.name, node.index, reason))
