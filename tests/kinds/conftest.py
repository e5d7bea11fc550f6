"""Two clients of one kind of lock, in either flavour, and checks that they leave nothing on the nodes."""

import pytest

from redsync import LeaseLostError, NotOwnedError
from tests.support.kinds import LOCKS, another


@pytest.fixture
def make_client(make_client, all_nodes_met):
    """Make clients that do not time out on a busy machine, and whose claims reach all nodes."""
    return lambda urls=None, **options: make_client(urls, **{"node_timeout": 2.0, **options})


@pytest.fixture
def lock(client, kind):
    return LOCKS[kind](client)


@pytest.fixture
def theirs(make_client, kind):
    """The same lock of another client, which can't acquire it meanwhile."""
    return another(kind)(make_client())


@pytest.fixture
def is_free(raw, eventually):
    """Wait until no node keeps a claim or a place in a queue; tokens outlive claims."""

    def wait():
        eventually(lambda: not [key for keys in raw.keys() for key in keys if b"token" not in key])  # noqa: SIM118

    return wait


@pytest.fixture
def nothing_of():
    """Return True if this thread has no hold of a lock."""
    return lambda lock: (lock.owned(), lock.hold_count(), lock.remaining()) == (False, 0, 0.0)


@pytest.fixture
def not_held():
    """Check that a call raises `NotOwnedError`, and not `LeaseLostError`."""

    def check(call):
        with pytest.raises(NotOwnedError) as info:
            call()
        assert not isinstance(info.value, LeaseLostError)

    return check
