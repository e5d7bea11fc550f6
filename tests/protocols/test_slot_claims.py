"""Claims of slots: which slots are won, when that is certain, and how a client learns a limit."""

import pytest

from redsync._core.permits import Limit
from redsync._core.quorum import Tally, Verdict
from redsync._protocols.semaphore import SEMAPHORE
from redsync._protocols.slot_claims import SlotClaim
from redsync.exceptions import ConfigurationError, KeyTypeError
from tests.support.slots import ASK, LEAVE, ROLLBACK, V1, ToySemaphore, full, got, other_limit
from tests.support.toy_replies import kind_there

# Winning.


def test_slot_that_a_quorum_granted_is_won_in_one_round(semaphore):
    state = semaphore.play((ASK, semaphore.toy.answers(got(2), got(2), got(2), None, None)))
    assert state.slots == (2,)
    assert state.count == 1
    args = semaphore.toy.commands[0].args
    assert args[1:6] == (1, 30_000, 0, 0, 0), "without a place"
    assert args[7:] == (0, 4, b"", 2)
    assert semaphore.toy.commands[0].keys == semaphore.keys.all


def test_schedule_of_three_for_two_permits_admits_two(make_toy):
    """A has its slots on nodes 1 and 2, B on 2 and 3; C finds one slot free on 3, another on 1.

    A counter on each node would admit all three.
    """
    first, second, third = (ToySemaphore(make_toy(3, random=0.0), permits=2) for _ in range(3))
    assert first.play((ASK, first.toy.answers(got(0), got(0), "down"))).slots == (0,)
    assert second.play((ASK, second.toy.answers("down", got(1), got(1)))).slots == (1,)
    script = (ASK, third.toy.answers(got(1, others=(0,)), full(), got(0, others=(1,))))
    assert third.play(script, LEAVE) is None


@pytest.mark.parametrize("silent", [True, False])
def test_ask_after_one_for_exact_slots_has_another_claim_if_a_node_may_execute_that_one_later(toy, semaphore, silent):
    """Over an abandoned connection. It would end the slots that the node has granted since."""
    script = [
        (ASK, toy.answers(got(2), got(2), got(3), got(3), got(0))),
        (ASK, toy.answers("down" if silent else got(0), got(0, others=(2,)), got(1, others=(2,)), got(3), got(3))),
        *([ROLLBACK] if silent else []),
        (ASK, toy.answers(got(3), got(3), got(3), None, None)),
    ]
    assert semaphore.play(*script).slots == (3,)
    assert semaphore.exact == [b"", b"2", b"3"]
    first, second, *_, third = [command.args[0] for command in toy.commands]
    assert first == second
    assert (second != third) is silent


@pytest.mark.parametrize("straggler", [got(2), "down"])
def test_ask_under_another_limit_has_another_claim_unless_all_nodes_keep_nothing_of_this_one(semaphore, straggler):
    """A grant counts only under the limit of its round, and a late ask under the former one changes nothing."""
    newer = other_limit(V1, 9)
    first = ASK, semaphore.toy.answers(straggler, newer, newer, newer, newer)
    semaphore.play(first, ROLLBACK, (ASK, semaphore.toy.all_say(got(2))))
    semaphore.limit.learn(2 * V1, 8)
    semaphore.play((ASK, semaphore.toy.all_say(other_limit(3 * V1, 7))), (ASK, semaphore.toy.all_say(got(2))))


def test_ask_after_one_with_a_place_has_another_claim_if_a_node_may_execute_that_one_later(toy, semaphore):
    """Waiters that have come before it there would make the node drop the slots that it has granted since."""
    semaphore.play(
        (ASK, toy.all_say(full())),
        (ASK, toy.answers("down", got(2), got(2), got(3), got(3))),
        *(ROLLBACK, ROLLBACK),
        (ASK, toy.all_say(got(2))),
        timeout=5.0,
    )
    assert semaphore.exact == [b"", b"", b"2"]


def test_slots_chosen_under_a_limit_that_another_thread_finds_changed_are_not_asked_for(toy, semaphore):
    script = [
        (ASK, toy.answers(got(2), got(2), got(3), got(3), got(0))),
        (ASK, toy.answers("down", got(3), got(3), got(0, others=(2,)), got(0, others=(2,)))),
        (ROLLBACK, None),
        (ASK, toy.all_say(got(0))),
    ]

    def answer(described, _):
        expected, reply = script.pop(0)
        assert described == expected
        if described == ROLLBACK:
            semaphore.limit.learn(V1, 2)
        return reply

    assert toy.drive(semaphore.steps(), answer).slots == (0,)
    assert toy.commands[-1].args[7:] == (V1, 2, b"", 0), "start and exact slots lie within the new limit"


def test_foreign_value_is_an_error(semaphore):
    with pytest.raises(KeyTypeError, match="the key of semaphore 'x'"):
        semaphore.play((ASK, semaphore.toy.all_say(0)), kind_there(semaphore.toy))


@pytest.mark.parametrize("n", [3, 4, 5])
def test_foreign_value_on_one_node_is_harmless_even_if_the_others_chose_differently(make_toy, n):
    semaphore = ToySemaphore(make_toy(n, random=0.0))
    split, alike = [got(slot) for slot in (2, 3, 2, 3)[: n - 1]], [got(2)] * (n - 1)
    script = (ASK, semaphore.toy.answers(*split, 0)), (ASK, semaphore.toy.answers(*alike, 0))
    assert semaphore.play(*script).slots == (2,)


# The limit.


def test_newer_limit_that_another_thread_has_learned_meanwhile_is_no_contradiction(toy, semaphore):
    refused = toy.all_say(other_limit(V1, 9), meanwhile=lambda: semaphore.limit.learn(V1, 9))
    assert semaphore.play((ASK, refused), (ASK, toy.all_say(got(2))))


def test_newer_limit_of_a_minority_is_learned_with_the_grant(toy, semaphore):
    semaphore.play((ASK, toy.answers(other_limit(V1, 9), got(2), got(2), got(2), None)))
    assert semaphore.limit.permits == 9


def test_limit_that_a_quorum_contradicts_is_an_error_that_names_both(toy, semaphore):
    answers = toy.answers(other_limit(0, 7), got(2), other_limit(0, 7), other_limit(0, 7), None)
    with pytest.raises(ConfigurationError, match=r"has 7 permits on its nodes, not 4: .* or resize\(4\)"):
        semaphore.play((ASK, answers), LEAVE)


def test_more_than_a_newer_limit_allows_is_an_error(semaphore):
    with pytest.raises(ConfigurationError, match="resized to 2 permits: 3 at once"):
        semaphore.play((ASK, semaphore.toy.all_say(other_limit(V1, 2))), n=3)


# When verdicts are certain.


@pytest.mark.parametrize(
    ("wanted", "replies", "verdict"),
    [
        (1, [], Verdict.PENDING),
        (1, [got(1), got(1)], Verdict.PENDING),
        (1, [got(1), got(1), got(1)], Verdict.WON),
        (1, [got(1), got(2), got(3)], Verdict.PENDING),
        (1, [got(1), got(2), got(3), got(4)], Verdict.LOST),
        (1, [got(1), got(2), full()], Verdict.PENDING),
        (1, [full(), full(), got(1)], Verdict.PENDING),
        (1, [full(), full(), full()], Verdict.LOST),
        (2, [got(1, 2), got(1, 3), got(1, 2)], Verdict.PENDING),
        (2, [got(1, 2), got(1, 3), got(1, 2), got(2, 3)], Verdict.PENDING),
        (2, [got(1, 2), got(1, 3), got(1, 2), got(2, 1)], Verdict.WON),
        (2, [got(1, 2), got(1, 3), got(1, 2), got(2, 3), got(1, 3)], Verdict.LOST),
        (1, ["down", "down", "down"], Verdict.LOST),
        (1, ["down", full(), full(), got(1)], Verdict.LOST),
        # An exchange wins a third node.
        (1, ["down", full(), got(1), got(2)], Verdict.PENDING),
        (1, ["down", full(), got(1), got(2), full()], Verdict.LOST),
    ],
)
def test_verdict_is_given_as_soon_as_it_is_certain(toy, wanted, replies, verdict):
    claim = SlotClaim(toy.session, toy.request(kind=SEMAPHORE, holds=wanted, timeout=0.0), Limit(9))
    claim.start(0.0)
    tally = Tally([f"node{i}" for i in range(5)], claim.parse, claim.decide)
    for node, reply in enumerate(replies):
        assert tally.verdict is Verdict.PENDING
        tally.fail(node, reply) if isinstance(reply, str) else tally.record(node, reply)
    assert tally.verdict is verdict


# Choosing slots if nodes chose differently, and after a shrink.


@pytest.mark.parametrize(
    ("first", "exact"),
    [
        # Free on all nodes; 1 is as good and farther from the start.
        ([got(2, others=[3]), got(2, others=[3]), got(3, others=[2]), got(3), got(0, others=[2])], [0]),
        # Free on as many as others, and granted on most.
        ([got(2), got(3), got(3), got(0), got(1)], [3]),
        # Free on a quorum, as none is free on all nodes.
        ([got(2, others=[0]), got(2), got(3), got(3), got(0, others=[1, 2, 3])], [2]),
        # Not taken on too many.
        ([got(2), got(3, others=[2]), got(3, others=[2]), "down", full()], [3]),
        # Not beyond the limit, else the client would run out of memory for bits.
        ([got(10**18), got(10**18), got(3), got(0), "down"], [3]),
        # Several, each granted by another quorum: a renewal makes a node keep all slots of a permit or none, so the
        # permit would be lost.
        ([got(2, 3), got(3, 0), got(2, 0), got(2, 3), got(0, 1)], [2, 3]),
    ],
)
def test_nodes_that_chose_differently_get_an_ask_for_the_same_slots_at_once(semaphore, first, exact):
    toy, granted = semaphore.toy, got(*exact)
    again = toy.answers(granted, granted, granted, first[3], first[4])
    assert semaphore.play((ASK, toy.answers(*first)), (ASK, again), n=len(exact)).slots == tuple(exact)
    assert semaphore.exact == [b"", granted[0]]


def test_try_gives_up_after_some_rounds_and_is_rolled_back(toy, semaphore):
    script = [(ASK, toy.answers(got(2), got(2), got(3), got(3), got(0)))] * 4
    assert semaphore.play(*script, LEAVE) is None


def test_next_try_starts_over_from_another_slot(toy, semaphore):
    toy.random = 0.1
    script = [(ASK, toy.answers(full(), got(2), got(3), full(), "down")), ROLLBACK]
    script += [("wait", toy.slept(meanwhile=lambda: setattr(toy, "random", 0.9)))]
    state = semaphore.play(*script, (ASK, toy.all_say(got(3))), timeout=5.0)
    assert state.slots == (3,)
    starts = [command.args[10] for command in toy.commands if command.script is SEMAPHORE.acquire]
    assert starts == [0, 3]


def test_try_starts_from_the_slot_that_the_client_released_last_if_it_is_within_the_limit(toy, semaphore):
    toy.random = 0.6
    starts = []
    for released in ([], [0, 1], [], [1, 4, 7], []):
        semaphore.limit.released.extend(released)
        semaphore.play((ASK, toy.all_say(got(2))))
        starts.append(toy.commands[-1].args[10])
    assert starts == [2, 1, 0, 1, 2]


# After a shrink.


@pytest.fixture
def shrunk(make_toy):
    """On three nodes, of 3 permits since a resize; starting from slot 0."""
    semaphore = ToySemaphore(make_toy(3, random=0.0), permits=10)
    semaphore.limit.learn(V1, 3)
    return semaphore


@pytest.mark.parametrize(
    ("rounds", "won"),
    [
        pytest.param(
            [[got(0, others=[2, 8]), got(0, others=[2, 8]), None]], 0, id="1 is reserved for 8, as 2 is taken"
        ),
        pytest.param([[got(1), got(0), got(0)]], 0, id="what a minority granted elsewhere reserves nothing"),
        pytest.param(
            [[got(2, others=[8]), got(2), got(2, others=[8])], [got(0, others=[8]), got(0), None]],
            0,
            id="2 is reserved for 8",
        ),
        pytest.param(
            # There it is a leftover, and fills the place of no permit beyond the limit.
            [[got(0, others=[2, 7]), got(2, others=[7]), got(2, others=[7])], [got(0, others=[7])] * 3],
            0,
            id="2 is reserved for 7 although another node shows it as taken",
        ),
        pytest.param(
            [[got(2, others=[0, 8]), got(2, others=[0, 8]), got(2, others=[0])], [got(1, others=[0, 8])] * 3],
            1,
            id="1 is free although nodes skipped it",
        ),
        pytest.param([[got(0, others=[1, 2, 8]), got(0, others=[1, 2, 8]), None]], None, id="0 is reserved for 8"),
    ],
)
def test_permit_wins_no_slot_that_is_reserved_for_those_beyond_the_limit(shrunk, rounds, won):
    script = [(ASK, shrunk.toy.answers(*replies)) for replies in rounds]
    state = shrunk.play(*script, *([LEAVE] if won is None else []))
    assert (state and state.slots) == (None if won is None else (won,))


def test_late_vote_that_shows_another_permit_beyond_the_limit_takes_nothing_away(shrunk, monkeypatch):
    """A quorum was enough to know all permits that are believed."""
    toy = shrunk.toy
    broadcast = toy._broadcast

    def broadcast_to_late_node(*args):
        tally = broadcast(*args)
        tally.record(2, got(2, others=(7, 8, 9)))
        return tally

    monkeypatch.setattr(toy, "_broadcast", broadcast_to_late_node)
    answers = toy.answers(got(0, others=(8,)), got(0, others=(8,)), None)
    assert shrunk.play((ASK, answers)).slots == (0,)
