"""The means to look at broken nodes from outside redsync."""

import time

import pytest


@pytest.fixture
def nothing_left(raw, eventually):
    """Return a function that waits until no node keeps a claim or a place."""
    return lambda: eventually(lambda: not any(raw.keys()))


@pytest.fixture
def await_renewal(eventually):
    """Return a function that waits until a hold is believed longer than before the call; never if it is lost."""

    def await_renewal(hold):
        before = time.monotonic() + hold.remaining()
        eventually(lambda: time.monotonic() + hold.remaining() > before + 0.05)

    return await_renewal
