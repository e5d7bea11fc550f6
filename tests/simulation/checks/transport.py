"""A client's transport: commands in order."""

from collections import defaultdict
from collections.abc import Hashable
from copy import copy
from typing import Final, TypeAlias

import hiredis

from redsync._drivers.pending_releases import is_refused
from redsync._drivers.requests import Request
from redsync.testing.simulator.trace_events import Connected, Executed
from tests.simulation.checks.base import OwnChecker, Trial
from tests.simulation.sets import Handed

_Latest: TypeAlias = dict[Hashable, Request]
"""The latest executed command about each thing: a claim, or an owner with a key."""

_ANYTHING: Final = "anything"


class _Executed:
    """The commands that a node has executed for a client.

    Attributes:
        known: Commands that the client got the reply to.
        all: Those, and all that arrived over the present connection.
        here: All that arrived over the present connection.
    """

    def __init__(self) -> None:
        self.known: Final[_Latest] = {}
        self.all: _Latest = {}
        self.here: Final[set[Request]] = set()

    def begin(self) -> None:
        """Record a new connection."""
        self.all = copy(self.known)
        self.here.clear()


class Order(OwnChecker):
    """Order: on each node, the commands of one owner are executed in the order in which the client sent them.

    A client may send a command again: because its connection was lost, because the node had forgotten its script, or
    because the node refused to execute it. It must not be executed after a later command that depends on it. So when a
    node executes a command, it has not yet executed a later one

    * about the same claim (see `Request.claim`): a release behind the next acquire of that claim would end it;
    * of the same owner about the same key, unless the node must get the earlier one: that one is about another claim
      then;
    * of any owner, if the command is for several owners and not pending (a renewal): it would revive released claims.

    These count as executed before: all commands that the node executed over the present connection, and those that it
    executed over earlier ones if the client got the reply. A command that it executed over a lost connection without
    the client's knowledge is sent again, and so executed twice. Commands that arrive over an abandoned connection are
    excused.

    It holds at every instant, whatever the faults.
    """

    name = "order"
    watches = (Connected, Executed, Handed)

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._executed: Final[defaultdict[tuple[str, int], _Executed]] = defaultdict(_Executed)
        self._abouts: Final[dict[Request, list[Hashable]]] = {}

    def see(self, event: Connected | Executed | Handed) -> str | None:
        """Compare a command with the commands executed before."""
        executed = self._executed[event.client, event.node]
        if isinstance(event, Connected):
            executed.begin()
        elif isinstance(event, Handed):
            if event.request in executed.here:
                self._note(executed.known, event.request)
        elif event.request is not None and not event.stray:
            return self._judge(event, event.request, executed)
        return None

    def _judge(self, event: Executed, request: Request, executed: _Executed) -> str | None:
        reply = event.reply
        if isinstance(reply, hiredis.ReplyError) and is_refused(str(reply)):
            return None  # it changed nothing, and the client may send it again
        later = self._overtaker(request, executed.all, pending=request.needs(1 << event.node))
        self._note(executed.all, request)
        executed.here.add(request)
        if later is None:
            return None
        assert later.command is not None, "an executed command is known"
        node, script = self.sim.nodes[event.node].name, later.command.script.name
        what = f"#{request.number} of {event.client} ({event.script})"
        return f"{node} executed {what} behind #{later.number} ({script})"

    def _note(self, latest: _Latest, request: Request) -> None:
        for about in (_ANYTHING, *self._concerns(request)):
            known = latest.get(about)
            if known is None or known.number < request.number:
                latest[about] = request

    def _concerns(self, request: Request) -> list[Hashable]:
        """Return the things that an executed command is about: its claim, and its owner with the key."""
        abouts = self._abouts.get(request)
        if abouts is None:
            abouts = self._abouts[request] = [request.claim]
            if request.effect.owner is not None and request.command is not None and request.command.keys:
                abouts.append((request.effect.owner, request.command.keys[0]))
        return abouts

    def _overtaker(self, request: Request, latest: _Latest, *, pending: bool) -> Request | None:
        """Return the command that was executed already and must not have been; None if there is none."""
        abouts = self._concerns(request)
        if pending:
            abouts = abouts[:1]
        elif request.effect.owner is None:
            abouts = [*abouts, _ANYTHING]
        for about in abouts:
            later = latest.get(about)
            if later is not None and later.number > request.number:
                return later
        return None
