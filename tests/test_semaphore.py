"""The public contract of the semaphore, on real nodes, in both flavours.

It has the contract of `threading.Semaphore`.
"""

from functools import partial

import pytest

from redsync import AcquireTimeout, LeaseLostError, NotOwnedError, OverReleaseError, Permit

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")

LIMIT = b"redsync_limit:{redsync:x}"


@pytest.fixture
def semaphore(client):
    return client.get_semaphore("x", 3)


@pytest.fixture
def elsewhere(make_client):
    """The same semaphore in another process, as seen by the nodes."""
    return make_client().get_semaphore("x", 3)


def is_free(raw):
    return raw.keys() == [{LIMIT}] * len(raw)


# Acquire and release.


@pytest.mark.asyncio_too
def test_permits_are_acquired_until_none_is_left_and_released(client, semaphore, elsewhere, raw, eventually):
    permit = semaphore.acquire()
    assert (semaphore.name, repr(semaphore)) == ("x", "<Semaphore 'x' of 3 permits>")
    assert isinstance(permit, Permit)
    assert permit
    assert repr(permit).startswith("<Permit of 'x' by ")
    assert 25 < permit.remaining() < 30
    assert not permit.lost
    permit.check()
    taken = [permit, elsewhere.acquire(False), semaphore.acquire(timeout=0)]
    assert len({permit.id for permit in taken}) == 3
    assert semaphore.acquire(False) is None
    assert elsewhere.acquire(timeout=0.3) is None
    assert elsewhere.available() == 0
    [holder] = [holder for holder in semaphore.holders() if holder.id == permit.id]
    assert (holder.owner, len(holder.slots)) == (client.id, 1)
    assert 25 < holder.remaining <= 30
    assert holder.pid is not None
    info = client.inspect("x")
    assert (info.kind, info.holders, info.waiters) == ("semaphore", (), ())
    for each in taken:
        each.release()
    assert semaphore.available() == 3
    eventually(lambda: is_free(raw))


# with.


@pytest.mark.asyncio_too
def test_with_acquires_and_releases_permits(client, semaphore):
    with semaphore as permit:
        assert permit.remaining() > 0
        with semaphore:
            assert semaphore.available() == 1
    with pytest.raises(NotOwnedError):
        permit.release()
    with semaphore.acquire(n=2) as permit:
        assert isinstance(permit, Permit)
        assert semaphore.available() == 1
        impatient = client.get_semaphore("x", 3, timeout=0.3)
        said = r"semaphore 'x' was still out of free permits after 0\.3 s"
        with impatient, pytest.raises(AcquireTimeout, match=said), impatient:
            pytest.fail("the body ran without a permit")
    with semaphore.acquire() as permit:
        permit.release()
    with pytest.raises(NotOwnedError), semaphore:
        semaphore.release()
    assert semaphore.available() == 3


@pytest.mark.asyncio_too
def test_with_of_a_permit_that_was_lost_or_released_does_not_begin(client, semaphore):
    released, lost = semaphore.acquire(), client.get_semaphore("x", 3, lease=0.1).acquire()
    released.release()
    lost.wait_lost(2)
    for permit, error in ((released, NotOwnedError), (lost, LeaseLostError)):
        with pytest.raises(error), permit:
            pytest.fail("the body ran without a permit")


# Slots.


def test_permit_tells_which_slots_it_has(client):
    semaphore = client.get_semaphore("gpus", 3)
    with semaphore as first, semaphore as second, semaphore as third:
        assert sorted(first.slots + second.slots + third.slots) == [0, 1, 2]
        assert [first.slots] == [holder.slots for holder in semaphore.holders() if holder.id == first.id]
    several = semaphore.acquire(n=2)
    assert len(several.slots) == 2
    semaphore.release()
    assert len(several.slots) == 1
    several.release()
    assert several.slots == ()


@pytest.mark.threads_only
def test_with_that_begins_keeps_its_permit_if_another_thread_releases_one(semaphore, monkeypatch):
    other = semaphore.acquire()
    monkeypatch.setattr(semaphore, "_note_success", lambda *_: semaphore.release())
    with semaphore as permit:
        assert (len(permit.slots), other.slots) == (1, ())


# Leases and loss.


def test_permit_with_a_lease_becomes_free_by_itself_and_its_loss_is_told(client, elsewhere, eventually):
    lost = []
    semaphore = client.get_semaphore("x", 3, lease=0.2, on_lost=lost.append)
    permit = semaphore.acquire(n=3)
    assert elsewhere.acquire(timeout=20)
    assert permit.lost
    assert permit.remaining() == 0
    eventually(lambda: len(lost) == 1)
    with pytest.raises(LeaseLostError, match="the permit of semaphore 'x' was lost"):
        permit.release()
    with pytest.raises(OverReleaseError):
        semaphore.release()
    with pytest.raises(LeaseLostError), semaphore as permit:
        permit.wait_lost(2)


# The limit.


@pytest.mark.asyncio_too
def test_all_clients_learn_of_a_resize(client, semaphore, elsewhere):
    held = semaphore.acquire(n=3)
    elsewhere.resize(5)
    assert semaphore.permits() == 5
    assert semaphore.available() == 2
    assert semaphore.acquire(False, n=2)
    assert client.get_semaphore("x", 3).acquire(False) is None
    held.release()
    assert client.get_semaphore("x", 7).acquire(False), "even if made with another number"


# Arguments.


@pytest.mark.asyncio_too
def test_invalid_numbers_are_refused(client, semaphore):
    for permits in (0, -1, 10_001, 1.5, "3", None, True):
        for call in (lambda permits=permits: client.get_semaphore("x", permits), partial(semaphore.resize, permits)):
            with pytest.raises(ValueError, match="1 to 10,000 permits"):
                call()
    for n in (0, -1, 4, 1.0, None, True):
        with pytest.raises(ValueError, match="n must be an integer up to that"):
            semaphore.acquire(n=n)
    for n in (0, -1, 1.0, None, True):
        with pytest.raises(ValueError, match="a positive number of permits"):
            semaphore.release(n)
    with pytest.raises(TypeError, match="a semaphore has no option min_hold"):
        client.get_semaphore("x", 3, min_hold=1)
    with pytest.raises(ValueError, match="non-blocking"):
        semaphore.acquire(False, 1.0)
    with pytest.raises(ValueError, match="timeout"):
        semaphore.acquire(timeout=-2)
    with pytest.raises(ValueError, match="lease"):
        semaphore.acquire(lease=0)
