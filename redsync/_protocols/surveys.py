"""Operators' views: one lock or mutex from outside, and the end that they force on it; names of any kind, node by node.

**Names** (`NameLook` and below) are for people: no quorum decides anything there; callers ask and show each node by
itself. So that half has no protocols, but the commands for such questions, commands that remove one claim, and readers
for the replies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redsync._core.client_records import ELLIPSIS, Claim, ClientRecord, contender_of, short, who
from redsync._core.effects import Broadcast, Steps, broadcast
from redsync._core.holds import Owner
from redsync._core.keys import MAX_NAME, LockKeys, encode_name, is_client_key, voter_tag
from redsync._core.permits import SlotKeys
from redsync._core.quorum import ReplyParser, Tally, Vote
from redsync._core.scripts import ClaimKind, Command, Script
from redsync._core.session import Session
from redsync._core.text import printable
from redsync._core.timing import whole
from redsync._protocols.answers import WRONG_TYPE, Refusal, all_answers, has_answers, no_quorum, type_error
from redsync._protocols.holding import had
from redsync.exceptions import KeyTypeError, QuorumError, RedsyncError

__all__ = [
    "LatchLook",
    "NameLook",
    "Waiter",
    "break_commands",
    "break_hold",
    "claims_meant",
    "find_names",
    "force_release",
    "is_held",
    "is_likely",
    "key_patterns",
    "look_command",
    "name_of_key",
    "named",
    "survey",
    "survey_all",
]

INSPECT: Final = Script.load("name_inspect")
SCAN: Final = Script.load("names_scan")

_MOST: Final = 10_000
"""The most claims that a node lists to be released by force."""

_MOST_NAMED: Final = 20
"""The most owners that an error names."""

_MOST_HOLDERS: Final = 64

_MOST_WAITERS: Final = 100

_RELEASES: Final = {
    "lock": "lock_release",
    "fenced lock": "lock_release",
    "mutex": "lock_release",
    "read-write lock": "read_write_lock_release",
}
"""The kinds of locks, and the scripts that release them."""

_KEPT: Final = {b"hash": ("lock", "fenced lock"), b"string": ("mutex",), b"zset": ("read-write lock",)}
"""The kinds of locks by the type of value that nodes keep for them."""

_MODES: Final = {b"": None, b"r:": "read", b"w:": "write"}

_BY_THREAD: Final = (b"lock", b"fenced lock", b"read-write lock")
"""The kinds whose owner is a thread or task, not an object."""

_FOREIGN: Final = ("none", "hash", "string", "list", "set", "zset", "stream")
_FORMS: Final = {"lock": rb"[0-9a-f-]{36}:", "mutex": rb".{16,64}$"}  # as all libraries that we know have them

_SIDE_KEY: Final = re.compile(rb"redsync_(?:queue|latch):(?:\{(?P<braced>.*)\}|:(?P<tagged>.*))", re.DOTALL)
_NO_NAME: Final = re.compile(rb"redsync_(?:birth\Z|(?:queue|places|token|latch|latch_\w+|slots|taken|limit):[{:])")


@dataclass(frozen=True, slots=True)
class Waiter:
    """A waiter, as one node knows it.

    Attributes:
        owner: The waiting owner.
        client: The record of its client; None if unknown.
    """

    owner: str
    client: ClientRecord | None


@dataclass(frozen=True, slots=True)
class LatchLook:
    """One node's knowledge of a latch.

    Attributes:
        size: The count to which the latch was set.
        left: The remaining count, as far as this node knows.
        remaining: Seconds until the node forgets the latch.
        waiting: The number of waiters for the latch.
    """

    size: int
    left: int
    remaining: float | None
    waiting: int


@dataclass(frozen=True, slots=True)
class NameLook:
    """All that one node keeps under a name.

    Attributes:
        kind: "lock", "fenced lock", "mutex", "read-write lock", "semaphore", "rate limiter", "none", or the type of a
            foreign value.
        claims: The holders' claims, at most as many as requested.
        held: The number of claims.
        waiters: The waiters, longest wait first, at most as many as requested.
        waiting: The number of waiters.
        permits: The number of permits; 0 for kinds without permits.
        window: A rate limiter's window in seconds; 0.0 for other kinds.
        latch: The latch of that name; None if there is none.
    """

    kind: str
    claims: tuple[Claim, ...]
    held: int
    waiters: tuple[Waiter, ...]
    waiting: int
    permits: int
    window: float
    latch: LatchLook | None

    @classmethod
    def read(cls, reply: Any) -> NameLook:
        """Return the content of a reply of `name_inspect`.

        Raises:
            ValueError: The script never replies so.
        """
        try:
            kind, claims, held, waiters, waiting, permits, window_us, latch = reply
            numbers = held, waiting, permits, window_us, *latch
            if {type(number) for number in numbers} != {int} or len(latch) not in (0, 4):
                raise ValueError("not a number")
            return cls(
                kind.decode(),
                tuple(Claim.read(claim, by_thread=kind in _BY_THREAD) for claim in claims),
                held,
                tuple(
                    Waiter(owner.decode("utf-8", "backslashreplace"), ClientRecord.unpack(record) if record else None)
                    for owner, record in waiters
                ),
                waiting,
                permits,
                window_us / 1e6,
                LatchLook(latch[0], latch[1], latch[2] / 1000 if latch[2] >= 0 else None, latch[3]) if latch else None,
            )
        except (TypeError, ValueError, KeyError, AttributeError):
            raise ValueError(f"{reply!r:.80}") from None

    @property
    def all_waiting(self) -> int:
        """The number of waiters, including those for the latch."""
        return self.waiting + (self.latch.waiting if self.latch else 0)

    @property
    def is_empty(self) -> bool:
        """True if the node keeps nothing under that name."""
        return self.kind == "none" and not self.waiting and self.latch is None


def _look(
    session: Session, keys: LockKeys, owner: Owner, parse: ReplyParser, *, most: int, waiters: int = 0
) -> Broadcast:
    """Return the effect that asks all nodes about a lock, and hears each of them."""
    command, timeout = Command(INSPECT, keys.everything, (most, waiters, 1)), session.timing.node_timeout
    return Broadcast(command, owner, parse, timeout, decide=all_answers)


def survey(session: Session, keys: LockKeys, owner: Owner) -> Steps[Tally]:
    """Ask all nodes about a name, each for a `NameLook`."""
    return broadcast(_look(session, keys, owner, NameLook.read, most=_MOST_HOLDERS, waiters=_MOST_WAITERS))


def named(session: Session, keys: LockKeys, owner: Owner, error: RedsyncError | None) -> Steps[RedsyncError | None]:
    """Return the error; if it says that a key holds a value of another type, with the kind of that value."""
    if not isinstance(error, KeyTypeError):
        return error
    tally = yield from survey(session, keys, owner)
    kinds = Counter(look.kind for look in tally.grants if look.kind != "none")
    if not kinds:
        return error
    kind = kinds.most_common(1)[0][0]
    value = f"a {kind}" if " " in kind or kind in _RELEASES or kind == "semaphore" else f"a value of type {kind}"
    return KeyTypeError(error.name, error.sentence.replace("a value of another type", value), error.votes)


def is_held(session: Session, kind: ClaimKind, name: str | bytes, keys: LockKeys, owner: Owner) -> Steps[bool]:
    """Return whether one owner holds the lock on a quorum of nodes; with modes, whether a quorum has any in this mode.

    Raises:
        QuorumError: Too few nodes answered to tell.
        KeyTypeError: The key holds a value of another type.
    """

    def parse(reply: Any) -> set[bytes] | Refusal:
        found = NameLook.read(reply)
        if found.kind not in (*_KEPT[kind.value_type], "none"):
            return WRONG_TYPE
        claims = [claim for claim in found.claims if claim.mode == _MODES[kind.mode]]
        # All readers count as one.
        return {b"readers" if claim.mode else contender_of(claim.raw) for claim in claims}

    def most(tally: Tally) -> int:
        return max(Counter(owner for owners in tally.grants for owner in owners).values(), default=0)

    # The writer comes first, then a reader.
    tally = yield from broadcast(_look(session, keys, owner, parse, most=2))
    if tally.without_quorum:
        raise no_quorum(name, tally, kind.label)
    if tally.refusals.count(WRONG_TYPE) > len(tally.nodes) - tally.quorum:
        raise type_error(name, tally, kind.label) or no_quorum(name, tally, kind.label)
    # An owner with a minority may have the silent nodes too. Then no other owner can get it, so it counts as held.
    silent = len(tally.nodes) - tally.granted - tally.refused
    return most(tally) + silent >= tally.quorum


def force_release(session: Session, kind: ClaimKind, name: str | bytes, keys: LockKeys, owner: Owner) -> Steps[bool]:
    """Force the release of the current claims in the kind's mode, 10,000 at most; return whether a node had one.

    The commands name the claims that were seen, so a command that comes late removes no claim of a later holder.

    Raises:
        QuorumError: Too few nodes answered; those that did have freed the lock.
        KeyTypeError: The key holds a value of another type.
    """

    def parse(reply: Any) -> NameLook | Refusal:
        found = NameLook.read(reply)
        return found if found.kind in (*_KEPT[kind.value_type], "none") else WRONG_TYPE

    tally = yield from broadcast(_look(session, keys, owner, parse, most=_MOST))
    if tally.without_quorum:
        raise no_quorum(name, tally, kind.label)
    if tally.refusals.count(WRONG_TYPE) > len(tally.nodes) - tally.quorum:
        raise type_error(name, tally, kind.label) or no_quorum(name, tally, kind.label)
    seen = [claim.raw for look in tally.grants for claim in look.claims if claim.mode == _MODES[kind.mode]]
    claims = dict.fromkeys(kind.mode + claim for claim in seen)
    commands = [Command(kind.release, keys.all, (claim, 0, keys.channel)) for claim in claims]
    return (yield from _release(session, name, owner, commands))


def _release(session: Session, name: str | bytes, owner: Owner, commands: Sequence[Command]) -> Steps[bool]:
    """Release claims one by one, as if their owners did; return whether a node told of one.

    Raises:
        QuorumError: Too few nodes answered; those that did have released the claims so far.
    """
    for command in commands:
        tally = yield from broadcast(Broadcast(command, owner, had, session.timing.node_timeout, decide=has_answers))
        if not tally.won:
            raise no_quorum(name, tally)
    # As the nodes said before: the one that had it may reply last.
    return bool(commands)


def find_names(session: Session, prefix: bytes, pattern: str | bytes, owner: Owner) -> Steps[list[bytes]]:
    """Return the names on any node that match, sorted: those that were there all the time, and some that were not.

    Raises:
        QuorumError: Too few nodes answered.
    """
    raw = encode_name(pattern)
    key, names, failed, votes = LockKeys.of(prefix, raw).lock, set[bytes](), set[int](), tuple[Vote, ...]()

    def scan(keys: bytes, cursor: bytes, process: bytes) -> Steps[Tally]:
        command = Command(SCAN, (key,), (keys, cursor, process))
        return broadcast(Broadcast(command, owner, _read_scan, session.timing.node_timeout, decide=all_answers))

    for each in key_patterns(prefix, raw):
        first = yield from scan(each, b"0", b"")
        for node in range(session.nodes):
            tally = first
            while (answer := tally.answers[node]) is not None:
                process, cursor, found = answer
                names.update(name for key in found if (name := name_of_key(prefix, key)) is not None)
                if cursor == b"0":
                    break
                tally = yield from scan(each, cursor, process)
            else:
                failed.add(node)
                votes = tally.votes
    if session.nodes - len(failed) < session.quorum:
        raise QuorumError(pattern, f"too few nodes answered to list the names like {pattern!r}", votes)
    return sorted(names)


def _read_scan(reply: Any) -> tuple[bytes, bytes, list[bytes]]:
    process, cursor, keys = reply
    if {bytes} != {type(word) for word in (process, cursor, *keys)}:
        raise ValueError("the reply to a scan is the process, a cursor and keys")
    return process, cursor, keys


def survey_all(
    session: Session, prefix: bytes, pattern: str | bytes, limit: int, owner: Owner
) -> Steps[dict[str | bytes, Tally]]:
    """Survey the names that match, the first `limit` as sorted, but for those that have just gone; names are text.

    Without a prefix any key of the database may be a name: then leave out what is probably no synchronizer's.

    Raises:
        QuorumError: Too few nodes answered.
    """
    if whole(limit) is None:
        raise ValueError(f"limit must be a positive number of names, not {limit!r}")
    tallies: dict[str | bytes, Tally] = {}
    for name in (yield from find_names(session, prefix, pattern, owner))[:limit]:
        keys = LockKeys.of(prefix, name)
        tally = yield from survey(session, keys, owner)
        looks = [look for look in tally.grants if not look.is_empty]
        if tally.without_quorum or (any(map(is_likely, looks)) if not prefix else looks):
            tallies[_as_text(name)] = tally
    return tallies


def _as_text(name: bytes) -> str | bytes:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def is_likely(look: NameLook) -> bool:
    """Return whether a value is probably a synchronizer's; without a prefix, any key of the database may be a name."""
    is_ours = all(re.match(_FORMS.get(look.kind, b""), claim.raw, re.DOTALL) for claim in look.claims)
    return (is_ours and look.kind not in _FOREIGN) or look.waiting > 0 or look.latch is not None


def claims_meant(word: str, looks: Iterable[NameLook]) -> list[tuple[str, Claim]]:
    """Return the claims, and their kinds, of the owner that a user means by what people see of it.

    That is its id, in full or shortened, or its process; of a read-write lock with the mode, if only that is meant.

    Raises:
        ValueError: It may be one of several owners.
    """
    claims, word = [(look.kind, claim) for look in looks for claim in look.claims], printable(word)
    begin = word.removesuffix(ELLIPSIS)
    # The id of an owner that holds nothing is not the beginning of another's: `uuid:1` is not `uuid:13`.
    is_beginning = len(begin) >= 8 and (":" not in word or word != begin)
    ways: tuple[Callable[[Claim, str], bool], ...] = (
        lambda claim, _: word == printable(claim.owner),
        lambda claim, process: word in (printable(short(claim.owner)), process, f"{process} ({claim.mode})"),
        lambda claim, _: is_beginning and printable(claim.owner).startswith(begin),
    )
    for way in ways:
        meant = [(kind, claim) for kind, claim in claims if way(claim, printable(who(claim.owner, claim.client)))]
        owners = sorted({claim.owner for _, claim in meant})
        if len(owners) > 1:
            some = ", ".join(owners[:_MOST_NAMED])
            raise ValueError(f"{word} may be one of {len(owners)} owners, give one in full: {some}")
        if owners:
            return meant
    return []


def break_hold(session: Session, prefix: bytes, name: str | bytes, word: str, owner: Owner) -> Steps[bool]:
    """Force the release of the hold of one owner, see `claims_meant`; return whether a node had it.

    Raises:
        QuorumError: Too few nodes answered; those that did have freed it.
        ValueError: It may be one of several owners.
    """
    if not isinstance(word, str):
        raise TypeError(f"an owner is str, as Holder.owner has it, not {type(word).__name__}")
    look, timeout = look_command(prefix, encode_name(name), _MOST), session.timing.node_timeout
    tally = yield from broadcast(Broadcast(look, owner, NameLook.read, timeout, decide=all_answers))
    if tally.without_quorum:
        raise no_quorum(name, tally)
    commands = break_commands(prefix, encode_name(name), claims_meant(word, tally.grants))
    return (yield from _release(session, name, owner, commands))


def look_command(prefix: bytes, name: bytes, most: int = 100, *, listing: bool = False) -> Command:
    """Return the command that asks what a node keeps under a name; `NameLook.read` reads the reply.

    The node lists at most `most` holders, and as many waiters. With `listing` it reports a string that never expires as
    a string, not as a mutex.
    """
    return Command(INSPECT, LockKeys.of(prefix, name).everything, (most, most) if listing else (most, most, 2))


def break_commands(prefix: bytes, name: bytes, held: Iterable[tuple[str, Claim]]) -> list[Command]:
    """Return the commands that remove claims of these kinds, as if their owners had released them.

    A node replies 1 to a command that removed a claim. Other claims stay, and the next waiter gets its turn.
    """
    keys, commands = SlotKeys.of(prefix, name), dict[Command, None]()
    for kind, claim in held:
        if kind in ("semaphore", "rate limiter"):
            commands[Command(Script.load("semaphore_release"), keys.all, (claim.raw, 0, b""))] = None
        elif kind in _RELEASES:
            mode = next(mode for mode, called in _MODES.items() if called == claim.mode)
            taken, args = (keys.lock, keys.queue, keys.places), (mode + claim.raw, 0, keys.channel)
            commands[Command(Script.load(_RELEASES[kind]), taken, args)] = None
    return list(commands)


def key_patterns(prefix: bytes, pattern: bytes) -> list[bytes]:
    """Return patterns of all keys that show a name which matches `pattern`; `name_of_key` reads the keys."""
    full = re.sub(rb"([\\*?\[\]^])", rb"\\\1", prefix) + pattern
    return [full, b"redsync_*:{%s}" % full, b"redsync_*::%s" % full]


def name_of_key(prefix: bytes, key: bytes) -> bytes | None:
    """Return the name that a key shows; None if it does not belong to a synchronizer, or accompanies another key."""
    if is_client_key(key):
        return None
    side = _SIDE_KEY.fullmatch(key)
    full = (side["braced"] or side["tagged"] or b"") if side else key
    name = full.removeprefix(prefix)
    if not full.startswith(prefix) or _NO_NAME.match(full) or voter_tag(full):
        return None
    return name if 1 <= len(name) <= MAX_NAME else None
