"""What is prepared once and used by many acquires: the terms of a lease, and commands spelled out but for the claim.

Most programs take the same locks again and again, mostly through a new lock object each time. So a client keeps here
what does not change from one acquire to the next: the protocol finds it by key and lease, whatever object asks.

Nothing here decides anything. Whoever forgets an entry makes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, TypeVar

from redsync._core.effects import Arg, Command
from redsync._core.memory import Processes
from redsync._core.scripts import Script
from redsync._core.timing import Timing, milliseconds

__all__ = ["Prepared", "Spelling", "Terms"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST_TERMS, _MOST_SPELLINGS = 64, 1024
"""How many entries are kept; the oldest goes first."""


class Terms(NamedTuple):
    """What follows from a lease.

    Attributes:
        lease: In seconds.
        lease_ms: As scripts get it.
        trusted: Seconds for which a claim may be believed, from the instant of its ask on.
        guard: Seconds for which a node must have remembered everything to grant.
        memory: The guard as scripts get it.
        round_timeout: How long a round may wait for nodes, in seconds.
    """

    lease: float
    lease_ms: int
    trusted: float
    guard: float
    memory: Arg
    round_timeout: float


class Spelling:
    """A command of one lock, its bytes spelled out but for the claim, which is its first argument; see `Packing`."""

    __slots__ = ("_args", "_head", "_keys", "_named", "_processes", "_script", "_tail")

    def __init__(self, script: Script, keys: tuple[bytes, ...], args: tuple[Arg, ...], processes: Processes) -> None:
        """Spell it out; `args`: what follows the claim, `processes`: the processes that a guard among these names."""
        self._script, self._keys, self._args = script, keys, args
        self._processes = processes
        words = b"EVALSHA", script.sha, b"%d" % len(keys), *keys
        self._head = b"*%d\r\n" % (len(words) + 1 + len(args)) + b"".join(map(_spell, words))
        self._named = self._tail = b""

    def command(self, claim: bytes) -> Command:
        """Return the command for a claim."""
        return Command(self._script, self._keys, (claim, *self._args))

    def data(self, command: Command, pack: Callable[[Command], bytes]) -> bytes:  # noqa: ARG002
        """Return the bytes of a command that was made here; see `Packing`."""
        named = self._processes.named
        if self._named is not named:
            # In this order: another thread may come in between.
            self._tail = b"".join(map(_spell, self._args))
            self._named = named
        claim = command.args[0]
        assert isinstance(claim, bytes), "scripts get the claim first"
        return b"%b$%d\r\n%b\r\n%b" % (self._head, len(claim), claim, self._tail)


def _spell(arg: Arg) -> bytes:
    word = b"%d" % arg if isinstance(arg, int) else bytes(arg)
    return b"$%d\r\n%b\r\n" % (len(word), word)


class Prepared:
    """What one client has prepared."""

    def __init__(self, timing: Timing, processes: Processes) -> None:
        """Begin with nothing; `processes`: the server processes, which commands name."""
        self._timing: Final = timing
        self._processes: Final = processes
        self._terms: Final[dict[float | None, Terms]] = {}
        self._spellings: Final[dict[Hashable, Spelling]] = {}

    def terms(self, lease: float | None) -> Terms:
        """Return the terms of a lease in seconds; None: of the client's."""
        terms = self._terms.get(lease)
        if terms is None:
            terms = _put(self._terms, lease, self._new_terms(lease), _MOST_TERMS)
        return terms

    def _new_terms(self, lease: float | None) -> Terms:
        timing = self._timing
        seconds = timing.lease if lease is None else lease
        guard = timing.guard(seconds)
        memory: Arg = self._processes.guard(milliseconds(guard)) if guard else 0
        trusted = timing.valid_until(0.0, seconds)
        return Terms(seconds, milliseconds(seconds), trusted, guard, memory, timing.round_timeout(seconds))

    def spell_ask(self, script: Script, keys: tuple[bytes, ...], holds: int, terms: Terms) -> Spelling:
        """Return the ask for a claim of a lock, without a place in its queue."""
        known = script.sha, keys[0], holds, terms.lease
        spelling = self._spellings.get(known)
        if spelling is None:
            args = holds, terms.lease_ms, terms.memory
            spelling = _put(self._spellings, known, Spelling(script, keys, args, self._processes), _MOST_SPELLINGS)
        return spelling

    def spell_release(self, script: Script, keys: tuple[bytes, ...], channel: bytes) -> Spelling:
        """Return the release of a lock's last hold."""
        known = script.sha, keys[0]
        spelling = self._spellings.get(known)
        if spelling is None:
            args = 0, channel
            spelling = _put(self._spellings, known, Spelling(script, keys, args, self._processes), _MOST_SPELLINGS)
        return spelling


def _put(table: dict[K, V], key: K, value: V, most: int) -> V:
    if len(table) >= most:
        del table[next(iter(table))]
    table[key] = value
    return value
