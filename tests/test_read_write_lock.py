"""The public contract of the read-write lock, on real nodes, for threads and for asyncio."""

import pytest

from redsync import UpgradeError
from tests.support.locks import PATIENCE, timed

pytestmark = pytest.mark.usefixtures("both_flavours")


@pytest.fixture
def lock(client):
    return client.get_read_write_lock("x")


@pytest.fixture
def read(lock):
    return lock.read_lock


@pytest.fixture
def write(lock):
    return lock.write_lock


@pytest.fixture
def is_free(raw, eventually):
    """Wait until no node keeps anything."""
    return lambda: eventually(lambda: raw.keys() == [set()] * 5)


# Admission.


@pytest.mark.asyncio_too
def test_many_read_at_once(read, write, make_worker, is_free):
    readers = [make_worker() for _ in range(3)]
    for reader in readers:
        assert reader.do(read.acquire, False)
    assert read.locked()
    assert not write.locked()
    assert not write.acquire(False)
    for reader in readers:
        assert reader.do(read.hold_count) == 1
        reader.do(read.release)
    assert write.acquire(False)
    write.release()
    is_free()


def test_reader_that_asks_to_write_gets_an_error_at_once(read, write):
    with read:
        for options in ({}, {"blocking": False}, {"timeout": 60}):
            error, seconds = timed(write.acquire, **options)
            assert isinstance(error, UpgradeError)
            assert "release the read lock first" in str(error)
            assert seconds < PATIENCE
            assert read.owned(), "and continues reading"
    assert write.acquire(False)
    write.release()


# Queries.


def test_inspect_names_readers_and_writer(client, lock):
    assert lock.name == lock.read_lock.name == lock.write_lock.name == "x"
    assert (repr(lock), repr(lock.read_lock)) == ("<ReadWriteLock 'x'>", "<ReadLock 'x'>")
    with lock.write_lock as hold, lock.read_lock, lock.read_lock:
        info = client.inspect("x")
        assert info.kind == "read-write lock"
        assert [(holder.mode, holder.owner, holder.hold_count) for holder in info.holders] == [
            ("write", hold.owner, 1),
            ("read", hold.owner, 2),
        ]
        assert all(holder.pid and 25 < holder.remaining <= 30 for holder in info.holders)
    assert client.inspect("x").kind == "none"


def test_multi_lock_takes_only_one_of_the_two(client, lock):
    with pytest.raises(ValueError, match="twice"):
        client.get_multi_lock(lock.read_lock, lock.write_lock)
