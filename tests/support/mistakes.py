"""Mistakes to plant: other functions instead of ours, scripts with another text, and what else a mistake needs to show.

`tests/simulation/test_planted.py` has the table of them.
"""

import asyncio

from redsync._core.effects import Tell, tell
from redsync._core.latches import LatchState
from redsync._core.permits import write_slots
from redsync._core.quorum import Choice, Verdict
from redsync._core.scripts import Command
from redsync._drivers.acknowledgements import wait_commands
from redsync._drivers.discovery import Locator, Report, needed_of
from redsync._drivers.handshake_connections import pack
from redsync._drivers.nodes import Node
from redsync._protocols import latch
from redsync._protocols.answers import refusals_of_owners
from tests.simulation.checks import PermitBound
from tests.simulation.trial import Trial
from tests.support.hunting import break_script


def script(name, *replacements):
    return lambda: break_script(name, *replacements)


def instead(owner, name, new):
    """Replace a function by another that does not need it."""
    return ((owner, name, lambda _: new),)


def around(owner, name, make):
    """Replace a function by one that `make` makes from it."""
    return ((owner, name, make),)


def nothing(*_args, **_options):
    pass


def no_steps(*_args, **_options):
    return
    yield


# ----------------------------------------- functions in protocols


def one_suffices(right):
    return lambda choices, **options: Verdict.WON if Choice.GRANTED in choices else right(choices, **options)


def undo_unless_it_ends(undo):
    def roll_back(*args, leave):
        return 0 if leave else (yield from undo(*args, leave=leave))

    return roll_back


def count_grants(self, tally):
    """Judge by a majority of nodes with any free slot each."""
    if tally.granted >= tally.quorum:
        return Verdict.WON
    return Verdict.LOST if None not in tally.choices else Verdict.PENDING


def draw_from_fewer(missing):
    def learn(place, tally):
        tickets = [refusal.ticket for refusal in refusals_of_owners(tally)]
        if place._ticket or not place.waits or not tickets:
            return False
        place._ticket = max(tickets[: max(tally.quorum - missing, 1)]) + 1
        return True

    return learn


def name_all_slots(renewal_of):
    def renew(holds, leases_ms):
        call = renewal_of(holds, leases_ms)
        args = list(call.args)
        args[2 : 4 * len(holds) : 4] = [write_slots(state.slots) for state in holds]
        return call._replace(args=tuple(args))

    return renew


def find_it_open(consult):
    def find(caller, now, decide=latch.is_known):
        state, tally = yield from consult(caller, now, decide)
        return (LatchState(state.generation) if decide is latch.may_set else state), tally

    return find


def count_anew(acquire):
    def acquire_anew(session, request, now, fence):
        nested = request.keys.hold in request.owner.holds
        state = yield from acquire(session, request, now, fence)
        if nested and state is not None:
            state.fencing_token += 1
        return state

    return acquire_anew


def notify_twice(notify):
    def notify_both(event):
        yield from notify(event)
        yield from notify(event)

    return notify_both


def keep_blindly(claim, now, _timeout_at):
    yield from ()
    claim.reserved.since = now
    return claim.reserved, now


def settle_blindly(settle):
    def settle_at_once(claim, tally, *args):
        won, _ = yield from settle(claim, tally, *args)
        return won, tally.at

    return settle_at_once


def give_back(acquire):
    def acquire_and_release(session, request, *args, **rates):
        won = yield from acquire(session, request, *args, **rates)
        if won:
            release = Command(request.kind.release, request.keys.all, (request.state.claim, 0, b""))
            yield from tell(Tell(release, request.owner))
        return won

    return acquire_and_release


LATEST = {}
"""Each client's latest success."""


def remember_latest(acquire):
    def acquire_and_remember(session, *args, **rates):
        permits = yield from acquire(session, *args, **rates)
        if permits:
            LATEST[permits[0].owner.client_id] = permits
        return permits

    return acquire_and_remember


def cancel_latest(cancel):
    return lambda permits: cancel(LATEST[permits[0].owner.client_id])


# ----------------------------------------- functions in drivers


def forget_pending(discard):
    def discard_all(links, link, reason, **options):
        for request in link.pending:
            request.fail(link.index, reason)
        link.pending.clear()
        discard(links, link, reason, **options)

    return discard_all


def observe_replicas():
    """Sentinels that were reset list none: then a vote would need none."""

    def observe(note):
        def note_replicas(locator, witness, replies, asked_at):
            note(locator, witness, replies, asked_at)
            observed = [report.replicas for report in locator.reports if isinstance(report, Report)]
            locator.observed = max(observed, default=2)

        return note_replicas

    needed = property(lambda locator: needed_of(getattr(locator, "observed", 2)))
    return (
        (Locator, "note", observe),
        *instead(Locator, "_mismatch", nothing),
        *instead(Locator, "needed", needed),
    )


def wait_alone(codec, needed, timeout):
    return [pack("PING"), wait_commands(codec, needed, timeout)[-1]]


# ----------------------------------------- mistakes in scripts

QUEUE_UP = "redis.call('zadd', KEYS[2], score, waiter)"
AS_THEY_CAME = "redis.call('zadd', KEYS[2], 'NX', score + redis.call('zcard', KEYS[2]) / 1000, waiter)"
WHOLE = ("'withscores')[2]) or 0", "'withscores')[2] or '0')\n  highest = math.floor(highest)")
GRANT_TO_ANY_OWNER = script("fair_lock_acquire", ("if free and head and head ~= waiter then", "if false then"))
WRITE_NO_TICKET = script("fair_lock_acquire", (QUEUE_UP, ""))

UNHEEDED_WRITER = script(
    "read_write_lock_acquire", ("elseif score < 0 and owner_of(first[1]) ~= owner then", "elseif false then")
)
UNHEEDED_READERS = script(
    "read_write_lock_acquire",
    ("if wanted == 'r:' then return nil, nil, score < 0 and is_live(score) end", "if true then return end"),
)
UNHEEDED_QUEUE = script("read_write_lock_acquire", ("if writer and writer ~= waiter and not", "if false and not"))
RENEWS_ONE = "local refusal = put(key, claim, math.max(until_ms, math.floor(math.abs(had))), count)"
RENEWS_ALL = (
    "local refusal; "
    "for _, each in ipairs(redis.call('zrangebyscore', key, '(0', '+inf')) do put(key, each, until_ms, count) end"
)
BELIEVE_REQUESTS = script(
    "semaphore_acquire", ("its_version > version or its_version == version and its_limit ~= limit or ", "")
)
HAS = "if had and is_live(had) then\n  local refusal = put"
REFUSES = "if had and redis.call('exists', 'redsync_queue:{redsync:x}') == 1 then return {1, 'writers', 0} end\n"


def break_hand_over(*replacements):
    """Break all scripts that hand a read-write lock over."""

    def broken():
        names = [f"read_write_lock_{verb}" for verb in ("release", "acquire")]
        return {k: v for name in names for k, v in break_script(name, *replacements).items()}

    return broken


def grant_although_it_forgot(*nouns):
    def broken():
        return {k: v for noun in nouns for k, v in script(f"{noun}_acquire", FORGETFUL)().items()}

    return broken


NEWCOMER = """
kind fair
clients a b
0 a acquires x
1 b acquires x
15 expect b waits
"""

RELEASE_THAT_WAITS = """
guard 0
lease 60
clients a
0 a acquires x
1 node 1 crashes
1 a releases x
6 node 1 restarts
40 expect a: acquired x, released x
"""


async def hold_two(client):
    semaphore = client.get_semaphore("x", 10)
    await semaphore.resize(2)
    permits = [await semaphore.acquire() for _ in range(2)]
    await asyncio.sleep(12.0)
    for permit in permits:
        await permit.release()


async def take_all(client):
    while await client.get_semaphore("x", 10).acquire(False):
        pass


def take_more_than_is_left(scripts):
    """Restart nodes without their data, one by one, while one has all permits that its resize left; then ask for more.

    The one that asks knows nothing of the resize.
    """
    with Trial(seed=1, scripts=scripts, checkers=[PermitBound], lease=2.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold_two(a.client()))
        sim.run(until=1.0)
        for i, node in enumerate(sim.nodes):
            node.crash()
            node.restart(forget=True)
            sim.run(until=4.0 + 3.0 * i)
        b.start(take_all(b.client()))
        sim.run()


FORGETFUL = ("if guard ~= '0' then", "if false then")
FIT = instead(Node, "ineligible_reason", nothing)
