"""Claims of slots: which slots are won, when that is certain, and how a client learns a limit."""

import pytest

from redsync._core.limits import Limit
from redsync._core.quorum import Tally, Verdict
from redsync._protocols.semaphore import SEMAPHORE
from redsync._protocols.slot_claims import SlotClaim
from redsync.exceptions import ConfigurationError, KeyTypeError, QuorumError
from tests.support.slots import ASK, NO_LIMIT, ROLLBACK, V1, ToySemaphore, full, other_limit, taken, told

# Winning.


def test_slot_that_a_quorum_granted_is_won_in_one_round(semaphore):
    state = semaphore.play((ASK, semaphore.toy.answers(b"2", b"2", b"2", None, None)))
    assert state.slots == (2,)
    assert state.count == 1
    args = semaphore.toy.commands[0].args
    assert args[1:4] == (1, 30_000, 0)
    assert args[7:] == (0, 4, 2, b"", 0)
    assert semaphore.toy.commands[0].keys == semaphore.keys.all


def test_round_is_open_while_a_slot_may_still_be_won(semaphore):
    state = semaphore.play((ASK, semaphore.toy.answers(b"2", b"3", full(), b"2", b"2")))
    assert state.slots == (2,)


def test_several_slots_are_won_if_a_quorum_granted_all_of_them(semaphore):
    toy = semaphore.toy
    state = semaphore.play((ASK, toy.answers(b"2,3", b"3,0", b"3,2", b"2,3", None)), n=2)
    assert state.slots == (2, 3)


def test_several_slots_that_different_quorums_granted_are_asked_for_once_more(semaphore):
    """A renewal makes a node keep all slots of a permit or none, so the permit would be lost."""
    toy = semaphore.toy
    first = ASK, toy.answers(b"2,3", b"3,0", b"2,0", b"2,3", b"0,1")
    state = semaphore.play(first, (ASK, toy.answers(b"0,2", b"0,2", taken(3), taken(3), b"0,2")), n=2)
    assert semaphore.exact == [b"", b"0,2"]
    assert state.slots == (2, 0)


def test_schedule_of_three_for_two_permits_admits_two(make_toy):
    """A has its slots on nodes 1 and 2, B on 2 and 3; C finds one slot free on 3, another on 1.

    A counter on each node would admit all three.
    """
    first, second, third = (ToySemaphore(make_toy(3, random=0.0), permits=2) for _ in range(3))
    assert first.play((ASK, first.toy.answers(b"0", b"0", "down"))).slots == (0,)
    assert second.play((ASK, second.toy.answers("down", b"1", b"1"))).slots == (1,)
    script = (ASK, third.toy.answers(b"1", full(), b"0"))
    # Slot 0 is taken on node 1, else it would have been granted; slot 1 may be free on node 3, and is not.
    assert third.play(script, (ASK, third.toy.answers(b"1", full(), taken(1, permits=2))), ROLLBACK) is None
    assert third.exact == [b"", b"1"]


@pytest.mark.parametrize("silent", [True, False])
def test_ask_after_one_for_exact_slots_has_another_claim_if_a_node_may_execute_that_one_later(semaphore, silent):
    """Over an abandoned connection. It would end the slots that the node has granted since."""
    toy = semaphore.toy
    script = [
        (ASK, toy.answers(b"2", b"2", b"3", b"3", b"0")),
        (ASK, toy.answers("down" if silent else b"3", b"3", taken(3), taken(3), taken(3))),
        *([ROLLBACK] if silent else []),
        (ASK, toy.answers(b"2", b"2", b"2", None, None)),
    ]
    assert semaphore.play(*script).slots == (2,)
    assert semaphore.exact == [b"", b"3", b"2"]
    first, second, *_, third = [command.args[0] for command in toy.commands]
    assert first == second
    assert (second != third) is silent


@pytest.mark.parametrize("straggler", [b"2", "down"])
def test_ask_under_another_limit_has_another_claim_unless_all_nodes_keep_nothing_of_this_one(semaphore, straggler):
    """A grant counts only under the limit of its round, and a late ask under the former one changes nothing."""
    newer = other_limit(V1, 9)
    first = ASK, semaphore.toy.answers(straggler, newer, newer, newer, newer)
    semaphore.play(first, ROLLBACK, (ASK, semaphore.toy.all_say(told(2))))
    semaphore.limit.learn(2 * V1, 8)
    semaphore.play((ASK, semaphore.toy.all_say(other_limit(3 * V1, 7))), (ASK, semaphore.toy.all_say(told(2))))


def test_ask_after_one_with_a_place_has_another_claim_if_a_node_may_execute_that_one_later(semaphore):
    """Waiters that have come before it there would make the node drop the slots that it has granted since."""
    toy = semaphore.toy
    semaphore.play(
        (ASK, toy.all_say(full())),
        (ASK, toy.answers("down", b"2", b"2", b"3", b"3")),
        *(ROLLBACK, ROLLBACK),
        (ASK, toy.all_say(b"2")),
        timeout=5.0,
    )
    assert semaphore.exact == [b"", b"", b"3"]


def test_slots_chosen_under_a_limit_that_another_thread_finds_changed_are_not_asked_for(semaphore):
    toy = semaphore.toy
    script = [
        (ASK, toy.answers(b"2", b"2", b"3", b"3", b"0")),
        (ASK, toy.answers("down", b"3", taken(3), taken(3), taken(3))),
        (ROLLBACK, None),
        (ASK, toy.all_say(told(0))),
    ]

    def answer(described, _):
        expected, reply = script.pop(0)
        assert described == expected
        if described == ROLLBACK:
            semaphore.limit.learn(V1, 2)
        return reply

    assert toy.drive(semaphore.steps(), answer).slots == (0,)
    assert toy.commands[-1].args[7:] == (V1, 2, 0, b"", 1), "start and exact slots lie within the new limit"


def test_garbage_is_not_an_answer(believed, toy):
    assert believed(lambda toy: ToySemaphore(toy).steps()) == []
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
        tally = toy.perform(toy.start(ToySemaphore(toy).steps()), toy.all_say(reply))
        assert tally.without_quorum, reply


def test_silent_node_is_not_waited_for_when_there_is_no_room(semaphore):
    toy = semaphore.toy
    semaphore.play((ASK, toy.answers(full(), full(), full(), None, None, takes=0.001)), ROLLBACK)
    assert toy.now == pytest.approx(1000.001)


def test_outage_is_raised(semaphore):
    with pytest.raises(QuorumError, match="semaphore 'x': 3 of 5 nodes failed"):
        semaphore.play((ASK, semaphore.toy.answers("down", "down", "down", None, None)), ROLLBACK)


def test_foreign_value_is_an_error(semaphore):
    with pytest.raises(KeyTypeError, match="the key of semaphore 'x'"):
        semaphore.play((ASK, semaphore.toy.all_say(0)), ROLLBACK)


# The limit.


def test_newer_limit_is_learned_and_asked_under_at_once(semaphore):
    toy = semaphore.toy
    state = semaphore.play((ASK, toy.all_say(other_limit(V1, 9))), (ASK, toy.all_say(told(2))))
    assert state.slots == (2,)
    assert state.limit is semaphore.limit
    assert toy.commands[1].args[7:9] == (V1, 9)
    assert toy.commands[1].args[11:] == (1,)
    assert (semaphore.limit.version, semaphore.limit.permits) == (V1, 9)


def test_newer_limit_of_a_minority_is_learned_with_the_grant(semaphore):
    toy = semaphore.toy
    semaphore.play((ASK, toy.answers(other_limit(V1, 9), b"2", b"2", b"2", None)))
    assert semaphore.limit.permits == 9


def test_start_lies_within_a_limit_that_has_shrunk(semaphore):
    toy = semaphore.toy
    semaphore.play((ASK, toy.all_say(other_limit(V1, 2))), (ASK, toy.all_say(told(0))))
    assert toy.commands[1].args[8:10] == (2, 0)


def test_limit_that_a_quorum_contradicts_is_an_error_that_names_both(semaphore):
    toy = semaphore.toy
    answers = toy.answers(other_limit(0, 7), b"2", other_limit(0, 7), other_limit(0, 7), None)
    with pytest.raises(ConfigurationError, match=r"has 7 permits on its nodes, not 4: .* or resize\(4\)"):
        semaphore.play((ASK, answers), ROLLBACK)


def test_minority_with_another_limit_of_the_same_version_is_corrected(semaphore):
    toy = semaphore.toy
    state = semaphore.play((ASK, toy.answers(other_limit(0, 7), b"2", b"2", b"2", None)), "tell semaphore_resize")
    assert state.slots == (2,)
    assert toy.told[-1].command.args == (0, 4, 1)


def test_more_than_a_newer_limit_allows_is_an_error(semaphore):
    with pytest.raises(ConfigurationError, match="resized to 2 permits: 3 at once"):
        semaphore.play((ASK, semaphore.toy.all_say(other_limit(V1, 2))), ROLLBACK, n=3)


VOID = 1 << 60


def test_limit_that_most_nodes_refuse_as_void_is_forgotten_and_not_believed_again(semaphore):
    toy = semaphore.toy
    broken = other_limit(VOID, 9)
    script = (
        (ASK, toy.answers(broken, broken, broken, b"2", b"2")),
        ROLLBACK,
        (ASK, toy.answers(broken, other_limit(0, 4), NO_LIMIT, NO_LIMIT, NO_LIMIT)),
        (ASK, toy.answers(broken, broken, b"2", b"2", b"2")),
    )
    state = semaphore.play(*script)
    assert state.slots == (2,)
    asked = [command.args[7:9] for command in toy.commands if command.script is SEMAPHORE.acquire]
    assert asked == [(0, 4), (VOID, 9), (0, 4)]
    assert (semaphore.limit.version, semaphore.limit.permits) == (0, 4)


def test_void_limit_gives_way_to_the_last_proven_one(semaphore):
    toy = semaphore.toy
    semaphore.play((ASK, toy.all_say(other_limit(V1, 9))), (ASK, toy.all_say(told(2))))
    semaphore.limit.learn(VOID, 3)
    semaphore.play((ASK, toy.all_say(NO_LIMIT)), (ASK, toy.all_say(told(5))))
    assert (semaphore.limit.version, semaphore.limit.permits) == (V1, 9)


def test_limit_learned_with_a_grant_under_the_earlier_one_is_not_proven_by_it(semaphore):
    toy = semaphore.toy
    semaphore.play((ASK, toy.answers(other_limit(VOID, 9), b"2", b"2", b"2", None)))
    assert semaphore.limit.permits == 9
    semaphore.play((ASK, toy.all_say(NO_LIMIT)), (ASK, toy.all_say(b"2")))
    assert (semaphore.limit.version, semaphore.limit.permits) == (0, 4)


def test_limit_that_a_minority_refuses_as_void_stays(semaphore):
    toy = semaphore.toy
    semaphore.limit.learn(V1, 9)
    state = semaphore.play((ASK, toy.answers(NO_LIMIT, told(2), told(2), other_limit(0, 4), told(2))))
    assert state.slots == (2,)
    assert semaphore.limit.version == V1


# When verdicts are certain.


@pytest.mark.parametrize(
    ("wanted", "replies", "verdict"),
    [
        (1, [], Verdict.PENDING),
        (1, [b"1", b"1"], Verdict.PENDING),
        (1, [b"1", b"1", b"1"], Verdict.WON),
        (1, [b"1", b"2", b"3"], Verdict.PENDING),
        (1, [b"1", b"2", b"3", b"4"], Verdict.LOST),
        (1, [b"1", b"2", full()], Verdict.PENDING),
        (1, [full(), full(), b"1"], Verdict.PENDING),
        (1, [full(), full(), full()], Verdict.LOST),
        (2, [b"1,2", b"1,3", b"1,2"], Verdict.PENDING),
        (2, [b"1,2", b"1,3", b"1,2", b"2,3"], Verdict.PENDING),
        (2, [b"1,2", b"1,3", b"1,2", b"2,1"], Verdict.WON),
        (2, [b"1,2", b"1,3", b"1,2", b"2,3", b"1,3"], Verdict.LOST),
        (1, ["down", "down", "down"], Verdict.LOST),
        (1, ["down", full(), full(), b"1"], Verdict.LOST),
        # An exchange wins a third node.
        (1, ["down", full(), b"1", b"2"], Verdict.PENDING),
        (1, ["down", full(), b"1", b"2", full()], Verdict.LOST),
    ],
)
def test_verdict_is_given_as_soon_as_it_is_certain(toy, wanted, replies, verdict):
    claim = SlotClaim(toy.session, toy.request(kind=SEMAPHORE, holds=wanted, timeout=0.0), Limit(9))
    claim.place(0.0, at_once=False)
    tally = Tally([f"node{i}" for i in range(5)], claim.judge, claim.decide)
    for node, reply in enumerate(replies):
        assert tally.verdict is Verdict.PENDING
        tally.fail(node, reply) if isinstance(reply, str) else tally.record(node, reply)
    assert tally.verdict is verdict
