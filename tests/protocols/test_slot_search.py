"""The slots that a permit asks for next, if nodes chose differently, and after a shrink."""

import pytest

from redsync._protocols.semaphore import SEMAPHORE
from redsync.exceptions import QuorumError
from tests.support.slots import ASK, ROLLBACK, V1, ToySemaphore, full, taken, told


def test_nodes_that_chose_differently_get_an_ask_for_the_same_slots_at_once(semaphore):
    toy = semaphore.toy
    script = (ASK, toy.answers(b"2", b"2", b"3", b"3", b"0"))
    state = semaphore.play(script, (ASK, toy.answers(b"3", b"3", b"3", None, None)))
    assert state.slots == (3,), "granted by two nodes, and perhaps free on two; of 0 only one is known"
    assert semaphore.exact == [b"", b"3"]


def test_slot_of_absurd_size_that_one_node_names_is_not_asked_for(semaphore):
    """The others would allocate half a gigabyte of bits."""
    toy = semaphore.toy
    answers = toy.answers(b"4000000001", b"2", b"3", b"0", "down")
    semaphore.play((ASK, answers), (ASK, toy.all_say(b"0")))
    assert semaphore.exact == [b"", b"0"]


def test_bit_map_of_absurd_size_is_not_an_answer(semaphore):
    toy = semaphore.toy
    semaphore.limit.learn(V1, 4)
    long = bytes(1251)
    with pytest.raises(QuorumError):
        semaphore.play(
            (ASK, toy.answers(*[[b"2", long]] * 2, [1, b"taken", 0, 0, long, 4], told(2), told(2))), ROLLBACK
        )


def test_slot_that_too_many_nodes_skipped_is_not_asked_for(semaphore):
    toy = semaphore.toy
    script = (ASK, toy.answers(b"2", b"3", b"3", "down", full()))
    state = semaphore.play(script, (ASK, toy.answers(b"3", b"3", b"3", None, None)))
    assert state.slots == (3,)


def test_refusal_of_exact_slots_shows_which_others_are_free(semaphore):
    toy = semaphore.toy
    state = semaphore.play(
        (ASK, toy.answers(b"2", b"2", b"3", b"3", b"0")),
        (ASK, toy.answers(taken(2, 3), taken(2, 3), b"3", b"3", taken(2, 3))),
        (ASK, toy.answers(b"0", b"0", b"0", None, None)),
    )
    assert state.slots == (0,)
    assert semaphore.exact == [b"", b"3", b"0"]


def test_try_gives_up_after_some_rounds_and_is_rolled_back(semaphore):
    toy = semaphore.toy
    script = [(ASK, toy.answers(b"2", b"2", b"3", b"3", b"0"))]
    script += [(ASK, toy.answers(taken(2, 3), taken(2, 3), b"3", b"3", taken(2, 3)))] * 3
    assert semaphore.play(*script, ROLLBACK) is None


def test_next_try_starts_over_from_another_slot(semaphore):
    toy = semaphore.toy
    toy.random = 0.1
    script = [(ASK, toy.answers(full(), b"2", b"3", full(), "down")), ROLLBACK]
    script += [("wait", toy.slept(meanwhile=lambda: setattr(toy, "random", 0.9)))]
    state = semaphore.play(*script, (ASK, toy.all_say(b"3")), timeout=5.0)
    assert state.slots == (3,)
    starts = [command.args[9] for command in toy.commands if command.script is SEMAPHORE.acquire]
    assert starts == [0, 3]


def test_try_starts_from_the_slot_that_the_client_released_last_if_it_is_within_the_limit(semaphore):
    toy = semaphore.toy
    toy.random = 0.6
    slots = []
    for released in ([], [0, 1], [], [1, 4, 7], []):
        semaphore.limit.released.extend(released)
        slots.append(semaphore.play((ASK, toy.all_say(2))).slots)
    assert slots == [(2,), (1,), (0,), (1,), (2,)]


# After a shrink.


@pytest.fixture
def shrunk(make_toy):
    """On three nodes, of 3 permits since a resize; starting from slot 0."""
    semaphore = ToySemaphore(make_toy(3, random=0.0), permits=10)
    semaphore.limit.learn(V1, 3)
    return semaphore


def test_permit_leaves_room_for_those_beyond_the_limit_even_if_each_node_knows_only_some(shrunk):
    toy = shrunk.toy
    answers = toy.answers(told(0, others=(7, 8)), told(0, others=(8, 9)), told(0, others=(7, 9)))
    assert shrunk.play((ASK, answers), ROLLBACK) is None


def test_permit_wins_a_slot_that_is_not_reserved_for_those_beyond_the_limit(shrunk):
    toy = shrunk.toy
    first = toy.answers(told(2, others=(8,)), told(2), told(2, others=(8,)))
    second = toy.answers(told(0, others=(8,)), told(0), None)
    assert shrunk.play((ASK, first), (ASK, second)).slots == (0,)
    assert shrunk.exact == [b"", b"0"]


def test_slots_of_others_are_not_reserved(shrunk):
    toy = shrunk.toy
    answers = toy.answers(told(0, others=(2, 8)), told(0, others=(2, 8)), None)
    assert shrunk.play((ASK, answers)).slots == (0,), "1 is reserved for 8, as 2 is taken"
    answers = toy.answers(told(0, others=(1, 2, 8)), told(0, others=(1, 2, 8)), None)
    assert shrunk.play((ASK, answers), ROLLBACK) is None


def test_slot_that_only_a_minority_granted_elsewhere_reserves_nothing(shrunk):
    toy = shrunk.toy
    assert shrunk.play((ASK, toy.answers(told(1), told(0), told(0)))).slots == (0,)


def test_nodes_must_report_taken_slots_until_none_is_beyond_the_limit(shrunk):
    toy = shrunk.toy
    tells = []
    for others in ((8,), (), ()):
        grant = told(0, others=others) if shrunk.limit.lowered else b"0"
        state = shrunk.play((ASK, toy.all_say(grant)))
        tells.append(toy.commands[-1].args[11])
        toy.session.holds.remove(state)
    assert tells == [1, 1, 0]


def test_slot_that_a_node_reports_as_free_is_asked_for_although_it_skipped_it(shrunk):
    toy = shrunk.toy
    first = toy.answers(told(2, others=(0, 8)), told(2, others=(0, 8)), told(2, others=(0,)))
    assert shrunk.play((ASK, first), (ASK, toy.all_say(told(1, others=(0, 8))))).slots == (1,)
