"""A lock released while nodes answer with errors is free as soon as the nodes execute commands again."""

import contextlib

import pytest

from redsync import QuorumError
from tests.support.kinds import KINDS, another
from tests.support.sweeps import swept
from tests.support.trouble import busy, read_only

pytestmark = pytest.mark.usefixtures("both_flavours")

LEASE = 600.0


@pytest.fixture
def admins(raw):
    return raw[:3]


@pytest.mark.parametrize(
    ("kind", "trouble"),
    [("lock", read_only), ("lock", busy), ("semaphore", read_only), *swept(("mutex", busy), ("read", busy))],
)
def test_release_refused_by_a_majority_is_executed_after_its_recovery(make_client, admins, eventually, trouble, kind):
    mine, yours = make_client(), make_client()
    assert yours.get_lock("warm up").acquire(timeout=60)
    held = KINDS[kind](mine)
    held.acquire(timeout=60, lease=LEASE)
    with trouble(admins) as code:
        held.release()
        eventually(lambda: any(code in (node.last_error or "") for node in mine.nodes()), within=60)
        with contextlib.suppress(QuorumError):  # or they can at least tell that it is held
            assert kind == "read" or not KINDS[kind](yours).acquire(timeout=0.1)
    assert another(kind)(yours).acquire(timeout=60)


def test_closed_client_has_released_what_was_refused_a_moment_before(make_client, other, admins, eventually):
    """A close waits for the nodes as long as for an answer."""
    client = make_client(node_timeout=30.0)
    lock = client.get_lock("x", lease=LEASE)
    assert lock.acquire(timeout=60)
    with read_only(admins):
        lock.release()
        eventually(lambda: any("READONLY" in (node.last_error or "") for node in client.nodes()), within=60)
        closing = other.start(client.close)
    closing.result(60)
    assert not any(admin.exists("redsync:x") for admin in admins)
