"""A semaphore interrupted at every possible point: no permit is left without an owner."""

from contextlib import suppress
from functools import partial

import pytest

from redsync import OverReleaseError, QuorumError
from tests.support.locks import PATIENCE

STRIDE = 11
"""A sweep tries every eleventh of about 400 points; the seed says which."""


@pytest.fixture
def client(make_lasting):
    return make_lasting()


@pytest.fixture
def interrupt(interrupt_at_points, client):
    def interrupt(do, prepare=lambda semaphore: None, after=lambda semaphore: None):
        """Interrupt `do(semaphore, prepare(semaphore))`; `after(semaphore)` follows."""

        def begin(point):
            semaphore = client.get_semaphore(f"x {point}", 3)
            return semaphore, prepare(semaphore)

        interrupt_at_points([client], STRIDE, begin, lambda begun: do(*begun), lambda begun: after(begun[0]))

    return interrupt


def take(semaphore):
    permit = semaphore.acquire(timeout=PATIENCE, n=2)
    assert permit
    return permit


def release_if_not_begun(semaphore):
    """If the first steps of a release are interrupted, the permit is still held, and can be released."""
    with suppress(OverReleaseError):
        semaphore.release(2)


def test_acquire_interrupted_at_any_point_leaves_no_permit(interrupt):
    interrupt(lambda semaphore, _: take(semaphore))


def test_with_interrupted_at_any_point_leaves_no_permit(interrupt):
    def enter_and_leave(semaphore, _):
        with semaphore as permit:
            permit.check()

    interrupt(enter_and_leave, after=partial(enter_and_leave, _=None))


def test_with_of_a_permit_interrupted_at_any_point_leaves_no_permit(interrupt):
    def leave(_, permit):
        with permit:
            pass

    interrupt(leave, take, release_if_not_begun)


@pytest.mark.parametrize("whose", ["semaphore", "permit"])
def test_release_interrupted_at_any_point_leaves_no_permit(interrupt, whose):
    def release(semaphore, permit):
        semaphore.release(2) if whose == "semaphore" else permit.release()

    interrupt(release, take, release_if_not_begun)


def test_waiting_interrupted_at_any_point_leaves_no_place_in_the_queue(interrupt, make_lasting):
    """Another client has all permits."""
    other, theirs = make_lasting(), []

    def have_all(semaphore):
        theirs.append(other.get_semaphore(semaphore.name, 3).acquire(n=3))

    def wait_in_vain(semaphore, _):
        with suppress(QuorumError):  # where connections are discarded, or the machine is busy
            assert semaphore.acquire(timeout=0.1) is None

    interrupt(wait_in_vain, have_all, lambda semaphore: theirs.pop().release())
