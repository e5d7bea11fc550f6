"""pytest fixtures; pytest finds them automatically once redsync is installed.

Every pytest run in the environment imports this module, even one that has nothing to do with locks. So it imports
almost nothing: the first test that asks for a fixture loads servers, clients and redis-py.

Starting five servers takes longer than most tests, so all tests of a run share them (with pytest-xdist, all tests of a
worker). Tests share no state: before each test, dead or paused servers are restarted and all are emptied.
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
    """Five `LocalNodes`, running and empty when the test begins; the test may kill, restart and pause them.

    Don't close them: the next test uses the same servers. A `CONFIG SET` lasts until the node's restart.

    Raises:
        ServerNotFoundError: No server was found; the message says how to get one.
    """
    _redsync_shared_nodes.reset()
    return _redsync_shared_nodes


@pytest.fixture
def redsync_client(redsync_nodes: LocalNodes) -> Iterator[Client]:
    """A `redsync.Client` on the `redsync_nodes`, with `restart_guard=0`; closed after the test."""
    with redsync_nodes.client() as client:
        yield client
