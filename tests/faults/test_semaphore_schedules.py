"""Every claim reaches another quorum of the nodes: the schedule in which a counter on each node admits too many.

Client 1 reaches nodes A and B, client 2 nodes B and C, client 3 nodes C and A; with five nodes likewise three each.
Each node gets at most as many requests as there are permits, so none has to refuse, and each client has a majority. A
proxy before each node for each client makes it so.
"""

import contextlib
import itertools
import random

import pytest
import redis

from redsync import Client
from redsync.testing import FaultProxy, LocalNodes
from tests.support.sweeps import swept


class Ring:
    """Nodes, and as many clients; each reaches the majority of the nodes that begins with its own number.

    There is one permit for each node of a majority, as that many clients ask a node.
    """

    def __init__(self, size, stack):
        self.size, self.quorum = size, size // 2 + 1
        self.permits = self.quorum
        self.nodes = stack.enter_context(LocalNodes(size))
        self.proxies = [[stack.enter_context(FaultProxy(port)) for port in self.nodes.ports] for _ in range(size)]
        self.stack = stack

    def reached_by(self, number):
        return {(number + i) % self.size for i in range(self.quorum)}

    def connect(self):
        """Return a client of redsync for each number."""
        return [self.stack.enter_context(Client([p.url for p in row], restart_guard=0.0)) for row in self.proxies]

    def cut(self, fault):
        for number, row in enumerate(self.proxies):
            for node in set(range(self.size)) - self.reached_by(number):
                setattr(row[node], fault, True)

    def heal(self):
        for proxy in itertools.chain(*self.proxies):
            proxy.heal()

    def known(self, name):
        """Return the permits of a semaphore that each node keeps."""
        found = []
        for url in self.nodes.urls:
            with redis.Redis.from_url(url, decode_responses=True) as node:
                found.append(set(node.zrange(f"redsync:{name}", 0, -1)))
        return found


@pytest.fixture(params=[3, pytest.param(5, marks=pytest.mark.sweep)], ids=lambda size: f"{size} nodes")
def ring(request):
    with contextlib.ExitStack() as stack:
        yield Ring(request.param, stack)


@pytest.fixture
def orders(ring, seed):
    """All orders of three clients, some of five."""
    orders = list(itertools.permutations(range(ring.size)))
    return orders if len(orders) <= 6 else random.Random(seed).sample(orders, 6)


def reach_all(clients):
    """Return whether each client is connected to all nodes, also with the set of links that its next call borrows."""
    for client in clients:
        with client.get_lock("reached"):
            pass
    sets = [link_set for client in clients for link_set in client.runner.life.pool.idle()]
    return all(node.state == "up" for client in clients for node in client.nodes()) and all(
        None not in link_set.links for link_set in sets
    )


def believed(permits):
    return [permit for permit in permits if permit is not None and permit.remaining() > 0]


@pytest.mark.parametrize("fault", ["drop_requests", *swept("blackhole")])
def test_semaphore_admits_no_more_than_it_has_when_each_client_reaches_another_majority(
    ring, orders, eventually, fault
):
    clients = ring.connect()
    eventually(lambda: reach_all(clients))
    ring.cut(fault)
    had = {}
    for order in orders:
        semaphores = {number: clients[number].get_semaphore(f"s {order}", ring.permits) for number in order}
        had[order] = {number: semaphores[number].acquire(False) for number in order}
        assert len(believed(had[order].values())) <= ring.permits, order
        # With room for two, the first gets one, and the next finds another.
        assert all(had[order][number] for number in order[:2]), order
        # The schedule was as intended: no client reached other nodes.
        for number, permit in had[order].items():
            if permit is not None:
                keeping = {node for node, ids in enumerate(ring.known(f"s {order}")) if permit.id in ids}
                assert keeping <= ring.reached_by(number)
                assert len(keeping) >= ring.quorum
    # Now all held commands arrive, on nodes that have granted to others since.
    ring.heal()
    eventually(lambda: reach_all(clients))
    for order, by_number in had.items():
        late = clients[order[-1]].get_semaphore(f"s {order}", ring.permits)
        more = [late.acquire(False) for _ in range(ring.permits)]
        assert len(believed([*by_number.values(), *more])) <= ring.permits, order
