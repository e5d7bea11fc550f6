"""The commands for sorted sets: one small function each."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from redsync.testing.simulator.commands import SYNTAX_ERROR, Command
from redsync.testing.simulator.values import CommandError, SortedSet, format_score, parse_integer, parse_score

if TYPE_CHECKING:
    from redsync.testing.simulator.store import Store

__all__ = ["COMMANDS"]

_OPTIONS = frozenset({b"nx", b"xx", b"gt", b"lt"})


def zadd(store: Store, key: bytes, *words: bytes) -> int:
    options = set()
    while words and words[0].lower() in _OPTIONS:
        options.add(words[0].lower())
        words = words[1:]
    if not words or len(words) % 2:
        raise CommandError(SYNTAX_ERROR)
    if {b"nx", b"xx"} <= options:
        raise CommandError("ERR XX and NX options at the same time are not compatible")
    if len(options - {b"xx"}) > 1:
        raise CommandError("ERR GT, LT, and/or NX options at the same time are not compatible")
    scores = [parse_score(word) for word in words[::2]]  # all of them before any change
    members = store.find_sorted_set(key)
    if members is None:
        if b"xx" in options:
            return 0
        store.put(key, members := SortedSet())
    before = len(members)
    for member, score in zip(words[1::2], scores, strict=True):
        if _is_allowed(options, members.get(member), score):
            members[member] = score
    return len(members) - before


def _is_allowed(options: set[bytes], old: float | None, new: float) -> bool:
    if old is None:
        return b"xx" not in options
    if b"gt" in options:
        return new > old
    if b"lt" in options:
        return new < old
    return b"nx" not in options


def zrem(store: Store, key: bytes, *names: bytes) -> int:
    members = store.find_sorted_set(key)
    if members is None:
        return 0
    removed = 0
    for name in names:
        if members.pop(name, None) is not None:
            removed += 1
    if not members:
        store.remove(key)
    return removed


def zcard(store: Store, key: bytes) -> int:
    return len(store.find_sorted_set(key) or ())


def zscore(store: Store, key: bytes, member: bytes) -> bytes | None:
    score = (store.find_sorted_set(key) or SortedSet()).get(member)
    return None if score is None else format_score(score)


def zrank(store: Store, key: bytes, member: bytes) -> int | None:
    members = store.find_sorted_set(key)
    if members is None or member not in members:
        return None
    return [name for name, _ in members.ranked()].index(member)


def zcount(store: Store, key: bytes, lowest: bytes, highest: bytes) -> int:
    return len(_between(store, key, lowest, highest))


def zremrangebyscore(store: Store, key: bytes, lowest: bytes, highest: bytes) -> int:
    names = [name for name, _ in _between(store, key, lowest, highest)]
    return zrem(store, key, *names)


def zrange(store: Store, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[bytes]:
    return _range(store, key, (start, stop), options, {b"withscores", b"limit", b"rev", b"byscore"})


def zrevrange(store: Store, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[bytes]:
    return _range(store, key, (start, stop), options, {b"withscores"}, implied={b"rev"})


def zrangebyscore(store: Store, key: bytes, lowest: bytes, highest: bytes, *options: bytes) -> list[bytes]:
    return _range(store, key, (lowest, highest), options, {b"withscores", b"limit"}, implied={b"byscore"})


def _range(
    store: Store,
    key: bytes,
    ends: tuple[bytes, bytes],
    options: tuple[bytes, ...],
    allowed: Set[bytes],
    *,
    implied: Set[bytes] = frozenset(),
) -> list[bytes]:
    chosen = set(implied)
    offset, count = 0, -1
    while options:
        option = options[0].lower()
        if option not in allowed or (option == b"limit" and len(options) < 3):
            raise CommandError(SYNTAX_ERROR)
        if option == b"limit":
            offset, count = parse_integer(options[1]), parse_integer(options[2])
        chosen.add(option)
        options = options[3:] if option == b"limit" else options[1:]
    if b"byscore" in chosen:
        lowest, highest = reversed(ends) if b"rev" in chosen else ends
        found = _between(store, key, lowest, highest)
        if b"rev" in chosen:
            found.reverse()
        found = found[offset:] if offset >= 0 else []
        found = found[:count] if count >= 0 else found
    elif count != -1:  # a real node does not see a LIMIT without an end either
        raise CommandError(f"{SYNTAX_ERROR}, LIMIT is only supported in combination with either BYSCORE or BYLEX")
    else:
        first, last = parse_integer(ends[0]), parse_integer(ends[1])
        members = store.find_sorted_set(key)
        found = [] if members is None else members.ranked()
        if b"rev" in chosen:
            found.reverse()
        first = first if first >= 0 else max(0, len(found) + first)
        last = last if last >= 0 else len(found) + last
        found = found[first : last + 1] if last >= 0 else []
    if b"withscores" in chosen:
        return [word for member, score in found for word in (member, format_score(score))]
    return [member for member, _ in found]


def _between(store: Store, key: bytes, lowest: bytes, highest: bytes) -> list[tuple[bytes, float]]:
    """Return the members whose scores lie between two ends; an end that begins with `(` is excluded."""
    low, high = (parse_score(end.removeprefix(b"("), "ERR min or max is not a float") for end in (lowest, highest))
    above, below = lowest.startswith(b"("), highest.startswith(b"(")
    members = store.find_sorted_set(key)
    return [
        (member, score)
        for member, score in (() if members is None else members.ranked())
        if (low < score or (low == score and not above)) and (score < high or (score == high and not below))
    ]


COMMANDS: dict[bytes, Command] = {
    function.__name__.encode(): function
    for function in (
        *(zadd, zrem, zcard, zscore, zrank, zcount),
        *(zrange, zrevrange, zrangebyscore, zremrangebyscore),
    )
}
