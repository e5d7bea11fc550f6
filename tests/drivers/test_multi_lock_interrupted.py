"""A multi-lock interrupted at every possible point: still all or none."""

from contextlib import suppress
from functools import partial

import pytest

from redsync import LeaseLostError, NotOwnedError, QuorumError
from tests.support.locks import PATIENCE

STRIDE = 11
"""A sweep tries every eleventh of about 700 points; the seed says which."""


@pytest.fixture
def clients(make_lasting):
    """Two clients for the multi-locks here."""
    return make_lasting(), make_lasting(prefix="other:")


@pytest.fixture
def make_multi(clients):
    first, second = clients

    def make(point=""):
        return first.get_multi_lock(
            second.get_mutex(f"c{point}"),
            first.get_lock(f"b{point}"),
            first.get_fair_lock(f"a{point}"),
        )

    return make


@pytest.fixture
def interrupt(interrupt_at_points, clients):
    return partial(interrupt_at_points, clients, STRIDE)


def enter_and_leave(multi):
    with multi:
        pass


def is_free(multi):
    """Check that the same object is usable again, and knows no earlier `with`."""
    if multi.hold_count() or any(lock.hold_count() for lock in multi._locks):
        return "it counts a hold"
    with multi as hold:
        hold.check()
    if multi._entered or any(lock._entered for lock in multi._locks):
        return "it remembers a `with`"
    return "the next `with` did not release it" if multi.hold_count() else None


def none_is_held(multi):
    return [lock for lock in multi._locks if lock.hold_count()]


def test_acquire_interrupted_at_any_point_leaves_nothing_held(interrupt, make_multi):
    interrupt(make_multi, lambda multi: multi.acquire(timeout=PATIENCE), is_free)


def test_refused_acquire_interrupted_at_any_point_leaves_nothing_held(interrupt, make_multi, make_lasting):
    """Even where it is about to release the locks acquired so far."""
    held = make_lasting().get_lock("b")  # the last in their order
    assert held.acquire(timeout=PATIENCE)

    def try_in_vain(multi):
        with suppress(QuorumError):  # where connections are discarded, or the machine is busy
            assert multi.acquire(timeout=0.02) is False

    interrupt(lambda point: make_multi(), try_in_vain, none_is_held, keys=["redsync:b"])
    held.release()


def test_failing_acquire_interrupted_at_any_point_leaves_nothing_held(interrupt, make_multi, raw):
    for node in raw:
        node.lpush("redsync:b", "foreign")  # the last in their order

    def fail(multi):
        with suppress(TypeError, QuorumError):
            multi.acquire(timeout=PATIENCE)

    interrupt(lambda point: make_multi(), fail, none_is_held, keys=["redsync:b"])


def test_with_interrupted_at_any_point_leaves_nothing_held(interrupt, make_multi):
    interrupt(make_multi, enter_and_leave, is_free)


def test_reentry_interrupted_at_any_point_leaves_the_outer_holds(interrupt, clients):
    first, second = clients
    outer = first.get_multi_lock(first.get_lock("a"), second.get_lock("b"))
    with outer as hold:

        def still_held(_):
            hold.check()
            return None if outer.hold_count() == 1 else f"held {outer.hold_count()} times"

        inner = first.get_multi_lock(second.get_lock("b"), first.get_lock("a"), first.get_lock("c"))
        interrupt(lambda point: inner, enter_and_leave, still_held, keys=["redsync:a", "other:b"], holds=2)
    assert outer.hold_count() == 0


@pytest.mark.parametrize("lost", [False, True], ids=["held", "one is lost"])
def test_release_interrupted_at_any_point_has_released_all_or_none(interrupt, make_multi, lost):
    """If the release had not begun, all are held, and can be released."""

    def acquired(point):
        multi = make_multi(point)
        assert multi.acquire(timeout=PATIENCE)
        if lost:
            state = multi._locks[1]._state()
            state.valid_until = 0.0
        return multi

    def release(multi):
        with suppress(LeaseLostError):
            multi.release()

    def released(multi):
        counts = {lock._state().count if lock._state() else 0 for lock in multi._locks}
        if len(counts) != 1:
            return f"released some and not others: {counts}"
        with suppress(*([NotOwnedError] if counts == {0} or lost else [])):
            multi.release()
        return None

    interrupt(acquired, release, released)


def test_release_of_a_hold_interrupted_at_any_point_has_released_all_or_none(interrupt, make_multi):
    kept = []

    def acquired(point):
        multi = make_multi(point)
        kept[:] = [multi.__enter__()]
        return multi

    def released(multi):
        counts = {lock.hold_count() for lock in multi._locks}
        if len(counts) != 1:
            return f"released some and not others: {counts}"
        multi.__exit__(None, None, None)
        return is_free(multi)

    interrupt(acquired, lambda multi: kept[0].release(), released)


def test_wait_for_a_loss_interrupted_at_any_point_leaves_no_watcher(interrupt, clients):
    first, second = clients
    multi = first.get_multi_lock(first.get_lock("a"), second.get_lock("b"))
    with multi as hold:
        states = [part._state for part in hold._holds]

        def rests(_):
            hold.check()
            return f"watchers {[s.watchers for s in states]}" if any(state.watchers for state in states) else None

        interrupt(
            lambda point: multi,
            lambda multi: hold.wait_lost(0.002),
            rests,
            keys=["redsync:a", "other:b"],
            holds=2,
        )
        assert not any(state.watching for state in states)
