"""Claims of slots: which slots are won, which are asked for next, and how a limit is learnt."""

import pytest

from redsync._core.limits import Limit
from redsync._core.quorum import Tally, Verdict
from redsync._core.slots import SlotKeys
from redsync._protocols.semaphore import SEMAPHORE, Pool, acquire
from redsync._protocols.slot_claims import SlotClaim
from redsync._protocols.slot_lines import SlotLine
from redsync.exceptions import ConfigurationError, KeyTypeError, QuorumError

V1 = 1 << 32
FULL = [20_000, b"full", 0, 0, b"", 4]
UNDO = "tell semaphore_abandon"
ASK = "ask semaphore_acquire for a place"


def full(highest=0, ahead=0):
    return [20_000, b"full", highest, ahead, b"", 4]


def taken(*slots, permits=4):
    bits = bytearray(-(-permits // 8))
    for slot in slots:
        bits[slot // 8] |= 1 << (7 - slot % 8)
    return [20_000, b"taken", 0, 0, bytes(bits), permits]


def other_limit(version, permits):
    return [-1, b"limit", 0, 0, b"%d %d" % (version, permits), permits]


def told(*mine, others=()):
    """A grant of the first slots that tells what is taken by others as well."""
    bits = bytearray(2)
    for slot in (*mine, *others):
        bits[slot // 8] |= 1 << (7 - slot % 8)
    return [b",".join(b"%d" % slot for slot in mine), bytes(bits)]


NO_LIMIT = [-1, b"limit", 0, 0, b"", 4]


class Bidder:
    """A toy client's semaphore of 4 permits, unless told otherwise."""

    def __init__(self, toy, permits=4):
        self.toy = toy
        self.keys = SlotKeys.of(b"redsync:", b"x")
        self.limit = Limit(permits)
        self.pool = Pool("x", self.keys, self.limit)

    def steps(self, n=1, *, timeout=0.0, **fields):
        toy = self.toy
        owner = toy.new_owner()
        fields = {"kind": SEMAPHORE, "keys": self.keys, "owner": owner, "timeout": timeout, **fields}
        request = toy.request(holds=n, **fields)
        return acquire(toy.session, request, self.limit, toy.now)

    def play(self, *script, n=1, **fields):
        return self.toy.play(self.steps(n, **fields), *script)

    @property
    def exact(self):
        """What was asked for exactly, round by round."""
        return [c.args[10] for c in self.toy.commands if c.script is SEMAPHORE.acquire]


@pytest.fixture
def bidder(toy):
    """On five nodes, starting from slot 2 of 4."""
    return Bidder(toy)


@pytest.fixture
def three(make_toy):
    return Bidder(make_toy(3, random=0.0), permits=2)


# Winning.


def test_slot_that_a_quorum_granted_is_won_in_one_round(bidder):
    state = bidder.play((ASK, bidder.toy.answers(b"2", b"2", b"2", None, None)))
    assert state.slots == (2,)
    assert state.count == 1
    args = bidder.toy.commands[0].args
    assert args[1:4] == (1, 30_000, 0)
    assert args[7:] == (0, 4, 2, b"", 0)
    assert bidder.toy.commands[0].keys == bidder.keys.all


def test_round_is_open_while_a_slot_may_still_be_won(bidder):
    state = bidder.play((ASK, bidder.toy.answers(b"2", b"3", full(), b"2", b"2")))
    assert state.slots == (2,)


def test_several_slots_are_won_one_by_one(bidder):
    state = bidder.play((ASK, bidder.toy.answers(b"2,3", b"3,0", b"2,0", b"2,3", None)), n=2)
    assert state.slots == (2, 3), "2 on three nodes, 3 on three, 0 on two"


def test_schedule_of_three_for_two_permits_admits_two(make_toy):
    """A has its slots on nodes 1 and 2, B on 2 and 3; C finds one slot free on 3, another on 1.

    A counter on each node would admit all three.
    """
    first, second, third = (Bidder(make_toy(3, random=0.0), permits=2) for _ in range(3))
    assert first.play((ASK, first.toy.answers(b"0", b"0", "down"))).slots == (0,)
    assert second.play((ASK, second.toy.answers("down", b"1", b"1"))).slots == (1,)
    script = (ASK, third.toy.answers(b"1", full(), b"0"))
    # Slot 0 is taken on node 1, or it would have been granted; slot 1 may be free on node 3, and is not.
    assert third.play(script, (ASK, third.toy.answers(b"1", full(), taken(1, permits=2))), UNDO) is None
    assert third.exact == [b"", b"1"]


def test_garbage_is_no_answer(believed, toy):
    assert believed(lambda toy: Bidder(toy).steps()) == []
    for reply in (
        b"1,2",
        b"1,",
        b"01",
        b"1,1",
        [1, b"full", 0, 0, 7, 4],
        [1, b"limit", 0, 0, 7, 4],
        [1, b"limit", 0, 0, b"1 0", 4],
        [1, b"limit", 0, 0, b"1 10001", 4],
        [1, b"limit", 0, 0, b"-1 4", 4],
        [b"1", b""],
    ):
        tally = toy.perform(toy.start(Bidder(toy).steps()), toy.all_say(reply))
        assert tally.without_quorum, reply


# Choosing.


def test_nodes_that_chose_differently_are_asked_for_the_same_at_once(bidder):
    toy = bidder.toy
    script = (ASK, toy.answers(b"2", b"2", b"3", b"3", b"0"))
    state = bidder.play(script, (ASK, toy.answers(b"3", b"3", b"3", None, None)))
    assert state.slots == (3,), "granted by two nodes, and two may have it free; of 0 only one is known"
    assert bidder.exact == [b"", b"3"]


def test_slot_of_absurd_size_that_one_node_names_is_not_asked_for(bidder):
    """The others would make room for half a gigabyte of bits."""
    toy = bidder.toy
    answers = toy.answers(b"4000000001", b"2", b"3", b"0", "down")
    bidder.play((ASK, answers), (ASK, toy.all_say(b"0")))
    assert bidder.exact == [b"", b"0"]


def test_bit_map_of_absurd_size_is_no_answer(bidder):
    toy = bidder.toy
    bidder.limit.learn(V1, 4)
    long = bytes(1251)
    with pytest.raises(QuorumError):
        bidder.play((ASK, toy.answers(*[[b"2", long]] * 2, [1, b"taken", 0, 0, long, 4], told(2), told(2))), UNDO)


def test_slot_that_was_passed_over_by_too_many_is_not_asked_for(bidder):
    toy = bidder.toy
    script = (ASK, toy.answers(b"2", b"3", b"3", "down", full()))
    state = bidder.play(script, (ASK, toy.answers(b"3", b"3", b"3", None, None)))
    assert state.slots == (3,)


def test_refusal_of_exact_slots_tells_what_else_is_free(bidder):
    toy = bidder.toy
    state = bidder.play(
        (ASK, toy.answers(b"2", b"2", b"3", b"3", b"0")),
        (ASK, toy.answers(taken(2, 3), taken(2, 3), b"3", b"3", taken(2, 3))),
        (ASK, toy.answers(b"0", b"0", b"0", None, None)),
    )
    assert state.slots == (0,)
    assert bidder.exact == [b"", b"3", b"0"]


def test_try_gives_up_after_some_rounds_and_is_undone(bidder):
    toy = bidder.toy
    script = [(ASK, toy.answers(b"2", b"2", b"3", b"3", b"0"))]
    script += [(ASK, toy.answers(taken(2, 3), taken(2, 3), b"3", b"3", taken(2, 3)))] * 3
    assert bidder.play(*script, UNDO) is None


def test_next_try_starts_elsewhere_and_anew(bidder):
    toy = bidder.toy
    toy.random = 0.1
    script = [(ASK, toy.answers(full(), b"2", b"3", full(), "down")), UNDO]
    script += [("wait", toy.slept(meanwhile=lambda: setattr(toy, "random", 0.9)))]
    state = bidder.play(*script, (ASK, toy.all_say(b"3")), timeout=5.0)
    assert state.slots == (3,)
    starts = [command.args[9] for command in toy.commands if command.script is SEMAPHORE.acquire]
    assert starts == [0, 3]


# Waiting in line.


def test_permit_without_room_draws_a_ticket_and_waits(bidder):
    toy = bidder.toy
    state = bidder.play(
        (ASK, toy.answers(full(3), full(7), full(5), None, None)),
        (ASK, toy.answers(full(8), full(8), full(8), None, None)),
        UNDO,
        UNDO,
        ("wait for wake-up", toy.slept(0.1, signals=3)),
        (ASK, toy.all_say(b"2")),
        timeout=5.0,
    )
    assert state.slots == (2,)
    assert state.queued
    asked = [command.args for command in toy.commands if command.script is SEMAPHORE.acquire]
    assert [args[4:6] for args in asked] == [(3000, 0), (3000, 8), (3000, 8)]
    back, drop = toy.told
    place = (1, 0, 3000, 8, asked[0][6])
    assert back.command.args[1:] == (0, *place), "it gets its place back that a grant has taken away"
    assert back.owed_to == 0, "at once or never: it may have left by then"
    assert (drop.command.args[1:], drop.owed_to) == ((0,), 0b11111)


def test_ticket_of_absurd_size_does_not_spread_from_one_node(bidder):
    toy = bidder.toy
    bidder.play(
        (ASK, toy.answers(full(3), full(1 << 60), full(5), full(), full())), (ASK, toy.all_say(b"2")), timeout=5.0
    )
    assert [command.args[5] for command in toy.commands] == [0, 6]


def test_place_is_owed_to_nodes_that_only_the_undoing_has_reached(bidder):
    """It gives the place back where a grant may have taken it away, and to who never had one as well."""
    toy = bidder.toy
    asked = 0b00111
    script = (
        (ASK, toy.answers(full(), full(), full(), None, None, sent=asked)),
        (ASK, toy.answers(b"0", full(), full(), None, None, sent=asked)),
        UNDO,
        UNDO,
        ("wait for wake-up", toy.slept()),
        (ASK, toy.answers(full(), full(), full(), None, None, sent=asked)),
        f"{UNDO}, leave",
    )
    assert bidder.play(*script, timeout=0.5) is None
    assert [told.owed_to for told in toy.told] == [0, 0b00111, 0b11111]


def test_permit_that_finds_room_but_not_the_same_slots_tries_again_soon(bidder):
    """Whoever is not refused for want of room is woken by nobody."""
    toy = bidder.toy
    state = bidder.play(
        (ASK, toy.all_say(full())),
        (ASK, toy.answers(taken(0, 1, 2), taken(1, 2, 3), taken(0, 2, 3), taken(0, 1, 3), "down")),
        UNDO,
        UNDO,
        ("wait for wake-up", toy.slept()),
        (ASK, toy.all_say(b"2")),
        timeout=5.0,
    )
    assert state.slots == (2,)
    assert toy.waits[0].until - 1000.0 < 0.05


def test_permit_interrupted_before_it_asks_with_its_ticket_takes_no_place(bidder, monkeypatch):
    """It has drawn one, and no node has heard of it: an undoing that gave the place back would put it there."""
    toy = bidder.toy
    steps = bidder.steps(timeout=5.0)
    ask = SlotLine.ask

    def interrupted(line, now):
        if toy.tallies:
            raise KeyboardInterrupt
        return ask(line, now)

    monkeypatch.setattr(SlotLine, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        toy.play(steps, (ASK, toy.all_say(full())), UNDO)
    assert [len(told.command.args) for told in toy.told] == [2], "permit and whether to leave, no place"


def test_permit_that_gives_up_leaves_the_line(bidder):
    toy = bidder.toy
    script = (ASK, toy.all_say(full())), (ASK, toy.all_say(full())), ("wait for wake-up", toy.slept())
    assert bidder.play(*script, (ASK, toy.all_say(full())), f"{UNDO}, leave", timeout=0.5) is None
    assert toy.told[-1].command.args[1:] == (1,)


def test_permit_that_does_not_wait_asks_for_no_place(bidder):
    toy = bidder.toy
    assert bidder.play((ASK, toy.all_say(full())), UNDO) is None
    assert toy.commands[0].args[4:6] == (0, 0)


def test_silence_of_a_node_is_not_waited_for_when_there_is_no_room(bidder):
    toy = bidder.toy
    bidder.play((ASK, toy.answers(full(), full(), full(), None, None, takes=0.001)), UNDO)
    assert toy.now == pytest.approx(1000.001)


def test_outage_is_told(bidder):
    with pytest.raises(QuorumError, match="semaphore 'x': 3 of 5 nodes failed"):
        bidder.play((ASK, bidder.toy.answers("down", "down", "down", None, None)), UNDO)


# The limit.


def test_newer_limit_is_learnt_and_asked_under_at_once(bidder):
    toy = bidder.toy
    state = bidder.play((ASK, toy.all_say(other_limit(V1, 9))), (ASK, toy.all_say(told(2))))
    assert state.slots == (2,)
    assert state.limit is bidder.limit
    assert toy.commands[1].args[7:9] == (V1, 9)
    assert toy.commands[1].args[11:] == (1,)
    assert (bidder.limit.version, bidder.limit.permits) == (V1, 9)


def test_newer_limit_of_a_minority_is_learnt_with_the_grant(bidder):
    toy = bidder.toy
    bidder.play((ASK, toy.answers(other_limit(V1, 9), b"2", b"2", b"2", None)))
    assert bidder.limit.permits == 9


def test_start_lies_within_a_limit_that_has_shrunk(bidder):
    toy = bidder.toy
    bidder.play((ASK, toy.all_say(other_limit(V1, 2))), (ASK, toy.all_say(told(0))))
    assert toy.commands[1].args[8:10] == (2, 0)


def test_limit_that_a_quorum_contradicts_is_an_error_that_names_both(bidder):
    toy = bidder.toy
    answers = toy.answers(other_limit(0, 7), b"2", other_limit(0, 7), other_limit(0, 7), None)
    with pytest.raises(ConfigurationError, match=r"has 7 permits on its nodes, not 4: .* or resize\(4\)"):
        bidder.play((ASK, answers), UNDO)


def test_minority_with_another_limit_of_the_same_version_is_set_right(bidder):
    toy = bidder.toy
    state = bidder.play((ASK, toy.answers(other_limit(0, 7), b"2", b"2", b"2", None)), "tell semaphore_resize")
    assert state.slots == (2,)
    assert toy.told[-1].command.args == (0, 4, 1)


def test_more_than_a_newer_limit_allows_is_an_error(bidder):
    with pytest.raises(ConfigurationError, match="resized to 2 permits: 3 at once"):
        bidder.play((ASK, bidder.toy.all_say(other_limit(V1, 2))), UNDO, n=3)


VOID = 1 << 60


def test_limit_that_most_nodes_refuse_as_void_is_forgotten_and_not_believed_again(bidder):
    toy = bidder.toy
    broken = other_limit(VOID, 9)
    script = (
        (ASK, toy.answers(broken, broken, broken, b"2", b"2")),
        (ASK, toy.answers(broken, other_limit(0, 4), NO_LIMIT, NO_LIMIT, NO_LIMIT)),
        (ASK, toy.answers(broken, broken, b"2", b"2", b"2")),
    )
    state = bidder.play(*script)
    assert state.slots == (2,)
    assert [command.args[7:9] for command in toy.commands] == [(0, 4), (VOID, 9), (0, 4)]
    assert (bidder.limit.version, bidder.limit.permits) == (0, 4)


def test_limit_that_is_void_gives_way_to_the_last_that_was_proven(bidder):
    toy = bidder.toy
    bidder.play((ASK, toy.all_say(other_limit(V1, 9))), (ASK, toy.all_say(told(2))))
    bidder.limit.learn(VOID, 3)
    bidder.play((ASK, toy.all_say(NO_LIMIT)), (ASK, toy.all_say(told(5))))
    assert (bidder.limit.version, bidder.limit.permits) == (V1, 9)


def test_limit_that_a_minority_refuses_as_void_stays(bidder):
    toy = bidder.toy
    bidder.limit.learn(V1, 9)
    state = bidder.play((ASK, toy.answers(NO_LIMIT, told(2), told(2), other_limit(0, 4), told(2))))
    assert state.slots == (2,)
    assert bidder.limit.version == V1


# After a shrink.


@pytest.fixture
def shrunk(make_toy):
    """On three nodes, of 3 permits since a resize; starting from slot 0."""
    bidder = Bidder(make_toy(3, random=0.0), permits=10)
    bidder.limit.learn(V1, 3)
    return bidder


def test_permit_leaves_room_for_those_beyond_the_limit_that_each_node_knows_but_in_part(shrunk):
    toy = shrunk.toy
    answers = toy.answers(told(0, others=(7, 8)), told(0, others=(8, 9)), told(0, others=(7, 9)))
    assert shrunk.play((ASK, answers), UNDO) is None


def test_permit_takes_a_slot_that_is_not_reserved_for_those_beyond_the_limit(shrunk):
    toy = shrunk.toy
    first = toy.answers(told(2, others=(8,)), told(2), told(2, others=(8,)))
    second = toy.answers(told(0, others=(8,)), told(0), None)
    assert shrunk.play((ASK, first), (ASK, second)).slots == (0,)
    assert shrunk.exact == [b"", b"0"]


def test_slots_of_others_are_reserved_by_nobody(shrunk):
    toy = shrunk.toy
    answers = toy.answers(told(0, others=(2, 8)), told(0, others=(2, 8)), None)
    assert shrunk.play((ASK, answers)).slots == (0,), "1 is reserved for 8, as 2 is taken"
    answers = toy.answers(told(0, others=(1, 2, 8)), told(0, others=(1, 2, 8)), None)
    assert shrunk.play((ASK, answers), UNDO) is None


def test_slot_that_only_a_minority_gave_elsewhere_reserves_nothing(shrunk):
    toy = shrunk.toy
    assert shrunk.play((ASK, toy.answers(told(1), told(0), told(0)))).slots == (0,)


def test_nodes_are_asked_what_is_taken_until_none_of_it_is_beyond_the_limit(shrunk):
    toy = shrunk.toy
    tells = []
    for others in ((8,), (), ()):
        grant = told(0, others=others) if shrunk.limit.lowered else b"0"
        state = shrunk.play((ASK, toy.all_say(grant)))
        tells.append(toy.commands[-1].args[11])
        toy.session.holds.remove(state)
    assert tells == [1, 1, 0]


def test_what_a_node_tells_is_free_is_asked_for_though_it_passed_it_over(shrunk):
    toy = shrunk.toy
    first = toy.answers(told(2, others=(0, 8)), told(2, others=(0, 8)), told(2, others=(0,)))
    assert shrunk.play((ASK, first), (ASK, toy.all_say(told(1, others=(0, 8))))).slots == (1,)


def test_foreign_value_is_an_error(bidder):
    with pytest.raises(KeyTypeError, match="the key of semaphore 'x'"):
        bidder.play((ASK, bidder.toy.all_say(0)), UNDO)


# The arithmetic of verdicts.


@pytest.mark.parametrize(
    ("wanted", "replies", "verdict"),
    [
        (1, [], Verdict.PENDING),
        (1, [b"1", b"1"], Verdict.PENDING),
        (1, [b"1", b"1", b"1"], Verdict.WON),
        (1, [b"1", b"2", b"3"], Verdict.PENDING),
        (1, [b"1", b"2", b"3", b"4"], Verdict.LOST),
        (1, [b"1", b"2", FULL], Verdict.PENDING),
        (1, [FULL, FULL, b"1"], Verdict.PENDING),
        (1, [FULL, FULL, FULL], Verdict.LOST),
        (2, [b"1,2", b"1,3", b"1,2"], Verdict.PENDING),
        (2, [b"1,2", b"1,3", b"1,2", b"2,3"], Verdict.WON),
        (1, ["down", "down", "down"], Verdict.LOST),
        (1, ["down", FULL, FULL, b"1"], Verdict.LOST),
        # An exchange takes a third node.
        (1, ["down", FULL, b"1", b"2"], Verdict.PENDING),
        (1, ["down", FULL, b"1", b"2", FULL], Verdict.LOST),
    ],
)
def test_verdict_is_given_as_soon_as_it_is_certain(toy, wanted, replies, verdict):
    claim = SlotClaim(toy.session, toy.request(kind=SEMAPHORE, holds=wanted, timeout=0.0), Limit(9))
    claim.place(0.0)
    tally = Tally([f"node{i}" for i in range(5)], claim.judge, claim.decide)
    for node, reply in enumerate(replies):
        assert tally.verdict is Verdict.PENDING
        tally.fail(node, reply) if isinstance(reply, str) else tally.record(node, reply)
    assert tally.verdict is verdict
