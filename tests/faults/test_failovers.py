"""Processes contend on Sentinel groups, while masters are killed, replaced, and cut off with some clients."""

import contextlib
import os
import time

import pytest

from redsync import Client, QuorumError
from redsync.testing import FaultProxy
from tests.faults.havoc import LEASE, fight
from tests.support.local_sentinel import LocalSentinel

FAILOVERS = int(os.environ.get("REDSYNC_FAILOVERS") or 4)


class Deployment:
    """Some Sentinel groups, and a far side, whose clients lose the Sentinels when a master is cut off.

    Attributes:
        groups: The groups.
        near: The URLs for clients on the side of the Sentinels.
        far: The URLs for clients on the other side.
    """

    def __init__(self, stack, count=1):
        self.groups = [stack.enter_context(LocalSentinel(replicas=2)) for _ in range(count)]
        self._proxies = [
            [stack.enter_context(FaultProxy(port)) for _, port in group.sentinels] for group in self.groups
        ]
        self.near = [group.url for group in self.groups]
        self.far = [
            group.url.replace(
                ",".join(f"{host}:{port}" for host, port in group.sentinels),
                ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies),
            )
            for group, proxies in zip(self.groups, self._proxies, strict=True)
        ]

    def strike(self, rng):
        """Replace a master by another server; return when that is done, and the group is complete again."""
        index = rng.randrange(len(self.groups))
        group = self.groups[index]
        match how := rng.choice(["kill", "isolate", "isolate"]):
            case "kill":
                old = group.kill_master()
                time.sleep(rng.uniform(0.0, LEASE))
                group.restart(group.servers.index(old))
            case "isolate":
                self.cut_off(index)
                time.sleep(rng.uniform(0.0, 2 * LEASE))
                # The old master may be back before the clients on its side learn of it, or the other way round.
                for part in rng.sample([group.heal, lambda: self._reconnect(index)], 2):
                    part()
        time.sleep(rng.uniform(0.0, 2 * LEASE))
        return how

    def cut_off(self, index):
        """Cut a master off, with the clients on the far side."""
        for proxy in self._proxies[index]:
            proxy.blackhole = True
        self.groups[index].isolate_master()

    def _reconnect(self, index):
        for proxy in self._proxies[index]:
            proxy.blackhole = False


@pytest.mark.sweep
@pytest.mark.timeout(180 + 15 * FAILOVERS)
@pytest.mark.parametrize(("groups", "failovers"), [(1, FAILOVERS), (3, (FAILOVERS + 1) // 2)])
def test_promises_outlive_masters(tmp_path, seed, groups, failovers):
    with contextlib.ExitStack() as stack:
        deployment = Deployment(stack, groups)

        def urls_of(client):
            return deployment.far if client % 4 > 1 else deployment.near

        fight(tmp_path, urls_of, seed, deployment.strike, failovers, clients=4)
        assert sum(group.epoch for group in deployment.groups) >= failovers


# The purpose of the number of replicas and of the guard.


@pytest.fixture
def deployment():
    with contextlib.ExitStack() as stack:
        yield Deployment(stack)


@pytest.mark.sweep
@pytest.mark.parametrize("safe", [True, False])
def test_two_masters_at_once_grant_once_if_votes_wait_for_replicas(deployment, safe):
    """With `replicas=0` and no guard both sides hold the lock, as the docs warn."""
    options = {"lease": LEASE, "node_timeout": 1.0}
    urls = [*deployment.far, *deployment.near]
    if not safe:
        urls = [url.replace("replicas=2", "replicas=0") for url in urls]
        options["restart_guard"] = 0.0
    with Client(urls[0], **options) as far, Client(urls[1], **options) as near:
        assert far.get_lock("warm").acquire(timeout=20)
        far.get_lock("warm").release()
        deployment.cut_off(0)
        here = near.get_lock("x").acquire(timeout=20)
        assert here
        there = far.get_lock("x")
        if safe:
            with pytest.raises(QuorumError, match=r"UNACKNOWLEDGED|have not said lately"):
                there.acquire(timeout=0.5)
        else:
            assert there.acquire(timeout=20), "the test must be able to fail"
        assert near.get_lock("x").owned()
        near.get_lock("x").release()
