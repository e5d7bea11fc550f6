"""Checkers: each watches a run for the breach of one promise.

A checker is one small module with one class. To add one: derive from `Checker`, list in `watches` the happenings it
wants to be shown (see `redsync.testing.simulator.happenings`), return a complaint from `see` as soon as the promise is
broken, or from `finish` when the run is over, and add it to `ALL`.

Three helpers are for several of them: `rounds` knows what was asked and what came of it, `queues` who waits for a fair
lock, `calm` since when all is well.

It may look at everything: `sim.machines` and their `runners` (`runner.session.holds` is what a client believes to
hold), `sim.nodes` and their `store`, `sim.now`. It changes nothing.
"""

from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.checks.exclusion import Exclusion
from redsync.testing.simulator.checks.fairness import Fairness
from redsync.testing.simulator.checks.liveness import Liveness
from redsync.testing.simulator.checks.loss import LossTold
from redsync.testing.simulator.checks.reentrancy import Reentrancy
from redsync.testing.simulator.checks.renewal import Renewal
from redsync.testing.simulator.checks.tokens import Tokens
from redsync.testing.simulator.checks.turns import Turns
from redsync.testing.simulator.checks.zombies import Zombies

__all__ = [
    "ALL",
    "Checker",
    "Exclusion",
    "Fairness",
    "Liveness",
    "LossTold",
    "Reentrancy",
    "Renewal",
    "Tokens",
    "Turns",
    "Zombies",
]

ALL: tuple[type[Checker], ...] = (Exclusion, Reentrancy, Renewal, LossTold, Zombies, Liveness, Turns, Fairness, Tokens)
"""The checkers of every simulation that is not told otherwise."""
