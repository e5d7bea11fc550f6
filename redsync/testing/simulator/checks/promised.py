"""Promised room: a program that waits for as long as `retry_after` said, and then tries once, succeeds.

The exception is that others came meanwhile: nodes got requests for the same limiter since the program began to ask. The
promise must hold without faults (see `calm`), because a node that could not be asked may keep more than the others.
Programs report what they do (`Machine.tell` with "wonders", "told", "asks" with `how="told"`, and with the outcome).

The promised time is never longer than the window, 1 % and 5 ms. A node with a slow clock keeps slots longer: so a
program that got exactly that time may be refused if any node's clock runs slower than its own.

Not seen: programs that asked while others wait; times that are longer than necessary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.checks.rounds import PERMIT, owner_in, parse
from redsync.testing.simulator.happenings import Did, Executed

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Promised"]

_DRIFT, _ROOM_AGAIN = 1.01, 0.005
"""The longest promised time is the window times the first of these, plus the second in seconds."""

_WINDOW = 12
"""The index of the argument of an acquire request that is a rate limiter's window, in us."""

_SETTLED = 2.0
"""Seconds without faults before that: until every client is connected again."""


class Promised(Checker):
    """The times that `retry_after` returns are right."""

    name = "retry_after"
    watches = (Did, Executed)
    rests_on_clocks = True

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._asked: Final[dict[str, dict[bytes, float]]] = {}
        self._told: Final[dict[tuple[str, str], tuple[float, float]]] = {}
        self._longest: Final[dict[str, float]] = {}

    def see(self, happening: Did | Executed) -> str | None:
        """Record answers and requests, and look at the outcome."""
        match happening:
            case Did():
                return self._see_did(happening)
            case Executed() if parse(happening.script) == (PERMIT, "acquire"):
                name, claim = happening.keys[0].decode().rpartition(":")[2], happening.args[0]
                assert isinstance(claim, bytes), "a claim is text"
                self._asked.setdefault(name, {})[owner_in(claim)] = happening.at
                if len(happening.args) > _WINDOW:
                    self._longest[name] = int(happening.args[_WINDOW]) / 1e6 * _DRIFT + _ROOM_AGAIN
            case _:
                pass
        return None

    def _see_did(self, did: Did) -> str | None:
        who, about = (did.machine.name, did.who), did.about
        if did.what == "wonders":
            self._told[who] = did.at, 0.0
        elif did.what == "told" and who in self._told:
            self._told[who] = self._told[who][0], about["seconds"]
        elif did.what != "asks" or about.get("how") != "told":
            told = self._told.pop(who, None)
            if told is not None and did.what == "busy":
                return self._judge(did, *told)
        return None

    def _judge(self, did: Did, since: float, seconds: float) -> str | None:
        others = sum(at >= since for at in self._asked[did.about["name"]].values()) - 1
        rate = did.machine.clock.rate
        if seconds >= self._longest[did.about["name"]] and any(node.clock.rate < rate for node in self.sim.servers):
            return None
        if others or self.sim.calm.lasted() < did.at - since + _SETTLED:
            return None
        return (
            f"{did.who} on {did.machine.name} learned at {since:.6f} that {did.about['name']!r} has room in "
            f"{seconds:.6f} s, and was refused at {did.at:.6f}, although no other owner asked"
        )
