"""The commands for sorted sets: one small function each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redsync.testing.simulator.commands import SYNTAX_ERROR, Command
from redsync.testing.simulator.values import CommandError, SortedSet, format_score, parse_integer, parse_score

if TYPE_CHECKING:
    from redsync.testing.simulator.store import Store

__all__ = ["COMMANDS"]


def zadd(store: Store, key: bytes, *words: bytes) -> int:
    option = words[0].lower() if words and words[0].lower() in {b"nx", b"xx"} else b""
    words = words[1:] if option else words
    if not words or len(words) % 2:
        raise CommandError(SYNTAX_ERROR)
    scores = [parse_score(word) for word in words[::2]]  # all of them before any change
    members = store.find_value(key, SortedSet)
    if members is None:
        if option == b"xx":
            return 0
        store.put(key, members := SortedSet())
    before = len(members)
    for member, score in zip(words[1::2], scores, strict=True):
        if option != (b"nx" if member in members else b"xx"):
            members[member] = score
    return len(members) - before


def zrem(store: Store, key: bytes, *names: bytes) -> int:
    members = store.find_value(key, SortedSet)
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
    return len(store.find_value(key, SortedSet) or ())


def zscore(store: Store, key: bytes, member: bytes) -> bytes | None:
    score = (store.find_value(key, SortedSet) or SortedSet()).get(member)
    return None if score is None else format_score(score)


def zrank(store: Store, key: bytes, member: bytes) -> int | None:
    members = store.find_value(key, SortedSet)
    if members is None or member not in members:
        return None
    return [name for name, _ in members.ranked()].index(member)


def zcount(store: Store, key: bytes, lowest: bytes, highest: bytes) -> int:
    return len(_between(store, key, lowest, highest))


def zremrangebyscore(store: Store, key: bytes, lowest: bytes, highest: bytes) -> int:
    names = [name for name, _ in _between(store, key, lowest, highest)]
    return zrem(store, key, *names)


def zrange(store: Store, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[bytes]:
    return _range(store, key, start, stop, options)


def zrevrange(store: Store, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[bytes]:
    return _range(store, key, start, stop, options, backwards=True)


def _range(
    store: Store, key: bytes, start: bytes, stop: bytes, options: tuple[bytes, ...], *, backwards: bool = False
) -> list[bytes]:
    if options and (len(options) > 1 or options[0].lower() != b"withscores"):
        raise CommandError(SYNTAX_ERROR)
    first, last = parse_integer(start), parse_integer(stop)
    found = _ranked(store, key)
    if backwards:
        found.reverse()
    first = first if first >= 0 else max(0, len(found) + first)
    last = last if last >= 0 else len(found) + last
    return _listed(found[first : last + 1] if last >= 0 else [], with_scores=bool(options))


def zrangebyscore(store: Store, key: bytes, lowest: bytes, highest: bytes, *options: bytes) -> list[bytes]:
    offset, count, with_scores = 0, -1, False
    while options:
        option = options[0].lower()
        if option == b"limit" and len(options) >= 3:
            offset, count, options = parse_integer(options[1]), parse_integer(options[2]), options[3:]
        elif option == b"withscores":
            with_scores, options = True, options[1:]
        else:
            raise CommandError(SYNTAX_ERROR)
    found = _between(store, key, lowest, highest)
    found = found[offset:] if offset >= 0 else []
    return _listed(found[:count] if count >= 0 else found, with_scores=with_scores)


def _listed(found: list[tuple[bytes, float]], *, with_scores: bool) -> list[bytes]:
    if with_scores:
        return [word for member, score in found for word in (member, format_score(score))]
    return [member for member, _ in found]


def _ranked(store: Store, key: bytes) -> list[tuple[bytes, float]]:
    return (store.find_value(key, SortedSet) or SortedSet()).ranked()


def _between(store: Store, key: bytes, lowest: bytes, highest: bytes) -> list[tuple[bytes, float]]:
    """Return the members whose scores lie between two ends; an end that begins with `(` is excluded."""
    low, high = (parse_score(end.removeprefix(b"("), "ERR min or max is not a float") for end in (lowest, highest))
    above, below = lowest.startswith(b"("), highest.startswith(b"(")
    return [
        (member, score)
        for member, score in _ranked(store, key)
        if (low < score or (low == score and not above)) and (score < high or (score == high and not below))
    ]


COMMANDS: dict[bytes, Command] = {
    function.__name__.encode(): function
    for function in (
        *(zadd, zrem, zcard, zscore, zrank, zcount),
        *(zrange, zrevrange, zrangebyscore, zremrangebyscore),
    )
}
