"""Things prepared once for many acquires: the terms of a lease, and commands packed except for the claim.

Most programs acquire the same locks again and again, mostly through new lock objects. So a client keeps here what does
not change from one acquire to the next. Protocols find it by key and lease.

Nothing here decides anything. A dropped entry is made again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from redsync._core.effects import Arg, Command, new_tuple
from redsync._core.memory import Processes
from redsync._core.scripts import Script
from redsync._core.timing import Timing, milliseconds, renew_at

__all__ = ["Forms", "NumberedSpelling", "Prepared", "Spelling", "Terms"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST_TERMS, _MOST_FORMS = 64, 1024
"""The number of entries kept; the oldest is dropped first."""

_Known: TypeAlias = tuple[str, bytes, int, float | None, tuple[int, int] | None]
"""What forms are found by: the kind of claim (its noun), the lock's key, the number of holds that an acquire asks for,
the lease (None: the client's), and a semaphore's limit (its version and number of permits).
"""


@dataclass(frozen=True, slots=True)
class Terms:
    """Values derived from a lease.

    Attributes:
        lease: The lease in seconds.
        lease_ms: The lease as an argument of scripts.
        trusted: Seconds for which a claim may be believed, from the instant of its ask on.
        guard: Seconds for which a node must have remembered everything to grant.
        memory: The guard as an argument of scripts; 0 if there is none.
        birth: The same for scripts that use the node's birth record even without a guard.
        round_timeout: The longest time that a round waits for nodes, in seconds.
        renewed_after: Seconds after the ask when the watchdog renews; infinity for a lease of the acquire's own.
    """

    lease: float
    lease_ms: int
    trusted: float
    guard: float
    memory: Arg
    birth: Arg
    round_timeout: float
    renewed_after: float


class _Begins(dict[int, bytes]):
    """The bytes of a command before its claim, by the claim's length."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def __missing__(self, length: int) -> bytes:
        self[length] = begin = b"%b$%d\r\n" % (self._head, length)
        return begin


class Spelling:
    """A command of one lock, packed except for the claim, which is its first argument; see `Packing`."""

    __slots__ = ("_args", "_begins", "_keys", "_named", "_processes", "_script", "_tail")

    def __init__(self, script: Script, keys: tuple[bytes, ...], args: tuple[Arg, ...], processes: Processes) -> None:
        """Pack it; `args`: those after the claim, `processes`: those that a guard among them names."""
        self._script, self._keys, self._args = script, keys, args
        self._processes = processes
        words = b"EVALSHA", script.sha, b"%d" % len(keys), *keys
        self._begins = _Begins(b"*%d\r\n" % (len(words) + 1 + len(args)) + b"".join(map(_spell, words)))
        self._named = self._tail = b""

    def command(self, claim: bytes, number: int = 0) -> Command:  # noqa: ARG002  (see `NumberedSpelling`)
        """Return the command for a claim."""
        args = (claim,) + self._args  # noqa: RUF005  (a third faster)
        return new_tuple(Command, (self._script, self._keys, args, self))

    def data(self, command: Command, pack: Callable[[Command], bytes]) -> bytes:  # noqa: ARG002
        """Return the bytes of a command that `command` returned; see `Packing`."""
        if self._named is not self._processes.named:
            self._spell_tail()
        claim: Any = command.args[0]
        # Twice as fast as formatting, and as fast as `+`, which copies all twice.
        return b"".join((self._begins[len(claim)], claim, self._tail))

    def _spell_tail(self) -> None:
        named = self._processes.named
        # In this order: another thread may run in between.
        self._tail = b"\r\n" + b"".join(map(_spell, self._args))
        self._named = named


class NumberedSpelling(Spelling):
    """A command packed except for the claim and one number.

    That is the slot from which nodes search, or the highest token that the asker of a fenced lock knows.
    """

    __slots__ = ("_at", "_behind", "_end")

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
        self._args, self._behind, self._at = args, behind, len(args) + 1
        self._end = b"".join(map(_spell, behind))

    def command(self, claim: bytes, number: int = 0) -> Command:
        """Return the command for a claim and a number."""
        return new_tuple(Command, (self._script, self._keys, (claim, *self._args, number, *self._behind), self))

    def data(self, command: Command, pack: Callable[[Command], bytes]) -> bytes:
        number = command.args[self._at]
        assert isinstance(number, int), "see `command`"
        word = b"%d" % number
        return b"%b$%d\r\n%b\r\n%b" % (super().data(command, pack), len(word), word, self._end)


def _spell(arg: Arg) -> bytes:
    word = b"%d" % arg if isinstance(arg, int) else bytes(arg)
    return b"$%d\r\n%b\r\n" % (len(word), word)


class Forms:
    """The commands of one lock, lease and number of holds, packed except for the claim; each is made on its first use.

    Attributes:
        terms: The terms of the lease.
        ask: The ask for a claim, without a place in the queue; None before the first one.
        release: The release of the last hold, or of a whole permit; None before the first one.
    """

    __slots__ = ("ask", "release", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.ask: Spelling | None = None
        self.release: Spelling | None = None

    def forget(self) -> None:
        """Drop the commands; the next use makes them again."""
        self.ask = self.release = None


def _let_go(_: object) -> None:
    """Do nothing more about a dropped value."""


class _Table(OrderedDict[K, V]):
    """Values by key: a look-up makes what is missing, in place of the oldest."""

    def __init__(self, make: Callable[[K], V], most: int, drop: Callable[[V], object]) -> None:
        super().__init__()
        self._make: Final = make
        self._most: Final = most
        self._drop: Final = drop

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        # Any thread may make a claim: each of these is one step.
        if len(self) >= self._most:
            self._drop(self.popitem(last=False)[1])
        self[key] = value
        return value


class Prepared:
    """The terms and commands that one client has prepared.

    Attributes:
        terms: The terms by lease in seconds; None is the client's lease.
        forms: The forms of a lock or semaphore, by what they depend on (`_Known`).
    """

    def __init__(self, timing: Timing, processes: Processes) -> None:
        """Begin with nothing; `processes`: the server processes that commands name."""
        self._timing: Final = timing
        self._processes: Final = processes
        self.terms: Final[_Table[float | None, Terms]] = _Table(self._new_terms, _MOST_TERMS, _let_go)
        # The holds of dropped forms keep them. They may be a hundred thousand, and make their releases again.
        self.forms: Final[_Table[_Known, Forms]] = _Table(self._new_forms, _MOST_FORMS, Forms.forget)

    def _new_terms(self, lease: float | None) -> Terms:
        timing = self._timing
        seconds = timing.lease if lease is None else lease
        guard = timing.guard(seconds)
        birth = self._processes.guard(milliseconds(guard))
        trusted = timing.valid_until(0.0, seconds)
        memory, timeout = birth if guard else 0, timing.round_timeout(seconds)
        renewed_after = renew_at(0.0, seconds) if lease is None else math.inf
        return Terms(seconds, milliseconds(seconds), trusted, guard, memory, birth, timeout, renewed_after)

    def _new_forms(self, known: _Known) -> Forms:
        return Forms(self.terms[known[3]])

    def spell(self, script: Script, keys: tuple[bytes, ...], args: tuple[Arg, ...]) -> Spelling:
        """Return a command packed except for the claim; `args`: those after it."""
        return Spelling(script, keys, args, self._processes)

    def spell_numbered(
        self, script: Script, keys: tuple[bytes, ...], args: tuple[Arg, ...], behind: tuple[Arg, ...] = ()
    ) -> NumberedSpelling:
        """Return a command packed except for the claim and a number; `args`: those between, `behind`: those after."""
        return NumberedSpelling(script, keys, args, behind, self._processes)
