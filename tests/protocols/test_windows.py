"""Windows: how long nodes keep slots, until when a success counts, and how the allowance follows the process."""

import math

import pytest

from redsync._core.timing import Timing
from redsync._protocols.windows import Window

TIMING = Timing(30.0, node_timeout=0.25, drift_factor=0.01, restart_guard=30.0)


@pytest.mark.parametrize("per", [0.001, 0.1, 1.0, 60.0, 86_400.0, 366 * 86_400.0])
def test_slot_is_kept_for_the_window_the_allowance_and_drift(per):
    window = Window(per, TIMING)
    for took in [0.0001] * 50 + [0.02] * 50:
        telling = window.telling()
        # By a client's clock, next to which the node's runs fast; a node counts whole microseconds.
        assert (window.asked(telling) - 0.000_01) / 1.01 >= per + window.round_limit + telling + 0.0024 - 1e-6
        assert (window.needed(telling) - 0.000_01) / 1.01 >= per + telling + 0.0024 - 1e-6
        window.note(took, telling)


@pytest.mark.parametrize(("per", "most"), [(0.1, 96.2), (1.0, 98.7), (10.0, 99.0)])
def test_throughput_is_as_documented(per, most):
    """docs/rate-limiting.md: the allowance is 2.9 ms, and more where processes are slow."""
    window = Window(per, TIMING)
    assert window.needed(window.telling()) == pytest.approx(1.01 * (per + 0.0029) + 0.000_01)
    assert round(100 * per / window.needed(window.telling()), 1) == most


@pytest.mark.parametrize("per", [0.1, 1.0, 60.0, 86_400.0])
@pytest.mark.parametrize("too_short", [0.0, 0.0005])
def test_success_is_kept_no_longer_than_retry_after_says(per, too_short):
    """Even after a pause of the process while it told nodes of the round before."""
    window = Window(per, TIMING)
    assert window.needed(window.telling(too_short)) <= window.room_after(math.inf) == pytest.approx(per * 1.01 + 0.005)


def test_time_to_tell_nodes_follows_how_long_that_takes():
    window = Window(1.0, TIMING)
    assert window.telling() == 0.0005, "before any success"
    for _ in range(100):
        window.note(0.003, window.telling())
    assert window.telling() == pytest.approx(0.006, rel=1e-4), "twice the mean"
    assert window.telling(0.001) == window.telling()
    assert window.telling(0.01) == 0.04, "longer after that was too short"
    assert window.telling(9.0) == 0.5, "as long as two rounds may last"


def test_round_that_is_not_too_long_for_the_client_can_always_count():
    window = Window(0.001, TIMING)
    assert window.round_limit > TIMING.node_timeout == window.round_timeout


def longest_kept(window):
    return window.asked(window.telling(99.0))


def test_guard_covers_the_longest_time_for_which_a_slot_is_kept():
    assert Window(3600.0, TIMING).guard >= longest_kept(Window(3600.0, TIMING))
    assert Window(1.0, TIMING).guard == 30.0, "as all clients expect of each other"
    assert Window(3600.0, TIMING, 60.0).guard == 60.0
    assert Window(3600.0, Timing(30.0)).guard == 0.0


@pytest.mark.parametrize("node_timeout", [0.05, 0.25, 5.0])
def test_guard_covers_what_clients_that_wait_longer_for_nodes_ask_for(node_timeout):
    """A node that restarts has forgotten the slots of any client, and stays out by the guard of the next asker."""
    longest = longest_kept(Window(3600.0, Timing(30.0, node_timeout=60.0, restart_guard=30.0)))
    assert Window(3600.0, Timing(30.0, node_timeout=node_timeout, restart_guard=30.0)).guard >= longest
