"""The base of our own checkers."""

from __future__ import annotations

from typing import Any, TypeAlias

from redsync._core.holds import HoldState
from redsync.testing.simulator.simulation import Checker
from redsync.testing.simulator.trace_events import Connected, Decided, Did, Executed, Faulted, Sent, Stepped, Told
from tests.simulation.sets import Handed
from tests.simulation.trial_runner import TrialRunner

Trial: TypeAlias = Any
"""A `tests.simulation.trial.Trial`, which imports the checkers."""


_METHODS = {
    event: f"on_{event.__name__.lower()}"
    for event in (Sent, Executed, Decided, Did, Stepped, Told, Faulted, Connected, Handed)
}


class OwnChecker(Checker):
    """Watches one trial for the breach of one promise; attributes as for `Checker`.

    A checker has a method for each class of events that it watches, such as `on_sent` for `Sent`; it may return a
    complaint.
    """

    def __init_subclass__(cls) -> None:
        cls.watches = tuple(event for event, method in _METHODS.items() if hasattr(cls, method))

    def see(self, event: Any) -> str | None:
        """Let the method for that class of events look at it."""
        return getattr(self, _METHODS[event.__class__])(event)

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
