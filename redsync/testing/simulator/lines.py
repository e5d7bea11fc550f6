"""Lines: what one client has to do with one node. The virtual counterpart of links and boards.

A node answers in order, so the n-th reply belongs to the n-th command. A line that breaks fails all it had pending; of
those, what is owed to the node goes first over the next connection, before any new claim. What is owed and was answered
by an error is sent again. A node that owes replies for longer than `node_timeout` is suspect: its votes fail at once,
and it gets nothing but what it is owed.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import hiredis

from redsync._core.effects import Command
from redsync._drivers.nodes import Node, NodeInfo
from redsync._drivers.parcels import Owed, Parcel
from redsync._drivers.retries import Retries, is_refused
from redsync.testing.simulator.happenings import Answered, Connected, Disconnected
from redsync.testing.simulator.network import CLOSED, Connection
from redsync.testing.simulator.nodes import Greeting, Push, VirtualNode

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimRunner

__all__ = ["Letter", "Line", "finish"]

_GIVE_UP = 10.0
"""Seconds of silence after which a connection is replaced, as in the other drivers."""


class Letter(Parcel):
    """A parcel whose command travels as it is, not as bytes."""

    def _pack(self, command: Command) -> None:
        """Settle what the command names, as on a real wire; there are no bytes."""
        self.command = command._replace(args=command.words)


def finish(parcel: Parcel) -> None:
    """Note that a parcel is done, and wake who waits for it."""
    parcel.done = True
    parcel.wake()


class Line:
    """One client's way to one node.

    Attributes:
        node: What the client knows of the node.
        connection: The connection in use, None while there is none.
        dialing: A connection that is not in use yet.
        pending: What was sent and is not answered, oldest first.
        again: What was answered by an error, but must be executed.
    """

    def __init__(self, runner: SimRunner, node: Node, server: VirtualNode) -> None:
        self.node: Final = node
        self.connection: Connection | None = None
        self.dialing: Connection | None = None
        self.pending: Final[deque[Parcel]] = deque()
        self.again: Final = Retries()
        self._former: list[Connection] = []
        self._runner: Final = runner
        self._server: Final = server
        self._owed: Final = Owed()
        self._since = 0.0
        self._watched = False
        self._patience: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None

    # Sending.

    @property
    def suspect(self) -> bool:
        """Whether the node owes replies for too long."""
        return bool(self.pending) and self._runner.now() >= self._since + self._runner.session.timing.node_timeout

    def offer(self, letter: Parcel, now: float) -> bool:
        """Send a letter, if the node is to have it; return whether it is."""
        node, connection = self.node, self.connection
        if connection is None:
            self._miss(letter, node.excuse, now)
        elif self.suspect and not letter.owed(node.bit):
            self._miss(letter, f"suspect: owes {len(self.pending)} replies for {now - self._since:.2f} s", now)
        elif letter.guard and (reason := node.unfit(now, letter.guard)) is not None:
            self._miss(letter, reason, now)
        else:
            if letter.tally is not None:
                letter.tally.sent |= node.bit
            self._send(connection, letter, now)
            return True
        return False

    def _send(self, connection: Connection, letter: Parcel, now: float) -> None:
        if not self.pending:
            self._since = now
            if not self._watched:
                self._watch(now + self._runner.session.timing.node_timeout)
        self.pending.append(letter)
        connection.there.send(letter.command)

    def _miss(self, letter: Parcel, reason: str, now: float) -> None:
        self._fail(letter, reason)
        self._owed.add(letter, self.node.bit, now)

    def _fail(self, letter: Parcel, reason: str) -> None:
        tally = letter.tally
        if tally is not None and tally.fail(self.node.index, reason):
            finish(letter)

    # Receiving.

    def receive(self, connection: Connection, message: Any) -> None:
        """Take a message from the network."""
        if connection is self.dialing:
            self._receive_first(connection, message)
        elif connection is not self.connection:
            return
        elif message is CLOSED:
            self.discard("closed the connection")
        else:
            now = self._since = self._runner.now()
            if message.__class__ is Push:
                self._runner.wakeups.deliver(message, self.node.bit, self.node.remembers_since)
            else:
                self._take(self.pending.popleft(), message, now)

    def _take(self, letter: Parcel, reply: Any, now: float) -> None:
        runner, tally, index = self._runner, letter.tally, self.node.index
        if tally is not None:
            runner.sim.saw(Answered(runner.sim.now, runner.name, index, letter.number, reply))
        if reply.__class__ is hiredis.ReplyError:
            text = str(reply)
            if (reason := self.node.note_forgetful(text, letter.guard, now)) is not None:
                runner.upkeep.look()
                text = reason
            self.node.last_error = text
            self._fail(letter, text)
            if not is_refused(text):
                self.again.settle(letter, now)
            elif letter.owed(self.node.bit):
                self.again.add(letter, now)
        else:
            if self.again:
                self.again.settle(letter, now)
            if tally is not None and (tally.late or not letter.done) and tally.record(index, reply):
                finish(letter)
        if self.again:
            self._plan_retry()

    # Errors.

    def _plan_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = None if self.again.at == math.inf else self._runner.at(self.again.at, self._send_again)

    def _send_again(self) -> None:
        """Send what the node has refused to execute again, if it is time for that."""
        self._retry = None
        now, connection = self._runner.now(), self.connection
        if connection is not None and now >= self.again.at:
            for letter in self.again.due(now, self.pending):
                self._send(connection, letter, now)
                self.again.remove([letter])
            self._plan_retry()

    # Silence.

    def _watch(self, when: float) -> None:
        self._watched = True
        self._runner.at(when, self._look)

    def _look(self) -> None:
        """Look whether the node still owes replies, and for how long."""
        self._watched = False
        if not self.pending:
            return
        runner = self._runner
        now, timeout = runner.now(), runner.session.timing.node_timeout
        if now >= self._since + _GIVE_UP:
            self.discard(f"no answer for {now - self._since:.0f} s")
        elif now >= self._since + timeout:
            self.node.last_error = f"owes {len(self.pending)} replies for {now - self._since:.2f} s"
            runner.upkeep.look()
            self._watch(self._since + _GIVE_UP)
        else:
            self._watch(self._since + timeout)

    # Connecting.

    def dial(self) -> None:
        """Begin to connect."""
        runner = self._runner
        self.dialing = runner.sim.network.dial(runner.machine, self, self._server, runner.name)
        self._patience = runner.at(runner.now() + runner.connect_timeout, self._stop_dialing)
        self.dialing.there.send(Greeting(runner.channel, tuple(self._former)))

    def _stop_dialing(self) -> None:
        if self.dialing is not None:
            self.dialing.hang_up()
            self._note_failure("did not answer in time")

    def _note_failure(self, reason: str) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self.dialing = None
        runner = self._runner
        runner.sim.saw(Disconnected(runner.sim.now, runner.name, self.node.index, reason))
        runner.upkeep.note_tried(self.node, reason)

    def _receive_first(self, connection: Connection, message: Any) -> None:
        if message.__class__ is not NodeInfo:
            if message is not CLOSED:
                connection.hang_up()
            self._note_failure("refused the connection" if message is CLOSED else str(message))
            return
        if self._patience is not None:
            self._patience.cancel()
        runner, node = self._runner, self.node
        now = runner.now()
        self.connection, self.dialing = connection, None
        self._former.clear()
        runner.upkeep.meet(node, message)
        left = max(node.remembers_since + runner.session.timing.restart_guard - now, 0.0)
        runner.sim.saw(Connected(runner.sim.now, runner.name, node.index, left))
        for parcel in self._owed.take(now):
            self._send(connection, parcel, now)
        runner.upkeep.note_tried(node, None)

    def discard(self, reason: str) -> None:
        """Give the connection up."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        connection.abort()
        self._former.append(connection)
        runner, now = self._runner, self._runner.now()
        runner.sim.saw(Disconnected(runner.sim.now, runner.name, self.node.index, reason))
        if self.pending:
            self._owed.unanswered = True
        missed = [*self.again, *self.pending]
        self.pending.clear()
        self.again.clear()
        for letter in missed:
            self._miss(letter, reason, now)
        runner.upkeep.note_broken(self.node, reason)

    def vanish(self, *, dark: bool) -> None:
        """Let go without a word to the client, which is no more; the network tells the node, unless all is dark."""
        for connection in (self.connection, self.dialing):
            if connection is not None and not dark:
                connection.hang_up()
        self.connection = self.dialing = None
