"""When there is room again: whoever waits for as long as `retry_after` told it, and then tries once, succeeds.

Unless others came meanwhile: nodes were asked for the same limiter since it began to wonder. It must hold while all is
well (see `calm`), for a node that could not be asked may keep more than the others. Programs tell of what they do
(`Machine.tell` with "wonders", "told", "asks" with `how="told"`, and with what came of it).

Not seen: who was told while others wait; that it was told more than was necessary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.checks.rounds import PERMIT, owner_in, parse
from redsync.testing.simulator.happenings import Did, Executed

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Promised"]

_SETTLED = 2.0
"""Seconds for which all must have been well before: until every client is connected again."""


class Promised(Checker):
    """What is told of the time until there is room is true."""

    name = "retry_after"
    watches = (Did, Executed)
    rests_on_clocks = True

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._asked: Final[dict[str, dict[bytes, float]]] = {}
        self._told: Final[dict[tuple[str, str], tuple[float, float]]] = {}

    def see(self, happening: Did | Executed) -> str | None:
        """Take note of who was told and of who asks, and look at what came of it."""
        match happening:
            case Did():
                return self._see_did(happening)
            case Executed() if parse(happening.script) == (PERMIT, "acquire"):
                name, claim = happening.keys[0].decode().rpartition(":")[2], happening.args[0]
                assert isinstance(claim, bytes), "a claim is text"
                self._asked.setdefault(name, {})[owner_in(claim)] = happening.at
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
        if others or self.sim.calm.lasted() < did.at - since + _SETTLED:
            return None
        return (
            f"{did.who} on {did.machine.name} was told at {since:.6f} that {did.about['name']!r} has room in "
            f"{seconds:.6f} s, and was refused at {did.at:.6f}, although nobody else asked"
        )
