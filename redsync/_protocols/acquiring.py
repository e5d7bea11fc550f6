"""Acquiring: ask for a new claim, count, roll back, wait, ask again. Shared by all kinds of claims.

`claims` decides what to ask for, and `queue_policies` who is served first. The loop knows neither by name.

A round that was not won is rolled back on all nodes, unless all that got it have refused, or the acquire asks for the
same again at once. An acquire that ends leaves the queue in any case. The next step depends on why the round was lost:

* *without quorum* (too many nodes failed): an error at once for a non-blocking acquire; else another try after a
  growing pause, in turn with the client's other retries, until the deadline or the outage timeout, and without a place
  that others would have to wait for;
* *split vote* (contenders hold a minority each, so none can win): another try after a short random pause that grows;
* *held*: sleep until nodes hand the lock over or wake us, the holder's time is up, or a jittered second has passed.
  Each try queues in the same atomic step in which a node refuses it, so no release slips in between try and sleep.
  The first try asks for a claim alone, because most are granted; and for a place too if the client's latest acquire of
  that lock had to wait.

**Hand-over.** A node that frees a lock claims it for the head of the queue in the same step: for the lease that the
head asked for, or, if the watchdog is to lengthen the claim, for as long as it would have kept the place. Its message
has the *ask id* of the ask that it answers. A quorum of such messages counts like votes, and the hold is believed from
the instant of that ask. A rollback may undo a later hand-over, so after a rollback no hand-over counts until the next
ask, which has another ask id. The acquire takes up the hold only while enough of its time is left. Otherwise, and if
the hold needs more than the claim (a token), it asks once more, and finds its claims there: no other owner came in
between.

**Each try after a rollback makes a new claim**, with a number that no try before had. So a rollback that arrives late,
over an abandoned connection, finds none of the later claims. The place in the queue stays: it belongs to the owner. A
try without a rollback before it repeats its claim, and finds it on the nodes that granted it.

**Waiting in the process.** Of the client's waiters for one lock only the first ask; see `local_queues`. One that is not
among them has asked no node. When its timeout is over, it returns as if refused: nodes have told those before it that
others hold the lock. If these have found no quorum, or no answer yet, it asks once itself.

**Interruptions.** An exception from outside may strike at any point. Then the acquire drops even a hold that it has won
and rolls back on all nodes: a claim may be on its way to any of them, and a place to any queue.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import partial

from redsync._core.effects import Broadcast, Steps, Wait, broadcast, tell, wait
from redsync._core.holds import HoldState
from redsync._core.local_queues import RETRIES
from redsync._core.quorum import Choice, Tally
from redsync._core.timing import retry_delay
from redsync._protocols.answers import gives_up, is_outage, no_quorum
from redsync._protocols.claims import Claim
from redsync._protocols.holding import rollback
from redsync._protocols.surveys import named

__all__ = ["GRACE", "LAST_TRY", "acquire_new"]

GRACE = 0.003
"""Seconds to wait for further nodes' wake-ups after the first: a release reaches the nodes one after the other."""

_PAUSE = 0.001
"""Seconds before the first ask of an acquire that expects others. Its thread has most likely just released the lock;
its ask, and the nodes that it wakes, would take the processor from the new holder. Its waiting time includes this."""

LAST_TRY = 0.03
"""Seconds that a try or a look may take if the caller's timeout is over, so that timeouts are accurate to 50 ms."""


def acquire_new(claim: Claim, now: float) -> Steps[HoldState | None]:
    """Return the hold of a new claim; None if others held it until the request's deadline.

    Raises:
        QuorumError: Too few nodes answered: at once for one try, else at the deadline or outage timeout.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit than the program.
    """
    session, request = claim.session, claim.request
    deadline = request.deadline(now)
    queues, down_since = session.queues, math.inf
    claim.start(now)
    queue: Hashable
    queue = waiter = request.owner.claim(next(session.claims), request.kind.mode)
    # It asks at once if it tries just once, if its place on the nodes decides the order (tickets), or if several may
    # get the lock together (readers). Others wait in the process first.
    if request.timeout != 0 and claim.policy.may_join_later and not request.kind.is_shared:
        # Acquires with different leases wait separately: one whose lease is too short for these nodes never succeeds,
        # and must not hold up others.
        queue = request.keys.lock, request.lease
    try:
        if queue is not waiter and not queues.enter(queue, waiter):
            session.note(request, "waiting", now)
            now = yield from queues.wait_turn(queue, waiter, now, deadline)
            if not queues.may_go(queue, waiter) and queue not in queues.without_quorum:
                return None
            # If those before it found no quorum, their outage is this one's, too.
            claim.start(now)
            down_since = queues.without_quorum.get(queue, math.inf)
        if claim.expects_others:
            now = (yield from wait(Wait(min(now + _PAUSE, deadline)))).at
        return (yield from _compete(claim, now, deadline, down_since, queue=queue, waiter=waiter))
    finally:
        try:
            yield from queues.leave_queues(waiter, RETRIES, queue)
        except BaseException:
            # Again: the interruption may have struck before it began.
            yield from queues.leave_queues(waiter, RETRIES, queue)
            raise


def _compete(  # noqa: PLR0912, PLR0915  (each is one of the decisions above)
    claim: Claim, now: float, deadline: float, down_since: float, *, queue: Hashable, waiter: bytes
) -> Steps[HoldState | None]:
    """Ask until nodes grant the claim or hand it over, or until the deadline; `waiter` stands in the local `queue`."""
    session, request, claim_id = claim.session, claim.request, waiter
    queues, policy = session.queues, claim.policy
    # Bit sets of nodes: all ever asked, those asked since the last rollback, and of these those that may have granted.
    may_keep = asked = may_have_granted = tries = failures = splits = 0
    owes = False
    busy: Tally | None = None  # The latest round that told who is in the way.
    try:
        while True:
            # Ask.
            owes, asked_at, tries = True, now, tries + 1
            tally = yield from broadcast(_ask(claim, claim_id, now, deadline))
            now, sent = tally.at, tally.sent
            session.note(request, "round", now, tally)
            if tally.won and not claim.is_confirmed(tally):
                # Nodes that were absent may be back, and get the confirmation; so must a rollback after it.
                sent = session.all_nodes
                tally, now = yield from claim.confirm(tally, claim_id, partial(_round_time, claim, deadline))
            # Count. A round won too late says as little as one without answers: the nodes are too slow now.
            may_keep, asked = may_keep | sent, asked | sent
            if not tally.without_quorum:
                session.note_others(request.keys.lock, met=tries > 1 or not tally.won)
            if tally.won and now < (until := claim.valid_until(tally)):
                return claim.begin_hold(claim_id, since=tally.sent_at, valid_until=until, may_keep=may_keep, won=tally)
            may_have_granted = (may_have_granted | sent) & ~tally.nodes_with(Choice.REFUSED)
            without_quorum = tally.won or tally.without_quorum
            session.answered |= not without_quorum
            down_since = min(down_since, tally.sent_at) if without_quorum and is_outage(tally) else math.inf
            queues.note(queue, down_since if without_quorum else None)
            refusal = None if tally.won else claim.refusal(tally)
            over = now >= deadline or refusal is not None or gives_up(session, tally, down_since)
            # If the deadline cuts the last round short, it may get no answers. Then the round before decides.
            cut_short = _round_time(claim, deadline, asked_at) < claim.round_timeout
            busy = tally if not without_quorum else busy if cut_short else None
            # Roll back, unless the next round asks for the same, where grants so far will count, or all have refused.
            again = refusal is None and _asks_again(claim, tally, over=over)
            leave = not again and (over or (without_quorum and policy.suspend()))
            undo = may_have_granted or (leave and policy.taken)
            if claim.needs_new_claim if again else undo:
                # Even a node that refused may have handed over since.
                nodes = may_keep if leave and policy.taken else asked
                may_keep |= yield from _roll_back(claim, claim_id, nodes, leave=leave)
                # Only now: if an interruption struck before the send, everything must still be rolled back.
                claim_id, asked, may_have_granted = request.owner.claim(next(session.claims), request.kind.mode), 0, 0
            if again:
                continue
            if over:
                owes = False
                if busy is not None and refusal is None:
                    request.holder = claim.holder(busy)
                    return None
                refusal = yield from named(session, request.keys, request.owner, refusal)
                raise refusal or no_quorum(request.name, tally, request.kind.label, at=now)
            # Wait, then ask again.
            session.note(request, "queued" if policy.taken else "waiting", now)
            failures = failures + 1 if without_quorum else 0
            splits = splits + 1 if not without_quorum and claim.is_split(tally) else 0
            if without_quorum:
                until = min(deadline, down_since + session.timing.outage_timeout)
                now = yield from queues.retry(waiter, failures, session.random(), now, until)
            else:
                yield from queues.leave_queues(waiter, RETRIES)
                now, until = yield from _wait_for_nodes(claim, tally, deadline, tries=tries, splits=splits)
                if now < until:
                    session.note(request, "handed over", now)
                    return claim.begin_hold(claim_id, since=now, valid_until=until, may_keep=may_keep)
            claim.begin()
    except BaseException:
        refusal = None  # Or this frame and the error would keep each other alive, and the caller's connections.
        if owes:
            yield from _clean_up(claim, claim_id)
        raise


def _ask(claim: Claim, claim_id: bytes, now: float, deadline: float) -> Broadcast:
    """Return the effect that asks all nodes for the claim, or else for a place in the queue."""
    request, policy = claim.request, claim.policy
    return Broadcast(
        claim.ask(claim_id, policy.ask(now)),
        request.owner,
        claim.parse,
        _round_time(claim, deadline, now),
        guard=claim.guard,
        decide=claim.decide or policy.decide,
        subscribe=_wake_key(claim),
        patience=max(deadline - now, LAST_TRY) if request.timeout else None,
    )


def _round_time(claim: Claim, deadline: float, now: float) -> float:
    """Return for how many seconds a round that begins now may wait for nodes."""
    usual = claim.round_timeout
    return min(usual, max(deadline - now, LAST_TRY)) if claim.request.timeout else usual


def _wake_key(claim: Claim) -> bytes | None:
    """Return the words that name this acquire in nodes' wake-ups; None if no wake-up will come."""
    return claim.request.owner.wire + b" " + claim.request.keys.lock if claim.policy.taken else None


def _asks_again(claim: Claim, tally: Tally, *, over: bool) -> bool:
    """Return whether to ask again at once: for longer, for other slots, or for a place in the queue."""
    if tally.without_quorum:
        return False
    may_queue = not (tally.won or over)
    return claim.asks_again(tally) or (may_queue and claim.may_queue(tally) and claim.queue(tally))


def _roll_back(claim: Claim, claim_id: bytes, nodes: int, *, leave: bool) -> Steps[int]:
    """Drop the claim on these nodes; `leave`: also the place, and serve the queue. Return who restored the place."""
    request = claim.request
    # The rollback undoes hand-overs that come before it, so these must not count.
    claim.policy.ask_id = None
    back = () if leave else claim.place_to_restore()
    drop = rollback(request.kind, request.keys, request.owner, claim_id, leave=leave, deliver_to=nodes)
    if back:
        # Not kept as a pending release: a node that restored the place later would keep it after its owner left.
        command = drop.command._replace(args=(*drop.command.args, *back))
        yield from tell(drop._replace(command=command, deliver_to=0))
    yield from tell(drop)
    if leave:
        claim.policy.leave()
    # Even nodes that we never asked keep a place that came back.
    return claim.session.all_nodes if back else 0


def _clean_up(claim: Claim, claim_id: bytes) -> Steps[None]:
    """Clean up after an interruption: end the hold, if there is one, and roll back on all nodes."""
    session, request = claim.session, claim.request
    if request.state is not None:
        session.holds.remove(request.state)
        request.state = None
    yield from _roll_back(claim, claim_id, session.all_nodes, leave=True)


def _wait_for_nodes(
    claim: Claim, tally: Tally, deadline: float, *, tries: int, splits: int
) -> Steps[tuple[float, float]]:
    """Sleep after a refusal, until nodes end the sleep or a look is due; `splits`: how many votes in a row split.

    Returns the instant, and until when a claim that nodes have handed over may be believed: 0.0 if they have not, or
    if too little of its time is left.
    """
    session = claim.session
    random = session.random()
    if splits:
        session.note(claim.request, "split", tally.at)
        # From now on each try queues in the same step in which a node refuses it. Without a ticket no node wakes it.
        claim.queue(tally)
        usual = retry_delay(splits, random, longest=0.25 if claim.policy.taken else 0.05)
    else:
        usual = min(claim.seconds_to_look(tally, random), claim.policy.longest_pause(tally, random))
    until = min(deadline, tally.at + claim.policy.pause(tries, random, usual))
    key = _wake_key(claim)
    wake = yield from wait(Wait(until, key, enough=session.quorum, grace=GRACE, ask_id=claim.policy.ask_id))
    if wake.signals:
        session.note(claim.request, "woken", wake.at)
    valid_until = session.timing.valid_until(tally.sent_at, claim.policy.handed)
    enough_left = valid_until - wake.at > claim.least_left * (valid_until - tally.sent_at)
    return wake.at, valid_until if enough_left and wake.handed.bit_count() >= session.quorum else 0.0
