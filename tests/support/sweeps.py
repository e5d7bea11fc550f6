"""Cases of a parametrized test that run only in `make test-all`."""

import pytest


def swept(*cases):
    """Mark cases as a sweep; a tuple has one value for each parameter."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.sweep) for case in cases]
