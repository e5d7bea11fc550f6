"""The arithmetic of leases and of waiting."""

import math
import threading
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redsync._core.timing import DRIFT_MIN, MAX_LEASE, Timing, check_timeout, retry_delay

TIMING = Timing(30.0)
HUGE = 10**400  # An int beyond all floats.

leases = st.floats(0.01, MAX_LEASE)
factors = st.floats(0.0, 0.5)
instants = st.floats(0.0, 1e9)


# Validity.


def test_validity_follows_the_redlock_page():
    """TTL - (T2 - T1) - CLOCK_DRIFT, with a drift of 1 % of the TTL and 2 ms."""
    timing, sent_at, now = Timing(10.0), 1000.0, 1000.25
    validity = timing.valid_until(sent_at, 10.0) - now
    assert validity == pytest.approx(10.0 - 0.25 - (0.1 + 0.002), abs=1e-9)


@given(instants, leases, factors)
@settings(derandomize=True)
def test_claim_ends_for_its_holder_before_any_node_forgets_it(sent_at, lease, factor):
    timing = Timing(lease, drift_factor=factor)
    # A node whose clock runs fast by the whole factor, and which got the command at the instant of sending.
    forgotten = sent_at + lease * (1 - factor)
    assert timing.valid_until(sent_at, lease) <= forgotten - DRIFT_MIN / 2


@pytest.mark.parametrize(
    ("lease", "node_timeout", "expected"),
    [
        (30.0, 0.25, 0.25),  # The option is smaller.
        (2.0, 0.25, 0.1),  # 5 % of the lease is smaller.
        (0.1, 0.25, 0.01),  # But never less than a busy machine's loopback round trip,
        (0.1, 0.005, 0.005),  # unless the user asks for less.
    ],
)
def test_round_timeout_is_small_against_the_lease(lease, node_timeout, expected):
    assert Timing(30.0, node_timeout=node_timeout).round_timeout(lease) == pytest.approx(expected)


# The guard against nodes that forgot.


@pytest.mark.parametrize(
    ("restart_guard", "lease", "expected"),
    [
        (30.0, 5.0, 30.0),  # Others may still hold for the client's lease.
        (30.0, 31.0, 31.0),  # An acquire with a longer lease expects such leases of others too.
        (900.0, 600.0, 900.0),
        (2.0, 30.0, 2.0),  # Shorter than the lease.
        (2.0, 31.0, 31.0),
        (0.0, 600.0, 0.0),  # Switched off.
    ],
)
def test_guard_is_for_the_longest_lease_that_may_have_been_forgotten(restart_guard, lease, expected):
    assert Timing(30.0, restart_guard=restart_guard).guard(lease) == expected


# Leases.


@pytest.mark.parametrize("lease", [30.0, 1, 0.0021, MAX_LEASE, Fraction(1, 2), Decimal("0.5")])
def test_check_lease_returns_it_as_float(lease):
    checked = TIMING.check_lease(lease)
    assert checked == float(lease)
    assert type(checked) is float


@pytest.mark.parametrize(
    "lease",
    [
        *(0, -0.0, -1e-9, math.nan, math.inf, -math.inf, 5e-324, 0.002, 0.00202, MAX_LEASE * 1.001, HUGE),
        *("1", None, [1], 1j, b"1", True, False),
    ],
)
def test_check_lease_refuses_anything_but_seconds_that_a_claim_can_use(lease):
    """In the words of its caller."""
    with pytest.raises(ValueError, match=r"^max_hold (is|of) "):
        TIMING.check_lease(lease, "max_hold")


@given(st.floats(1e-6, 1e6), factors)
@settings(derandomize=True)
def test_check_lease_accepts_exactly_what_leaves_validity(lease, factor):
    timing = Timing(30.0, drift_factor=factor)
    if lease - (lease * factor + 0.002) > 1e-12:
        assert timing.check_lease(lease) == lease
    elif lease - (lease * factor + 0.002) < -1e-12:
        with pytest.raises(ValueError, match="used up by its drift allowance"):
            timing.check_lease(lease)


# Timeouts.


def stdlib_accepts(blocking, timeout):
    """Return whether `threading.RLock.acquire` takes these arguments."""
    lock = threading.RLock()
    try:
        acquired = lock.acquire(blocking, timeout)
    except (ValueError, OverflowError):
        return False
    assert acquired
    lock.release()
    return True


TIMEOUTS = [
    *(-1, -1.0, 0, 0.0, -0.0, 0.5, 1, 2, True, False),
    *(-0.5, -2, -1e-9, -1e-300, -1.0000001, -1e15, math.nan, -math.inf, math.inf),
]


@pytest.mark.parametrize("blocking", [True, False, 1, 0])
def test_check_timeout_refuses_what_the_stdlib_refuses(blocking):
    for timeout in TIMEOUTS:
        if stdlib_accepts(blocking, timeout):
            check_timeout(blocking, timeout)
        else:
            with pytest.raises(ValueError, match="timeout must be a number of seconds" if blocking else "non-blocking"):
                check_timeout(blocking, timeout)


@pytest.mark.parametrize(
    ("blocking", "timeout", "seconds"),
    [
        (True, None, None),
        (True, -1, None),
        (False, None, 0.0),
        (False, -1.0, 0.0),
        (0, -1, 0.0),
        (1, 3, 3.0),
        (True, 0, 0.0),
        (True, -0.0, 0.0),
        (True, False, 0.0),
        (True, True, 1.0),
        (True, 5e-324, 5e-324),
        (True, 1e15, 1e15),
        (True, Fraction(1, 4), 0.25),
    ],
)
def test_check_timeout_returns_how_long_to_wait(blocking, timeout, seconds):
    result = check_timeout(blocking, timeout)
    assert result == seconds
    assert type(result) in (float, type(None))


@pytest.mark.parametrize("timeout", ["1", b"1", [1], object(), HUGE])
def test_check_timeout_refuses_anything_but_a_number_that_floats_can_express(timeout):
    for accept in (check_timeout, threading.RLock().acquire):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            accept(True, timeout)


# Retries.


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True), st.floats(1e-6, 1.0), st.floats(1e-6, 10.0))
@settings(derandomize=True)
def test_retry_delay_lies_within_its_span(tries, random, shortest, longest):
    """`shortest`: the span after the first failure."""
    delay = retry_delay(tries, random, shortest=shortest, longest=longest)
    assert 0.25 * min(shortest, longest) <= delay < longest
    assert retry_delay(1, random, shortest=shortest, longest=10.0) <= shortest


@given(st.integers(1, 20), st.floats(0, 1, exclude_max=True), st.floats(1e-6, 1e-3))
@settings(derandomize=True)
def test_retry_delay_doubles_until_the_longest(tries, random, shortest):
    one = retry_delay(tries, random, shortest=shortest, longest=0.1)
    two = retry_delay(tries + 1, random, shortest=shortest, longest=0.1)
    assert two == pytest.approx(min(2 * one, retry_delay(1000, random, shortest=0.1, longest=0.1)))


@given(st.integers(1, 100), st.floats(0, 0.9), st.floats(0.01, 0.09))
@settings(derandomize=True)
def test_retry_delay_spreads_contenders_at_random(tries, random, more):
    assert retry_delay(tries, random) < retry_delay(tries, random + more)
