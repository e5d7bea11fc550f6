"""The read-write lock's scripts on a real server: admission, waiting, and hand-over.

`test_differential` compares them with virtual nodes.
"""

import pytest
import redis

from redsync._core.memory import BIRTH_KEY
from tests.core.conftest import (
    EARLIER,
    EXISTING,
    FOURTH,
    KEYS,
    LEASE,
    ME,
    NEW,
    OTHER,
    PLACE,
    THIRD,
    Claims,
    guard_of,
    waiter_of,
    wake_channel,
)
from tests.support.trouble import read_only

GUARD = 20_000
OWNERS = [ME, OTHER, THIRD, FOURTH, *(b"client-r%d:9" % i for i in range(200))]

modes = pytest.mark.parametrize("mode", ["read", "write"])


class Scripts(Claims):
    """The scripts as functions of the arguments that vary. All times in ms."""

    def ask(self, mode, owner=ME, count=1, lease=LEASE, *, guard=0):
        return self.node.run("read_write_lock_acquire", KEYS.all, claim_of(mode, owner), count, lease, guard_of(guard))

    def queue(self, mode, owner, *, waited=0, ask_id=7, guard=0, lease=LEASE, place=PLACE):
        words = (claim_of(mode, owner), 1, lease, guard_of(guard), place, waited, wake_channel(owner), ask_id)
        return self.node.run("read_write_lock_acquire", KEYS.all, *words)

    def release(self, mode, owner=ME, count=0):
        return self.node.run("read_write_lock_release", KEYS.all, claim_of(mode, owner), count, KEYS.channel)

    def abandon(self, mode, owner=ME):
        """Roll an attempt back whose owner continues to wait."""
        return self.release(mode, owner, -1)

    def renew(self, mode, owner=ME, count=1, lease=LEASE, *, guarded=False):
        words = [1] if guarded else []
        return self.node.run("read_write_lock_renew", (KEYS.lock,), claim_of(mode, owner), count, lease, *words)[0]

    def claims(self):
        """Return the claims by mode and owner: the count, and how long each lasts from now."""
        now, found = self.now(), {}
        for member, score in self.redis.zrange(KEYS.lock, 0, -1, withscores=True):
            assert (score < 0) == member.startswith(b"w:")
            found[member] = round(abs(score) % 1 * 1024) + 1, int(abs(score)) - now
        return found

    def holders(self):
        return set(self.claims())

    def waiters(self):
        return set(super().waiters())

    def expire(self, member):
        """Let a claim end, as if the time until then had passed."""
        score = self.now() - 5_000
        self.redis.zadd(KEYS.lock, {member: -score if member[:1] == b"w" else score})


class Ears:
    """Listeners for the waiters; a waiter without its listener hears nothing any more."""

    def __init__(self, node, subscription):
        self._node, self._subscription = node, subscription

    def __call__(self):
        return [message for _, message in self._node.messages(self._subscription)]

    def unsubscribe(self, claim):
        self._subscription.unsubscribe(wake_channel(claim))
        assert self._subscription.get_message(timeout=5)["type"] == "unsubscribe"


@pytest.fixture
def rw(node):
    return Scripts(node, "read_write_lock")


@pytest.fixture
def heard(node):
    with node.listening(*map(wake_channel, OWNERS)) as subscription:
        yield Ears(node, subscription)


def said(claim, ask_id=7):
    return b"%d %s redsync:x" % (ask_id, waiter_of(claim))


def claim_of(mode, owner=ME):
    return f"{mode[0]}:".encode() + owner


# Acquire.


def test_readers_get_in_together_each_with_its_own_expiry(rw, lasts):
    assert rw.ask("read", ME, lease=10_000) == NEW
    assert rw.ask("read", OTHER, count=3, lease=30_000) == NEW
    claims = rw.claims()
    assert {member: count for member, (count, _) in claims.items()} == {b"r:" + ME: 1, b"r:" + OTHER: 3}
    assert lasts(claims[b"r:" + ME][1], 10_000)
    assert lasts(claims[b"r:" + OTHER][1], 30_000)
    rw.ask("read", THIRD, lease=5_000)
    assert lasts(rw.left(), 30_000), "as long as the last of them"
    remaining, who, _ = rw.ask("write", FOURTH)
    assert who == b"readers"
    assert lasts(remaining, 30_000), "when all of them have ended"


@pytest.mark.parametrize(("mode", "wanted"), [("write", "read"), ("write", "write"), ("read", "write")])
def test_writer_gets_in_alone(rw, lasts, mode, wanted):
    rw.ask(mode, ME, lease=20_000)
    remaining, who, _ = rw.ask(wanted, OTHER)
    assert who == (ME if mode == "write" else b"readers")
    assert lasts(remaining, 20_000)
    assert len(rw.holders()) == 1
    assert rw.release(mode, ME) == 1
    assert rw.ask(wanted, OTHER) == NEW


@modes
def test_repeated_ask_sets_the_count_and_never_shortens(rw, lasts, mode):
    rw.ask(mode, ME, lease=30_000)
    for count, lease, left in [(2, 1_000, 30_000), (2, 1_000, 30_000), (3, 60_000, 60_000)]:
        assert rw.ask(mode, ME, count=count, lease=lease) == EXISTING
        ((its_count, its_left),) = rw.claims().values()
        assert its_count == count
        assert lasts(its_left, left)
    assert lasts(rw.left(), 60_000)


def test_count_beyond_the_fraction_of_a_score_is_harmless(rw, lasts):
    rw.ask("read", ME)
    rw.ask("read", ME, count=5_000)
    assert lasts(rw.claims()[b"r:" + ME][1], LEASE)
    assert rw.release("read", ME) == 1
    assert rw.holders() == set()


def test_writer_may_read_and_go_on_reading(rw):
    rw.ask("write", ME)
    rw.queue("write", FOURTH)
    assert rw.ask("read", ME) == NEW, "although a writer waits"
    rw.release("write", FOURTH)
    assert rw.holders() == {b"w:" + ME, b"r:" + ME}
    assert rw.ask("read", OTHER)[1] == ME
    assert rw.release("write", ME) == 1
    assert rw.ask("read", OTHER) == NEW
    assert rw.ask("write", THIRD)[1] == b"readers"


def test_dead_writer_keeps_no_reader_out(rw):
    rw.ask("write", ME)
    rw.ask("read", ME)
    rw.expire(b"w:" + ME)
    assert rw.ask("read", OTHER) == NEW
    assert rw.holders() == {b"r:" + ME, b"r:" + OTHER}
    assert rw.release("write", ME) == 0


def test_dead_reader_keeps_no_writer_out_although_another_renews(rw):
    rw.ask("read", ME)
    rw.ask("read", OTHER)
    rw.renew("read", OTHER, lease=60_000)
    rw.expire(b"r:" + ME)
    assert rw.release("read", ME) == 0
    assert rw.ask("read", ME) == NEW, "its re-entry is a new claim"
    rw.expire(b"r:" + ME)
    rw.release("read", OTHER)
    assert rw.ask("write", THIRD) == NEW


def test_each_ask_removes_a_bounded_number_of_expired_claims(rw):
    for owner in OWNERS[:150]:
        rw.ask("read", owner)
    for owner in OWNERS[:149]:
        rw.expire(b"r:" + owner)
    for left in (150 - 64 + 1, 150 - 2 * 64 + 2, 1 + 3):
        rw.ask("read", b"client-%d:1" % left)
        assert len(rw.holders()) == left


def test_writer_does_not_look_at_each_expired_reader(rw):
    rw.redis.zadd(KEYS.lock, {b"r:" + owner: rw.now() - 5_000 for owner in OWNERS})
    rw.redis.config_resetstat()
    assert rw.ask("write", ME) == NEW
    assert rw.redis.info("commandstats")["cmdstat_zrange"]["calls"] < 10


@pytest.mark.parametrize("what", ["a string", "permits of a semaphore"])
@modes
def test_foreign_value_is_left_unchanged(rw, mode, what):
    if what == "a string":
        rw.redis.set(KEYS.lock, b"foreign")
    else:
        rw.redis.zadd(KEYS.lock, {OTHER: rw.now() + 60_000})
    before = rw.node.dump()
    assert rw.ask(mode) == rw.queue(mode, ME) == 0
    assert rw.renew(mode) == (-1 if what == "a string" else 0)
    assert rw.release(mode) == rw.abandon(mode) == 0
    assert rw.inspect()[0] == (b"mutex" if what == "a string" else b"zset")
    assert rw.node.dump() == before


# Waiting.


def test_waiting_writer_keeps_new_readers_out_but_not_those_who_read(rw, heard, lasts):
    rw.ask("read", ME)
    assert rw.queue("write", OTHER)[1:] == [b"readers", 0, 0]
    remaining, who, _ = rw.ask("read", THIRD)
    assert who == b"writers"
    assert lasts(remaining, PLACE)
    assert rw.ask("read", ME) == EXISTING
    assert rw.release("write", OTHER) == 0
    assert rw.ask("read", THIRD) == NEW


def test_reader_gets_in_before_a_writer_that_has_waited_less_or_whose_place_has_ended(rw):
    rw.ask("read", ME)
    rw.queue("write", OTHER, waited=1_000)
    assert rw.queue("read", THIRD, waited=500)[1:] == [b"writers", 0, 1], "one waiter is before it"
    assert rw.queue("read", FOURTH, waited=9_000) == NEW
    assert rw.waiters() == {OTHER, THIRD}
    rw.end_place(OTHER)
    assert rw.ask("read", OWNERS[4]) == NEW
    assert OTHER not in rw.waiters()


# Handing over.


def test_waiting_readers_are_served_together_and_before_a_later_writer(rw, heard, lasts):
    rw.ask("write", ME)
    rw.queue("read", OTHER, waited=3_000)
    rw.queue("read", THIRD, waited=2_000, ask_id=8)
    rw.queue("write", FOURTH, waited=1_000)
    rw.queue("read", OWNERS[4], waited=0)
    assert rw.release("write", ME) == 1
    assert heard() == [said(OTHER), said(THIRD, 8)]
    assert rw.holders() == {b"r:" + OTHER, b"r:" + THIRD}
    assert all(count == 1 and lasts(left, PLACE) for count, left in rw.claims().values())
    assert rw.waiters() == {FOURTH, OWNERS[4]}
    rw.release("read", OTHER)
    assert heard() == []
    rw.release("read", THIRD)
    assert heard() == [said(FOURTH)]
    assert rw.holders() == {b"w:" + FOURTH}
    rw.release("write", FOURTH)
    assert heard() == [said(OWNERS[4])]
    rw.release("read", OWNERS[4])
    assert rw.holders() == rw.waiters() == set()


def test_each_waiter_gets_in_for_the_lease_in_its_ask_id(rw, heard, lasts):
    """However short or long. An id without one means the time of the place."""
    rw.ask("write", ME)
    rw.queue("read", OTHER, waited=3_000, ask_id="7+5000")
    rw.queue("read", THIRD, waited=2_000, ask_id="8+60000")
    rw.queue("read", FOURTH, waited=1_000, ask_id="9")
    rw.release("write", ME)
    assert heard() == [said(OTHER, 7), said(THIRD, 8), said(FOURTH, 9)]
    claims = rw.claims()
    assert lasts(claims[b"r:" + OTHER][1], 5_000)
    assert lasts(claims[b"r:" + THIRD][1], 60_000)
    assert lasts(claims[b"r:" + FOURTH][1], PLACE)
    assert lasts(rw.left(), 60_000), "as long as the last of them"
    rw.queue("write", ME, ask_id="10+40000")
    for reader in (OTHER, THIRD, FOURTH):
        rw.release("read", reader)
    assert lasts(rw.claims()[b"w:" + ME][1], 40_000), "and so does a writer"


@modes
def test_release_to_a_count_serves_no_waiter(rw, heard, mode):
    rw.ask(mode, ME, count=2)
    rw.queue("write", OTHER)
    assert rw.release(mode, ME, count=1) == 1
    assert rw.claims()[claim_of(mode)][0] == 1
    assert heard() == []


@pytest.mark.parametrize("by", ["leaving", "death"])
def test_readers_behind_a_writer_that_is_gone_are_served(rw, heard, by):
    rw.ask("read", ME)
    rw.queue("write", OTHER, waited=2_000)
    rw.queue("read", THIRD, waited=1_000)
    if by == "leaving":
        rw.release("write", OTHER)
    else:
        rw.end_place(OTHER)
        rw.release("read", ME)
    assert heard() == [said(THIRD)]
    assert b"r:" + THIRD in rw.holders()
    assert rw.waiters() == set()


@modes
def test_rollback_that_keeps_waiting_serves_no_waiter(rw, heard, mode):
    rw.ask(mode, ME)
    rw.queue("write", OTHER)
    assert rw.abandon(mode, ME) == 1
    assert heard() == []
    assert rw.holders() == set()
    assert rw.waiters() == {OTHER}


@modes
def test_waiter_that_no_longer_listens_loses_claim_and_place(rw, heard, mode):
    rw.ask("write", ME)
    rw.queue(mode, OTHER, waited=2_000)
    rw.queue("write", THIRD, waited=1_000)
    heard.unsubscribe(OTHER)
    rw.release("write", ME)
    assert heard() == [said(THIRD)]
    assert rw.holders() == {b"w:" + THIRD}
    rw.release("write", THIRD)
    assert rw.waiters() == set()


@pytest.mark.parametrize("last", ["asks", "does not listen", "has no place"])
def test_crowd_of_readers_is_served_in_waves(rw, heard, last):
    """No call serves more than 64. The last of a wave asks, and the next wave gets the lock along with it; if it is
    gone, the same call serves them.
    """
    rw.ask("write", ME)
    crowd = OWNERS[4:]
    for i, owner in enumerate(crowd):
        rw.queue("read", owner, waited=5_000 - i)
    gone = set() if last == "asks" else {crowd[63]}
    if last == "does not listen":
        heard.unsubscribe(crowd[63])
    elif last == "has no place":
        rw.redis.hdel(KEYS.places, waiter_of(crowd[63]))
    rw.release("write", ME)
    # docs/locks/read-write.md says how many get it in the step of the release.
    assert len(rw.holders()) == (63 + 63 if gone else 63)
    waves = []
    while wave := heard():
        waves.append(len(wave))
        for message in wave:
            ask_id, owner, _ = message.split()
            if ask_id == b"0":
                assert rw.queue("read", owner + b":9", waited=5_000) == NEW
    assert waves == ([63 + 64, 64, 8] if gone else [64, 64, 64, 8])
    assert rw.holders() == {b"r:" + owner for owner in crowd if owner not in gone}
    assert rw.waiters() == set()


def test_reader_that_reads_here_already_does_not_get_less(rw, heard, lasts):
    """A renewal made its claim while it still has a place."""
    rw.ask("write", ME)
    rw.queue("read", OTHER)
    rw.abandon("write", ME)
    assert rw.renew("read", OTHER, count=2) == 1
    rw.ask("read", THIRD)
    rw.release("read", THIRD)
    count, left = rw.claims()[b"r:" + OTHER]
    assert (count, lasts(left, LEASE)) == (2, True)
    assert rw.waiters() == set()


@modes
@pytest.mark.parametrize(("record", "knows"), [(None, False), ("newborn 0", False), ("original 0", True)])
def test_node_that_forgot_lets_no_owner_in_and_only_wakes(rw, heard, mode, record, knows):
    if record == "newborn 0":
        record = f"newborn {rw.now()}"
    record = record and f"{record} -"
    rw.ask("write", ME)
    rw.queue(mode, OTHER, guard=GUARD)
    if record:
        rw.redis.set(BIRTH_KEY, record)
    rw.release("write", ME)
    assert heard() == [said(OTHER, 7 if knows else 0)]
    assert (rw.holders() != set()) == knows
    if not knows:
        with pytest.raises(Exception, match="FORGETFUL"):
            rw.ask(mode, THIRD if mode == "read" and not rw.waiters() else OTHER, guard=GUARD)
        assert rw.holders() == set()


# Renewing.


@pytest.mark.parametrize(
    ("holder", "mode", "repaired"),
    [(None, "read", 1), (None, "write", 1), ("read", "read", 1), ("read", "write", 0), ("write", "read", 0)],
)
def test_node_that_forgot_is_repaired_only_beside_compatible_claims(rw, holder, mode, repaired):
    if holder:
        rw.ask(holder, OTHER)
    assert rw.renew(mode, ME) == repaired
    assert (claim_of(mode) in rw.holders()) == bool(repaired)
    assert rw.renew(mode, ME) == 2 * repaired


@pytest.mark.parametrize(("other_reads", "writes"), [(False, [1, 2]), (True, [0, 0])])
def test_both_holds_of_one_owner_are_repaired_each_by_its_mode(rw, other_reads, writes):
    if other_reads:
        rw.ask("read", OTHER)
    both = [word for mode in ("read", "write") for word in (claim_of(mode), 1, LEASE)]
    replies = [rw.node.run("read_write_lock_renew", [KEYS.lock] * 2, *both) for _ in range(2)]
    assert [list(words) for words in zip(*replies, strict=True)] == [[1, 2], writes]


@modes
def test_renewal_of_an_expired_claim_counts_as_healing(rw, mode):
    rw.ask(mode, ME)
    rw.expire(claim_of(mode))
    assert rw.renew(mode, ME) == 1
    rw.expire(claim_of(mode))
    rw.ask("write", OTHER)
    assert rw.renew(mode, ME) == 0


def test_renewal_records_that_the_node_is_not_new(rw):
    rw.renew("read", ME, guarded=True)
    assert rw.redis.get(BIRTH_KEY).startswith(b"newborn ")


# Nodes that refuse to write.


@modes
def test_renewal_works_without_memory(rw, mode, lasts):
    rw.ask(mode, lease=10_000)
    with rw.node.out_of_memory():
        assert rw.renew(mode, count=2) == 2
    ((count, left),) = rw.claims().values()
    assert count == 2
    assert lasts(left, LEASE)
    assert lasts(rw.left(), LEASE)


REFUSED = {
    "renewal": lambda rw: rw.renew("read"),
    "release": lambda rw: rw.release("read"),
    "release without the claim": lambda rw: rw.release("write"),
    "rollback": lambda rw: rw.abandon("read"),
}


@pytest.mark.parametrize("call", REFUSED)
def test_command_that_a_node_refuses_is_an_error(rw, call, lasts):
    """Taken for done, it would let the client believe in a claim that the node forgets, or never send it again."""
    rw.ask("read", lease=10_000)
    with read_only([rw.redis]), pytest.raises(redis.exceptions.RedisError, match="read only replica"):
        REFUSED[call](rw)
    ((_, left),) = rw.claims().values()
    assert lasts(left, 10_000)


# Late commands of an earlier hold, over a connection that was given up.


@modes
def test_late_command_of_an_earlier_hold_touches_neither_a_later_one_nor_its_place(rw, heard, mode):
    def late_commands():
        return rw.abandon(mode, EARLIER), rw.release(mode, EARLIER)

    rw.ask(mode, ME)
    assert late_commands() == (0, 0)
    assert rw.holders() == {claim_of(mode)}
    rw.release(mode, ME)
    rw.ask("write", OTHER)
    rw.queue(mode, ME, waited=1_000)
    late_commands()
    rw.queue(mode, EARLIER, waited=9_000, ask_id=3)
    assert rw.waiters() == {ME}
    rw.release("write", OTHER)
    assert heard() == [said(ME)]


def test_earlier_claims_of_the_owner_keep_neither_itself_out_nor_others_in(rw):
    rw.ask("read", EARLIER, lease=LEASE + 1_000)
    rw.ask("read", OTHER, lease=LEASE)
    assert rw.ask("write", ME)[1] == b"readers"
    rw.release("read", OTHER)
    assert rw.ask("write", ME) == NEW
    assert rw.ask("read", OTHER)[1] == ME
