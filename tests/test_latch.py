"""The public contract of the count-down latch, on real nodes that fail, for threads and for asyncio."""

from datetime import timedelta
from decimal import Decimal

import pytest

from redsync import KeyTypeError

pytestmark = pytest.mark.usefixtures("both_flavours")

KEY = "redsync_latch:{redsync:x}"


@pytest.fixture
def latch(client):
    return client.get_count_down_latch("x")


@pytest.mark.asyncio_too
def test_latch_that_was_never_set_or_is_deleted_is_open(latch, other, eventually, raw):
    assert (latch.name, repr(latch)) == ("x", "<CountDownLatch 'x'>")
    assert latch.count() == 0
    assert latch.wait() is True
    latch.count_down()
    assert raw.keys() == [set()] * 5
    latch.delete()
    latch.try_set_count(5)
    waiter = other.start(latch.wait)
    eventually(lambda: raw[0].zcard("redsync_latch_waiters:{redsync:x}"))
    latch.delete()
    assert waiter.result(20) is True
    assert latch.count() == 0
    assert latch.try_set_count(2) is True


@pytest.mark.asyncio_too
def test_latch_opens_when_counted_down(latch, make_client):
    elsewhere = make_client().get_count_down_latch("x")
    assert latch.try_set_count(3) is True
    assert elsewhere.try_set_count(7) is False
    latch.count_down()
    assert (latch.count(), elsewhere.count()) == (2, 2)
    assert elsewhere.wait(0.3) is False
    elsewhere.count_down(2)
    assert (latch.count(), elsewhere.count()) == (0, 0)
    assert latch.wait() is True
    assert latch.try_set_count(1) is True, "it can be set again"
    assert elsewhere.count() == 1


def test_latch_is_kept_for_a_while_after_its_last_use(client, raw):
    latch = client.get_count_down_latch("x", keep=60.0)
    latch.try_set_count(2)
    assert all(55 < node.ttl(KEY) <= 60 for node in raw)
    for node in raw:
        node.pexpire(KEY, 5000)
    latch.count()
    assert sum(node.ttl(KEY) > 55 for node in raw) >= 3
    client.get_count_down_latch("x").count()
    assert sum(node.ttl(KEY) > 80_000 for node in raw) >= 3


def test_latch_on_far_nodes_works_whatever_the_time_to_set_it_or_to_try(make_client, proxies):
    far = make_client([proxy.url for proxy in proxies], node_timeout=5.0).get_count_down_latch("x", timeout=0)
    for proxy in proxies:
        proxy.delay = 0.13  # each way
    assert far.try_set_count(1) is True
    assert far.wait(timeout=0) is False
    far.count_down()
    assert far.wait(timeout=0) is True


def test_foreign_value_is_an_error_and_stays_unchanged(latch, raw):
    for node in raw:
        node.set(KEY, "mine")
    for call in (latch.count, latch.wait, latch.count_down, latch.delete, lambda: latch.try_set_count(1)):
        with pytest.raises(KeyTypeError, match="latch 'x'"):
            call()
    assert all(node.get(KEY) == b"mine" for node in raw)


def test_invalid_arguments_are_refused(client, latch):
    for call in (latch.try_set_count, latch.count_down):
        for number in (0, -1, 2**31, 1.0, True, "1", None):
            with pytest.raises(ValueError, match="a latch counts integers from 1"):
                call(number)
    keeps = 0, float("inf"), "3", None, True, timedelta(1), Decimal("NaN")
    for options in ({"timeout": None}, {"timeout": -1}, {"timeout": -3}, *({"keep": keep} for keep in keeps)):
        with pytest.raises(ValueError, match="seconds"):
            client.get_count_down_latch("x", **options)
    with pytest.raises(ValueError, match="bytes"):
        client.get_count_down_latch("")
