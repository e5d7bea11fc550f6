"""Mistakes planted in redsync, each of which the checker of the promise that it breaks finds.

One row per mistake: the defect, which checker complains in which words, and in which runs or in which story. A
mistake is another text in a script, or another function instead of one of ours. Nothing here shows that a checker
is silent where it should be: all of them watch every run by seed and every story.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from redsync._core import quorum
from redsync._core.holds import HoldTable
from redsync._core.latches import LatchState
from redsync._core.memory import elected
from redsync._core.permits import PermitState
from redsync._core.quorum import Verdict
from redsync._drivers import discovery, handshakes
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.nodes import Node
from redsync._drivers.pending_releases import PendingReleases
from redsync._drivers.requests import Codec
from redsync._protocols import acquiring, claims, fenced_lock, holding, latch, lock, queue_policies, rate, renewal
from redsync._protocols.fenced_lock import FencedClaim
from redsync._protocols.queue_policies import FifoByTicket
from redsync._protocols.slot_claims import SlotClaim, WindowClaim
from redsync._protocols.windows import Window
from redsync.testing.simulator import SimulationError
from tests.simulation import sets
from tests.simulation.checks import (
    ALL,
    Admission,
    Exclusion,
    Expiry,
    Fairness,
    LatchNeverEarly,
    LatchOpens,
    LeakedClaims,
    Liveness,
    LossTold,
    OwnChecker,
    PermitBound,
    Reentrancy,
    Renewal,
    SlidingWindow,
    Slots,
    Tokens,
    Turns,
)
from tests.simulation.scenario import Scenario
from tests.support.hunting import hunt, trust_records
from tests.support.mistakes import (
    AS_THEY_CAME,
    BELIEVE_REQUESTS,
    FIT,
    GRANT_TO_ANY_OWNER,
    HAS,
    NEWCOMER,
    QUEUE_UP,
    REFUSES,
    RELEASE_THAT_WAITS,
    RENEWS_ALL,
    RENEWS_ONE,
    UNHEEDED_QUEUE,
    UNHEEDED_READERS,
    UNHEEDED_WRITER,
    WHOLE,
    WRITE_NO_TICKET,
    around,
    break_hand_over,
    cancel_latest,
    count_anew,
    count_grants,
    draw_from_fewer,
    find_it_open,
    forget_pending,
    give_back,
    grant_although_it_forgot,
    instead,
    keep_blindly,
    name_all_slots,
    no_steps,
    nothing,
    notify_twice,
    observe_replicas,
    one_suffices,
    remember_latest,
    script,
    settle_blindly,
    take_more_than_is_left,
    undo_unless_it_ends,
    wait_alone,
)

STORIES = Path(__file__).parents[1] / "scenarios"


class Mistake(NamedTuple):
    """One mistake.

    Attributes:
        what: The defect in one clause.
        checker: The checker that finds it.
        says: A regular expression for its complaint.
        where: The first of the seeds, the name of a story, its text, or a function that plays one.
        kind: The kind of synchronizer, or the arguments of the runs.
        scripts: A function that returns other scripts.
        patch: Functions instead of ours: the object, the name, and what makes the other one from ours.
    """

    what: str
    checker: type[OwnChecker]
    says: str
    where: int | str | Callable[[Mapping[str, str]], object] = 0
    kind: str | dict[str, Any] = "lock"
    scripts: Callable[[], Mapping[str, str]] = dict
    patch: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = ()


MISTAKES = [
    # Exclusion.
    Mistake("one node is a quorum", Exclusion, "is held by", 1, patch=around(quorum, "verdict_of", one_suffices)),
    Mistake(
        "a rollback drops the claims of others", Exclusion, "is held by", 1,
        scripts=script(
            "lock_release",
            ("redis.call('hdel', KEYS[1], ARGV[1]) == 1", "redis.call('del', KEYS[1]) == 1"),
        ),
    ),
    Mistake(
        "nodes grant although they forgot", Exclusion, "is held by", 3,
        scripts=grant_although_it_forgot("lock"), patch=FIT,
    ),
    Mistake("readers are granted next to a writer", Exclusion, "is held by", 0, "read-write", UNHEEDED_WRITER),
    Mistake("a writer is granted next to readers", Exclusion, "is held by", 0, "read-write", UNHEEDED_READERS),
    Mistake(
        "slots need no quorum", Exclusion, " slot .* is held by", 30, "semaphore",
        patch=instead(SlotClaim, "decide", count_grants),
    ),
    # Readers and writers.
    Mistake("a node admits readers and a writer", Admission, " writing and also ", 0, "read-write", UNHEEDED_WRITER),
    Mistake("a node admits a writer next to readers", Admission, " reading: ", 0, "read-write", UNHEEDED_READERS),
    Mistake("readers overtake a writer", Admission, " reading before .* writing: ", 1, "read-write", UNHEEDED_QUEUE),
    Mistake(
        "a hand-over serves a writer before earlier readers", Admission, " writing before ", 2, "read-write",
        break_hand_over(("0, before, 'limit', 0, 64), 'r:'", "0, before, 'limit', 0, writer and 0 or 64), 'r:'")),
    ),
    Mistake(
        "a renewal extends the claims of all readers", Expiry, "keeps .* held to read by", 0, "read-write",
        script("read_write_lock_renew", (RENEWS_ONE, RENEWS_ALL)),
    ),
    # Leftovers on nodes.
    Mistake(
        "an acquire that gives up is not rolled back", LeakedClaims, "ownerless|without a waiter", 1,
        patch=around(acquiring, "_roll_back", undo_unless_it_ends),
    ),
    Mistake(
        "waiters stay in the queue", LeakedClaims, "keeps a place in the queue without a waiter", 3,
        patch=around(acquiring, "_roll_back", lambda undo: lambda *args, leave: undo(*args, leave=False)),
    ),
    Mistake(
        "claims have no end", Expiry, "keeps .* for inf ms longer", 0,
        scripts=script("lock_acquire", ("redis.call('pexpire', KEYS[1], ARGV[3])\n  end", "end")),
    ),
    Mistake(
        "places at a latch are not left", LeakedClaims, "keeps a latch place without a waiter", 9, "latch",
        script("latch_leave", ("return redis.call('zrem', KEYS[2], ARGV[1])", "return 0")),
    ),
    # Fairness.
    Mistake("a fair lock is granted to any owner", Fairness, "first asked with", 9, "fair", GRANT_TO_ANY_OWNER),
    Mistake("no ticket is written", Fairness, "first asked with", 1, "fair", WRITE_NO_TICKET),
    Mistake(
        "tickets are drawn from less than a quorum", Fairness, "first asked with", 56, "fair",
        patch=instead(FifoByTicket, "learn", draw_from_fewer(1)),
    ),
    Mistake("a node passes over the head", Turns, "when it was the turn of", 1, "fair", GRANT_TO_ANY_OWNER),
    Mistake(
        "each node orders equal tickets as they came", Turns, "when it was the turn of", 3, "fair",
        script("fair_lock_acquire", (QUEUE_UP, AS_THEY_CAME), WHOLE),
    ),
    # Liveness.
    Mistake(
        "a waiter relies on its wake-up", Liveness, "has not asked since", 0,
        scripts=script("lock_release", ("wake(channel, ask_id, head)", "1")),
        patch=(
            *instead(claims, "time_left", lambda tally: 3600.0),
            *instead(queue_policies.QueuePolicy, "longest_pause", lambda *_: 3600.0),
        ),
    ),
    Mistake(
        "no round is ever won", Liveness, "has been free for .* and no waiter gets it", 0,
        patch=instead(quorum, "verdict_of", lambda *_, **__: Verdict.LOST),
    ),
    Mistake(
        "timeouts are not kept", Liveness, "should have had an answer", 0,
        patch=around(
            claims.AcquireRequest, "deadline", lambda ours: lambda request, started: ours(request, started) + 3.0,
        ),
    ),
    Mistake(
        "a newcomer gets no ticket", Liveness, "has asked for .* and has no", NEWCOMER,
        patch=instead(FifoByTicket, "learn", lambda place, tally: False),
    ),
    # Counts, renewals, losses, tokens.
    Mistake(
        "an acquire adds to the count", Reentrancy, " by lock_acquire for ", 0,
        scripts=script(
            "lock_acquire",
            (
                "if not is_mutex and kept ~= ARGV[2] then redis.call('hset', KEYS[1], ARGV[1], ARGV[2]) end",
                "redis.call('hincrby', KEYS[1], ARGV[1], ARGV[2])",
            ),
        ),
    ),
    Mistake(
        "a lost hold is re-entered", Reentrancy, "was re-entered after its end", 23,
        patch=instead(lock, "check", no_steps),
    ),
    Mistake(
        "readers and writers are refused their own lock", Reentrancy, "refused .* held to", 1, "read-write",
        script("read_write_lock_acquire", (HAS, REFUSES + HAS)),
    ),
    Mistake(
        "a renewal that creates counts", Renewal, "without a quorum of nodes that had it", 2,
        patch=around(
            renewal._Renewal, "parse",
            lambda parse: lambda this, reply: parse(this, [2 if code == 1 else code for code in reply]),
        ),
    ),
    Mistake(
        "the watchdog works after the release", Renewal, "which was released", 0,
        patch=instead(HoldTable, "remove", nothing),
    ),
    Mistake(
        "a renewal names returned slots", Renewal, ", and has ", 16, "semaphore",
        patch=around(PermitState, "renewal_of", name_all_slots),
    ),
    Mistake("losses are silent", LossTold, "lost, and not reported", 6, patch=instead(holding, "notify", no_steps)),
    Mistake(
        "the watchdog looks too late", LossTold, "not reported|reported .* too late", 20,
        patch=around(HoldTable, "next_due", lambda ours: lambda table: ours(table) + 0.5),
    ),
    Mistake("losses are reported twice", LossTold, "reported twice", 5, patch=around(holding, "notify", notify_twice)),
    Mistake(
        "the highest token is not written back", Tokens, "earlier", 1000, "fenced",
        patch=around(FencedClaim, "is_confirmed", lambda ours: lambda claim, tally: ours(claim, tally) or True),
    ),
    Mistake(
        "a re-entry has another token", Tokens, r"had token (\d+), and now has \d+", 0, "fenced",
        patch=around(fenced_lock, "acquire", count_anew),
    ),
    # Permits and rates.
    Mistake(
        "nodes believe the limit in a request", PermitBound, "are held where there are 2", take_more_than_is_left,
        scripts=BELIEVE_REQUESTS,
    ),
    Mistake(
        "a renewal leaves the limit behind", PermitBound, "are held where there are 2", take_more_than_is_left,
        scripts=script(
            "semaphore_renew", ("    write_limit(KEYS[6], limit, version, longest)\n", "    local _ = 0\n"),
        ),
    ),
    Mistake(
        "a release leaves slots marked", Slots, "are marked as taken", 14, "semaphore",
        script("semaphore_release", ("return mark(slots or '', 0)", "return 0")),
    ),
    Mistake(
        "slots are kept only for the window", SlidingWindow, "where there are", 3, "limiter",
        patch=instead(Window, "_lease", lambda window, *_: window.per),
    ),
    Mistake(
        "the clock is not read again after telling nodes", SlidingWindow, "where there are", 4, "limiter",
        patch=around(WindowClaim, "confirm", settle_blindly),
    ),
    Mistake(
        "successes are returned", SlidingWindow, "where there are", 1, "limiter",
        patch=around(rate, "acquire", give_back),
    ),
    Mistake(
        "slots reserved long ago count", SlidingWindow, "where there are", 1044, "limiter",
        patch=instead(WindowClaim, "_keep", keep_blindly),
    ),
    Mistake(
        "nodes believe the rate in a request", SlidingWindow, "where there are", 1001, "limiter", BELIEVE_REQUESTS,
    ),
    Mistake(
        "the latest success is cancelled", SlidingWindow, "where there are", 1005, "limiter",
        patch=(*around(rate, "acquire", remember_latest), *around(rate, "cancel", cancel_latest)),
    ),
    # Latches.
    Mistake(
        "a latch is set while it is not open", LatchNeverEarly, "replaced it", 1, "latch",
        patch=around(latch.Caller, "consult", find_it_open),
    ),
    Mistake(
        "a latch opens one too early", LatchNeverEarly, "had begun|are left of", 2, "latch",
        patch=instead(LatchState, "count", property(lambda state: max(state.size - 1 - len(state.arrivals), 0))),
    ),
    Mistake(
        "waiters at a latch are not woken", LatchOpens, "has waited for", 30, "latch",
        script("latch_exchange", ("wake(channel, '0', owner)", "wake('unused', '0', owner)")),
    ),
    # The transport.
    Mistake(
        "a pending release is lost with its connection", LeakedClaims, "ownerless|without a waiter", 33,
        patch=around(AioLinkSet, "discard", forget_pending),
    ),
    Mistake(
        "pending releases are never sent", LeakedClaims, "ownerless", RELEASE_THAT_WAITS,
        patch=instead(PendingReleases, "due", lambda *_: []),
    ),
    Mistake(
        "a release does not wait for other sets", LeakedClaims, "ownerless|without a waiter", 21,
        {"sets": 3}, patch=instead(sets, "keep_behind", nothing),
    ),
    # Groups and clusters.
    Mistake("lists of nodes differ by two", Exclusion, "is held by", 2007, {"nodes": 5, "unlisted": 2}),
    Mistake(
        "a vote waits for no replica", Exclusion, "is held by", 1001, {"nodes": 1, "replicas": 2},
        patch=instead(discovery, "needed_of", lambda replicas: 0),
    ),
    Mistake(
        "the wait follows no write", Exclusion, "is held by a:1 on a .* and c:1 on c", "stale_replicas",
        patch=(
            *instead(handshakes, "wait_commands", wait_alone),
            *instead(Codec, "has_written", lambda *_: True),
        ),
    ),
    Mistake(
        "the quarantine does not count from the acknowledgement", Exclusion, "is held by a:1 on a", "slow_replica",
        scripts=script("node_initialize", ("gets = epoch and 'joining' or 'newborn'", "gets = 'newborn'")),
    ),
    Mistake(
        "replicas are observed, not configured", Exclusion, "is held by a:1 on a", "replicas_not_listed",
        patch=observe_replicas(),
    ),
    Mistake(
        "the number of a decision is not compared", Exclusion, "is held by b:1 on b .* and a:1 on a", "named_again",
        patch=instead(handshakes, "elected", lambda run_id, _epoch, history: elected(run_id, 0, history)),
    ),
    Mistake(
        "the history of data is not compared", Exclusion, "is held by a:1 on a .* and b:1 on b",
        "record_of_another_server",
        patch=instead(handshakes, "elected", lambda run_id, epoch, _history: elected(run_id, epoch, "0" * 8)),
    ),
    Mistake(
        "a master needs no recent confirmation", Exclusion, "is held by b:1 on b", "replicas_that_return",
        patch=instead(Node, "unconfirmed", nothing),
    ),
    Mistake(
        "a replica without a record is new", Exclusion, "is held by a:1 on a .* and b:1 on b", "promoted_empty",
        scripts=script("node_initialize", ("epoch and epoch ~= '0' and 'joining' or new", "new")),
    ),
]  # fmt: skip


@pytest.mark.parametrize("mistake", [pytest.param(each, id=each.what) for each in MISTAKES])
def test_checker_finds(monkeypatch, mistake):
    for owner, name, make in mistake.patch:
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))
    scripts = mistake.scripts()
    if isinstance(mistake.where, int):
        options = {"kind": mistake.kind} if isinstance(mistake.kind, str) else mistake.kind
        seeds = range(mistake.where, mistake.where + 100)
        assert re.search(mistake.says, hunt(mistake.checker, seeds, scripts=scripts, **options))
        return
    with pytest.raises(SimulationError, match=f"{mistake.checker.name}: .*{mistake.says}"):
        play(mistake, scripts)


def play(mistake, scripts):
    """Play the mistake's story."""
    if not isinstance(mistake.where, str):
        mistake.where(scripts)
        return
    story = Scenario(mistake.where) if "\n" in mistake.where else Scenario.read(STORIES / f"{mistake.where}.txt")
    story.run(scripts, checkers=[mistake.checker])


@pytest.mark.parametrize(
    ("first", "options"),
    [(2104, {}), pytest.param(1050, {"nodes": 1, "replicas": 2, "cluster": True}, marks=pytest.mark.sweep)],
)
def test_checker_finds_that_nodes_trust_records_of_another_process(monkeypatch, first, options):
    scripts = trust_records(monkeypatch)
    assert "is held by" in hunt(Exclusion, range(first, first + 200), scripts=scripts, **options)


def test_each_checker_finds_a_mistake():
    assert {mistake.checker for mistake in MISTAKES} == set(ALL)


def test_restarted_nodes_keep_the_limit_that_a_resize_has_left():
    take_more_than_is_left(None)
