"""The public contract of the rate limiter, on real nodes, in both flavours."""

import time
from functools import partial

import pytest

from redsync import AcquireTimeout, ClientClosedError, ConfigurationError, QuorumError
from redsync._core.keys import MAX_NAME
from tests.support.forks import in_child
from tests.support.locks import PATIENCE
from tests.support.trouble import hanging

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")

DAY = 86_400


@pytest.fixture
def limiter(client):
    """Three in a day."""
    return client.get_rate_limiter("x", 3, DAY)


@pytest.fixture
def daily(client):
    return client.get_rate_limiter("x", 2, DAY)


# Acquiring.


@pytest.mark.asyncio_too
def test_exactly_as_many_succeed_as_the_rate_allows(daily, make_client):
    elsewhere = make_client().get_rate_limiter("x", 2, DAY)
    assert daily.available() == 2
    assert daily.acquire() is True
    assert elsewhere.acquire(False) is True
    assert daily.acquire(False) is False
    assert elsewhere.acquire(timeout=0.3) is False
    assert daily.available() == elsewhere.available() == 0


# Queries.


@pytest.mark.asyncio_too
def test_retry_after_is_zero_while_one_is_free(limiter):
    assert (limiter.name, limiter.rate, limiter.per) == ("x", 3, DAY)
    assert repr(limiter).endswith("RateLimiter 'x' of 3 per 86400 s>")
    assert limiter.retry_after() == 0.0
    limiter.acquire(n=2)
    assert limiter.retry_after() == 0.0
    assert limiter.retry_after(2) > 0.0
    assert limiter.available() == 1, "a query acquires nothing"


# Several rates.


@pytest.mark.asyncio_too
def test_success_counts_for_all_rates_and_a_refusal_for_none(client):
    limiter = client.get_rate_limiter("x", [(5, 2 * DAY), (2, DAY)])
    assert (limiter.rate, limiter.per, limiter.rates) == (2, DAY, ((2, DAY), (5, 2 * DAY)))
    assert repr(limiter).endswith("RateLimiter 'x' of 2 per 86400 s and 5 per 172800 s>")
    assert limiter.available() == 2
    assert limiter.acquire(n=2)
    assert not any(limiter.acquire(False) for _ in range(9))
    assert not limiter.acquire(timeout=0.1)
    assert limiter.available() == 0
    assert DAY - 100 < limiter.retry_after() < 1.1 * DAY
    assert not client.get_rate_limiter("x", 2, DAY).acquire(False), "a program with the first rate alone shares it"
    assert client.get_rate_limiter("x (window 2)", 5, 2 * DAY).available() == 3


@pytest.mark.asyncio_too
def test_with_waits_for_all_rates(client):
    began = time.monotonic()
    limiter = client.get_rate_limiter("x", [(1, 0.3), (2, DAY)], timeout=PATIENCE)
    for _ in range(2):
        with limiter:
            pass
    assert time.monotonic() - began > 0.3
    used_up = client.get_rate_limiter("x", [(1, 0.3), (2, DAY)], timeout=0.4)
    said = r"rate limiter 'x' allows 1 per 0\.3 s and 2 per 86400 s, and was still used up"
    with pytest.raises(AcquireTimeout, match=said) as info, used_up:
        pytest.fail("the body must not run")
    assert info.value.holder is None
    assert client.get_rate_limiter("x", 1, 0.3).acquire(False), "that took nothing"


def test_limiter_of_several_rates_may_have_the_longest_name(client):
    assert client.get_rate_limiter("x" * MAX_NAME, [(2, 60), (5, DAY)]).acquire(False)


# Changing a rate.


@pytest.mark.asyncio_too
def test_changed_rate_applies_to_all_programs_at_once(daily, make_client):
    elsewhere = make_client().get_rate_limiter("x", 2, DAY)
    assert elsewhere.acquire(n=2)
    daily.set_rate(4)
    assert (daily.rate, daily.rates) == (4, ((4, DAY),))
    assert elsewhere.acquire(False, n=2)
    assert elsewhere.rate == 4, "it has learned that from the nodes"
    assert not daily.acquire(False)
    stated = make_client().get_rate_limiter("x", 9, DAY)
    assert stated.available() == 0, "a program that states another number follows too"
    stated.set_rate(3)
    assert not elsewhere.acquire(False), "four count, and there are three"
    with pytest.raises(ConfigurationError, match="rate limiter 'x' was resized to 3 per 86400 s: 4 at once"):
        make_client().get_rate_limiter("x", 4, DAY).acquire(False, n=4)
    with pytest.raises(ValueError, match=r"allows 3 per 86400 s: n must be an integer from 1 to 3"):
        elsewhere.acquire(n=4)


def test_lower_rate_counts_what_was_admitted_before(client, make_client, eventually):
    limiter = client.get_rate_limiter("x", 5, DAY)
    permits = [limiter.acquire_permit() for _ in range(5)]
    elsewhere = make_client().get_rate_limiter("x", 5, DAY)
    limiter.set_rate(2)
    for permit in permits[:3]:
        assert not elsewhere.acquire(False)
        permit.cancel()
    eventually(lambda: elsewhere.available() == 0)
    assert not elsewhere.acquire(False)
    assert elsewhere.retry_after() > DAY - 100
    permits[3].cancel()
    eventually(lambda: elsewhere.acquire(False))
    assert not elsewhere.acquire(False)


def test_rate_of_one_of_several_windows_is_changed(client):
    limiter = client.get_rate_limiter("x", [(2, DAY), (3, 2 * DAY)])
    limiter.set_rate(5, per=DAY)
    assert limiter.rates == ((5, DAY), (3, 2 * DAY))
    assert limiter.acquire(n=3)
    assert not limiter.acquire(False)
    limiter.set_rate(4, 2 * DAY)
    assert limiter.acquire(False)
    for per in (None, 60):
        with pytest.raises(ValueError, match=f"per must be one of its windows, not {per}"):
            limiter.set_rate(4, per)
    with pytest.raises(ValueError, match="a rate must be an integer"):
        limiter.set_rate(0, DAY)


# Cancelling.


@pytest.mark.asyncio_too
def test_cancelled_success_is_free_again_and_no_other(client, make_client, eventually):
    elsewhere = make_client().get_rate_limiter("x", [(3, DAY), (4, 2 * DAY)])
    limiter = client.get_rate_limiter("x", [(3, DAY), (4, 2 * DAY)])
    permit = limiter.acquire_permit(n=2)
    assert elsewhere.acquire(False)
    assert elsewhere.acquire_permit(False) is None
    assert repr(permit).endswith(f"RatePermit of 'x': {permit.id}>")
    permit.cancel()
    eventually(lambda: elsewhere.acquire(False))
    permit.cancel()
    assert limiter.available() == 1, "cancelling twice returns nothing of others"
    with limiter as entered:
        entered.cancel()
    eventually(lambda: limiter.available() == 1)


def test_waiter_gets_a_cancelled_success(client, make_client, other, eventually):
    elsewhere = make_client().get_rate_limiter("x", 1, DAY)
    permit = client.get_rate_limiter("x", 1, DAY).acquire_permit()
    waiting = other.start(elsewhere.acquire, timeout=PATIENCE)
    eventually(lambda: client.inspect("x").waiters)
    permit.cancel()
    assert waiting.result(PATIENCE)


def test_success_of_a_closed_client_can_not_be_cancelled(make_client):
    one = make_client()
    permit = one.get_rate_limiter("x", 1, DAY).acquire_permit()
    one.close()
    with pytest.raises(ClientClosedError):
        permit.cancel()
    assert not make_client().get_rate_limiter("x", 1, DAY).acquire(False)


@pytest.mark.threads_only("a child of a fork has no loop")
def test_success_of_the_parent_can_not_be_cancelled_by_the_child_of_a_fork(daily):
    permit = daily.acquire_permit()
    assert "began before this process was forked: only the parent can use it" in in_child(permit.cancel)
    assert daily.available() == 1
    permit.cancel()
    assert daily.available() == 2


# Disagreement, foreign values, outages.


def test_programs_that_disagree_get_an_error(client, eventually):
    mine = client.get_rate_limiter("x", [(2, DAY), (5, 2 * DAY)])
    mine.acquire()
    for rates, said in (
        ([(3, DAY)], r"has 2 per 86400 s on its nodes, not .*: use one "),
        ([(2, 60.0)], r"has 2 per 86400 s on its nodes, not .*: use one "),
        ([(2, DAY), (6, 2 * DAY)], r"has 5 per 172800 s on .*, not 6 .* or set_rate\(6, per=172800\)"),
    ):
        other = client.get_rate_limiter("x", rates)
        for look in (other.acquire, other.available, other.retry_after):
            with pytest.raises(ConfigurationError, match=said):
                look()
    with pytest.raises(ConfigurationError, match="on its nodes"):
        client.get_rate_limiter("x", 2, 60).set_rate(3)
    eventually(lambda: mine.acquire(False))  # They took nothing, but their last rollback may come a moment later.
    assert not mine.acquire(False)


@pytest.mark.parametrize("n", [2, 4])
def test_failed_call_of_a_program_with_another_rate_keeps_nobody_out(make_client, nodes, n):
    """It reaches half of the nodes: as many as the others need besides their own half."""
    wrong, right = make_client(n=n), make_client(n=n)
    with hanging(nodes, *range(n // 2, n)):
        with pytest.raises(QuorumError):
            wrong.get_rate_limiter("x", 30, DAY).acquire(False)
        with pytest.raises(QuorumError):
            wrong.get_mutex("sent behind the rollback").acquire(False)
    assert right.get_rate_limiter("x", 3, DAY).acquire(timeout=PATIENCE)


def test_semaphore_of_the_same_name_is_an_error(client, daily):
    daily.acquire()
    semaphore = client.get_semaphore("x", 2)
    for use in (semaphore.acquire, semaphore.available, lambda: semaphore.resize(5)):
        with pytest.raises(ConfigurationError, match="has a rate limiter on its nodes, not 2: choose another name"):
            use()
    client.get_semaphore("y", 2).acquire()
    with pytest.raises(ConfigurationError, match="has a semaphore on its nodes, not 2 per 60 s"):
        client.get_rate_limiter("y", 2, 60).acquire(False)


def test_node_that_lost_its_memory_is_kept_out_for_a_window(make_client, raw):
    limiter = make_client(n=3, lease=1.0, restart_guard=1.0).get_rate_limiter("x", 1, DAY)
    assert limiter._rates[0].window.guard > DAY
    trusted = make_client(n=3, lease=1.0, restart_guard=1.0).get_rate_limiter("x", 1, DAY, restart_guard=0.0)
    assert trusted.acquire(False), "whose nodes write everything to disk can tell so"
    for use in (limiter.available, limiter.retry_after):
        with pytest.raises(QuorumError):
            use()
    assert trusted.available() == 0
    with pytest.raises(QuorumError, match="may have forgotten"):
        limiter.acquire(False)


# Arguments.


def test_invalid_numbers_are_refused(client, limiter):
    for rate in (0, -1, 10_001, 1.5, "3", None, True):
        with pytest.raises(ValueError, match="a rate must be an integer from 1 to 10,000"):
            client.get_rate_limiter("x", rate, 1)
    for per in (0, -1, float("inf"), float("nan"), 10**400, "1", None, True, 400 * DAY):
        with pytest.raises(ValueError, match="a window"):
            client.get_rate_limiter("x", 1, per)
    for rates in ([], [(1, 1, 1)], [1, 2], None, "ab", [(1, 1), (2, 1)]):
        with pytest.raises(ValueError, match="rate"):
            client.get_rate_limiter("x", rates)
    with pytest.raises(ValueError, match="per goes with one rate"):
        client.get_rate_limiter("x", [(2, 1)], per=3)
    for guard in (-1, float("nan"), "1"):
        with pytest.raises(ValueError, match="restart_guard is a number"):
            client.get_rate_limiter("x", 1, 1, restart_guard=guard)
    for n in (0, -1, 4, 1.0, True, None):
        for use in (lambda n=n: limiter.acquire(n=n), partial(limiter.retry_after, n)):
            with pytest.raises(ValueError, match=r"allows 3 per 86400 s: n must be an integer from 1 to 3"):
                use()


def test_invalid_timeouts_are_refused(client, limiter):
    for arguments in ({"timeout": -2}, {"blocking": False, "timeout": 1}):
        with pytest.raises(ValueError, match="timeout"):
            limiter.acquire(**arguments)
    with pytest.raises(ValueError, match="timeout"):
        client.get_rate_limiter("x", 1, 1, timeout=-3)
