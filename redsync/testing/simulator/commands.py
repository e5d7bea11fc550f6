"""The commands for keys, strings, hashes and sorted sets, for the server, time and messages: one small function each.

A function has the command's name, with an underscore added where Python reserves the name. The module has only the
commands and options that the scripts and clients need, and a few that other programs often use.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

from redsync.exceptions import RedsyncError
from redsync.testing.simulator.store import (
    NEVER,
    CommandError,
    Hash,
    Reply,
    SortedSet,
    Status,
    format_score,
    parse_integer,
    parse_score,
)

if TYPE_CHECKING:
    from redsync.testing.simulator.store import Store

__all__ = ["COMMANDS", "Command", "UnknownCommandError", "find_command"]

# Commands differ in the number of words after the name.
Command: TypeAlias = Callable[..., Reply]

_SYNTAX_ERROR = "ERR syntax error"

_OK = Status(b"OK")
_TYPES = {bytes: Status(b"string"), Hash: Status(b"hash"), SortedSet: Status(b"zset")}
_NONE = Status(b"none")


# Keys.


def scan(store: Store, _cursor: bytes, *options: bytes) -> list[bytes | list[bytes]]:
    """Return all keys at once; a backslash in the pattern stands for itself."""
    named = dict(zip((name.lower() for name in options[::2]), options[1::2], strict=False))
    if len(options) % 2 or named.keys() - {b"match", b"count"}:
        raise CommandError(_SYNTAX_ERROR)
    pattern = named.get(b"match", b"*")
    return [b"0", [key for key in store.copy() if store.find(key) and fnmatchcase(key, pattern)]]


def flushall(store: Store, *_options: bytes) -> Status:
    store.flush()
    return _OK


def flushdb(store: Store, *options: bytes) -> Status:
    return flushall(store, *options)


def exists(store: Store, *keys: bytes) -> int:
    found = 0
    for key in keys:
        if store.find(key) is not None:
            found += 1
    return found


def del_(store: Store, *keys: bytes) -> int:
    return sum(store.remove(key) for key in keys)


def type_(store: Store, key: bytes) -> Status:
    entry = store.find(key)
    return _NONE if entry is None else _TYPES[type(entry.value)]


def pttl(store: Store, key: bytes) -> int:
    entry = store.find(key)
    if entry is None:
        return -2
    return -1 if entry.expires == NEVER else entry.expires - store.now_ms


def ttl(store: Store, key: bytes) -> int:
    left = pttl(store, key)
    return left if left < 0 else (left + 500) // 1000


def pexpire(store: Store, key: bytes, duration: bytes) -> int:
    return _expire_at(store, key, _instant(store, duration, "pexpire"))


def expire(store: Store, key: bytes, duration: bytes) -> int:
    return _expire_at(store, key, _instant(store, duration, "expire", 1000))


def pexpireat(store: Store, key: bytes, instant: bytes) -> int:
    return _expire_at(store, key, parse_integer(instant))


def _instant(store: Store, word: bytes, command: str, unit_ms: int = 1) -> int:
    """Return the instant, in ms, at which a duration that begins now ends."""
    duration = parse_integer(word) * unit_ms
    if not -NEVER <= duration < NEVER - store.now_ms:
        raise CommandError(f"ERR invalid expire time in '{command}' command")
    return store.now_ms + duration


def _expire_at(store: Store, key: bytes, expires: int) -> int:
    entry = store.find(key)
    if entry is None:
        return 0
    if expires <= store.now_ms:
        store.remove(key)
    else:
        entry.expires = expires
    return 1


# Strings.


def get(store: Store, key: bytes) -> bytes | None:
    return store.find_value(key, bytes)


def set_(store: Store, key: bytes, value: bytes, *options: bytes) -> Status | None:
    condition, duration, unit_ms = b"", b"", 0
    words = iter(options)
    for word in words:
        option = word.lower()
        if option in {b"nx", b"xx"} and condition in {b"", option}:
            condition = option
        elif option in {b"px", b"ex"} and not unit_ms and (following := next(words, None)) is not None:
            duration, unit_ms = following, 1000 if option == b"ex" else 1
        else:
            raise CommandError(_SYNTAX_ERROR)
    expires = _instant(store, duration, "set", unit_ms) if unit_ms else NEVER
    if expires <= store.now_ms:
        raise CommandError("ERR invalid expire time in 'set' command")
    if condition and (store.find(key) is None) == (condition == b"xx"):
        return None
    store.put(key, value, expires)
    return _OK


def setnx(store: Store, key: bytes, value: bytes) -> int:
    if store.find(key) is not None:
        return 0
    store.put(key, value)
    return 1


def incr(store: Store, key: bytes) -> int:
    return incrby(store, key, b"1")


def incrby(store: Store, key: bytes, increment: bytes) -> int:
    step = parse_integer(increment)
    value = store.find_value(key, bytes)
    number = _sum(0 if value is None else parse_integer(value), step)
    entry = store.find(key)
    store.put(key, b"%d" % number, NEVER if entry is None else entry.expires)
    return number


def _sum(number: int, step: int) -> int:
    if not -NEVER <= number + step < NEVER:
        raise CommandError("ERR increment or decrement would overflow")
    return number + step


def getbit(store: Store, key: bytes, offset: bytes) -> int:
    at = _bit_offset(offset)
    value = store.find_value(key, bytes) or b""
    return value[at // 8] >> (7 - at % 8) & 1 if at // 8 < len(value) else 0


def setbit(store: Store, key: bytes, offset: bytes, bit: bytes) -> int:
    at = _bit_offset(offset)
    if bit not in {b"0", b"1"}:
        raise CommandError("ERR bit is not an integer or out of range")
    before = getbit(store, key, offset)
    entry = store.find(key)
    value = bytearray(b"" if entry is None else store.find_value(key, bytes) or b"")
    value.extend(bytes(max(0, at // 8 + 1 - len(value))))
    mask = 1 << (7 - at % 8)
    value[at // 8] = value[at // 8] | mask if bit == b"1" else value[at // 8] & ~mask
    store.put(key, bytes(value), NEVER if entry is None else entry.expires)
    return before


def _bit_offset(word: bytes) -> int:
    problem = "ERR bit offset is not an integer or out of range"
    offset = parse_integer(word, problem)
    if not 0 <= offset < 1 << 32:
        raise CommandError(problem)
    return offset


def bitcount(store: Store, key: bytes) -> int:
    return int.from_bytes(store.find_value(key, bytes) or b"").bit_count()


# Hashes.


def hget(store: Store, key: bytes, field: bytes) -> bytes | None:
    fields = store.find_value(key, Hash)
    return None if fields is None else fields.get(field)


def hset(store: Store, key: bytes, *words: bytes) -> int:
    if not words or len(words) % 2:
        raise CommandError("ERR wrong number of arguments for 'hset' command")
    fields = store.find_value(key, Hash)
    if fields is None:
        store.put(key, fields := Hash())
    before = len(fields)
    fields.update(zip(words[::2], words[1::2], strict=True))
    return len(fields) - before


def hdel(store: Store, key: bytes, *names: bytes) -> int:
    fields = store.find_value(key, Hash)
    if fields is None:
        return 0
    removed = 0
    for name in names:
        if fields.pop(name, None) is not None:
            removed += 1
    if not fields:
        store.remove(key)
    return removed


def hmget(store: Store, key: bytes, *names: bytes) -> list[bytes | None]:
    fields = store.find_value(key, Hash) or Hash()
    return [fields.get(name) for name in names]


def hexists(store: Store, key: bytes, field: bytes) -> int:
    fields = store.find_value(key, Hash)
    return int(fields is not None and field in fields)


def hkeys(store: Store, key: bytes) -> list[bytes]:
    return list(store.find_value(key, Hash) or ())


def hgetall(store: Store, key: bytes) -> list[bytes]:
    return [word for pair in (store.find_value(key, Hash) or Hash()).items() for word in pair]


def hlen(store: Store, key: bytes) -> int:
    return len(store.find_value(key, Hash) or ())


def hincrby(store: Store, key: bytes, field: bytes, increment: bytes) -> int:
    step = parse_integer(increment)
    value = hget(store, key, field)
    number = _sum(0 if value is None else parse_integer(value, "ERR hash value is not an integer"), step)
    hset(store, key, field, b"%d" % number)
    return number


# Sorted sets.


def zadd(store: Store, key: bytes, *words: bytes) -> int:
    option = words[0].lower() if words and words[0].lower() in {b"nx", b"xx"} else b""
    words = words[1:] if option else words
    if not words or len(words) % 2:
        raise CommandError(_SYNTAX_ERROR)
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
    if options and (len(options) > 1 or options[0].lower() != b"withscores"):
        raise CommandError(_SYNTAX_ERROR)
    first, last = parse_integer(start), parse_integer(stop)
    found = _ranked(store, key)
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
            raise CommandError(_SYNTAX_ERROR)
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


# The server, time and messages.


def info(store: Store, _section: bytes) -> bytes:
    return b"# Server\r\nrun_id:%b\r\n" % store.run_id


def time(store: Store) -> list[bytes]:
    seconds, micros = divmod(store.now_us, 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


def publish(store: Store, channel: bytes, message: bytes) -> int:
    return store.publish(channel, message)


def spublish(store: Store, channel: bytes, message: bytes) -> int:
    return store.publish(channel, message)


COMMANDS: dict[bytes, Command] = {
    function.__name__.rstrip("_").encode(): function
    for function in (
        *(scan, flushall, flushdb, exists, del_, type_, pttl, ttl, pexpire, expire, pexpireat),
        *(get, set_, setnx, incr, incrby, getbit, setbit, bitcount),
        *(hget, hset, hmget, hdel, hexists, hkeys, hgetall, hlen, hincrby),
        *(zadd, zrem, zcard, zscore, zrank, zcount),
        *(zrange, zrangebyscore, zremrangebyscore),
        *(info, time, publish, spublish),
    )
}


class UnknownCommandError(RedsyncError, LookupError):
    """A script used a command that virtual nodes lack; real ones may have it."""


def find_command(name: bytes) -> Command:
    """Return a command's function; the case of letters does not matter.

    Raises:
        UnknownCommandError: There is none.
    """
    command = COMMANDS.get(name.lower())
    if command is None:
        raise UnknownCommandError(
            f"virtual nodes lack the command {name.decode(errors='replace')!r}: "
            f"add it to redsync.testing.simulator.commands"
        )
    return command
