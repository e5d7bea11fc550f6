"""The base of our own checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redsync.testing.simulator.simulation import Checker

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.trace_events import Faulted
    from tests.simulation.trial import Trial
    from tests.simulation.trial_runner import TrialRunner
else:
    Trial = Any  # it imports the checkers, which need it only for type checkers


class OwnChecker(Checker):
    """Watches one trial for the breach of one promise; attributes as for `Checker`."""

    sim: Trial

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)

    def runner(self, client: str) -> TrialRunner:
        """Return the driver of the client with that name."""
        return self.sim.runners[client]

    @staticmethod
    def runners(machine: Machine) -> list[TrialRunner]:
        """Return the drivers of the clients on a machine."""
        runners: list[Any] = machine.runners
        return runners

    @property
    def silence(self) -> float:
        """Seconds within which any client replaces a silent connection, by the slowest clock.

        That is 10, or 8 times `node_timeout` if a node does not answer the handshake.
        """
        node_timeout = max((runner.session.timing.node_timeout for runner in self.sim.runners.values()), default=0.0)
        return max(10.0, 8 * node_timeout) / min((machine.clock.rate for machine in self.sim.machines), default=1.0)

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
