"""The watchdog: what a client does on its own for as long as it lives, and its farewell.

It renews holds that are due, fills up holds on a bare majority, reports lost holds, gives back the holds of ended
owners, and keeps the client's record on the nodes, which shows others who holds a lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from redsync._core.effects import Command, Steps, Tell, Wait, notify, tell, wait
from redsync._core.events import HoldOrphaned
from redsync._core.holds import HoldState
from redsync._core.runner import Session
from redsync._core.scripts import Script
from redsync._protocols.holding import give_back
from redsync._protocols.lease import expire, milliseconds
from redsync._protocols.renewal import fill_up, is_bare, renew

__all__ = ["farewell", "watchdog"]

ANNOUNCE = Script.load("client_announce")
WITHDRAW = Script.load("client_withdraw")

_BATCH = 200
"""Claims per renewal command: some 0.5 ms of a node's time, so that other clients' commands are not held up."""

_ANNOUNCED_EVERY, _ANNOUNCED_FOR = 20.0, 65.0
"""Seconds between two announcements of a client, and seconds for which nodes keep one: two may get lost."""


def watchdog(session: Session, now: float) -> Steps[None]:
    """Do what is due, as long as the client lives."""
    table = session.holds
    announce_at = now if session.record else math.inf
    while True:
        while table.orphans:
            owner = table.orphans.popleft()
            for state in table:
                if state.owner is owner:
                    yield from _give_back_orphan(session, state)
        for state in table:
            if state.lost is None and now >= state.valid_until:
                yield from expire(state)
        for batch in _due(table, now):
            yield from renew(session, batch)
        for batch in _batches(_bare(session, now)):
            yield from fill_up(session, batch, now)
        if now >= announce_at:
            announce_at = now + _ANNOUNCED_EVERY
            yield from _announce(session, now)
        wake = yield from wait(Wait(min(table.watch_next(now), announce_at)))
        now = wake.at


def _give_back_orphan(session: Session, state: HoldState) -> Steps[None]:
    lost = state.lost is not None
    # Threads to which the owner gave this hold's object must not believe in it any longer either.
    state.count = 0
    yield from give_back(session, state)
    if not lost:
        yield from notify(HoldOrphaned(state.name, state.holder))


def _due(holds: Iterable[HoldState], now: float) -> list[list[HoldState]]:
    """Return the holds due for renewal, in batches; those due soon go along, which makes few and full commands."""
    soon = [
        state
        for state in holds
        if state.lost is None and state.renew_at <= now + state.lease / 12 and now < state.valid_until
    ]
    # Nothing is due yet if all of them are only due soon.
    return [batch for batch in _batches(soon) if any(state.renew_at <= now for state in batch)]


def _bare(session: Session, now: float) -> list[HoldState]:
    """Return the holds to fill up now; those that turn out to be on enough nodes need no more looks."""
    bare = []
    for state in session.holds:
        if state.lost is None and state.fill_at <= now < state.valid_until:
            tally, state.tally = state.tally, None
            votes = tally and tally.all_votes
            if votes is None or state.mismatched(votes) or is_bare(session, session.nodes - votes.backers.bit_count()):
                bare.append(state)
            else:
                state.fill_at = math.inf
    return bare


def _batches(holds: Iterable[HoldState]) -> list[list[HoldState]]:
    """Return the holds by kind, in lists short enough for one command."""
    groups: dict[Script, list[HoldState]] = {}
    for state in holds:
        groups.setdefault(state.kind.renew, []).append(state)
    return [group[i : i + _BATCH] for group in groups.values() for i in range(0, len(group), _BATCH)]


def _announce(session: Session, now: float) -> Steps[None]:
    """Put the client's record on the nodes; a node out of reach gets it when it is back."""
    command = Command(ANNOUNCE, (session.record_key,), (session.record, milliseconds(_ANNOUNCED_FOR)))
    yield from tell(Tell(command, None, session.all_nodes, now + _ANNOUNCED_FOR))


def farewell(session: Session) -> Steps[None]:
    """Give back everything that any owner of this client holds; report no losses.

    An interruption comes out when all of that is done.
    """
    try:
        yield from _leave(session)
    except BaseException:
        # Nobody does the rest later. Holds given back so far are no longer in the table.
        yield from _leave(session)
        raise


def _leave(session: Session) -> Steps[None]:
    for state in session.holds:
        yield from give_back(session, state)
    if session.record:
        yield from tell(Tell(Command(WITHDRAW, (session.record_key,), ()), None))
