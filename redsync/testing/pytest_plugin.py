"""pytest fixtures, found by pytest itself once redsync is installed.

Every pytest run in the environment imports this module, also one that has nothing to do with locks. So it imports next
to nothing: servers, clients and redis-py come in with the first test that asks for a fixture.

Starting five servers takes longer than most tests, so all tests of a run share them (with pytest-xdist: of a worker).
They share no state: before each test, what is dead or paused is restarted and all is emptied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from redsync.client import Client
    from redsync.testing.local_nodes import LocalNodes

__all__ = ["redsync_client", "redsync_nodes"]


@pytest.fixture(scope="session")
def _redsync_shared_nodes() -> Iterator[LocalNodes]:
    from redsync.testing.local_nodes import LocalNodes

    with LocalNodes(5) as nodes:
        yield nodes


@pytest.fixture
def redsync_nodes(_redsync_shared_nodes: LocalNodes) -> LocalNodes:
    """Five `LocalNodes`, running and empty when the test begins; it may kill, restart and pause them as it likes.

    Don't close them: the next test uses the same servers. What `CONFIG SET` changed stays until the node's restart.

    Raises:
        ServerNotFoundError: There is no server to run; the message says how to get one.
    """
    _redsync_shared_nodes.reset()
    return _redsync_shared_nodes


@pytest.fixture
def redsync_client(redsync_nodes: LocalNodes) -> Iterator[Client]:
    """A `redsync.Client` on the `redsync_nodes`, with `restart_guard=0`; closed after the test."""
    with redsync_nodes.client() as client:
        yield client
