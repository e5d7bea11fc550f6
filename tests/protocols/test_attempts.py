"""Rollbacks of an acquire: after a lost round, and wherever it is interrupted."""

import pytest

from redsync._core.effects import Broadcast
from redsync._protocols.acquire_requests import Outcome
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.claims import Claim
from redsync._protocols.fair_lock import FAIR_LOCK
from redsync._protocols.lock import LOCK
from redsync._protocols.places import Ticket
from redsync.exceptions import QuorumError
from tests.support.replies import FOREIGN, NEW, OURS, SPLIT, A, B, busy, held, mute, waiting_script, won

ALL, LEASE = 0b11111, 30.0


# Expectations of the next acquire.


def retried(toy, **fields):
    """Return the steps of another acquire, like that of another lock object of the client."""
    request = toy.request(**fields)
    return acquire_new(toy.session, request, Claim(toy.session, request), toy.now)


def retry(toy, *script, **fields):
    """Acquire again."""
    return toy.play(retried(toy, **fields), *script)


def test_acquire_of_a_lock_that_had_a_queue_asks_for_a_place_at_once(toy):
    """Whichever object had to queue: programs make one for each acquisition."""
    toy.give_back(toy.acquire(*waiting_script(toy)))
    assert list(toy.session.crowds.expected) == [toy.keys.hold]
    toy.give_back(retry(toy, ("ask lock_acquire for a place", won(toy))))
    toy.give_back(retry(toy, ("ask lock_acquire", won(toy))))


@pytest.mark.parametrize("timeout", [0.0, 0.3])
def test_acquire_after_one_that_was_refused_asks_for_a_place_at_once(toy, timeout):
    queue = ("ask lock_acquire for a place", busy(toy))
    waiting = [queue, ("wait for wake-up", toy.slept()), queue, "tell lock_abandon, leave"]
    rest = waiting if timeout else ["tell lock_abandon"]
    assert toy.acquire(("ask lock_acquire", busy(toy)), *rest, timeout=timeout) is None
    assert retry(toy, ("ask lock_acquire for a place", won(toy)))


def test_acquire_after_one_without_quorum_keeps_the_earlier_expectation(toy):
    for crowded, step in ((True, "ask lock_acquire for a place"), (False, "ask lock_acquire")):
        with pytest.raises(QuorumError):
            toy.acquire(("ask lock_acquire", mute(toy)), "tell lock_abandon", timeout=0.0, crowded=crowded)
        toy.give_back(retry(toy, (step, won(toy))))


PLACE = "ask lock_acquire for a place"


def queue_behind(toy, *ahead):
    """Queue behind that many waiters, according to the nodes; get the lock and release it."""
    refusals = toy.answers(*[[20_000, A, n] for n in ahead])
    handed = ("wait for wake-up", toy.slept(0.05, handed=ALL))
    toy.give_back(toy.acquire((PLACE, refusals), handed, crowded=True))


def overslept(toy):
    """Return the step of a pause that ends after two milliseconds, because the machine is busy."""

    def be_late():
        toy.now += 0.002

    return "wait", toy.slept(meanwhile=be_late)


@pytest.mark.parametrize("fields", [{}, {"kind": FAIR_LOCK, "queue": Ticket}], ids=["by arrival", "by ticket"])
def test_acquire_that_expects_many_before_it_pauses_before_its_first_ask(toy, fields):
    """The thread has most likely just released the lock, and the new holder needs the processor more."""
    queue_behind(toy, 4, 4, 4, 5, 6)
    began, ask = toy.now, f"ask {fields.get('kind', LOCK).noun}_acquire for a place"
    toy.play(retried(toy, **fields), ("wait", toy.slept(0.001)), (ask, won(toy)))
    assert [wait.until - began for wait in toy.waits[1:]] == [pytest.approx(0.001)]


def test_place_counts_from_before_the_pause(toy):
    queue_behind(toy, 4, 4, 4, 4, 4)
    retry(toy, overslept(toy), (PLACE, won(toy)))
    assert [command.args[5] for command in toy.commands if len(command.args) > 5] == [0, 2]


def test_acquire_that_expects_fewer_before_it_does_not_pause(toy):
    """If the others were quick, the lock would be free until it asks."""
    queue_behind(toy, 3, 9, 9, 9, 9)
    retry(toy, (PLACE, won(toy)))


def test_acquire_with_one_try_does_not_pause(toy):
    queue_behind(toy, 9, 9, 9, 9, 9)
    retry(toy, ("ask lock_acquire", won(toy)), timeout=0.0)


def test_pause_ends_at_the_deadline(toy):
    queue_behind(toy, 9, 9, 9, 9, 9)
    began = toy.now
    retry(toy, ("wait", toy.slept()), (PLACE, won(toy)), timeout=0.0004)
    assert toy.waits[-1].until - began == pytest.approx(0.0004)


def test_pause_is_no_reason_to_expect_others_again(toy):
    queue_behind(toy, 9, 9, 9, 9, 9)
    toy.give_back(retry(toy, overslept(toy), (PLACE, won(toy))))
    toy.give_back(retry(toy, ("ask lock_acquire", won(toy))))


class _Overtaken(Claim):
    """A claim that is refused while another acquire of the client for the same lock ends without it."""

    def may_queue(self, tally):
        self._session.crowds.expect(self._request.keys.hold, others=True)
        return super().may_queue(tally)


def test_refused_acquire_asks_for_a_place_at_once_whatever_others_met_meanwhile(toy):
    steps = acquire_new(toy.session, toy.request(), _Overtaken(toy.session, toy.request()), toy.now)
    assert toy.play(steps, *waiting_script(toy)).live


# With or without a rollback.


@pytest.mark.parametrize(
    "replies",
    [
        [held(by=A)] * 5,
        [held(by=A), held(by=A), held(by=A), held(by=B), held(by=B)],
        [held(by=A), held(by=A), held(by=A), held(by=A), FOREIGN],
        [held(by=A), held(by=A), held(by=B), held(by=B), held(by=b"client-c:1")],
    ],
)
def test_round_is_not_rolled_back_if_each_node_has_refused(toy, replies):
    """There is nothing to roll back, and a hand-over in between must stay."""
    toy.acquire(
        ("ask lock_acquire for a place", toy.answers(*replies)),
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
        crowded=True,
    )
    assert toy.waits[0].mark == b"1"


def test_round_is_not_rolled_back_if_only_nodes_failed_that_did_not_get_it(toy):
    toy.acquire(
        ("ask lock_acquire for a place", toy.answers(held(), held(), held(), "kept out", "kept out", sent=0b00111)),
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
        crowded=True,
    )
    assert toy.waits[0].mark == b"1"


@pytest.mark.parametrize("last", [NEW, OURS, None, "reset by peer", b"garbage"])
def test_round_is_rolled_back_if_a_node_may_have_granted(toy, last):
    toy.acquire(
        ("ask lock_acquire for a place", toy.answers(held(), held(), held(), held(), last)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
        crowded=True,
    )
    (rollback,) = toy.told
    assert rollback.command.args == (toy.owner.claim(1), 0), "the place stays"
    assert rollback.owed_to == 0b11111


def test_round_with_a_place_hears_all_nodes_before_it_is_lost(toy):
    """A node that grants after three have refused would need a rollback anyway, so the round waits for its vote."""
    replies = (held(), held(), held(), NEW, NEW)
    toy.acquire(
        ("ask lock_acquire", toy.answers(*replies)),
        ("ask lock_acquire for a place", toy.answers(*replies)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
    )
    first, second, _ = toy.tallies
    assert (first.refused, first.granted) == (3, 0)
    assert (second.refused, second.granted) == (3, 2)


def test_round_is_rolled_back_for_a_node_that_granted_and_that_the_next_round_did_not_reach(toy):
    toy.acquire(
        ("ask lock_acquire", toy.answers(NEW, held(), held(), held(), held())),
        ("ask lock_acquire for a place", toy.answers("kept out", held(), held(), held(), held(), sent=0b11110)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", toy.all_say(NEW)),
    )


def test_waiter_leaves_the_queues_even_if_its_next_round_reached_no_node(toy):
    """Else it would get the lock there as long as its place lasts."""
    toy.acquire(
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept()),
        ("ask lock_acquire for a place", mute(toy)),
        "tell lock_abandon, leave",
        ("wait", toy.slept()),
        ("ask lock_acquire", mute(toy)),
        ("wait", toy.slept()),
        ("ask lock_acquire", won(toy)),
        crowded=True,
    )
    assert toy.told[0].owed_to == 0b11111


def test_rollback_is_also_owed_to_nodes_that_did_not_answer(toy):
    answers = toy.answers(NEW, None, None, None, "down", sent=0b01111)
    with pytest.raises(QuorumError):
        toy.acquire(("ask lock_acquire", answers), "tell lock_abandon", timeout=0.0)
    assert toy.told[0].owed_to == 0b01111


def test_acquire_remembers_which_nodes_may_keep_the_claim(toy):
    state = toy.acquire(
        ("ask lock_acquire", toy.answers(NEW, "down", "down", "down", "down", sent=0b00011)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.answers(NEW, NEW, NEW, "down", "down", sent=0b00111)),
    )
    assert state.touched == 0b00111


def test_acquire_records_success_on_its_outcome_and_nothing_else(toy):
    outcome = Outcome()
    busy_then_won = [
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", toy.all_say(NEW, meanwhile=lambda: noted.append(outcome.state))),
    ]
    noted = []
    state = toy.acquire(*busy_then_won, outcome=outcome)
    assert noted == [None]
    assert outcome.state is state


# Interruptions.


def acquire_scripts(toy):
    """The courses of an acquire, each up to its win."""
    outage_then_split = [
        ("ask lock_acquire", toy.answers(NEW, NEW, "down", "down", "down", sent=0b00011)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire", toy.answers(*SPLIT)),
        "tell lock_abandon",
        ("wait", toy.slept()),
        ("ask lock_acquire for a place", won(toy)),
    ]
    rolled_back_then_handed_over = [
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", toy.answers(held(), held(), held(), held(), NEW)),
        "tell lock_abandon",
        ("wait for wake-up", toy.slept(0.05)),
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept(0.05, handed=ALL)),
    ]
    return {
        "at once": [("ask lock_acquire", won(toy))],
        "waiting": waiting_script(toy),
        "unlucky": outage_then_split,
        "handed over": rolled_back_then_handed_over,
    }


@pytest.mark.parametrize("way", ["at once", "waiting", "unlucky", "handed over"])
def test_acquire_interrupted_anywhere_leaves_nothing_behind(make_toy, way):
    script = acquire_scripts(make_toy())[way]
    for at in range(len(script)):
        toy = make_toy()
        outcome = Outcome()
        cleanup = toy.interrupt(toy.acquiring(outcome=outcome), acquire_scripts(toy)[way], at)
        queued = any(len(effect.command.keys) == 3 for effect in toy.asked)
        assert cleanup == ["tell lock_abandon, leave" if queued else "tell lock_abandon"], at
        assert len(toy.session.holds) == 0
        assert outcome.state is None, "a success that was rolled back is not reported"
        assert toy.alarms == 0
        rollback = toy.told[-1]
        assert rollback.command.args[0] == toy.commands[-1].args[0], "the latest ask"
        assert rollback.owner == toy.owner
        assert rollback.owed_until >= toy.now + LEASE, "as long as a node may keep the claim"
        if isinstance(toy.effects[-2], Broadcast):
            assert rollback.owed_to == ALL, "the interrupted round may have been sent to any node"


@pytest.mark.parametrize("at", [0, 1, 2])
def test_acquire_interrupted_while_it_gives_up_leaves_its_queues(toy, at):
    script = [
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", toy.all_say(held(), takes=0.2)),
        "tell lock_abandon, leave",
    ]
    cleanup = toy.interrupt(toy.acquiring(timeout=0.1), script, at)
    assert cleanup == ["tell lock_abandon, leave" if at else "tell lock_abandon"]


def test_rollback_of_a_place_is_owed_as_long_as_the_place_lasts(make_toy):
    """A place lasts for 3 s, or for the lease that the acquire asks for, if that is shorter."""
    toy = make_toy()
    script = [("ask lock_acquire for a place", busy(toy))]
    assert toy.interrupt(toy.acquiring(crowded=True, lease=1.0), script, 0)
    place_kept = toy.commands[0].args[4] / 1000
    assert place_kept == 1.0
    assert toy.told[-1].owed_until >= 1000.0 + place_kept


def test_release_of_a_former_waiter_is_owed_as_long_as_its_place_lasts(make_toy):
    """A node that was cut off when the others granted keeps the place."""
    toy = make_toy()
    state = toy.acquire(
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept(0.5)),
        ("ask lock_acquire for a place", toy.answers(NEW, NEW, NEW, NEW, "down")),
        crowded=True,
        lease=1.0,
    )
    assert state.kept_until >= 1000.5 + 1.0


def test_acquire_interrupted_in_the_step_of_its_win_releases_the_claim(toy):
    """The alarm is a call, at the end of which Python checks for signals; by then the hold is in the table."""

    def interrupt():
        assert len(toy.session.holds) == 1
        raise KeyboardInterrupt

    toy.on_alarm = interrupt
    outcome = Outcome()
    with pytest.raises(KeyboardInterrupt):
        toy.acquire(("ask lock_acquire", won(toy)), "tell lock_abandon", outcome=outcome)
    assert len(toy.session.holds) == 0
    assert outcome.state is None
    assert toy.told[-1].owed_to == ALL
