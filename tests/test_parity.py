"""Threads and asyncio have the same names and signatures; only methods that may wait are coroutines."""

import inspect

import pytest

import redsync
from redsync import (
    AsyncClient,
    AsyncCountDownLatch,
    AsyncRateLimiter,
    AsyncRatePermit,
    AsyncReadWriteLock,
    AsyncSemaphore,
)
from tests.bridge import TWINS

PAIRS = [(plain, awaited) for awaited, plain in TWINS.items()]


def pairs_with(method):
    """Return the twins that have a method; a pair of read and write lock is not a lock itself."""
    return [(plain, awaited) for plain, awaited in PAIRS if hasattr(plain, method)]


LOCKS = [pair for pair in pairs_with("force_release") if pair not in pairs_with("get_lock")]
HOLDS, ENTERED = pairs_with("wait_lost"), pairs_with("__enter__")

AWAITED = {
    AsyncClient: {"close", "force_release", "inspect", "inspect_all"},
    AsyncReadWriteLock: set(),
    **{awaited: {"acquire", "extend", "force_release", "locked", "release"} for _, awaited in LOCKS},
    **{awaited: {"extend", "release", "wait_lost"} for _, awaited in HOLDS},
    AsyncCountDownLatch: {"count", "count_down", "delete", "try_set_count", "wait"},
    AsyncSemaphore: {"acquire", "available", "holders", "permits", "release", "resize"},
    AsyncRateLimiter: {"acquire", "acquire_permit", "available", "retry_after", "set_rate"},
    AsyncRatePermit: set(),
}

twins = pytest.mark.parametrize(("plain", "awaited"), PAIRS, ids=[plain.__name__ for plain, _ in PAIRS])


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def shape(function):
    """Return a signature without its types, which differ: a Lock is not an AsyncLock."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@twins
def test_twins_have_the_same_public_names_each_with_a_docstring(plain, awaited):
    assert public(plain) == public(awaited)
    assert public(plain), "there is something to compare"
    for kind in (plain, awaited):
        assert kind.__doc__
        assert not [name for name in public(kind) if not inspect.getdoc(getattr(kind, name))]


@twins
def test_twins_have_the_same_signatures(plain, awaited):
    # A client for asyncio has one connection per node.
    assert [each for each in shape(plain) if each[0] != "max_connections"] == shape(awaited)
    for name in public(plain):
        mine, other = inspect.getattr_static(plain, name), inspect.getattr_static(awaited, name)
        assert type(mine) is type(other), name
        if inspect.isfunction(mine):
            assert shape(mine) == shape(other), name


@twins
def test_methods_that_may_wait_are_awaited_and_no_others(plain, awaited):
    coroutines = {name for name in public(awaited) if inspect.iscoroutinefunction(getattr(awaited, name))}
    assert coroutines == AWAITED[awaited]
    assert not any(inspect.iscoroutinefunction(getattr(plain, name)) for name in public(plain))


@pytest.mark.parametrize(("plain", "awaited"), ENTERED)
def test_with_becomes_async_with(plain, awaited):
    assert inspect.iscoroutinefunction(awaited.__aenter__)
    assert inspect.iscoroutinefunction(awaited.__aexit__)
    assert shape(plain.__exit__) == shape(awaited.__aexit__)
    assert not hasattr(awaited, "__enter__"), "a forgotten `async` is an error, not a lock without an effect"
    assert not hasattr(plain, "__aenter__")


@pytest.mark.parametrize(
    ("ours", "theirs"), [("MultiLock", "Lock"), ("AsyncMultiLock", "AsyncLock"), ("MultiHold", "Hold")]
)
def test_multi_lock_has_the_interface_of_a_lock(ours, theirs):
    ours, theirs = getattr(redsync, ours), getattr(redsync, theirs)
    assert public(ours) == public(theirs)
    for name in public(ours):
        if inspect.isfunction(inspect.getattr_static(ours, name)):
            assert shape(getattr(ours, name)) == shape(getattr(theirs, name)), name
