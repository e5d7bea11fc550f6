"""Promised room: a program that waits for as long as `retry_after` said, and then tries once, succeeds.

The exception is that others came meanwhile: nodes got requests for the same limiter since the program began to ask. The
promise must hold without faults (see `calm`), because a node that could not be asked may keep more than the others.
Programs report what they do (`Machine.tell` with "wonders", "told", "asks" with `how="told"`, and with the outcome).

The promised time is never longer than the window, 1 % and 5 ms. A program that got exactly that time may be refused

* if any node's clock runs slower than its own, because that node keeps slots longer;
* if no quorum of nodes is without a success that a message lets them keep: a message that came late, or one from a
  client that needs more time to tell nodes. It may take more only if it was slow at least twice, and no more than twice
  the longest of these times.

Not seen: programs that asked while others wait; times that are longer than necessary.
"""

from __future__ import annotations

from typing import Final

from redsync._core.quorum import quorum_of
from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.checks.rounds import PERMIT, Claim, claims, parse
from redsync.testing.simulator.happenings import Did, Executed, Sent

__all__ = ["Promised"]

_DRIFT, _ROOM_AGAIN = 1.01, 0.005
"""The longest promised time is the window times the first of these, plus the second in seconds."""

_WINDOW = 12
"""The index of the argument of an acquire request that is a rate limiter's window, in us."""

_SETTLED = 2.0
"""Seconds without faults before that: until every client is connected again."""

_QUICK, _WAY = 0.0005, 0.0025
"""Telling nodes that took less time is quick; then come the seconds for the way to the caller, and some rounding."""


class Promised(Checker):
    """The times that `retry_after` returns are right."""

    name = "retry_after"
    watches = (Did, Executed, Sent)
    rests_on_clocks = True

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._asked: Final[dict[str, dict[bytes, float]]] = {}
        self._told: Final[dict[tuple[str, str], tuple[float, float, float]]] = {}
        self._per: Final[dict[str, float]] = {}
        self._kept: Final[dict[str, dict[tuple[int, bytes], float]]] = {}

    def see(self, happening: Did | Executed | Sent) -> str | None:
        """Record answers and requests, and look at outcomes and messages."""
        if isinstance(happening, Did):
            return self._see_did(happening)
        noun, verb = parse(happening.script)
        if noun != PERMIT or verb not in {"acquire", "settle", "abandon"}:
            return None
        name = happening.keys[0].decode().rpartition(":")[2]
        claim = claims(happening.script, happening.keys, happening.args)[0]
        if isinstance(happening, Sent):
            return self._see_message(happening, name, claim) if verb == "settle" else None
        kept = self._kept.setdefault(name, {})
        if verb == "acquire":
            self._asked.setdefault(name, {})[claim.owner] = happening.at
            if len(happening.args) > _WINDOW:
                self._per[name] = int(happening.args[_WINDOW]) / 1e6
        elif verb == "settle":
            kept[happening.node, claim.id] = happening.at + claim.lease
        else:
            kept.pop((happening.node, claim.id), None)
        return None

    def _longest(self, name: str) -> float:
        return self._per[name] * _DRIFT + _ROOM_AGAIN

    def _see_message(self, sent: Sent, name: str, claim: Claim) -> str | None:
        slow = [delay for delay in self.runner(sent.client).delays if delay > _QUICK]
        needs = (self._per[name] + 2 * max(slow, default=0.0) + _WAY) * _DRIFT if len(slow) > 1 else 0.0
        if claim.lease <= max(self._longest(name), needs):
            return None
        return (
            f"{sent.client} lets nodes keep a success of {name!r} for {claim.lease:.6f} s, although it was slow "
            f"{len(slow)} times before"
        )

    def _see_did(self, did: Did) -> str | None:
        who, about = (did.machine.name, did.who), did.about
        if did.what == "wonders":
            self._told[who] = did.at, 0.0, 0.0
        elif did.what == "told" and who in self._told:
            self._told[who] = self._told[who][0], about["seconds"], 0.0
        elif did.what == "asks" and about.get("how") == "told" and who in self._told:
            self._told[who] = *self._told[who][:2], did.at
        else:
            told = self._told.pop(who, None)
            if told is not None and did.what == "busy":
                return self._judge(did, *told)
        return None

    def _judge(self, did: Did, since: float, seconds: float, asked: float) -> str | None:
        name = did.about["name"]
        others = sum(at >= since for at in self._asked[name].values()) - 1
        if seconds >= self._longest(name) and (self._is_slow(did) or self._is_kept(name, asked)):
            return None
        if others or self.sim.calm.lasted() < did.at - since + _SETTLED:
            return None
        return (
            f"{did.who} on {did.machine.name} learned at {since:.6f} that {name!r} has room in "
            f"{seconds:.6f} s, and was refused at {did.at:.6f}, although no other owner asked"
        )

    def _is_slow(self, did: Did) -> bool:
        """Return whether any node's clock runs slower than the program's."""
        return any(node.clock.rate < did.machine.clock.rate for node in self.sim.servers)

    def _is_kept(self, name: str, at: float) -> bool:
        """Return whether no quorum of nodes is without a success that a message lets it keep."""
        nodes = len(self.sim.nodes)
        keep = {node for (node, _), until in self._kept.get(name, {}).items() if until > at}
        return nodes - len(keep) < quorum_of(nodes)
