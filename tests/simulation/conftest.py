"""Simulations."""

import pytest

from tests.simulation.trial import Trial


@pytest.fixture
def sim(request):
    """A simulation with the options in the module's `SIMULATION`; it has run up to `begin`."""
    options = {"begin": 0.0, **request.module.SIMULATION}
    begin = options.pop("begin")
    with Trial(**options) as sim:
        if begin:
            sim.run(until=begin)
        yield sim


@pytest.fixture
def machine(sim):
    return sim.machine("a")
