"""Nodes of trials: they answer what checkers ask, and may refuse to end connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import hiredis

from redsync._core.scripts import Script
from redsync.testing.simulator.virtual_nodes import VirtualNode

if TYPE_CHECKING:
    from tests.simulation.trial import Trial


class TrialNode(VirtualNode):
    """One server of a trial.

    Attributes:
        sim: The trial.
        ends_former: True if clients may end their abandoned connections.
    """

    ends_former = True

    def __init__(self, sim: Trial, index: int, scripts: Mapping[str, Script], suffix: str = "") -> None:
        """Make one that executes these scripts instead of shipped ones, by name."""
        super().__init__(sim, index, suffix)
        self.sim: Final = sim
        self._replaced: Final = scripts

    def load(self, source: bytes) -> Script:
        """Store a script, or the one that replaces it; return the shipped one."""
        script = super().load(source)
        self.scripts[script.sha] = self._replaced.get(script.name, script)
        return script

    @property
    def is_well(self) -> bool:
        """True if it executes all commands."""
        return self.state == "up" and self.trouble is None and self.store.refusal is None

    def listeners(self, channel: bytes) -> int:
        """Return how many of its connections subscribe to a channel."""
        return len(self._channels.get(channel, ()))

    def end_session(self, number: int) -> Any:
        """End a connection by its number, as CLIENT KILL does, if clients may."""
        if not self.ends_former and any(session.number == number for session in self._sessions.values()):
            return hiredis.ReplyError("NOPERM this user has no permissions to run the 'client|kill' command")
        return super().end_session(number)
