"""The semaphore: its limit, looks, releases, and slots in renewals."""

from contextlib import suppress
from weakref import ref

import pytest

from redsync._core.client_records import ClientRecord
from redsync._core.permits import next_version
from redsync._protocols.holding import lose
from redsync._protocols.renewal import renew
from redsync._protocols.semaphore import PermitHolder, available, holders_of, limit_of, release_latest, resize
from redsync.exceptions import KeyTypeError, LeaseLostError, OverReleaseError, QuorumError
from tests.support.injection import inject_at_calls as inject
from tests.support.slots import ASK, V1, got

RECORD = ClientRecord("host", 7, "program", 1.0)


NOW_MS = 1_700_000_000_000


def look(version=-1, permits=0, taken=(), holders=(), now_ms=NOW_MS):
    bits = bytearray(2)
    for slot in taken:
        bits[slot // 8] |= 1 << (7 - slot % 8)
    return [version, permits, bytes(bits), list(holders), 0, 0, now_ms]


@pytest.fixture
def pool(semaphore):
    return semaphore.pool


@pytest.fixture
def take(semaphore):
    """Take a permit on all nodes."""

    return lambda *slots: semaphore.play((ASK, semaphore.toy.all_say(got(*slots))), n=len(slots))


@pytest.fixture
def ask(toy, pool):
    """Return a function that plays a protocol of the semaphore.

    Each of its answers is what the nodes say to a look; the protocol's further arguments come first.
    """

    def ask(protocol, *args, told=()):
        script = [("ask semaphore_inspect", answer) if not isinstance(answer, str) else answer for answer in told]
        return toy.play(protocol(toy.session, pool, toy.owner, *args), *script)

    return ask


# The limit.


def test_limit_is_the_newest_that_nodes_know(toy, pool, ask):
    looks = toy.answers(look(0, 4), look(V1, 7), look(0, 4), look(), None)
    assert ask(limit_of, told=[looks, "tell semaphore_inspect"]) == 7
    assert toy.told[-1].command.args == (0, 0, 0, V1, 7), "nodes that lack it get it"
    assert (pool.limit.version, pool.limit.permits) == (V1, 7)


def test_limit_that_no_node_knows_is_the_clients_own(toy, ask):
    assert ask(limit_of, told=[toy.all_say(look())]) == 4


def test_limit_that_nodes_forgot_is_the_last_that_was_learned(toy, pool, ask):
    pool.limit.learn(V1, 9)
    assert ask(limit_of, told=[toy.all_say(look(V1, 9))]) == 9
    assert toy.commands[-1].args == (0, 0, 0, V1, 9), "they get it with the look"


@pytest.mark.parametrize("known", [V1 + 5, 1 << 52])
def test_resize_writes_a_version_above_all_known_ones(toy, pool, ask, known):
    wanted = next_version(known, 9, NOW_MS)
    looks = toy.answers(look(0, 4), look(known, 7), look(0, 4), "down", None)
    ask(resize, 9, told=[looks, "tell semaphore_inspect", toy.all_say(look(wanted, 9))])
    assert toy.commands[-1].args == (0, 0, 0, wanted, 9)
    assert (pool.limit.version, pool.limit.permits) == (wanted, 9)


def test_one_wrong_clock_does_not_decide_the_version_of_a_resize(toy, pool, ask):
    clocks = (1, NOW_MS, NOW_MS, NOW_MS, 1 << 60)
    looks = toy.answers(*[look(0, 4, now_ms=each) for each in clocks])
    wanted = next_version(0, 9, NOW_MS)
    ask(resize, 9, told=[looks, toy.all_say(look(wanted, 9))])
    assert toy.commands[-1].args[3] == pool.limit.version == wanted


def test_resize_overtaken_by_another_has_succeeded(toy, pool, ask):
    newer = next_version(0, 3, NOW_MS + 10)
    ask(resize, 9, told=[toy.all_say(look(0, 4)), toy.all_say(look(newer, 3))])
    assert (pool.limit.version, pool.limit.permits) == (newer, 3)


def test_resize_without_a_quorum_is_an_error(toy, pool, ask):
    done = look(next_version(0, 9, NOW_MS), 9)
    with pytest.raises(QuorumError, match="semaphore 'x': 3 of 5 nodes failed"):
        ask(resize, 9, told=[toy.all_say(look(0, 4)), toy.answers(done, done, "down", "down", "down")])
    assert pool.limit.permits == 9, "it may come into force"
    with pytest.raises(QuorumError):
        ask(resize, 9, told=[toy.all_say("down")])


# Looks.


def test_slot_is_free_only_if_a_quorum_may_grant_it(toy, ask):
    three = look(0, 4, [0, 1]), look(0, 4, [0, 1]), look(0, 4, [0, 2])
    looks = toy.answers(*three, look(0, 4, []), look(0, 4, []))
    assert ask(available, told=[looks]) == 3, "0 is taken on three; 1 and 2 on fewer"
    assert ask(available, told=[toy.answers(*three, "down", "down")]) == 1


def test_no_permit_is_available_while_more_exist_than_a_shrink_allows(toy, pool, ask):
    pool.limit.learn(V1, 1)
    assert ask(available, told=[toy.all_say(look(V1, 1, [2, 3]))]) == 0


def test_holders_are_those_that_a_quorum_knows(toy, ask):
    entry, rare = [b"c:1", b"3,0", 9_000, RECORD.pack()], [b"c:2", b"1", 9_000, b""]
    looks = toy.answers(
        look(0, 4, [], [entry, rare]),
        look(0, 4, [], [[b"c:1", b"0,3", 8_000, b""], rare]),
        look(0, 4, [], [[b"c:1", b"3,2", 7_000, b""], [b"c:2", b"2", 9_000, b""]]),
        look(0, 4, [], [[b"c:1", b"0,3", 6_000, b""]]),
        "down",
    )
    record = {"host": "host", "pid": 7, "program": "program", "since": 1.0}
    holder = PermitHolder("c:1", "c", slots=(0, 3), remaining=7.0, **record)
    assert ask(holders_of, told=[toy.all_say(look(0, 4, [0, 3])), looks]) == (holder,)


def test_bit_map_of_absurd_size_is_not_a_look(toy, ask):
    absurd = [0, 4, bytes(1251), [], 0, 0, NOW_MS]
    with pytest.raises(QuorumError):
        ask(available, told=[toy.answers(absurd, absurd, absurd, look(0, 4), look(0, 4))])


def test_many_holders_are_listed_a_page_at_a_time(toy, pool, ask):
    pool.limit.permits = 10_000
    pages = [
        look(0, 10_000, [], [[b"c:1", b"5", 9_000, RECORD.pack()]]),
        look(0, 10_000, [], [[b"c:2", b"1005", 8_000, RECORD.pack()], [b"c:3", b"1006", 7_000, b""]]),
    ]
    for page in pages:
        page[2] = bytes(126)[:-1] + b"\xff"
    found = ask(holders_of, told=[toy.all_say(page) for page in (pages[0], *pages)])
    assert [(holder.id, holder.pid) for holder in found] == [(f"c:{number}", RECORD.pid) for number in (3, 2, 1)]
    assert [command.args for command in toy.commands[1:]] == [(-1, 0, 0, 0, 10_000), (-1, 0, 1000, 0, 10_000)]


def test_pages_that_too_few_nodes_answer_together_list_nobody(toy, pool, ask):
    """A permit would have the vote of one node only, and be left out although two nodes told it."""
    page = look(0, 10_000, [], [[b"c:1", b"1005", 9_000, b""]])
    page[2] = bytes(126)[:-1] + b"\xff"
    looks = [toy.all_say(page)]
    looks += [toy.answers(page, page, page, "down", "down"), toy.answers("down", page, page, page, "down")]
    with pytest.raises(QuorumError, match="semaphore 'x': only 2 of 5 nodes answered for all pages; 3 must"):
        ask(holders_of, told=looks)


def test_foreign_value_is_an_error_for_a_look(toy, ask):
    with pytest.raises(KeyTypeError, match="semaphore 'x'"):
        ask(available, told=[toy.all_say(0)])


# Releasing.


def test_latest_permits_are_released_first_and_the_last_reduced(toy, pool, take):
    first, second = take(0, 1), take(2)
    release = ("ask semaphore_release", toy.all_say(1))
    toy.play(release_latest(toy.session, pool, 2, toy.now), release, release)
    assert (first.count, second.count) == (1, 0)
    assert [command.args[1:] for command in toy.commands[-2:]] == [(0, b""), (1, b"0")]
    assert list(toy.session.holds) == [first]


@pytest.mark.parametrize("begins", [False, True])
def test_permit_of_a_with_is_released_last(semaphore, toy, pool, take, begins):
    """Also while that `with` begins: its thread may pause between the grant and the body."""
    first = take(0)
    second = semaphore.play((ASK, toy.all_say(got(1))), for_with=begins)
    if not begins:
        second.entered[second] = ref(toy)
    toy.play(release_latest(toy.session, pool, 1, toy.now), ("ask semaphore_release", toy.all_say(1)))
    assert (first.count, second.count) == (0, 1)


def test_too_many_to_release_are_an_error_without_effect(toy, pool, take):
    state = take(0)
    with pytest.raises(OverReleaseError, match="can't release 2, as this client has 1 of its permits"):
        toy.play(release_latest(toy.session, pool, 2, toy.now))
    assert state.count == 1


def test_loss_of_one_is_raised_when_all_have_been_released(toy, pool, take):
    first, second = take(0), take(1)
    toy.play(lose(second, "a reason"), "tell semaphore_abandon", "notify HoldLost")
    with pytest.raises(LeaseLostError, match="the permit of semaphore 'x' was lost: a reason"):
        toy.play(release_latest(toy.session, pool, 2, toy.now), ("ask semaphore_release", toy.all_say(1)))
    assert (first.count, second.count) == (0, 0)


def test_permits_of_a_release_under_way_can_not_be_released_again(toy, pool, take):
    first, second = take(0), take(1)
    steps = release_latest(toy.session, pool, 2, toy.now)
    next(steps)  # It waits for the nodes to answer about the latest.
    with pytest.raises(OverReleaseError, match="this client has 0"):
        toy.play(release_latest(toy.session, pool, 1, toy.now))
    assert [first.live, second.live] == [False, False], "nothing is renewed from now on"
    with suppress(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt)
        while True:
            steps.send(None)


@pytest.mark.parametrize("later", [[], [2]], ids=["as it is under way", "before it is sent"])
def test_release_that_another_one_of_the_same_permit_overtakes_is_no_loss(toy, pool, take, later):
    permit = take(0, 1)
    for slot in later:
        take(slot)
    overtaken = toy.all_say(1 if later else 0, meanwhile=lambda: toy.give_back(permit))
    steps = release_latest(toy.session, pool, 1 + len(later), toy.now)
    toy.play(steps, ("ask semaphore_release", overtaken))
    assert (permit.count, permit.lost, toy.events) == (0, None, [])


def test_release_interrupted_at_any_point_is_completed_or_has_not_begun(toy, pool, take):
    def answer(text, _):
        return toy.all_say(1) if text.startswith("ask") else None

    point, struck, ways = 0, True, set()
    while struck:
        point += 1
        states = take(0, 1), take(2), take(3)
        steps = release_latest(toy.session, pool, 3, toy.now)
        struck = inject(point, lambda steps=steps: toy.drive(steps, answer))
        counts = tuple(state.count for state in states)
        ways.add(counts)
        if counts != (2, 1, 1):
            left = {command.args[0]: command.args[1] * ("release" in command.script.name) for command in toy.commands}
            assert (counts, [left[state.claim] for state in states]) == ((1, 0, 0), [1, 0, 0]), struck
            assert list(toy.session.holds) == [states[0]]
        for state in toy.session.holds:
            toy.session.holds.remove(state)
    assert len(ways) == 2


@pytest.mark.parametrize("left", [0, 2], ids=["of single permits", "of a permit for three"])
def test_interrupted_release_ends_all_that_it_was_to_release_without_waiting(toy, pool, take, left):
    """Of a permit for several it leaves the rest."""
    earlier, _ = take(*range(1 + left)), take(3)
    steps = release_latest(toy.session, pool, 2, toy.now)
    after = ["tell semaphore_abandon", "tell semaphore_release", "tell semaphore_release"]
    assert toy.interrupt(steps, [("ask semaphore_release", None)], 0) == after
    assert [(state.count, state.live) for state in toy.session.holds] == [(left, True)] * (left > 0)
    assert toy.told[-1].command.args[:2] == (earlier.claim, left)
    assert toy.told[-1].deliver_to == 0b11111


# Renewal.


def test_renewal_names_each_semaphore_once_and_the_exact_slots(toy, pool, take, make_toy):
    one, two = take(3, 1), take(2)
    one.count = 1
    toy.play(renew(toy.session, {one: one.lease, two: two.lease}), ("ask semaphore_renew", toy.all_say([2, 2])))
    command = toy.commands[-1]
    assert command.keys == pool.keys.all
    permits = (1, one.claim, b"%d" % one.slots[0], 30_000, 1, two.claim, b"2", 30_000)
    assert command.args == (*permits, b"0 4")


def test_holder_learns_a_newer_limit_from_a_renewal_and_carries_it_from_then_on(toy, pool, take):
    state = take(0)
    answers = toy.answers([2, b"%d 2" % V1], [2], [2], None, None)
    toy.play(renew(toy.session, {state: state.lease}), ("ask semaphore_renew", answers))
    assert (pool.limit.version, pool.limit.permits) == (V1, 2)
    toy.play(renew(toy.session, {state: state.lease}), ("ask semaphore_renew", toy.all_say([2])))
    assert toy.commands[-1].args[-1] == b"%d 2" % V1


@pytest.mark.parametrize("told", [[2, b"nonsense"], [9, b"1 2"], [2, b"1 0"], [2, 7], [2, b"1 2", b"1 2"], [b"1 2"]])
def test_garbage_after_the_codes_is_not_an_answer(toy, pool, take, told):
    state = take(0)
    confirmed, tally = toy.play(renew(toy.session, {state: state.lease}), ("ask semaphore_renew", toy.all_say(told)))
    assert confirmed == []
    assert tally.without_quorum
    assert pool.limit.version == 0
