"""Windows: how long nodes keep slots, until when a success counts, and how the allowance follows the rounds."""

import math

import pytest

from redsync._core.timing import Timing
from redsync._protocols.windows import Window

TIMING = Timing(30.0, node_timeout=0.25, drift_factor=0.01, restart_guard=30.0)


@pytest.mark.parametrize("per", [0.001, 0.1, 1.0, 60.0, 86_400.0, 366 * 86_400.0])
def test_slot_is_kept_for_the_window_the_allowance_and_drift(per):
    window = Window(per, TIMING)
    for took in [0.001] * 50 + [0.02] * 50:
        lease, useful, telling = window.terms()
        # By a client's clock, next to which the node's runs fast; a node counts whole microseconds.
        assert (lease - 0.000_01) / 1.01 >= per + useful + telling + 0.0024 - 1e-6
        assert (window.needed(telling) - 0.000_01) / 1.01 >= per + telling + 0.0024 - 1e-6
        window.note(took)
        window.note_telling(took)


@pytest.mark.parametrize(("per", "most"), [(0.1, 95.3), (1.0, 98.6), (10.0, 99.0)])
def test_throughput_is_as_documented(per, most):
    """docs/rate-limiting.md: the allowance is 3.9 ms, and more where rounds are slow."""
    window = Window(per, TIMING)
    window.note(0.0005)
    assert window.terms() == (pytest.approx(1.01 * (per + 0.0039) + 0.000_01), 0.001, 0.0005)
    assert round(100 * per / window.terms()[0], 1) == most


@pytest.mark.parametrize("per", [0.1, 1.0, 60.0, 86_400.0])
def test_slot_of_a_usual_round_is_kept_no_longer_than_retry_after_says(per):
    window = Window(per, TIMING)
    window.note(0.0005)
    assert window.terms()[0] < window.room_after(math.inf) == pytest.approx(per * 1.01 + 0.005)


def test_allowance_follows_the_mean_duration_of_rounds():
    window = Window(1.0, TIMING)
    assert window.terms()[1] == 0.025, "before any round"
    window.note(0.02)
    assert window.terms()[1] == pytest.approx(0.04), "twice their duration"
    window.note(0.1)
    assert window.terms()[1] == pytest.approx(0.06), "one slow round is not usual"
    for _ in range(100):
        window.note(0.01)
    lease, useful, telling = window.terms()
    assert useful == pytest.approx(0.02, abs=0.001)
    assert lease == pytest.approx(1.01 * (1.0029 + useful) + 0.000_01)
    assert window.needed(telling) == pytest.approx(1.01 * 1.0029 + 0.000_01), "once the round is over"


def test_time_to_tell_nodes_follows_how_long_that_takes():
    window = Window(1.0, TIMING)
    assert window.telling() == 0.0005
    for _ in range(100):
        window.note_telling(0.003)
    assert window.telling() == pytest.approx(0.006, rel=1e-4)
    assert window.telling(0.001) == window.telling()
    assert window.telling(0.01) == pytest.approx(0.02), "longer after it took too long"
    assert window.telling(9.0) == 0.5
    assert window.terms()[2] == window.telling()
    assert window.terms(0.0, 0.01)[2] == window.telling(0.01)
    assert window.needed(0.006) == pytest.approx(1.01 * 1.0084 + 0.000_01)


def test_nodes_are_told_if_they_keep_a_slot_longer_than_retry_after_says_or_than_is_worth_it():
    for per in (0.1, 1.0, 86_400.0):
        window = Window(per, TIMING)
        longest = window.room_after(math.inf)
        assert not window.is_long(0.001, 0.0005, 0.0005)
        for useful, telling in ((0.002, 0.0005), (0.0021, 0.0005), (0.001, 0.0015), (0.001, 0.0016), (0.025, 0.0005)):
            kept_too_long = window._lease(useful + telling) > longest
            assert window.is_long(useful, useful, telling) == kept_too_long, "however long the round took"
    assert Window(1.0, TIMING).is_long(0.0018, 0.0005, 0.0005), "a thousandth of the window"
    assert not Window(60.0, TIMING).is_long(0.0018, 0.0005, 0.0005)


def test_acquire_whose_round_was_too_slow_has_more_time_than_others():
    window = Window(1.0, TIMING)
    window.note(0.001)
    assert window.terms(0.06)[1] == pytest.approx(0.12)
    assert window.terms()[1] == pytest.approx(0.002)
    assert window.terms(0.4)[1] == 0.5, "as long as two rounds may last"


def test_round_that_is_not_too_long_for_the_client_can_always_count():
    window = Window(0.001, TIMING)
    window.note(0.001)
    assert window.terms(TIMING.node_timeout)[1] > TIMING.node_timeout == window.round_timeout


def test_guard_covers_the_longest_time_for_which_a_slot_is_kept():
    window = Window(3600.0, TIMING)
    window.note(9.0)
    window.note_telling(90.0)
    assert window.guard >= window.terms()[0]
    assert Window(1.0, TIMING).guard == 30.0, "as all clients expect of each other"
    assert Window(3600.0, TIMING, 60.0).guard == 60.0
    assert Window(3600.0, Timing(30.0)).guard == 0.0


@pytest.mark.parametrize("node_timeout", [0.05, 0.25, 5.0])
def test_guard_covers_what_clients_that_wait_longer_for_nodes_ask_for(node_timeout):
    """A node that restarts has forgotten the slots of any client, and stays out by the guard of the next asker."""
    longest = Window(3600.0, Timing(30.0, node_timeout=60.0, restart_guard=30.0)).terms(100.0, 100.0)[0]
    assert Window(3600.0, Timing(30.0, node_timeout=node_timeout, restart_guard=30.0)).guard >= longest


def test_retry_after_is_long_enough_by_a_clock_that_runs_slow():
    assert Window(60.0, TIMING).room_after(30.0) == pytest.approx(30.3)


def test_retry_after_is_never_more_than_the_window_its_drift_and_5_ms():
    window = Window(60.0, TIMING)
    for left, pause in ((61.0, 0.0), (30.0, 31.0), (math.inf, 0.0)):
        assert window.room_after(left, pause) == pytest.approx(60.605)
    assert window.room_after(30.0, 1.0) == pytest.approx(31.3)


def test_waiter_with_a_long_wait_looks_seldom_but_while_its_place_is_kept():
    for per, shortest in ((0.1, 1.2), (60.0, 3.4), (86_400.0, 34.0)):
        window = Window(per, TIMING)
        for random in (0.0, 0.999):
            assert shortest <= window.longest_pause(random) <= window.place_kept / 2
            assert window.longest_pause(random, 1000.0) == window.longest_pause(random)


def test_waiter_looks_more_often_the_fewer_are_before_it():
    window = Window(1.0, TIMING)
    assert [window.longest_pause(1.0, ahead) for ahead in (0.0, 0.001, 1.0, 3.0, 9.0)] == [1.5, 0.25025, 0.5, 1.0, 1.5]
    assert Window(0.01, TIMING).longest_pause(1.0, 1.0) == 0.1
