"""Forked processes: each has its own identity, connections and holds.

`test_orphans.py` of the drivers has those of multiprocessing and the interpreter's exit, and `tests/contrib` a server
that forks its workers.
"""

import os

import pytest

from redsync import NotOwnedError
from tests.support.forks import in_child

# From Python 3.12 on, each fork in a process with threads warns.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def connections(raw):
    """Return a function that gives the ids of redsync's connections to each node: they all listen for wake-ups."""

    return lambda: [{each["id"] for each in node.client_list() if each["sub"] == "1"} for node in raw]


@pytest.mark.usefixtures("all_nodes_met")
def test_children_of_a_fork_leave_holds_and_connections_of_their_parent_alone(
    make_client, raw, connections, await_renewal, *, eventually
):
    client = make_client(lease=6.0)
    lock, mutex = client.get_lock("parent's"), client.get_mutex("parent's too")

    def child():
        with client.get_lock("the first", timeout=20):  # connects
            pass
        for each, of in ((lock, hold), (mutex, held)):
            assert (each.owned(), each.hold_count(), each.remaining(), of.remaining()) == (False, 0, 0.0, 0.0)
            assert not each.acquire(False)
            with pytest.raises(NotOwnedError) as caught:
                each.release()
            assert caught.type is NotOwnedError, "it did not lose what it never had"
        with client.get_lock("child's") as own:
            assert own.owner.startswith(client.id)
            return f"{client.id} {in_child(grandchild)}"

    def grandchild():
        assert not client.get_lock("child's").acquire(False)
        assert client.get_lock("grandchild's").acquire(timeout=20)
        client.close()
        return client.id

    with lock as hold, mutex as held:
        before = connections()
        told = in_child(child)
        assert len({client.id, *told.split()}) == 3, told
        await_renewal(hold)
        hold.check()
        held.check()
        eventually(lambda: connections() == before)
        assert raw.keys() == [{b"redsync:parent's", b"redsync:parent's too"}] * 5


def test_child_that_closes_all_descriptors_as_daemons_do_may_use_the_client(client):
    def serve():
        os.closerange(3, 1024)
        files = [os.open(os.devnull, os.O_WRONLY) for _ in range(16)]
        with client.get_lock("daemon's", timeout=20):
            pass
        client.close()
        for file in files:
            os.close(file)  # fails if the client has closed it

    child = os.fork()
    if not child:
        status = 1
        try:
            serve()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
