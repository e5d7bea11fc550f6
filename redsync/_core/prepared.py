"""Things prepared once for many acquires: the terms of a lease, and commands packed except for the claim.

Most programs acquire the same locks again and again, mostly through new lock objects. So a client keeps here what does
not change from one acquire to the next. Protocols find it by key and lease.

Nothing here decides anything. A dropped entry is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, TypeVar

from redsync._core.effects import Arg, Command
from redsync._core.memory import Processes
from redsync._core.scripts import Script
from redsync._core.timing import Timing, milliseconds

__all__ = ["NumberedSpelling", "Prepared", "Spelling", "Terms"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST_TERMS, _MOST_SPELLINGS = 64, 1024
"""The number of entries kept; the oldest is dropped first."""


class Terms(NamedTuple):
    """Values derived from a lease.

    Attributes:
        lease: The lease in seconds.
        lease_ms: The lease as an argument of scripts.
        trusted: Seconds for which a claim may be believed, from the instant of its ask on.
        guard: Seconds for which a node must have remembered everything to grant.
        memory: The guard as an argument of scripts; 0 if there is none.
        birth: The same for scripts that use the node's birth record even without a guard.
        round_timeout: The longest time that a round waits for nodes, in seconds.
    """

    lease: float
    lease_ms: int
    trusted: float
    guard: float
    memory: Arg
    birth: Arg
    round_timeout: float


class Spelling:
    """A command of one lock, packed except for the claim, which is its first argument; see `Packing`."""

    __slots__ = ("_args", "_begin", "_head", "_keys", "_named", "_processes", "_script", "_tail")

    def __init__(self, script: Script, keys: tuple[bytes, ...], args: tuple[Arg, ...], processes: Processes) -> None:
        """Pack it; `args`: those after the claim, `processes`: those that a guard among them names."""
        self._script, self._keys, self._args = script, keys, args
        self._processes = processes
        words = b"EVALSHA", script.sha, b"%d" % len(keys), *keys
        self._head = b"*%d\r\n" % (len(words) + 1 + len(args)) + b"".join(map(_spell, words))
        # The bytes before a claim of that length; as one value, which threads may replace at the same time.
        self._begin = 0, b""
        self._named = self._tail = b""

    def command(self, claim: bytes) -> Command:
        """Return the command for a claim."""
        return Command(self._script, self._keys, (claim, *self._args))

    def data(self, command: Command, pack: Callable[[Command], bytes]) -> bytes:  # noqa: ARG002
        """Return the bytes of a command that `command` returned; see `Packing`."""
        named = self._processes.named
        if self._named is not named:
            # In this order: another thread may run in between.
            self._tail = b"\r\n" + b"".join(map(_spell, self._args))
            self._named = named
        claim = command.args[0]
        assert isinstance(claim, bytes), "scripts get the claim first"
        length, begin = self._begin
        if length != len(claim):
            begin = b"%b$%d\r\n" % (self._head, len(claim))
            self._begin = len(claim), begin
        # Twice as fast as formatting, and as fast as `+`, which copies all twice.
        return b"".join((begin, claim, self._tail))


class NumberedSpelling(Spelling):
    """A command packed except for the claim and for one number.

    That is the slot from which nodes search, or the highest token that the asker of a fenced lock knows.
    """

    __slots__ = ("_behind", "_end")

    def __init__(
        self,
        script: Script,
        keys: tuple[bytes, ...],
        args: tuple[Arg, ...],
        behind: tuple[Arg, ...],
        processes: Processes,
    ) -> None:
        """Pack it; `args`: those between the claim and that number, `behind`: those after it."""
        super().__init__(script, keys, (*args, 0, *behind), processes)
        self._args, self._behind = args, behind
        self._end = b"".join(map(_spell, behind))

    def command(self, claim: bytes, number: int = 0) -> Command:
        """Return the command for a claim and a number."""
        return Command(self._script, self._keys, (claim, *self._args, number, *self._behind))

    def data(self, command: Command, pack: Callable[[Command], bytes]) -> bytes:
        number = command.args[len(self._args) + 1]
        assert isinstance(number, int), "see `command`"
        word = b"%d" % number
        return b"%b$%d\r\n%b\r\n%b" % (super().data(command, pack), len(word), word, self._end)


def _spell(arg: Arg) -> bytes:
    word = b"%d" % arg if isinstance(arg, int) else bytes(arg)
    return b"$%d\r\n%b\r\n" % (len(word), word)


class Prepared:
    """The terms and commands that one client has prepared."""

    def __init__(self, timing: Timing, processes: Processes) -> None:
        """Begin with nothing; `processes`: the server processes that commands name."""
        self._timing: Final = timing
        self._processes: Final = processes
        self._terms: Final[dict[float | None, Terms]] = {}
        self._spellings: Final[dict[Hashable, Spelling]] = {}
        self._numbered_spellings: Final[dict[Hashable, NumberedSpelling]] = {}

    def terms(self, lease: float | None) -> Terms:
        """Return the terms of a lease in seconds; None for the client's lease."""
        terms = self._terms.get(lease)
        if terms is None:
            terms = _put(self._terms, lease, self._new_terms(lease), _MOST_TERMS)
        return terms

    def _new_terms(self, lease: float | None) -> Terms:
        timing = self._timing
        seconds = timing.lease if lease is None else lease
        guard = timing.guard(seconds)
        birth = self._processes.guard(milliseconds(guard))
        trusted = timing.valid_until(0.0, seconds)
        return Terms(
            seconds, milliseconds(seconds), trusted, guard, birth if guard else 0, birth, timing.round_timeout(seconds)
        )

    def spell_ask(self, script: Script, keys: tuple[bytes, ...], holds: int, terms: Terms) -> Spelling:
        """Return the ask for a claim of a lock, without a place in its queue."""
        known = script.sha, keys[0], holds, terms.lease
        spelling = self._spellings.get(known)
        if spelling is None:
            args = holds, terms.lease_ms, terms.memory
            spelling = _put(self._spellings, known, Spelling(script, keys, args, self._processes), _MOST_SPELLINGS)
        return spelling

    def spell_slots(
        self, script: Script, keys: tuple[bytes, ...], holds: int, terms: Terms, limit: tuple[int, int]
    ) -> NumberedSpelling:
        """Return the ask for any slots under a limit, its version and number of permits, without a place in line."""
        known = script.sha, keys[0], holds, terms.lease, limit
        spelling = self._numbered_spellings.get(known)
        if spelling is None:
            args = holds, terms.lease_ms, terms.memory, 0, 0, b"", *limit
            made = NumberedSpelling(script, keys, args, (b"", 0), self._processes)
            spelling = _put(self._numbered_spellings, known, made, _MOST_SPELLINGS)
        return spelling

    def spell_fenced(self, script: Script, keys: tuple[bytes, ...], holds: int, terms: Terms) -> NumberedSpelling:
        """Return the ask for a claim of a fenced lock, without a place in its queue."""
        known = script.sha, keys[0], holds, terms.lease
        spelling = self._numbered_spellings.get(known)
        if spelling is None:
            made = NumberedSpelling(script, keys, (holds, terms.lease_ms, terms.birth), (), self._processes)
            spelling = _put(self._numbered_spellings, known, made, _MOST_SPELLINGS)
        return spelling

    def spell_release(self, script: Script, keys: tuple[bytes, ...], channel: bytes) -> Spelling:
        """Return the release of a lock's last hold, or of a whole permit; `channel`: the script's last argument."""
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
