"""The read-write lock's scripts, on a real server and on a virtual node: who is let in, who waits, who is served."""

import pytest
import redis

from redsync._core.keys import LockKeys
from redsync._core.memory import BIRTH_KEY
from redsync._core.scripts import Script
from redsync.testing.simulator.scripting import run_script
from redsync.testing.simulator.store import Store, find_command
from tests.core.conftest import guard_of
from tests.support.trouble import read_only

KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER, THIRD, FOURTH = b"client-a:1", b"client-b:2", b"client-c:3", b"client-d:4"
LEASE, PLACE, GUARD = 30_000, 5_000, 20_000
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""
NEW, EXISTING = 1, 2


def channel(claim):
    return b"redsync:wake:" + claim.replace(b":", b"-")


def waiter_of(claim):
    """Return the owner of a claim, as queues have it."""
    return claim.rpartition(b":")[0]


class Virtual:
    """A virtual node; its clock stands still."""

    def __init__(self, owners):
        self.deaf = set()
        self.said = []
        self._store = Store(lambda: 1_700_000_000.0, self._publish)

    def _publish(self, name, message):
        if name in self.deaf:
            return 0
        self.said.append(message)
        return 1

    def run(self, name, keys, *args):
        reply = run_script(Script.load(name), self._store, keys, args)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def do(self, name, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        return find_command(name.encode())(self._store, *words)

    def heard(self):
        said, self.said = self.said, []
        return said


class Real:
    """A real server."""

    def __init__(self, node, subscription):
        self._node, self._subscription = node, subscription
        self.run = node.run

    @property
    def deaf(self):
        return self

    def add(self, name):
        self._subscription.unsubscribe(name)
        assert self._subscription.get_message(timeout=5)["type"] == "unsubscribe"

    def do(self, *words):
        return self._node.redis.execute_command(*words)

    def heard(self):
        return [message for _, message in self._node.messages(self._subscription)]


class Scripts:
    """The scripts as functions of what varies. All times in ms."""

    def __init__(self, node):
        self.node = node

    def ask(self, mode, owner=ME, count=1, lease=LEASE, *, guard=0):
        return self.node.run(f"{mode}_lock_acquire", KEYS.all, owner, count, lease, guard_of(guard))

    def again(self, mode, owner=ME, count=2, lease=LEASE):
        return self.node.run(f"{mode}_lock_acquire", (KEYS.lock,), owner, count, lease, 0)

    def queue(self, mode, owner, *, waited=0, mark=7, guard=0, lease=LEASE, place=PLACE):
        words = (owner, 1, lease, guard_of(guard), place, waited, channel(owner), mark)
        return self.node.run(f"{mode}_lock_acquire", KEYS.all, *words)

    def release(self, mode, owner=ME, count=0):
        return self.node.run(f"{mode}_lock_release", KEYS.all, owner, count, KEYS.channel)

    def abandon(self, mode, owner=ME, *, leave=True):
        return self.node.run(f"{mode}_lock_abandon", KEYS.all, owner, int(leave))

    def renew(self, mode, owner=ME, count=1, lease=LEASE, *, guarded=False):
        words = [1] if guarded else []
        return self.node.run(f"{mode}_lock_renew", (KEYS.lock,), owner, count, lease, *words)[0]

    def force_release(self, *claims):
        return self.node.run("read_write_lock_force_release", KEYS.all, *claims)

    def look(self, mode, most=500):
        return self.node.run("read_write_lock_look", (KEYS.lock,), f"{mode[0]}:".encode(), most)

    def now(self):
        seconds, micros = self.node.do("time")
        return int(seconds) * 1000 + int(micros) // 1000

    def claims(self):
        """Return who has which mode: the count, and until when it lasts from now."""
        words = self.node.do("zrange", KEYS.lock, 0, -1, "withscores")
        pairs = words if words and isinstance(words[0], list) else list(zip(words[::2], words[1::2], strict=True))
        now, found = self.now(), {}
        for member, score in pairs:
            size = abs(float(score))
            assert (float(score) < 0) == member.startswith(b"w:")
            found[member] = round(size % 1 * 1024) + 1, int(size) - now
        return found

    def holders(self):
        return set(self.claims())

    def waiters(self):
        """Return the claims of those who have a place; each has an entry in both keys or in none."""
        waiters = set(self.node.do("zrange", KEYS.queue, 0, -1))
        assert set(self.node.do("hkeys", KEYS.places)) == waiters
        return {waiter + b":" + self.node.do("hget", KEYS.places, waiter).split()[1] for waiter in waiters}

    def expire(self, member):
        """Let a claim end, as if the time until then had passed."""
        score = self.now() - 5_000
        self.node.do("zadd", KEYS.lock, f"{-score if member[:1] == b'w' else score:.0f}", member)

    def end_place(self, claim):
        owner = waiter_of(claim)
        words = self.node.do("hget", KEYS.places, owner).split(b" ")
        self.node.do("hset", KEYS.places, owner, b" ".join([b"%d" % (self.now() - 1), *words[1:]]))


OWNERS = [ME, OTHER, THIRD, FOURTH, *(b"client-r%d:9" % i for i in range(200))]


@pytest.fixture(params=["real", "virtual"])
def rw(request):
    if request.param == "virtual":
        yield Scripts(Virtual(OWNERS))
        return
    node = request.getfixturevalue("node")
    with node.listening(*map(channel, OWNERS)) as subscription:
        yield Scripts(Real(node, subscription))


def said(owner, mark=7):
    return b"%d %s redsync:x" % (mark, waiter_of(owner))


# Who is let in.


def test_readers_are_let_in_together_each_with_its_own_expiry(rw, lasts):
    assert rw.ask("read", ME, lease=10_000) == NEW
    assert rw.ask("read", OTHER, count=3, lease=30_000) == NEW
    claims = rw.claims()
    assert {member: count for member, (count, _) in claims.items()} == {b"r:" + ME: 1, b"r:" + OTHER: 3}
    assert lasts(claims[b"r:" + ME][1], 10_000)
    assert lasts(claims[b"r:" + OTHER][1], 30_000)
    assert lasts(int(rw.node.do("pttl", KEYS.lock)), 30_000)


@pytest.mark.parametrize(("mode", "wanted"), [("write", "read"), ("write", "write"), ("read", "write")])
def test_writer_is_let_in_alone(rw, lasts, mode, wanted):
    rw.ask(mode, ME, lease=20_000)
    remaining, who = rw.ask(wanted, OTHER)
    assert who == (ME if mode == "write" else b"readers")
    assert lasts(remaining, 20_000)
    assert len(rw.holders()) == 1
    assert rw.release(mode, ME) == 1
    assert rw.ask(wanted, OTHER) == NEW


def test_writer_is_told_when_the_last_of_the_readers_ends(rw, lasts):
    for owner, lease in [(ME, 10_000), (OTHER, 25_000), (THIRD, 5_000)]:
        rw.ask("read", owner, lease=lease)
    remaining, who = rw.ask("write", FOURTH)
    assert who == b"readers"
    assert lasts(remaining, 25_000)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_re_entry_sets_the_count_and_never_shortens(rw, lasts, mode):
    rw.ask(mode, ME, lease=30_000)
    for _ in range(2):
        assert rw.again(mode, ME, count=2, lease=1_000) == EXISTING
    ((count, left),) = rw.claims().values()
    assert count == 2
    assert lasts(left, 30_000)
    assert rw.again(mode, ME, count=3, lease=60_000) == EXISTING
    ((count, left),) = rw.claims().values()
    assert count == 3
    assert lasts(left, 60_000)
    assert lasts(int(rw.node.do("pttl", KEYS.lock)), 60_000)


def test_count_beyond_what_a_score_can_tell_does_no_harm(rw, lasts):
    rw.ask("read", ME)
    rw.again("read", ME, count=5_000)
    assert lasts(rw.claims()[b"r:" + ME][1], LEASE)
    assert rw.release("read", ME, count=4_999) == 1
    assert rw.release("read", ME) == 1
    assert rw.holders() == set()


@pytest.mark.parametrize("mode", ["read", "write"])
def test_re_entry_of_what_has_expired_is_new(rw, mode):
    rw.ask(mode, ME)
    rw.ask("read", OTHER)
    rw.expire(f"{mode[0]}:".encode() + ME)
    assert rw.ask("read", ME) == NEW


def test_writer_may_read_and_go_on_reading(rw):
    rw.ask("write", ME)
    assert rw.ask("read", ME) == NEW
    assert rw.holders() == {b"w:" + ME, b"r:" + ME}
    assert rw.ask("read", OTHER)[1] == ME
    assert rw.release("write", ME) == 1
    assert rw.ask("read", OTHER) == NEW
    assert rw.ask("write", THIRD)[1] == b"readers"


def test_readers_own_claim_does_not_keep_it_from_writing(rw):
    """A client refuses that, but one that has lost its read lock need not wait for what is left of it."""
    rw.ask("read", ME)
    assert rw.ask("write", ME) == NEW
    rw.release("write", ME)
    rw.ask("read", OTHER)
    assert rw.ask("write", ME)[1] == b"readers"


def test_dead_reader_frees_the_writer_although_another_renews(rw):
    rw.ask("read", ME)
    rw.ask("read", OTHER)
    rw.renew("read", OTHER, lease=60_000)
    rw.expire(b"r:" + ME)
    rw.release("read", OTHER)
    assert rw.ask("write", THIRD) == NEW


def test_what_has_expired_is_swept_by_whoever_asks_a_bounded_number_at_a_time(rw):
    for owner in OWNERS[:150]:
        rw.ask("read", owner)
    for owner in OWNERS[:149]:
        rw.expire(b"r:" + owner)
    rw.ask("read", ME)
    assert len(rw.holders()) == 150 - 64 + 1
    rw.ask("read", OTHER)
    rw.ask("read", THIRD)
    assert rw.holders() == {b"r:" + ME, b"r:" + OTHER, b"r:" + THIRD, b"r:" + OWNERS[149]}


def test_dead_writer_keeps_nobody_out(rw):
    rw.ask("write", ME)
    rw.ask("read", ME)
    rw.expire(b"w:" + ME)
    assert rw.ask("read", OTHER) == NEW
    assert rw.holders() == {b"r:" + ME, b"r:" + OTHER}
    assert rw.release("write", ME) == 0


@pytest.mark.parametrize("mode", ["read", "write"])
def test_foreign_value_is_left_as_it_is(rw, mode):
    rw.node.do("set", KEYS.lock, b"foreign")
    assert rw.ask(mode) == 0
    assert rw.queue(mode, ME) == 0
    assert rw.again(mode) == 0
    assert rw.renew(mode) == -1
    assert rw.release(mode) == 0
    assert rw.abandon(mode) == 0
    assert rw.force_release(b"w:" + ME) == -1
    assert rw.look(mode) == -1
    assert rw.node.do("get", KEYS.lock) == b"foreign"


@pytest.mark.parametrize("mode", ["read", "write"])
def test_permits_of_a_semaphore_are_left_as_they_are(rw, mode):
    score = b"%d" % (rw.now() + 60_000)
    rw.node.do("zadd", KEYS.lock, score, OTHER)
    assert rw.ask(mode) == 0
    assert rw.queue(mode, ME) == 0
    assert rw.renew(mode) == 0
    assert rw.release(mode) == 0
    assert rw.abandon(mode) == 0
    assert rw.force_release(f"{mode[0]}:".encode() + OTHER) == 0
    assert rw.look(mode) == -1
    assert rw.node.do("zrange", KEYS.lock, 0, -1) == [OTHER]


def test_lock_and_read_write_lock_of_one_name_do_not_mix(rw):
    rw.ask("read", ME)
    assert rw.node.run("lock_acquire", (KEYS.lock,), OTHER, 1, LEASE, 0) == 0
    assert rw.node.run("mutex_acquire", (KEYS.lock,), OTHER, 1, LEASE, 0) == 0
    rw.release("read", ME)
    rw.node.run("lock_acquire", (KEYS.lock,), OTHER, 1, LEASE, 0)
    assert rw.ask("read", ME) == 0


# Who waits.


def test_waiting_writer_keeps_new_readers_out_but_not_those_who_re_enter(rw, lasts):
    rw.ask("read", ME)
    assert rw.queue("write", OTHER)[1:] == [b"readers", 0]
    remaining, who = rw.ask("read", THIRD)
    assert who == b"writers"
    assert lasts(remaining, PLACE)
    assert rw.again("read", ME) == EXISTING
    assert rw.ask("read", ME) == EXISTING
    assert rw.abandon("write", OTHER) == 0
    assert rw.ask("read", THIRD) == NEW


def test_reader_that_has_waited_longer_than_the_writer_is_let_in(rw):
    rw.ask("read", ME)
    rw.queue("write", OTHER, waited=1_000)
    assert rw.queue("read", THIRD, waited=500)[1] == b"writers"
    assert rw.queue("read", FOURTH, waited=9_000) == NEW
    assert rw.waiters() == {OTHER, THIRD}


def test_writer_whose_place_has_ended_keeps_nobody_out(rw):
    rw.ask("read", ME)
    rw.queue("write", OTHER)
    rw.end_place(OTHER)
    assert rw.ask("read", THIRD) == NEW
    assert rw.waiters() == set()


def test_refusal_tells_how_many_wait_before(rw):
    rw.ask("write", ME)
    for rank, owner in enumerate(OWNERS[1:4]):
        assert rw.queue("write", owner, waited=1_000 * (9 - rank)) == [pytest.approx(LEASE, abs=SLACK), ME, rank]
    assert rw.queue("read", OWNERS[4])[2] == 3
    assert rw.queue("read", OWNERS[5])[2] >= 3


def test_places_end_by_themselves(rw, lasts):
    rw.ask("write", ME)
    rw.queue("read", OTHER)
    assert lasts(int(rw.node.do("pttl", KEYS.queue)), PLACE)
    assert lasts(int(rw.node.do("pttl", KEYS.places)), PLACE)


# Handing over.


def test_readers_that_wait_are_served_together_and_before_a_later_writer(rw, lasts):
    rw.ask("write", ME)
    rw.queue("read", OTHER, waited=3_000)
    rw.queue("read", THIRD, waited=2_000, mark=8)
    rw.queue("write", FOURTH, waited=1_000)
    rw.queue("read", OWNERS[4], waited=0)
    assert rw.release("write", ME) == 1
    assert rw.node.heard() == [said(OTHER), said(THIRD, 8)]
    assert rw.holders() == {b"r:" + OTHER, b"r:" + THIRD}
    assert all(count == 1 and lasts(left, PLACE) for count, left in rw.claims().values())
    assert rw.waiters() == {FOURTH, OWNERS[4]}
    rw.release("read", OTHER)
    assert rw.node.heard() == []
    rw.release("read", THIRD)
    assert rw.node.heard() == [said(FOURTH)]
    assert rw.holders() == {b"w:" + FOURTH}
    rw.release("write", FOURTH)
    assert rw.node.heard() == [said(OWNERS[4])]
    rw.release("read", OWNERS[4])
    assert rw.holders() == rw.waiters() == set()


def test_writers_are_served_one_by_one_in_their_order(rw):
    rw.ask("write", ME)
    for waited, owner in [(1_000, OTHER), (3_000, THIRD), (2_000, FOURTH)]:
        rw.queue("write", owner, waited=waited)
    served = ME
    for owner in (THIRD, FOURTH, OTHER):
        rw.release("write", served)
        assert rw.holders() == {b"w:" + owner}
        assert rw.node.heard() == [said(owner)]
        served = owner


def test_downgrade_serves_the_readers_beside_it(rw):
    rw.ask("write", ME)
    rw.ask("read", ME)
    rw.queue("read", OTHER)
    rw.release("write", ME)
    assert rw.node.heard() == [said(OTHER)]
    assert rw.holders() == {b"r:" + ME, b"r:" + OTHER}


def test_release_of_what_a_writer_reads_serves_nobody(rw):
    rw.ask("write", ME)
    rw.ask("read", ME)
    rw.queue("read", OTHER)
    rw.release("read", ME)
    assert rw.node.heard() == []
    assert rw.holders() == {b"w:" + ME}


@pytest.mark.parametrize("mode", ["read", "write"])
def test_release_of_one_hold_of_several_serves_nobody(rw, mode):
    rw.ask(mode, ME)
    rw.again(mode, ME, count=2)
    rw.queue("write", OTHER)
    assert rw.release(mode, ME, count=1) == 1
    assert rw.claims()[f"{mode[0]}:".encode() + ME][0] == 1
    assert rw.node.heard() == []


@pytest.mark.parametrize("by", ["leaving", "death"])
def test_readers_behind_a_writer_that_is_gone_are_served(rw, by):
    rw.ask("read", ME)
    rw.queue("write", OTHER, waited=2_000)
    rw.queue("read", THIRD, waited=1_000)
    if by == "leaving":
        rw.abandon("write", OTHER)
    else:
        rw.end_place(OTHER)
        rw.release("read", ME)
    assert rw.node.heard() == [said(THIRD)]
    assert b"r:" + THIRD in rw.holders()
    assert rw.waiters() == set()


@pytest.mark.parametrize("mode", ["read", "write"])
def test_undo_that_goes_on_waiting_serves_nobody(rw, mode):
    rw.ask(mode, ME)
    rw.queue("write", OTHER)
    assert rw.abandon(mode, ME, leave=False) == 1
    assert rw.node.heard() == []
    assert rw.holders() == set()
    assert rw.waiters() == {OTHER}


def test_writer_that_must_not_be_handed_it_is_woken_and_keeps_its_place(rw):
    rw.ask("read", ME)
    rw.queue("write", OTHER, mark=0)
    rw.release("read", ME)
    assert rw.node.heard() == [said(OTHER, 0)]
    assert rw.holders() == set()
    assert rw.ask("read", THIRD)[1] == b"writers"
    assert rw.queue("write", OTHER) == NEW
    assert rw.waiters() == set()


def test_reader_that_must_not_be_handed_it_is_woken_with_the_others(rw):
    rw.ask("write", ME)
    rw.queue("read", OTHER, waited=3_000, mark=0)
    rw.queue("read", THIRD, waited=2_000)
    rw.queue("write", FOURTH, waited=1_000)
    rw.release("write", ME)
    assert rw.node.heard() == [said(OTHER, 0), said(THIRD)]
    assert rw.holders() == {b"r:" + THIRD}
    assert rw.queue("read", OTHER, waited=3_000) == NEW, "it has waited longer than the writer"


@pytest.mark.parametrize("mode", ["read", "write"])
def test_who_no_longer_listens_loses_claim_and_place(rw, mode):
    rw.ask("write", ME)
    rw.queue(mode, OTHER, waited=2_000)
    rw.queue("write", THIRD, waited=1_000)
    rw.node.deaf.add(channel(OTHER))
    rw.release("write", ME)
    assert rw.node.heard() == [said(THIRD)]
    assert rw.holders() == {b"w:" + THIRD}
    rw.release("write", THIRD)
    assert rw.waiters() == set()


def test_crowd_of_readers_is_served_in_waves(rw):
    """No call serves more than 64; the last of a wave asks, and the next wave gets it with it."""
    rw.ask("write", ME)
    crowd = OWNERS[4:]
    for i, owner in enumerate(crowd):
        rw.queue("read", owner, waited=5_000 - i)
    rw.release("write", ME)
    assert len(rw.holders()) == 63, "as many as docs/locks/read-write.md says have it in the step of the release"
    waves = []
    while heard := rw.node.heard():
        waves.append(len(heard))
        for message in heard:
            mark, owner, _ = message.split()
            if mark == b"0":
                assert rw.queue("read", owner + b":9", waited=5_000) == NEW
    assert waves == [64, 64, 64, 8]
    assert rw.holders() == {b"r:" + owner for owner in crowd}
    assert rw.waiters() == set()


def test_heir_that_reads_here_already_is_not_given_less(rw, lasts):
    """A renewal made its claim where it still has a place."""
    rw.ask("write", ME)
    rw.queue("read", OTHER)
    rw.abandon("write", ME, leave=False)
    assert rw.renew("read", OTHER, count=2) == 1
    rw.ask("read", THIRD)
    rw.release("read", THIRD)
    count, left = rw.claims()[b"r:" + OTHER]
    assert (count, lasts(left, LEASE)) == (2, True)
    assert rw.waiters() == set()


@pytest.mark.parametrize("mode", ["read", "write"])
@pytest.mark.parametrize(("record", "knows"), [(None, False), ("newborn 0", False), ("original 0", True)])
def test_node_that_forgot_lets_nobody_in_and_only_wakes(rw, mode, record, knows):
    if record == "newborn 0":
        record = f"newborn {rw.now()}"
    record = record and f"{record} -"
    rw.ask("write", ME)
    rw.queue(mode, OTHER, guard=GUARD)
    if record:
        rw.node.do("set", BIRTH_KEY, record)
    rw.release("write", ME)
    assert rw.node.heard() == [said(OTHER, 7 if knows else 0)]
    assert (rw.holders() != set()) == knows
    if not knows:
        with pytest.raises(Exception, match="FORGETFUL"):
            rw.ask(mode, THIRD if mode == "read" and not rw.waiters() else OTHER, guard=GUARD)
        assert rw.holders() == set()


# Renewing.


def test_renewal_lengthens_one_reader_only(rw, lasts):
    rw.ask("read", ME, lease=10_000)
    rw.ask("read", OTHER, lease=10_000)
    assert rw.renew("read", ME, count=2, lease=30_000) == EXISTING
    count, left = rw.claims()[b"r:" + ME]
    assert (count, lasts(left, 30_000)) == (2, True)
    assert lasts(rw.claims()[b"r:" + OTHER][1], 10_000)
    assert rw.renew("read", ME, count=2, lease=5_000) == EXISTING
    assert lasts(rw.claims()[b"r:" + ME][1], 30_000)


@pytest.mark.parametrize(
    ("holder", "mode", "healed"),
    [(None, "read", 1), (None, "write", 1), ("read", "read", 1), ("read", "write", 0), ("write", "read", 0)],
)
def test_node_that_forgot_is_healed_only_beside_those_who_allow_it(rw, holder, mode, healed):
    if holder:
        rw.ask(holder, OTHER)
    assert rw.renew(mode, ME) == healed
    assert (f"{mode[0]}:".encode() + ME in rw.holders()) == bool(healed)
    assert rw.renew(mode, ME) == 2 * healed


def test_both_holds_of_one_owner_are_healed(rw):
    assert [rw.renew("read", ME), rw.renew("write", ME)] == [1, 1]
    assert [rw.renew("read", ME), rw.renew("write", ME)] == [2, 2]
    assert rw.renew("read", OTHER) == rw.renew("write", OTHER) == 0


@pytest.mark.parametrize("mode", ["read", "write"])
def test_renewal_of_what_has_expired_counts_as_healing(rw, mode):
    rw.ask(mode, ME)
    rw.expire(f"{mode[0]}:".encode() + ME)
    assert rw.renew(mode, ME) == 1
    rw.expire(f"{mode[0]}:".encode() + ME)
    rw.ask("write", OTHER)
    assert rw.renew(mode, ME) == 0


def test_renewal_notes_that_the_node_is_not_new(rw):
    rw.renew("read", ME, guarded=True)
    assert rw.node.do("get", BIRTH_KEY).startswith(b"newborn ")


# Looking, and taking away.


# What a node refuses to write.


@pytest.fixture
def real(node):
    return Scripts(Real(node, None))


@pytest.mark.parametrize("mode", ["read", "write"])
def test_renewal_works_without_memory(real, mode, lasts):
    real.ask(mode, lease=10_000)
    with real.node._node.out_of_memory():
        assert real.renew(mode, count=2) == 2
    ((count, left),) = real.claims().values()
    assert count == 2
    assert lasts(left, LEASE)
    assert lasts(int(real.node.do("pttl", KEYS.lock)), LEASE)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_renewal_that_a_node_refuses_is_an_error(real, mode, lasts):
    """Counted as a renewal, it would let its owner believe in what the node forgets meanwhile."""
    real.ask(mode, lease=10_000)
    with read_only([real.node._node.redis]), pytest.raises(redis.exceptions.RedisError, match="read only replica"):
        real.renew(mode)
    ((_, left),) = real.claims().values()
    assert lasts(left, 10_000)


@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize("mode", ["read", "write"])
def test_undo_that_a_node_refuses_is_an_error(real, mode, leave):
    """As if the node had nothing to undo, it would never be sent again."""
    real.ask(mode)
    with read_only([real.node._node.redis]), pytest.raises(redis.exceptions.RedisError, match="read only replica"):
        real.abandon(mode, leave=leave)
    assert real.abandon(mode, leave=leave) == 1
    assert real.holders() == set()


@pytest.mark.parametrize("mode", ["read", "write"])
def test_look_tells_who_is_there(rw, mode):
    other = {"read": "write", "write": "read"}[mode]
    ours = f"{mode[0]}:".encode() + ME
    assert rw.look(mode) == rw.look(other) == []
    rw.ask(mode, ME)
    assert (rw.look(mode), rw.look(other)) == ([ours], [])
    rw.expire(ours)
    assert rw.look(mode) == []


def test_look_tells_of_a_writer_that_reads(rw):
    rw.ask("write", ME)
    rw.ask("read", ME)
    assert (rw.look("read"), rw.look("write")) == ([b"r:" + ME], [b"w:" + ME])


def test_look_tells_of_so_many_readers_who_have_it_for_longest(rw):
    for i in range(5):
        rw.ask("read", OWNERS[i], lease=10_000 + 1_000 * i)
    assert rw.look("read", most=2) == [b"r:" + OWNERS[4], b"r:" + OWNERS[3]]


def test_forced_release_takes_the_lock_from_those_it_names_and_from_nobody_else(rw):
    for owner in (ME, OTHER):
        rw.ask("read", owner)
    rw.queue("write", THIRD)
    assert rw.force_release(b"w:" + THIRD, b"r:client-a:0") == 0
    assert rw.force_release(b"r:" + ME) == 1
    assert rw.holders() == {b"r:" + OTHER}
    assert rw.force_release(b"r:" + ME, b"r:" + OTHER) == 1
    assert rw.node.heard() == [said(THIRD)]
    assert rw.force_release(b"r:" + ME, b"r:" + OTHER) == 0, "late, it takes nothing from the next holder"
    assert rw.holders() == {b"w:" + THIRD}
    assert rw.force_release(b"w:" + THIRD) == 1
    assert rw.holders() == set()


# A command of an earlier hold that comes late, over a connection that was given up.

EARLIER = b"client-a:0"


@pytest.mark.parametrize("mode", ["read", "write"])
def test_late_command_of_an_earlier_hold_leaves_a_later_one_alone(rw, mode):
    rw.ask(mode, ME)
    for late in (lambda: rw.release(mode, EARLIER), lambda: rw.abandon(mode, EARLIER)):
        assert late() == 0
        assert rw.holders() == {f"{mode[0]}:".encode() + ME}


@pytest.mark.parametrize("mode", ["read", "write"])
def test_late_command_of_an_earlier_hold_leaves_the_place_alone(rw, mode):
    rw.ask("write", OTHER)
    rw.queue(mode, ME, waited=1_000)
    rw.abandon(mode, EARLIER)
    rw.release(mode, EARLIER)
    rw.queue(mode, EARLIER, waited=9_000, mark=3)
    assert rw.waiters() == {ME}
    rw.release("write", OTHER)
    assert rw.node.heard() == [said(ME)]


def test_earlier_claims_of_the_owner_keep_neither_itself_out_nor_others_in(rw):
    rw.ask("read", EARLIER, lease=LEASE + 1_000)
    rw.ask("read", OTHER, lease=LEASE)
    assert rw.ask("write", ME)[1] == b"readers"
    rw.release("read", OTHER)
    assert rw.ask("write", ME) == NEW
    assert rw.ask("read", OTHER)[1] == ME


def test_inspect_tells_holders_with_their_modes_and_waiters_by_arrival(rw):
    rw.ask("write", ME, count=2)
    rw.ask("read", ME)
    rw.queue("read", OTHER, waited=2_000)
    rw.queue("write", THIRD, waited=3_000)
    rw.queue("write", FOURTH, waited=1_000)
    kind, _, holders, waiters = rw.node.run("lock_inspect", (KEYS.lock, KEYS.queue))
    assert kind == b"zset"
    assert [words[:3] for words in holders] == [[ME, 2, b"w"], [ME, 1, b"r"]]
    assert all(LEASE - SLACK < words[3] <= LEASE for words in holders)
    assert waiters == [waiter_of(claim) for claim in (THIRD, OTHER, FOURTH)]


def test_inspect_names_the_readers_who_have_it_for_longest(rw):
    for i, owner in enumerate(OWNERS[:100]):
        rw.ask("read", owner, lease=LEASE + 100 * i)
    holders = rw.node.run("lock_inspect", (KEYS.lock, KEYS.queue))[2]
    assert [words[0] for words in holders] == OWNERS[99:36:-1]
