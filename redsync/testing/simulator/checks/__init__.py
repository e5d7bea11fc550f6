"""Checkers: each watches a run for the breach of one promise.

A checker is one small module with one class. To add one: derive from `Checker`, list in `watches` the happenings it
wants to be shown (see `redsync.testing.simulator.happenings`), return a complaint from `see` as soon as the promise is
broken, or from `finish` when the run is over, and add it to `ALL`.

It may look at everything: `sim.machines` and their `runners` (`runner.session.holds` is what a client believes to
hold), `sim.nodes` and their `store`, `sim.now`. It changes nothing.
"""

from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.checks.exclusion import Exclusion

__all__ = ["ALL", "Checker", "Exclusion"]

ALL: tuple[type[Checker], ...] = (Exclusion,)
"""The checkers of every simulation that is not told otherwise."""
