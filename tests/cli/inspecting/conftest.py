"""What tests of the inspecting commands share: three nodes to look at, and a client of these."""

import pytest

from tests.cli.conftest import make_environment


@pytest.fixture
def environment(nodes):
    """What the commands find there: the first three nodes."""
    return make_environment(nodes.urls[:3])


@pytest.fixture
def three(make_client, all_nodes_met):
    """A client of the nodes that the commands look at."""
    return make_client(n=3)
