"""The semaphore: it differs from other claims in its limit. `slot_claims` explains how slots are claimed.

At any instant at most P permits are believed: a permit believes that it has a slot only while a quorum of nodes keeps
it there, and all slots are below P. While a limit changes, P is the larger of the two: a grant under the old limit
needs a quorum of nodes that know no newer one, so there is none once a quorum has the new one. After a shrink no grant
makes more permits than the new limit, see `shrinking`.

A limit is (version, permits). Programs start with version 0, and must agree on it. `resize` makes a higher one, which
replaces all lower ones wherever they meet, see `_core.permits`.

*What nodes forget.* Each grant and each renewal of a permit writes the limit in the same step, in one script. So a
node forgets a limit only together with the permits that were granted under it, or under an older one and renewed since.
The guard keeps a node that forgot out of grants until it has both again, or until these permits are no longer believed.
So nothing is granted under a limit older than that of any believed permit. Nodes answer a renewal with a newer
limit, so a holder that missed the latest resize learns of it from its next renewal, and carries it from then on. While
there are no permits, only nodes and clients keep a limit: each ask and each look writes the limit that the client knows
to nodes that lack it. So a resize is two looks: one to learn the time and the latest version, one to write the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from redsync._core.client_records import ClientRecord
from redsync._core.effects import Broadcast, Steps, Tell, broadcast, tell
from redsync._core.holds import HoldState, Owner
from redsync._core.permits import MAX_PERMITS, Limit, PermitState, SlotKeys, next_version, read_slots
from redsync._core.quorum import Tally
from redsync._core.scripts import Arg, ClaimKind, Command, Script
from redsync._core.session import Session
from redsync._core.timing import milliseconds
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.answers import WRONG_TYPE, Refusal, all_answers, no_quorum, type_error
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.holding import give_back, release, tell_rest
from redsync._protocols.shrinking import first_in, read_bits
from redsync._protocols.slot_claims import SlotClaim, SlotQueue
from redsync.exceptions import LeaseLostError, OverReleaseError, QuorumError

__all__ = [
    "SEMAPHORE",
    "Look",
    "PermitHolder",
    "Pool",
    "acquire",
    "available",
    "holders_of",
    "limit_of",
    "release_latest",
    "resize",
    "survey",
]

SEMAPHORE = ClaimKind.of("semaphore", b"zset", label="semaphore")._replace(
    abandon=Script.load("semaphore_abandon"), queue=SlotQueue
)
INSPECT = Script.load("semaphore_inspect")

_PAGE = 1000
"""The number of slots that a page of holders covers: a page must not keep a node or a client busy for long."""

_TIMEOUTS = 4
"""A round for a page waits this many times as long for nodes: they need time to look through many permits."""


class Pool(NamedTuple):
    """A semaphore as one object of this client knows it.

    Attributes:
        name: Its name, for messages.
        keys: Its keys.
        limit: The client's view of its limit.
    """

    name: str | bytes
    keys: SlotKeys
    limit: Limit


def acquire(session: Session, request: AcquireRequest, limit: Limit, now: float) -> Steps[HoldState | None]:
    """Acquire a permit; return its hold, or None if there was no room all the time.

    Raises:
        QuorumError: Too few nodes answered: at once for one try, else at the deadline or outage timeout.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit, or one that is too small.
    """
    return acquire_new(SlotClaim(session, request, limit), now)


def release_latest(session: Session, pool: Pool, count: int, now: float) -> Steps[None]:
    """Release `count` of this client's permits: latest first, those that a `with` will release at the end.

    Raises:
        OverReleaseError: The client does not have that many; none was released.
        LeaseLostError: Some were lost before; the others are released anyway.
    """
    chosen: dict[PermitState, int] = {}  # Each with what remains of it.
    missing = count
    ours = [each for each in session.holds if isinstance(each, PermitState) and each.keys.lock == pool.keys.lock]
    ours.reverse()
    for state in sorted(ours, key=lambda state: state.for_with or bool(state.entered)):
        if share := min(state.count, missing):
            chosen[state] = state.count - share
            missing -= share
        if not missing:
            break
    if missing:
        raise OverReleaseError(
            f"semaphore {pool.name!r}: can't release {count}, as this client has {count - missing} of its permits"
        )
    loss = None
    try:
        # All at once: while the nodes are asked about one, another thread's release must not choose the others too.
        for state, rest in chosen.items():
            state.count = rest
            if not rest and state.valid(now):
                session.holds.remove(state)  # Nothing is left to renew.
        for state, rest in chosen.items():
            if state.count < rest:
                continue  # Another release tells the nodes what remains, as it counts this one, too.
            try:
                yield from release(session, state, now, 0)
            except LeaseLostError as error:
                loss = error
    except BaseException:
        for state, rest in chosen.items():  # Even those released: a repetition changes nothing.
            state.count = min(state.count, rest)
            yield from tell_rest(state) if state.count else give_back(session, state)
        raise
    if loss is not None:
        raise loss


@dataclass(frozen=True, slots=True)
class Look:
    """One node's knowledge of a semaphore.

    Attributes:
        limit: The limit; None if the node knows none.
        taken: The slots that are taken.
        holders: Each permit with its slots, the seconds for which the node keeps it, and the record of its client.
        awaited: The number of slots that the waiters want.
        now_ms: The node's clock, ms.
    """

    limit: Limit | None
    taken: frozenset[int]
    holders: tuple[tuple[str, tuple[int, ...], float, ClientRecord | None], ...]
    awaited: int
    now_ms: int

    @classmethod
    def read(cls, reply: Any) -> Look:
        """Return the content of a reply of `semaphore_inspect`.

        Raises:
            TypeError, ValueError: The script never replies so.
        """
        version, permits, bits, holders, per_us, awaited, now_ms = reply
        limit = None if version == -1 else Limit.read(b"%d %d %d" % (version, permits, per_us))
        taken = frozenset(first_in(read_bits(bits), 0, MAX_PERMITS))
        records: dict[str, ClientRecord] = {}
        found = tuple(cls._read_holder(entry, records) for entry in holders)
        return cls(limit, taken, found, int(awaited), int(now_ms))

    def contradicts(self, limit: Limit, *, stated: bool = True) -> bool:
        """Return whether the node knows a limit of another kind; or, if `stated`, another rate of that version."""
        if self.limit is None:
            return False
        version, permits = self.limit.version, self.limit.permits
        other = stated and limit.per_us > 0 and version == limit.version and permits != limit.permits
        return other or self.limit.per_us != limit.per_us

    @staticmethod
    def _read_holder(
        entry: Any, records: dict[str, ClientRecord]
    ) -> tuple[str, tuple[int, ...], float, ClientRecord | None]:
        encoded, slots, remaining_ms, record = entry
        permit = encoded.decode("utf-8", "replace")
        client = permit.partition(":")[0]
        if record:
            known = ClientRecord.unpack(record)
            if known is not None:
                records[client] = known
        return permit, read_slots(slots) if slots else (), remaining_ms / 1000, records.get(client)


@dataclass(frozen=True, slots=True)
class PermitHolder:
    """One permit of a semaphore, as known to a quorum of nodes.

    Attributes:
        id: The permit's id, as in `Permit.id`.
        owner: The UUID of the client that has it, as in `Client.id`.
        host: The client's machine, None if unknown.
        pid: The client's process, None if unknown.
        slots: The permit's slots, `n` of them.
        remaining: Seconds for which a quorum of nodes keeps it without a renewal.
        program: The program that the process runs, None if unknown.
        since: The instant at which its client was made, in seconds since 1970 by its machine's clock; None if unknown.
    """

    id: str
    owner: str
    host: str | None
    pid: int | None
    slots: tuple[int, ...]
    remaining: float
    program: str | None = None
    since: float | None = None


def survey(
    session: Session, pool: Pool, owner: Owner, *, holders: int = 0, guard: float = 0.0, stated: bool = True
) -> Steps[list[Look]]:
    """Ask all nodes; return the looks of a quorum of them or more.

    If there may be many holders, the client asks page by page, so each page is of another instant. Nodes that lack the
    limit of a resize that the client knows, or that another node knows, learn it.

    Nodes list at most `holders` permits with their holders, all if it is -1. Only nodes that have remembered everything
    for `guard` seconds are heard. Without `stated` the rate that the program states may differ from theirs.

    Raises:
        QuorumError: Too few nodes answered.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: On the nodes it has another rate, or is a semaphore instead of a rate limiter, or the
            reverse.
    """
    paged = not 0 <= holders <= _PAGE
    # The look that precedes all pages also finds out hung nodes, so no page waits for these.
    by_node, _ = yield from _look(session, pool, owner, holders=0 if paged else holders, guard=guard, start=0)
    last = max((slot for look in by_node.values() for slot in look.taken), default=-1) if paged else -1
    for start in range(0, last + 1, _PAGE):
        more, tally = yield from _look(session, pool, owner, holders=-1, guard=guard, start=start)
        both = by_node.keys() & more.keys()
        by_node = {node: replace(by_node[node], holders=by_node[node].holders + more[node].holders) for node in both}
        if len(both) < session.quorum:
            sentence = f"only {len(both)} of {session.nodes} nodes answered for all pages; {session.quorum} must"
            raise QuorumError(pool.name, f"{pool.limit.noun} {pool.name!r}: {sentence}", tally.votes)
    looks = list(by_node.values())
    others = [look.limit for look in looks if look.limit and look.contradicts(pool.limit, stated=stated)]
    if len(others) > len(looks) - session.quorum:
        raise pool.limit.differs(pool.name, others[0])
    known = [look.limit for look in looks if not look.contradicts(pool.limit, stated=False)]
    for limit in known:
        if limit:
            pool.limit.learn(limit.version, limit.permits)
    if any((limit.version if limit else 0) < pool.limit.version for limit in known):
        yield from tell(Tell(_inspect(pool, 0), owner))
    return looks


def _inspect(pool: Pool, holders: int, memory: Arg = 0, start: int = 0) -> Command:
    limit = pool.limit
    return Command(INSPECT, pool.keys.all, (holders, memory, start, limit.version, limit.permits, *limit.window))


def _look(
    session: Session, pool: Pool, owner: Owner, *, holders: int, guard: float, start: int
) -> Steps[tuple[dict[int, Look], Tally]]:
    """Ask all nodes; return each one's look, by index, and the round; `start`: the first slot of the page."""

    def parse(reply: Any) -> Look | Refusal:
        return WRONG_TYPE if reply.__class__ is int and reply == 0 else Look.read(reply)

    memory = session.processes.guard(milliseconds(guard)) if guard else 0
    command = _inspect(pool, holders, memory, start)
    timeout = session.timing.node_timeout * (_TIMEOUTS if holders < 0 else 1)
    tally = yield from broadcast(Broadcast(command, owner, parse, timeout, guard, decide=all_answers))
    if tally.granted < tally.quorum:
        noun = pool.limit.noun
        raise type_error(pool.name, tally, noun) or no_quorum(pool.name, tally, noun)
    return {node: look for node, look in enumerate(tally.answers) if look}, tally


def _permits(looks: Sequence[Look], limit: Limit) -> int:
    """Return the number of permits: that of the newest limit, and of most nodes if programs state it differently."""
    same = [look.limit for look in looks if look.limit and not look.contradicts(limit)]
    known = Counter(each.permits for each in same if each.version == limit.version)
    return known.most_common(1)[0][0] if known else limit.permits


def limit_of(session: Session, pool: Pool, owner: Owner) -> Steps[int]:
    """Return how many permits there are; this client's own limit if no node knows one.

    Raises:
        QuorumError: Too few nodes answered.
        KeyTypeError: The key holds a value of another type.
    """
    looks = yield from survey(session, pool, owner)
    return _permits(looks, pool.limit)


def available(session: Session, pool: Pool, owner: Owner, guard: float = 0.0) -> Steps[int]:
    """Return how many permits are free: all but those whose slot is taken on too many nodes for a quorum to grant it.

    Only nodes that have remembered everything for `guard` seconds are heard.

    Raises:
        QuorumError: Too few nodes answered.
        KeyTypeError: The key holds a value of another type.
    """
    looks = yield from survey(session, pool, owner, guard=guard)
    taken = Counter(slot for look in looks for slot in look.taken)
    blocked = sum(len(looks) - count < session.quorum for count in taken.values())
    return max(0, _permits(looks, pool.limit) - blocked)


def holders_of(session: Session, pool: Pool, owner: Owner) -> Steps[tuple[PermitHolder, ...]]:
    """Return the permits that a quorum of nodes knows; those that last longest come last.

    Raises:
        QuorumError: Too few nodes answered.
        KeyTypeError: The key holds a value of another type.
    """
    looks = yield from survey(session, pool, owner, holders=-1)
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    lasting: dict[str, list[float]] = defaultdict(list)
    clients: dict[str, ClientRecord | None] = {}
    for look in looks:
        for permit, slots, remaining, client in look.holders:
            votes[permit].update(slots)
            lasting[permit].append(remaining)
            clients[permit] = client or clients.get(permit)
    found = []
    for permit, counts in votes.items():
        slots = tuple(sorted(slot for slot, count in counts.items() if count >= session.quorum))
        if slots:
            remaining = sorted(lasting[permit], reverse=True)[session.quorum - 1]
            host, pid, program, since, *_ = clients[permit] or (None,) * 4
            found.append(PermitHolder(permit, permit.partition(":")[0], host, pid, slots, remaining, program, since))
    return tuple(sorted(found, key=lambda holder: (holder.remaining, holder.id)))


def resize(session: Session, pool: Pool, owner: Owner, permits: int) -> Steps[None]:
    """Change the limit on a quorum of nodes; if several clients resize at the same time, one of them wins everywhere.

    Raises:
        QuorumError: Too few nodes answered. If any did, the new limit may still come into force.
        KeyTypeError: The key holds a value of another type.
    """
    looks = yield from survey(session, pool, owner, stated=False)
    # The median of the nodes' clocks: one wrong clock can't shift it far.
    now_ms = sorted(look.now_ms for look in looks)[(len(looks) - 1) // 2]
    pool.limit.learn(next_version(pool.limit.version, permits, now_ms), permits)
    yield from survey(session, pool, owner)
