"""The terms of a lease: what follows from the time settings for all claims with that lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from redsync._core.memory import Processes
from redsync._core.scripts import Arg
from redsync._core.timing import Timing, milliseconds

__all__ = ["LeaseTerms"]


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Values derived from a lease.

    Attributes:
        lease: The lease in seconds.
        lease_ms: The lease as an argument of scripts.
        trusted: Seconds for which a claim may be believed, from the instant of its ask on.
        guard: Seconds for which a node must have remembered everything to grant.
        memory: The guard as an argument of scripts; 0 if there is none.
        birth: The same for scripts that use the node's birth record even without a guard.
        round_timeout: The longest time that a round waits for nodes, in seconds.
    """

    lease: float
    lease_ms: int
    trusted: float
    guard: float
    memory: Arg
    birth: Arg
    round_timeout: float

    @classmethod
    def of(cls, timing: Timing, processes: Processes, lease: float | None) -> Self:
        """Return the terms of a lease in seconds; None is the client's lease."""
        seconds = timing.lease if lease is None else lease
        guard = timing.guard(seconds)
        birth = processes.guard(milliseconds(guard))
        trusted = timing.valid_until(0.0, seconds)
        memory, timeout = birth if guard else 0, timing.round_timeout(seconds)
        return cls(seconds, milliseconds(seconds), trusted, guard, memory, birth, timeout)
