"""LocalSentinel: failovers, killed and isolated masters, and how clients see them."""

import os

import pytest
import redis

from redsync.testing import LocalSentinel, ServerStartError, asking
from redsync.testing.servers import ask


@pytest.fixture(scope="module")
def shared():
    with LocalSentinel() as group:
        yield group


@pytest.fixture
def group(shared):
    for i, (_, port) in enumerate(shared.servers):
        if not answers(port):
            shared.restart(i)
    shared.heal()
    return shared


def answers(port):
    try:
        return ask(port, "PING") == b"+PONG\r\n"
    except OSError:
        return False


def role(address):
    with redis.Redis(*address) as connection:
        return connection.role()[0]


def test_start_gives_a_complete_group(group):
    assert [role(address) for address in group.servers].count(b"slave") == 2
    assert role(group.master) == b"master"
    first, *_ = group.sentinels
    sentinels = ",".join(f"127.0.0.1:{port}" for _, port in group.sentinels)
    assert group.url == f"redis+sentinel://{sentinels}/mymaster/0?replicas=2"
    with redis.Redis(*first, decode_responses=True) as connection:
        # redis-py's own method for this raises a TypeError in 6.4.
        host, port = connection.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
        assert (host, int(port)) == group.master


def test_failover_promotes_another_under_a_higher_epoch(group):
    old, epoch = group.master, group.epoch
    assert group.failover() == group.master != old
    assert group.epoch > epoch
    assert role(old) == b"slave"


def test_kill_master_leaves_a_promoted_one_until_restart_brings_a_replica(group):
    old = group.kill_master()
    assert not answers(old[1])
    assert role(group.master) == b"master"
    group.restart(group.servers.index(old))
    assert role(old) == b"slave"


def test_isolated_master_serves_clients_but_has_no_replicas_until_it_is_demoted(group):
    with redis.Redis(*group.master) as kept:
        kept.set("before", 1)
        kept.wait(2, 1000)
        old = group.isolate_master()
        assert role(old) == role(group.master) == b"master"
        assert old != group.master
        assert kept.set("meanwhile", 1)  # the connection stays open
        assert kept.wait(1, 50) == 0
        with redis.Redis(*group.master) as new:
            assert new.get("before") == b"1"
            assert new.get("meanwhile") is None
            assert new.set("beside", 1)
            assert new.wait(1, 1000) == 1
    group.heal()
    assert role(old) == b"slave"
    with redis.Redis(*old) as demoted:
        assert demoted.get("meanwhile") is None
        assert demoted.get("beside") == b"1"


def test_killed_replica_comes_back_with_the_data(group):
    with redis.Redis(*group.master) as master:
        master.set("kept", 1)
    victim = group.kill_replica(1)
    assert victim != group.master
    assert not answers(victim[1])
    group.restart(group.servers.index(victim))
    with redis.Redis(*victim) as replica:
        assert replica.get("kept") == b"1"


def test_paused_master_is_replaced_and_demoted_after_resume(group, eventually):
    old, epoch = group.master, group.epoch
    i = group.servers.index(old)
    group.pause(i)
    eventually(lambda: group.epoch > epoch)
    group.resume(i)

    def is_demoted():
        try:
            return role(old) == b"slave"
        except redis.ConnectionError:  # the Sentinel that demotes it also closes the connections of its clients
            return False

    eventually(is_demoted)


def test_start_gives_up_with_the_logs_when_the_group_stays_incomplete(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(asking, "_SETTLE_TIMEOUT", 0.0)
    monkeypatch.setattr(LocalSentinel, "_is_settled", lambda _: False)  # otherwise a quick machine is settled at once
    with pytest.raises(ServerStartError, match=r"waiting 0 s until the replicas[^$]*logs end with[^$]*\+monitor"):
        LocalSentinel(replicas=1, sentinels=1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("sizes", [(0, 3), (2, 0)])
def test_group_without_replica_or_sentinel_is_refused(sizes):
    with pytest.raises(ValueError, match="needs a replica and a Sentinel"):
        LocalSentinel(*sizes)


def test_close_ends_all_processes_and_refuses_control():
    with LocalSentinel(replicas=1, sentinels=1) as group:
        ports = [port for _, port in group.servers + group.sentinels]
    assert not any(answers(port) for port in ports)
    with pytest.raises(RuntimeError, match="closed"):
        group.failover()
