"""The watchdog: everything that a client does on its own for as long as it lives, and its shutdown.

It renews holds that are due, reports lost holds, releases the holds of ended owners, and keeps the client's record on
the nodes, which shows others the process behind a claim.
"""

from __future__ import annotations

import math

from redsync._core.client_records import MOST_HELD, told_claim
from redsync._core.effects import Steps, Tell, Wait, notify, tell, wait
from redsync._core.holds import HoldState, soon
from redsync._core.observing import HoldOrphaned, WatchdogWoke
from redsync._core.scripts import Command, Script
from redsync._core.session import Session
from redsync._core.timing import milliseconds
from redsync._protocols.holding import expire, give_back
from redsync._protocols.renewal import renew

__all__ = ["shutdown", "watchdog"]

ANNOUNCE = Script.load("client_announce")

_ANNOUNCED_EVERY, _ANNOUNCED_FOR = 20.0, 65.0
"""Seconds between two announcements of a client, and seconds for which nodes keep one, so that two may get lost."""

_WORTH_TELLING = 1.0
"""Seconds from which an announcement includes a hold; most holds end long before the next announcement."""


def watchdog(session: Session, now: float) -> Steps[None]:
    """Do what is due, as long as the client lives."""
    table = session.holds
    table.begin_watch()
    announce_at = math.inf if session.client is None else now
    batches: list[list[HoldState]] = []
    while True:
        while table.orphans:
            for state in list(table.orphans.popleft().holds.values()):
                yield from _end_orphan(session, state, now)
        for state in table.take_ended(now):
            yield from expire(state)
        # One command at a time: in between this loop reports losses, and the driver does its own work.
        # New holds that are due come with a new list of all that remains.
        batches = table.due(now, now + soon(session.timing.lease)) or batches
        if batches:
            yield from _look(session, batches[0], now)
            table.put(batches.pop(0))
        if now >= announce_at:
            announce_at = now + _ANNOUNCED_EVERY
            # A node out of reach gets the next one.
            yield from tell(Tell(_announcement(session, now), None))
        until = now if batches else min(max(table.next_due(), now), announce_at)
        looked_at, now = now, (yield from wait(Wait(until))).at
        if session.observed and looked_at < until <= now:
            yield from notify(WatchdogWoke(now - until))


def _end_orphan(session: Session, state: HoldState, now: float) -> Steps[None]:
    """Release what an ended owner has acquired, except what an open `with` will release in another thread or task."""
    kept = min(state.count, state.open_withs)
    if kept:
        state.count = kept
        return
    lost = state.lost is not None
    # Threads to which the owner gave this hold's object must not believe in it any longer.
    state.count = 0
    yield from give_back(session, state, now)
    if not lost:
        yield from notify(HoldOrphaned(state.name, state.holder))


def _look(session: Session, batch: list[HoldState], now: float) -> Steps[None]:
    """Renew holds, with one round at most."""
    for state in batch:
        if state.owner.is_gone:
            yield from _end_orphan(session, state, now)
    leases = {each: each.valid_until - now for each in batch if each.valid(now)}
    for each, rest in leases.items():
        # A repair must last as long as an extension. A hold with its own lease is renewed once, to free other slots.
        leases[each] = max(each.lease if each.renewed else 0.0, rest + session.timing.drift(rest))
    if leases:
        yield from renew(session, leases)


def _announcement(session: Session, now: float) -> Command:
    """Return the command that keeps the client's record on the nodes, with its oldest holds.

    So operators see since when a name is held. An acquire does not write that: it would cost every acquire, for the few
    holds that last.
    """
    assert session.client is not None, "the caller checked it"
    held = tuple(
        (told_claim(state.claim), round(session.epoch + state.since, 3))
        for state in session.holds.oldest(MOST_HELD)
        if now - state.since >= _WORTH_TELLING and state.lost is None
    )
    record = session.client._replace(held=held).pack()
    return Command(ANNOUNCE, (session.record_key,), (record, milliseconds(_ANNOUNCED_FOR)))


def shutdown(session: Session, now: float) -> Steps[None]:
    """Release everything that any owner of this client holds; report no losses.

    An interruption is raised only after that.
    """
    try:
        yield from _leave(session, now)
    except BaseException:
        # Release the rest now, as no later call will. Holds released so far are no longer in the table.
        yield from _leave(session, now)
        raise


def _leave(session: Session, now: float) -> Steps[None]:
    for state in session.holds:
        yield from give_back(session, state, now)
    if session.client is not None:
        yield from tell(Tell(Command(ANNOUNCE, (session.record_key,), (b"", 0)), None))
