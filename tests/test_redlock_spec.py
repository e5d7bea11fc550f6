"""The mutex against the page that defines Redlock, statement by statement, on real nodes.

The docstrings quote https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/. Where it warns of a naive
way, the test also tries that way and shows that it breaks.

`tests/kinds` shows the promises of all locks: at most one client holds it, a majority of nodes suffices, a release
admits the next owner at once, and extensions end at a limit.
"""

import contextlib
import itertools
import subprocess
import sys
import time

import pytest

from redsync import LeaseLostError, QuorumError
from tests.support.locks import PATIENCE
from tests.support.trouble import hanging

pytestmark = pytest.mark.usefixtures("all_nodes_met")

KEY = "redsync:x"


def calls(node, command):
    """Return how often a node has executed a command, also within scripts."""
    return node.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def await_answers(client, nodes, eventually):
    """Wait until every node answers; a connection keeps the order, so the node has executed all earlier commands.

    A call waits for a quorum only. So while two of the five nodes are paused, it hears from all the others.
    """

    def hears_a_quorum():
        with contextlib.suppress(QuorumError):
            return client.inspect("x") is not None

    for two in ((0, 1), (3, 4)):
        with hanging(nodes, *two):
            eventually(hears_a_quorum, within=20)


@pytest.fixture
def make_remote(proxies, make_client):
    """Make clients that reach the nodes only through the proxies."""
    return lambda **options: make_client([proxy.url for proxy in proxies], **options)


# Safety and liveness guarantees


def test_lock_of_a_killed_client_is_free_after_its_lease_and_not_before(nodes, mutex):
    """ "Eventually it is always possible to acquire a lock, even if the client that locked a resource crashes" """
    program = f"""if True:
        import redsync, time
        mutex = redsync.Client({nodes.urls!r}, restart_guard=0, lease=2.5).get_mutex("x")
        print(mutex.acquire(), flush=True)
        time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "True\n"
            assert mutex.acquire(timeout=3.0) is False
        finally:
            process.kill()
    killed_at = time.monotonic()
    assert mutex.acquire(timeout=20) is True
    assert time.monotonic() - killed_at < PATIENCE


# Correct implementation with a single instance


def test_single_instance_lock_is_the_result_of_set_nx_px(make_client, raw):
    """ "SET resource_name my_random_value NX PX 30000" """
    node, mutex = raw[0], make_client(n=1).get_mutex("x")
    with mutex as hold:
        assert 29_000 < node.pttl(KEY) <= 30_000
        assert node.set("by hand", hold.owner, nx=True, px=30_000)
        assert node.dump(KEY) == node.dump("by hand")
        assert node.set(KEY, "another", nx=True, px=30_000) is None
    assert node.set(KEY, "another", nx=True, px=30_000)
    assert not mutex.acquire(False)


def test_value_is_unique_across_clients_and_requests(client, make_client, make_worker):
    """ "This value must be unique across all clients and all lock requests." """

    owners = []

    def request(mutex):
        for _ in range(10):
            with mutex as hold:
                owners.append(hold.owner)

    mutexes = [client.get_mutex("x"), client.get_mutex("x"), make_client().get_mutex("x"), make_client().get_mutex("y")]
    for task in [make_worker().start(request, mutex) for mutex in mutexes]:
        task.result(20)
    assert len(set(owners)) == len(owners) == 40


def test_release_leaves_the_lock_of_another_client_that_del_would_remove(make_client, raw, eventually):
    """ "Using just DEL is not safe as a client may remove another client's lock." """
    node, (first, second, third) = raw[0], (make_client(n=1).get_mutex("x") for _ in range(3))
    # The first is blocked for longer than its lease, and the second gets it; without a place in the queue, for which
    # the third would hand the lock over to it.
    first.acquire(lease=0.2)
    eventually(lambda: second.acquire(False))
    with pytest.raises(LeaseLostError):
        first.release()
    assert not third.acquire(False)
    second.extend()
    node.delete(KEY)  # the naive first client does this now
    assert third.acquire(False)
    assert second.owned()  # so does the third


# The algorithm


def test_validity_is_counted_from_before_the_first_message(make_remote, proxies):
    """Steps 1 and 4, and "minus some time (just a few milliseconds in order to compensate for clock drift ...)" """
    mutex = make_remote(node_timeout=2.0).get_mutex("x")
    for proxy in proxies:
        proxy.delay = 0.1  # each way
    started = time.monotonic()
    mutex.acquire(lease=40.0)
    remaining = mutex.remaining()
    # A client that counts from the answer, a round trip later, would believe for 0.2 s more.
    assert 40.0 * 0.99 - 0.002 - (time.monotonic() - started) <= remaining <= 40.0 * 0.99 - 0.002 - 0.2


def test_all_instances_get_the_same_value_at_the_same_time(make_remote, proxies, raw, eventually, promptly):
    """Step 2: "using the same key name and random value in all the instances"; "ideally ... using multiplexing" """
    mutex = make_remote(node_timeout=2.0).get_mutex("x")
    for proxy in proxies:
        proxy.delay = 0.1

    def take():
        started = time.monotonic()
        with mutex as hold:
            took = time.monotonic() - started
            eventually(lambda: [node.get(KEY) for node in raw] == [hold.owner.encode()] * 5)
        return took

    # One after the other, a majority alone takes three round trips.
    assert promptly(take, 0.6) >= 0.2


def test_node_that_is_down_costs_little_against_the_lease(nodes, mutex):
    """Step 2: "a timeout which is small compared to the total lock auto-release time" """
    with hanging(nodes, 0, 1):
        started = time.monotonic()
        with mutex as hold:
            assert hold.remaining() > 0.99 * 30 - 1.5
        with hanging(nodes, 2), pytest.raises(QuorumError):
            mutex.acquire(False)
        assert time.monotonic() - started < 30 / 2


def test_majority_in_time_wins_and_less_than_a_majority_never(mutex, raw):
    """Step 3: "if the client was able to acquire the lock in the majority of the instances (at least 3)" """
    for taken in (2, 3):
        for some in itertools.combinations(raw, taken):
            for node in some:
                node.set(KEY, "another")
            assert mutex.acquire(False) is (taken == 2)
            if taken == 2:
                mutex.release()
            assert [node.get(KEY) for node in some] == [b"another"] * taken
            for node in some:
                node.delete(KEY)


def test_majority_that_took_longer_than_the_lease_fails(make_remote, proxies, raw, eventually):
    """Step 3: "and the total time elapsed to acquire the lock is less than lock validity time" """
    mutex = make_remote(node_timeout=20.0).get_mutex("x")
    for proxy in proxies:
        proxy.delay = 0.2  # each way
    with pytest.raises(QuorumError):
        mutex.acquire(False, lease=0.3)
    assert not mutex.owned()
    eventually(lambda: raw.count(KEY) == 0)


def test_failed_attempt_is_rolled_back_even_on_silent_nodes(make_remote, nodes, proxies, raw, eventually):
    """Step 5: "it will try to unlock all the instances (even the instances it believed it was not able to lock)" """
    client = make_remote()
    await_answers(client, nodes, eventually)  # its record was set too
    before = [(calls(node, "set"), calls(node, "del")) for node in raw[:2]]
    for proxy in proxies[:2]:
        proxy.drop_replies = True
    for node in raw[2:]:
        node.set(KEY, "another")
    assert client.get_mutex("x").acquire(False) is False
    # The two silent nodes had granted, for 30 s.
    eventually(lambda: [(calls(node, "set") - 1, calls(node, "del") - 1) for node in raw[:2]] == before)
    assert [node.exists(KEY) for node in raw] == [0, 0, 1, 1, 1]


# Retry on failure


def test_split_vote_is_tried_again_after_random_delays(make_remote, proxies, other, raw):
    """ "it should try again after a random delay in order to try to desynchronize multiple clients" """
    mutex = make_remote().get_mutex("x")
    for proxy in proxies[2:]:
        proxy.delay = 0.005  # so grants arrive first, and every node is heard
    for node, value in zip(raw[2:], ("second", "second", "third"), strict=True):
        node.set(KEY, value)
    with raw[0].monitor() as monitor:
        attempt = other.start(mutex.acquire, timeout=20)
        granted = (seen["time"] for seen in monitor.listen() if seen["command"].lower().startswith(f"set {KEY}"))
        tried = list(itertools.islice(granted, 16))
    # The longest delays are 12 to 50 ms.
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried[6:])]
    assert max(pauses) - min(pauses) > 0.005
    for node in raw[2:]:
        node.delete(KEY)
    assert attempt.result(20) is True


def test_partition_costs_the_expiry_and_late_releases_do_no_harm(
    make_remote, nodes, proxies, mutex, raw, *, eventually
):
    """ "However, we pay an availability penalty equal to TTL time on network partitions" """
    partitioned = make_remote(lease=3.0)
    theirs = partitioned.get_mutex("x")
    started = time.monotonic()
    theirs.acquire()
    for proxy in proxies:
        proxy.blackhole = True
    theirs.release()
    assert mutex.acquire(False) is False
    assert mutex.acquire(timeout=20) is True
    assert time.monotonic() - started >= 3.0
    before = [node.get(KEY) for node in raw]
    for proxy in proxies:
        proxy.blackhole = False
    await_answers(partitioned, nodes, eventually)
    # The last nodes may have got the claim only after a majority had granted it.
    assert all(node.get(KEY) == claim for node, claim in zip(raw, before, strict=True) if claim is not None)
    mutex.extend()


# Safety and liveness arguments


def test_keys_are_there_for_the_minimum_validity(make_remote, proxies, raw, eventually):
    """ "the first key to expire in the set will exist for at least MIN_VALIDITY=TTL-(T2-T1)-CLOCK_DRIFT" """
    mutex = make_remote(node_timeout=1.0).get_mutex("x")
    for i, proxy in enumerate(proxies):
        proxy.delay = 0.05 * i
    ttl, drift, t1 = 20.0, 20.0 * 0.01 + 0.002, time.monotonic()
    mutex.acquire(lease=ttl)
    t2 = time.monotonic()
    assert t2 - t1 >= 0.2
    eventually(lambda: raw.count(KEY) == 5)
    before = time.monotonic()
    earliest = before + min(node.pttl(KEY) for node in raw) / 1000 - 0.001
    believed_until = mutex.remaining() + time.monotonic()
    assert t2 + (ttl - (t2 - t1) - drift) <= believed_until < earliest
    # A client that counts the TTL from T2 believes after the first key is gone.
    assert t2 + ttl > earliest


# Extending the lock


def test_extension_touches_only_keys_with_the_value_assigned(mutex, raw, eventually):
    """ "if the key exists and its value is still the random value the client assigned" """
    mutex.acquire(lease=10)
    eventually(lambda: raw.count(KEY) == 5)
    raw[4].set(KEY, "another", px=10_000)
    mutex.extend(20)
    eventually(lambda: all(node.pttl(KEY) > 15_000 for node in raw[:4]))
    assert raw[4].get(KEY) == b"another"
    assert raw[4].pttl(KEY) <= 10_000
    assert raw[4].pexpire(KEY, 20_000)  # A script that does not compare would have extended another client's lock.


def test_extension_needs_a_majority_within_the_validity_time(client, mutex, nodes, raw, eventually):
    """ "only ... if it was able to extend the lock into the majority of instances, and within the validity time" """
    mutex.acquire(lease=10)
    with hanging(nodes, 0, 1, 2), pytest.raises(QuorumError):
        mutex.extend(20)
    assert 0 < mutex.remaining() < 10
    await_answers(client, nodes, eventually)
    mutex.extend(20)
    assert mutex.remaining() > 15
    await_answers(client, nodes, eventually)
    for node in raw[:3]:
        node.delete(KEY)
    # No other client has it, so a new SET would be granted: that is not an extension.
    for call in (mutex.extend, mutex.release):
        with pytest.raises(LeaseLostError):
            call()
    mutex.acquire(lease=0.2)
    eventually(lambda: mutex.remaining() == 0.0 and raw.count(KEY) == 0)
    with pytest.raises(LeaseLostError):
        mutex.extend()
    assert raw.count(KEY) == 0


# Crash recovery; last in this file, because these tests wait until the nodes are older than a guard


@pytest.mark.parametrize("partitioned", [False, True], ids=["A and B refuse", "A and B are out of reach"])
def test_restarted_node_does_not_let_a_second_client_in(
    partitioned, nodes, proxies, *, make_remote, make_client, raw, eventually
):
    """ "there are again 3 instances that we can lock for the same resource ... violating the safety property" """
    careful = make_client(lease=4.0, restart_guard=4.0)
    eventually(lambda: {careful.nodes()[i].state for i in (0, 1, 3, 4)} == {"up"}, within=20)
    for proxy in proxies[3:]:
        proxy.refuse = True  # D and E, for the first client
    assert (first := make_remote().get_mutex("x", lease=4.0)).acquire(False)
    eventually(lambda: [node.exists(KEY) for node in raw] == [1, 1, 1, 0, 0])
    proxies[2].refuse = True  # or the first client would repair its claim on C at once
    proxies[2].cut()
    nodes.restart(2)
    await_answers(careful, nodes, eventually)
    assert careful.nodes()[2].state == "quarantined"
    second, naive = careful.get_mutex("x"), make_client(restart_guard=0).get_mutex("x")
    with hanging(nodes, *range(2 * partitioned)):
        if partitioned:
            with pytest.raises(QuorumError, match="restart_guard"):
                second.acquire(False)
        else:
            assert second.acquire(False) is False
        # Without the guard C, D and E are a majority, and two clients believe: so "it no longer participates".
        assert naive.acquire(False)
        assert first.remaining() > 0
        naive.release()
    if not partitioned:
        assert second.acquire(timeout=20)
        assert first.remaining() == 0.0


def test_restarted_majority_grants_nothing_until_the_guard_is_over(nodes, make_client, eventually):
    """ "if a majority of instances crash, the system will become globally unavailable for TTL" """
    careful, naive = make_client(lease=1.0, restart_guard=1.0), make_client(lease=1.0)
    eventually(lambda: {careful.nodes()[i].state for i in (0, 1, 3, 4)} == {"up"}, within=20)
    # The first of them makes a quorum with the nodes that kept running.
    restarted_at = time.monotonic()
    for i in range(3):
        nodes.restart(i)
    for name in ("x", "any", "resource"):
        with pytest.raises(QuorumError):
            careful.get_mutex(name).acquire(False)
    assert naive.get_mutex("naive").acquire(timeout=20)
    assert careful.get_mutex("x").acquire(timeout=20)
    assert time.monotonic() - restarted_at > 0.9
