"""The latch in difficult schedules: the shipped scripts on virtual nodes, with each round at a chosen instant."""

import pytest

from redsync._core.latches import LatchState
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.fenced_lock import FENCED_LOCK, Fence, FencedClaim
from redsync._protocols.latch import count_down, set_count, wait_open
from redsync.exceptions import AcquireTimeout, QuorumError
from tests.simulation.stores import execute
from tests.support.latch_clients import KEYS, LatchCaller, advance, finish, told

A, B, C = range(3)


def test_setting_that_only_a_minority_knows_counts_once_it_is_seen(world, ada, bob):
    with pytest.raises(QuorumError):
        ada.set(9, *[{A, B, C}] * 3, {C})
    assert bob.set(2, {A, C}) is False
    assert bob.count() == 9


def test_waiter_that_finds_a_setting_on_a_minority_of_nodes_is_not_released_by_another_setter(world, ada, bob):
    with pytest.raises(QuorumError):
        ada.set(9, *[{A, B, C}] * 3, {A})
    waiter = LatchCaller(world)
    steps = world.play(wait_open(waiter.session, waiter.latch, waiter.owner, None, world.now))
    world.fate = lambda _, node: "lost" if node == C else "ok"
    until = world.now + 0.2
    while world.now < until:
        next(steps)
    assert bob.set(2, *[{B, C}] * 4) is False
    assert bob.count() == 9
    bob.down(n=8)
    advance(steps, 4)
    bob.down()
    assert finish(steps) is True


def test_two_simultaneous_setters_set_it_once(world, ada, bob):
    playing = [world.play(set_count(each.session, each.latch, each.owner, 2, world.now)) for each in (ada, bob)]
    results = []
    while playing:
        for each in list(playing):
            try:
                next(each)
            except StopIteration as stop:
                results.append(stop.value)
                playing.remove(each)
    assert sorted(results) == [False, True]
    assert ada.count() == bob.count() == 2


def test_late_count_down_of_an_earlier_generation_changes_nothing(world, ada, bob):
    ada.set(1)
    steps = world.play(count_down(bob.session, bob.latch, bob.owner, world.now, n=1, timeout=5.0))
    advance(steps, 2)  # It has looked, and is about to tell.
    ada.down()
    assert ada.set(3) is True
    finish(steps)
    assert ada.count() == 3
    assert bob.session.arrivals == {}


def test_count_down_of_an_open_latch_changes_nothing(world, ada):
    ada.down()
    assert told(world, A) == [LatchState()]
    ada.set(1)
    ada.down()
    ada.down()
    assert told(world, A)[0].arrivals == {b"client-1": 1}


def test_count_down_that_found_the_latch_open_leaves_it_open_even_without_the_only_node_that_knew(world, ada, bob):
    ada.set(1)
    with pytest.raises(QuorumError):
        ada.down({A, B, C}, {C})
    bob.down({B, C})
    assert LatchCaller(world).count({A, B}) == 0


@pytest.mark.parametrize("node_timeout", [0.25, 2.0])
def test_count_down_retries_until_its_timeout_however_long_a_round_may_take(world, node_timeout):
    ada = LatchCaller(world, node_timeout=node_timeout)
    ada.set(5)
    begun = world.now
    with pytest.raises(QuorumError):
        ada.down({A, B, C}, *[set()] * 40, timeout=3.0)
    assert 3.0 <= world.now - begun < 3.05
    ada.down({A, B, C}, set(), set(), {A, C}, timeout=9.0)
    assert ada.count() == 4


def test_waiter_is_not_released_by_nodes_that_were_down_for_longer_than_they_keep_a_latch(world):
    ada, bob = LatchCaller(world, keep=5.0), LatchCaller(world, keep=5.0)
    ada.set(1)
    steps = world.play(wait_open(bob.session, bob.latch, bob.owner, None, world.now))
    advance(steps, 3)
    world.fate, until = lambda *_: "lost", world.now + 10.0
    while world.now < until:
        next(steps)
    assert told(world, A, B, C) == [LatchState()] * 3
    world.fate = lambda *_: "ok"
    advance(steps, 3)
    assert [state.count for state in told(world, A, B, C)] == [1, 1, 1]
    ada.down()
    assert finish(steps) is True


def test_count_down_goes_on_for_longer_than_nodes_keep_the_latch(world, bob):
    ada = LatchCaller(world, keep=0.5)
    ada.set(2)
    ada.down({A, B, C}, *[set()] * 6, timeout=10.0)
    assert ada.count() == 1


@pytest.mark.parametrize("end", [lambda ada: ada.delete(), lambda ada: ada.down(n=5)], ids=["deleted", "opened"])
@pytest.mark.parametrize("meanwhile", [True, False])
def test_end_of_a_latch_releases_its_waiters_and_allows_setting_even_meanwhile(world, ada, bob, end, meanwhile):
    ada.set(5)
    steps = world.play(wait_open(bob.session, bob.latch, bob.owner, None, world.now))
    advance(steps, 2 if meanwhile else 3)
    end(ada)
    if not meanwhile:
        assert finish(steps) is True
        assert ada.count() == 0
    assert ada.set(7) is True
    if meanwhile:
        assert finish(steps) is True
    assert bob.count() == 7


@pytest.mark.parametrize("timeout", [0.0, 5.0, None])
def test_latch_that_a_wait_found_open_is_open_for_all_even_without_the_only_node_that_knew(world, ada, bob, timeout):
    """The waiter's program continues, so from then on no other may find the latch closed."""
    ada.set(1)
    with pytest.raises(QuorumError):
        ada.down({A, B, C}, {C})
    assert [state.count for state in told(world, A, B, C)] == [1, 1, 0]
    assert bob.wait(timeout, {B, C}) is True
    assert LatchCaller(world).count({A, B}) == 0


def test_wait_that_can_not_tell_a_quorum_of_the_opening_is_not_over(world, ada, bob):
    ada.set(1)
    with pytest.raises(QuorumError):
        ada.down({A, B, C}, {C})
    with pytest.raises(QuorumError):
        bob.wait(0.3, {B, C}, *[{C}] * 40)
    assert LatchCaller(world).count({A, B}) == 1


def test_last_count_down_wakes_the_waiter_on_each_node_although_most_did_not_know_all(world, ada, bob):
    """Both have looked before either tells; A and B hear ada, B and C hear bob."""
    ada.set(2)
    woken = []
    for node, store in enumerate(world.stores):
        store.publish = lambda *_, node=node: woken.append(node) or 1
    waiter = LatchCaller(world)
    waiting = world.play(wait_open(waiter.session, waiter.latch, waiter.owner, None, world.now))
    counting = world.play(count_down(bob.session, bob.latch, bob.owner, world.now, n=1, timeout=5.0))
    for steps in waiting, counting:
        advance(steps, 2)
    ada.down({A, B, C}, {A, B})
    world.fate = lambda _, node: "lost" if node == A else "ok"
    next(counting)
    world.fate = lambda *_: "ok"
    finish(counting)
    assert sorted(woken) == [A, B, C]
    assert finish(waiting) is True


def test_waiter_that_gives_up_has_slept_between_its_looks_and_leaves_its_places(world, ada, bob):
    ada.set(1)
    before = world.rounds
    assert bob.wait(5.0) is False
    assert world.rounds - before < 40, "here a sleep lasts a quarter of a second"
    assert [execute(store, b"ZCARD", KEYS.waiters) for store in world.stores] == [0, 0, 0]


def test_last_look_that_the_deadline_cuts_short_does_not_hide_that_nodes_answered_before(world, ada, bob):
    ada.set(1)
    assert bob.wait(0.3, {A, B, C}, set()) is False
    with pytest.raises(QuorumError):
        bob.wait(0.3, set(), *[set()] * 40)


def test_interrupted_wait_leaves_its_places_and_none_of_the_same_owners_next_wait(world, ada, bob):
    """Each call uses the connections that are free, so the first wait's last command may come after the next wait's."""
    ada.set(1)
    first, second = (wait_open(bob.session, bob.latch, bob.owner, None, world.now) for _ in range(2))
    first.send(world.perform(next(first)))
    leaving = first.throw(KeyboardInterrupt())
    second.send(world.perform(next(second)))
    world.perform(leaving)
    assert [execute(store, b"ZCARD", KEYS.waiters) for store in world.stores] == [1, 1, 1]
    world.perform(second.throw(KeyboardInterrupt()))
    assert [execute(store, b"ZCARD", KEYS.waiters) for store in world.stores] == [0, 0, 0]
    for steps in first, second:
        with pytest.raises(KeyboardInterrupt):
            next(steps)


def test_count_down_takes_two_rounds_and_a_look_one_and_setting_four(world, ada, bob):
    def rounds(call, *args):
        before = world.rounds
        call(*args)
        return world.rounds - before

    ada.set(1)
    bob.count()
    assert [rounds(bob.count), rounds(bob.down), rounds(ada.set, 2)] == [1, 2, 4]
    ada.delete()
    for store in world.stores:
        store.flush()
    world.offsets = [0.0, 0.003, 0.009]
    assert rounds(LatchCaller(world).set, 1) == 5, "nodes begin with different tokens"


@pytest.mark.parametrize("guard", [1.0, 4.0, 5.0, 9.0])
def test_setting_fails_until_the_guard_is_over_and_waits_for_the_rest_of_five_seconds(world, guard):
    for store in world.stores:
        execute(store, b"SET", b"redsync_birth", b"newborn %d -" % store.now_ms)
    born, ada = world.now, LatchCaller(world, lease=1.0, restart_guard=guard)
    for call in (lambda: ada.set(2), ada.delete):
        world.now = born + guard - 0.1
        with pytest.raises(QuorumError, match="FORGETFUL"):
            call()
        assert world.now < born + guard, "at once"
    world.now = born + guard + 0.1
    with pytest.raises(QuorumError, match="FORGETFUL"):
        ada.count()
    assert ada.set(2) is True
    assert ada.count({A, C}) == 2
    assert max(guard, 5.0) <= world.now - born < max(guard, 5.0) + 0.5


@pytest.mark.parametrize("rounds", [2, 3])
def test_setter_that_died_half_way_holds_up_others_for_five_seconds(world, ada, bob, rounds):
    """After it had the lock under which latches are set, and before it told the nodes anything."""
    dying = world.play(set_count(ada.session, ada.latch, ada.owner, 2, world.now))
    advance(dying, rounds + 1)
    died = world.now
    assert bob.set(3) is True
    assert 4.9 < world.now - died < 5.5
    assert bob.count() == 3


@pytest.mark.parametrize("call", [lambda bob: bob.set(3), lambda bob: bob.delete()], ids=["set", "delete"])
def test_setter_that_finds_others_setting_it_all_the_time_gets_an_error(world, ada, bob, call):
    ada.set(2)
    ada.down(n=2)
    session, owner = world.session(lease=60.0)
    request = AcquireRequest(name="x", kind=FENCED_LOCK, keys=KEYS.setting, owner=owner, lease=60.0, timeout=0.0)
    assert world.run(acquire_new(FencedClaim(session, request, Fence()), world.now))
    with pytest.raises(
        AcquireTimeout, match=r"^latch 'x' was still being set or deleted by client-3.* after 10 s"
    ) as caught:
        call(bob)
    assert caught.value.holder.startswith(str(owner))


def test_cancelled_call_that_another_thread_had_confirmed_is_repeated_by_the_next(world, ada):
    ada.set(5)
    calls = count_down(ada.session, ada.latch, ada.owner, world.now, n=1, timeout=5.0)
    looks = next(calls)
    world.perform(calls.send(world.perform(looks)))  # The answers are on their way.
    ada.down()
    with pytest.raises(KeyboardInterrupt):
        calls.throw(KeyboardInterrupt())
    ada.down()
    assert ada.count() == 3, "two count-downs were wanted"


def test_setter_that_stalled_for_too_long_does_not_claim_success(world, ada, bob):
    """Bob has the lock and has found the latch open. He sets it whatever Ada does, so hers would be replaced."""
    adas, bobs = (world.play(set_count(each.session, each.latch, each.owner, 2, world.now)) for each in (ada, bob))
    advance(adas, 4)  # It has looked again, and is about to set it.
    world.now += 6.0
    advance(bobs, 4)
    with pytest.raises(QuorumError, match="too late"):
        finish(adas)
    assert finish(bobs) is True
    assert LatchCaller(world).count() == 2


# Write-backs, and the answers of nodes that forgot.


def test_knowledge_of_only_one_node_is_written_back_before_it_is_returned(world, ada, bob):
    """Else the next caller might find the latch closed again."""
    ada.set(1)
    with pytest.raises(QuorumError):
        ada.down({A, B, C}, {A}, n=1)
    assert [state.count for state in told(world, A, B, C)] == [0, 1, 1]
    with pytest.raises(QuorumError):
        bob.count({A, B}, {A})
    assert bob.count({A, B}, {A, B}) == 0
    assert [state.count for state in told(world, A, B)] == [0, 0]
    assert LatchCaller(world).count({B, C}) == 0


def test_new_client_does_not_see_it_open_on_nodes_that_forgot(world):
    world.initialize()
    ada, bob = LatchCaller(world, restart_guard=30.0), LatchCaller(world, restart_guard=30.0)
    assert bob.count() == 0, "nodes that never forgot anything know that it was never set"
    ada.set(2)
    for node in (A, B):
        world.stores[node].flush()
    with pytest.raises(QuorumError, match="FORGETFUL"):
        LatchCaller(world, restart_guard=30.0).wait(0.0, {A, B})
    for node in (A, B):
        execute(world.stores[node], b"SET", b"redsync_birth", b"newborn %d -" % world.stores[node].now_ms)
    world.now += 40.0
    with pytest.raises(QuorumError, match="FORGETFUL"):
        bob.count({A, B})
    ada.count()
    assert bob.count() == 2, "all nodes answer, and the setter has told them"
    with pytest.raises(QuorumError, match="2 of 3 nodes may have forgotten it"):
        bob.count({A, B})
    with pytest.raises(QuorumError, match="2 of 3 nodes may have forgotten it"):
        LatchCaller(world, restart_guard=30.0, outage_timeout=1.0).wait(60.0, *[{A, B}] * 30)
    ada.down(n=2)
    assert ada.set(3) is True
    assert LatchCaller(world, restart_guard=30.0).count({A, B}) == 3, "they forgot nothing about this one"


@pytest.mark.parametrize("knew_it", [False, True])
def test_client_that_knows_no_more_finds_a_latch_that_only_one_node_remembers_at_once(world, knew_it):
    world.initialize()
    ada, bob = LatchCaller(world, restart_guard=30.0), LatchCaller(world, restart_guard=30.0)
    ada.set(2)
    if knew_it:
        bob.count()
    for _ in range(2):
        world.now += 86_000.0
        ada.count()
    for node in (A, B):
        world.stores[node].flush()
    with pytest.raises(QuorumError, match="FORGETFUL"):
        LatchCaller(world, restart_guard=30.0).count({A, B})
    assert bob.count() == 2, "all nodes answer, the last one has it, and then the others vouch for it"


def test_nodes_that_granted_a_setting_vouch_for_it_whenever_they_forgot(world):
    """C forgot after B. A and B grant the setting, with a token from before that."""
    world.initialize()
    LatchCaller(world, restart_guard=30.0).delete()
    for node, after in (B, 0), (C, 100_000):
        execute(world.stores[node], b"SET", b"redsync_birth", b"newborn %d -" % (world.stores[node].now_ms + after))
    world.now += 200.0
    assert LatchCaller(world, restart_guard=30.0).set(2, {A, B, C}, {A, B}) is True
    assert LatchCaller(world, restart_guard=30.0).count({A, B}) == 2
    with pytest.raises(QuorumError, match="1 of 3 nodes may have forgotten it"):
        LatchCaller(world, restart_guard=30.0).count({B, C}, {B, C})


def test_latch_that_was_not_used_for_a_day_is_forgotten_everywhere(world, ada):
    ada.set(2)
    world.now += 86_000.0
    assert ada.count() == 2
    world.now += 86_000.0
    assert ada.count() == 2
    world.now += 86_401.0
    assert ada.count() == 0
    assert ada.set(1) is True


def test_interruption_right_after_the_lock_for_setting_was_won_releases_it(world, ada, bob, monkeypatch):
    def acquire_and_be_interrupted(claim, now):
        yield from acquire_new(claim, now)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("redsync._protocols.latch.acquire_new", acquire_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            ada.set(1)
    began = world.now
    assert bob.set(1)
    assert world.now < began + 1.0


def test_setter_whose_lock_has_ended_tells_nodes_nothing(world, ada, monkeypatch):
    """It was paused: another one may have set the latch meanwhile, for a generation that must stay the latest."""

    def acquire_and_pause(claim, now):
        hold = yield from acquire_new(claim, now)
        world.now += 6.0
        return hold

    monkeypatch.setattr("redsync._protocols.latch.acquire_new", acquire_and_pause)
    with pytest.raises(QuorumError):
        ada.set(1)
    assert told(world, A, B, C) == [LatchState()] * 3
