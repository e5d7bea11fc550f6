"""The read-write lock's protocols: two holds of one owner, no upgrade, and waiting."""

import pytest

from redsync._core.keys import LockKeys
from redsync._protocols.lock import acquire
from redsync._protocols.read_write_lock import READ, WRITE, acquire_to_write
from redsync._protocols.surveys import force_release, is_held
from redsync.exceptions import LeaseLostError, UpgradeError

NEW = 1
KEYS = {kind: LockKeys.of(b"redsync:", b"x", kind.mode) for kind in (READ, WRITE)}
ASK = "ask read_write_lock_acquire for a place"
"""Every new acquire, even one that wants no place."""

kinds = pytest.mark.parametrize("kind", [READ, WRITE], ids=["read", "write"])


def acquiring(toy, kind, **fields):
    request = toy.request(kind=kind, keys=KEYS[kind], **fields)
    return (acquire if kind is READ else acquire_to_write)(toy.session, request, toy.now)


def take(toy, kind, **fields):
    return toy.play(acquiring(toy, kind, **fields), (ASK, toy.all_say(NEW)))


@kinds
def test_new_acquire_respects_the_queue_without_a_place_in_it(toy, kind):
    take(toy, kind)
    assert toy.commands[0].keys == KEYS[kind].all
    assert toy.commands[0].args == (toy.owner.claim(1, kind.mode), 1, 30_000, 0)


def test_reader_that_asks_to_write_is_refused_before_any_node_is_asked(toy):
    reading = take(toy, READ)
    with pytest.raises(UpgradeError, match="'x'") as caught:
        toy.play(acquiring(toy, WRITE))
    assert caught.value.name == "x"
    assert caught.value.votes == ()
    assert list(toy.session.holds) == [reading]
    assert reading.valid(toy.now)


def test_reader_that_lost_its_lock_gets_the_loss_instead(toy):
    take(toy, READ)
    toy.now += 31
    for lost in ["tell read_write_lock_release", "notify HoldLost"], []:
        with pytest.raises(LeaseLostError, match="without a renewal"):
            toy.play(acquiring(toy, WRITE), *lost)


def test_writer_that_reads_too_has_two_holds(toy):
    writing, reading = take(toy, WRITE), take(toy, READ)
    assert set(toy.session.holds) == {writing, reading}
    assert toy.owner.holds[KEYS[WRITE].hold] is writing
    assert toy.owner.holds[KEYS[READ].hold] is reading
    toy.give_back(writing)
    assert list(toy.session.holds) == [reading]
    assert toy.commands[-1].args[:2] == (toy.owner.claim(1, WRITE.mode), 0)
    toy.give_back(reading)
    assert len(toy.session.holds) == 0


def test_writer_that_reads_may_reenter_to_write(toy):
    writing = take(toy, WRITE)
    take(toy, READ)
    toy.play(acquiring(toy, WRITE), "tell read_write_lock_release")
    assert writing.count == 2


def test_writer_sleeps_until_the_readers_are_gone_although_nodes_may_know_different_ones(toy):
    held = [20_000, b"readers", 0]
    state = toy.play(
        acquiring(toy, WRITE),
        (ASK, toy.all_say(held)),
        (ASK, toy.all_say([*held, 0])),
        ("wait for wake-up", toy.slept(0.3, handed=0b11111)),
    )
    assert state.kind is WRITE
    assert toy.waits[0].until > 1000.4, "a split vote would cause another ask at once"


# Looking.


def told(claims, kind):
    """Return a node's reply: these claims, in the mode of the kind."""
    words = [[claim, 1, kind.mode[:1], 20_000, b""] for claim in claims]
    return [b"read-write lock" if claims else b"none", words, len(claims), [], 0, 0, 0, []]


@kinds
@pytest.mark.parametrize(("silent", "expected"), [([], False), (["down"], True)])
def test_lock_is_held_if_a_quorum_has_any_holder_in_that_mode_or_may_have_one(toy, kind, silent, expected):
    """Readers count together; `test_lock_survey.py` has the table for one holder."""
    other = WRITE if kind is READ else READ
    looks = [told([b"one:1"], kind), told([b"two:1"], kind), *silent, *[told([b"three:1"], other)] * 3][:5]
    steps = is_held(toy.session, kind, "x", KEYS[kind], toy.owner)
    assert toy.play(steps, ("ask name_inspect", toy.answers(*looks))) is expected


LOOK, FORCE = "ask name_inspect", "ask read_write_lock_release"


def test_forced_release_of_a_crowd_releases_each_holder(toy):
    crowd = [b"%d" % i for i in range(500)]
    script = (LOOK, toy.all_say(told(crowd, READ))), *[(FORCE, toy.all_say(1))] * 500
    assert toy.play(force_release(toy.session, READ, "x", KEYS[READ], toy.owner), *script) is True
    assert [command.args[:2] for command in toy.commands[1:501]] == [(b"r:" + claim, 0) for claim in crowd]
