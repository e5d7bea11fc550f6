"""Windows: how long slots are kept, until when a success counts, and how the allowance follows what rounds take."""

import pytest

from redsync._core.timing import Timing
from redsync._protocols.windows import Window

TIMING = Timing(30.0, node_timeout=0.25, drift_factor=0.01, restart_guard=30.0)


@pytest.mark.parametrize("per", [0.001, 0.1, 1.0, 60.0, 86_400.0, 366 * 86_400.0])
def test_slot_is_kept_for_the_window_the_allowance_and_drift(per):
    window = Window(per, TIMING)
    for took in [0.001] * 50 + [0.02] * 50:
        lease, useful = window.terms()
        # By the clock of a client, beside which the node's runs fast; a node counts whole milliseconds.
        assert (lease - 0.001) / 1.01 >= per + useful + max(useful, 0.005) - 1e-6
        window.note(took)


@pytest.mark.parametrize(("per", "most"), [(1.0, 98.3), (10.0, 98.4), (3600.0, 99.0)])
def test_throughput_is_what_the_page_says(per, most):
    """docs/rate-limiting.md: the allowance is 0.6 % of the window, at least 6 ms, at most four times `node_timeout`."""
    window = Window(per, TIMING)
    window.note(0.0005)
    useful, way = min(max(0.001 * per, 0.001), 0.5), min(max(0.005 * per, 0.005), 0.5)
    assert window.terms() == (pytest.approx(1.01 * (per + useful + way) + 0.001), pytest.approx(useful))
    assert round(100 * per / window.terms()[0], 1) == most


def test_allowance_follows_the_mean_of_what_rounds_take():
    window = Window(1.0, TIMING)
    assert window.terms()[1] == 0.025, "before any round"
    window.note(0.02)
    assert window.terms()[1] == pytest.approx(0.04), "twice what they take"
    window.note(0.1)
    assert window.terms()[1] == pytest.approx(0.06), "one slow round is not the rule"
    for _ in range(100):
        window.note(0.01)
    lease, useful = window.terms()
    assert useful == pytest.approx(0.02, abs=0.001)
    assert lease == pytest.approx(1.01 * (1.0 + 2 * useful) + 0.001), "as long for the way to the caller"


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
    assert window.guard >= window.terms()[0]
    assert Window(1.0, TIMING).guard == 30.0, "as everybody expects of everybody"
    assert Window(3600.0, TIMING, 60.0).guard == 60.0
    assert Window(3600.0, Timing(30.0)).guard == 0.0


def test_retry_after_is_long_enough_by_a_clock_that_runs_slow():
    assert Window(60.0, TIMING).retry_after(60.0) == pytest.approx(60.6)


def test_who_waits_for_long_looks_while_its_place_is_kept_and_seldom():
    for per, shortest in ((0.1, 1.2), (60.0, 3.4), (86_400.0, 34.0)):
        window = Window(per, TIMING)
        for random in (0.0, 0.999):
            assert shortest <= window.longest_pause(random) <= window.place_kept / 2
            assert window.longest_pause(random, 1000.0) == window.longest_pause(random)


def test_who_has_others_before_it_looks_the_more_often_the_fewer_they_are():
    window = Window(1.0, TIMING)
    assert [window.longest_pause(1.0, ahead) for ahead in (0.0, 0.001, 1.0, 3.0, 9.0)] == [1.5, 0.25025, 0.5, 1.0, 1.5]
    assert Window(0.01, TIMING).longest_pause(1.0, 1.0) == 0.1
