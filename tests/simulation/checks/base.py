"""The base of our own checkers."""

from __future__ import annotations

from typing import Any, TypeAlias

from redsync._core.holds import HoldState
from redsync.testing.simulator.simulation import Checker
from redsync.testing.simulator.trace_events import Faulted
from tests.simulation.trial_runner import TrialRunner

Trial: TypeAlias = Any
"""A `tests.simulation.trial.Trial`, which imports the checkers."""


class OwnChecker(Checker):
    """Watches one trial for the breach of one promise; attributes as for `Checker`."""

    @property
    def silence(self) -> float:
        """Seconds within which a client replaces a silent connection: 10, by the slowest clock."""
        return 10.0 / min((machine.clock.rate for machine in self.sim.machines), default=1.0)

    @staticmethod
    def hold(runner: TrialRunner, key: bytes, claim: bytes, mode: bytes = b"") -> HoldState | None:
        """Return the hold that a claim is for, lost or not."""
        for state in runner.session.holds:
            if whose(state) == (key, claim, mode):
                return state
        return None


def describe(key: bytes, claim: bytes, mode: bytes = b"") -> str:
    """Return a text for a claim."""
    how = {b"r:": " to read", b"w:": " to write"}.get(mode, "")
    return f"{key.decode(errors='replace')!r} held{how} by {claim.decode(errors='replace')}"


def whose(state: HoldState) -> tuple[bytes, bytes, bytes]:
    """Return the identity of a hold, like `Claim.whose`: key, claim, mode."""
    return state.keys.lock, state.claim.removeprefix(state.kind.mode), state.kind.mode


def who(faulted: Faulted) -> str:
    """Return the name of the node or machine that has a fault."""
    return faulted.text.partition(" ")[0]


def loses_memory(faulted: Faulted) -> bool:
    """Return whether a node has forgotten commands that it had executed."""
    return faulted.kind in {"node flush", "node restart empty", "node restart older"}
