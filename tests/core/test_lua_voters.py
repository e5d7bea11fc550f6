"""Scripts on a voter of a cluster, whose keys begin with a tag: its birth record, its channels, its records of clients.

`tests/simulation/test_differential.py` compares all scripts with those of a plain node.
"""

import pytest

from redsync._core.clusters import KeyTagging
from redsync._core.keys import LockKeys
from tests.core.conftest import KEYS, LEASE, ME, OTHER, PLACE, guard_of, process_of, wake_channel

TAGGING = KeyTagging(8192)
PLAIN_BIRTH, BIRTH = b"redsync_birth", TAGGING.key(b"redsync_birth")
LOCK = tuple(map(TAGGING.key, KEYS.all))


@pytest.fixture
def voter(node):
    if int(node.redis.info("server")["redis_version"].partition(".")[0]) < 7:
        pytest.skip("no cluster of redsync has such old servers")
    return node


def queue(voter, claim, ask_id):
    return voter.run("lock_acquire", LOCK, claim, 1, LEASE, 0, PLACE, 0, wake_channel(claim), ask_id)


def test_voter_hands_over_on_a_channel_of_its_slot_and_names_the_key_as_clients_know_it(voter):
    with voter.redis.pubsub() as subscription:
        subscription.ssubscribe(TAGGING.key(wake_channel(OTHER)))
        assert subscription.get_message(timeout=5)["type"] == "ssubscribe"
        assert queue(voter, ME, 7) == 1
        assert queue(voter, OTHER, 8)[1] == ME
        assert voter.run("lock_release", LOCK, ME, 0, KEYS.channel) == 1
        message = subscription.get_message(timeout=5)
    assert message["type"] == "smessage"
    assert message["data"] == b"8 %s %s" % (OTHER.rpartition(b":")[0], KEYS.lock)
    assert voter.redis.hkeys(LOCK[0]) == [OTHER]


def test_voter_remembers_by_the_record_under_its_tag_alone(voter):
    process = process_of(voter.redis)
    ask = "lock_acquire", LOCK[:1], ME, 1, LEASE, guard_of(60_000, process)
    voter.redis.set(PLAIN_BIRTH, f"original 1 {process}")
    with pytest.raises(Exception, match="FORGETFUL -1"):
        voter.run(*ask)
    voter.redis.set(BIRTH, f"original 1 {process}")
    assert voter.run(*ask) == 1


@pytest.mark.parametrize("name", [b"{rs}x", b"{rsx}", b"{rs7", b"x{rs7}", b"{{rs7}}", b"{Rs7}x", b" {rs7}"])
def test_plain_node_is_taken_for_no_voter_by_names_like_its_keys(node, name):
    keys = LockKeys.of(b"", name)
    process = process_of(node.redis)
    node.redis.set(PLAIN_BIRTH, f"original 1 {process}")
    with node.listening(wake_channel(OTHER), keys.channel) as subscription:
        for claim in (ME, OTHER):
            node.run("lock_acquire", keys.all, claim, 1, LEASE, guard_of(1, process), PLACE, 0, wake_channel(claim), 8)
        assert node.run("lock_release", keys.all, ME, 0, keys.channel) == 1
        told = wake_channel(OTHER), b"8 %s %s" % (OTHER.rpartition(b":")[0], name)
        assert node.messages(subscription) == [(keys.channel, b"0"), told]
