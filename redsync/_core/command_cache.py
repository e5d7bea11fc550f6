"""The command cache: the terms of a lease, and commands packed except for the claim.

Most programs acquire the same locks again and again, mostly through new lock objects. So a client keeps here what does
not change from one acquire to the next. Protocols find it by key and lease.

Nothing here decides what is granted. A dropped entry is made again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from redsync._core.memory import Processes
from redsync._core.scripts import Arg, Command, Script, new_tuple
from redsync._core.timing import Timing, milliseconds, renew_at

__all__ = ["CommandCache", "CommandTemplates", "LeaseTerms", "PackedCommand", "PackedNumberedCommand"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST_TERMS, _MOST_TEMPLATES = 64, 1024
"""The number of entries kept; the oldest is dropped first."""

_Known: TypeAlias = tuple[str, bytes, int, float | None, tuple[int, int] | None]
"""What templates are found by: the kind of claim (its noun), the lock's key, the number of holds that an acquire asks
for, the lease (None: the client's), and a semaphore's limit (its version and number of permits).
"""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
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


class PackedCommand:
    """A command of one lock, packed except for the claim, which is its first argument; see `Packing`."""

    __slots__ = ("_args", "_begins", "_keys", "_named", "_processes", "_script", "_tail")

    def __init__(self, script: Script, keys: tuple[bytes, ...], args: tuple[Arg, ...], processes: Processes) -> None:
        """Pack it; `args`: those after the claim, `processes`: those that a guard among them names."""
        self._script, self._keys, self._args = script, keys, args
        self._processes = processes
        words = b"EVALSHA", script.sha, b"%d" % len(keys), *keys
        self._begins = _Begins(b"*%d\r\n" % (len(words) + 1 + len(args)) + b"".join(map(_pack, words)))
        self._named = self._tail = b""

    def command(self, claim: bytes, number: int = 0) -> Command:  # noqa: ARG002  (see `PackedNumberedCommand`)
        """Return the command for a claim."""
        args = (claim,) + self._args  # noqa: RUF005  (a third faster)
        return new_tuple(Command, (self._script, self._keys, args, self))

    def data(self, command: Command, pack: Callable[[Command], bytes]) -> bytes:  # noqa: ARG002
        """Return the bytes of a command that `command` returned; see `Packing`."""
        if self._named is not self._processes.named:
            self._pack_tail()
        claim: Any = command.args[0]
        # Twice as fast as formatting, and as fast as `+`, which copies all twice.
        return b"".join((self._begins[len(claim)], claim, self._tail))

    def _pack_tail(self) -> None:
        named = self._processes.named
        # In this order: another thread may run in between.
        self._tail = b"\r\n" + b"".join(map(_pack, self._args))
        self._named = named


class PackedNumberedCommand(PackedCommand):
    """A command packed except for the claim and one number, its last argument.

    That is the slot from which nodes search, or the highest token that the asker of a fenced lock knows.
    """

    __slots__ = ()

    def __init__(self, script: Script, keys: tuple[bytes, ...], args: tuple[Arg, ...], processes: Processes) -> None:
        """Pack it; `args`: those between the claim and that number."""
        super().__init__(script, keys, (*args, 0), processes)
        self._args = args

    def command(self, claim: bytes, number: int = 0) -> Command:
        """Return the command for a claim and a number."""
        return new_tuple(Command, (self._script, self._keys, (claim, *self._args, number), self))

    def data(self, command: Command, pack: Callable[[Command], bytes]) -> bytes:
        number = command.args[-1]
        assert isinstance(number, int), "see `command`"
        word = b"%d" % number
        return b"%b$%d\r\n%b\r\n" % (super().data(command, pack), len(word), word)


def _pack(arg: Arg) -> bytes:
    word = b"%d" % arg if isinstance(arg, int) else bytes(arg)
    return b"$%d\r\n%b\r\n" % (len(word), word)


class CommandTemplates:
    """The commands of one lock, lease and number of holds, packed except for the claim; each is made on its first use.

    Attributes:
        terms: The terms of the lease.
        ask: The ask for a claim, without a place in the queue; None before the first one.
        release: The release of the last hold, or of a whole permit; None before the first one.
        others: True if the client's latest such acquire met others. The next one asks for a place with its first try,
            because most likely it has to wait too. If not, it has only sent a longer command.
    """

    __slots__ = ("ask", "others", "release", "terms")

    def __init__(self, terms: LeaseTerms) -> None:
        self.terms = terms
        self.ask: PackedCommand | None = None
        self.release: PackedCommand | None = None
        self.others = False

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


class CommandCache:
    """The lease terms and packed commands of one client.

    Attributes:
        terms: The terms by lease in seconds; None is the client's lease.
        templates: The templates of a lock or semaphore, by what they depend on (`_Known`).
    """

    def __init__(self, timing: Timing, processes: Processes) -> None:
        """Begin with nothing; `processes`: the server processes that commands name."""
        self._timing: Final = timing
        self._processes: Final = processes
        self.terms: Final[_Table[float | None, LeaseTerms]] = _Table(self._new_terms, _MOST_TERMS, _let_go)
        # The holds of dropped templates keep them. They may be a hundred thousand, and make their releases again.
        self.templates: Final[_Table[_Known, CommandTemplates]] = _Table(
            self._new_templates, _MOST_TEMPLATES, CommandTemplates.forget
        )

    def _new_terms(self, lease: float | None) -> LeaseTerms:
        timing = self._timing
        seconds = timing.lease if lease is None else lease
        guard = timing.guard(seconds)
        birth = self._processes.guard(milliseconds(guard))
        trusted = timing.valid_until(0.0, seconds)
        memory, timeout = birth if guard else 0, timing.round_timeout(seconds)
        renewed_after = renew_at(0.0, seconds) if lease is None else math.inf
        return LeaseTerms(seconds, milliseconds(seconds), trusted, guard, memory, birth, timeout, renewed_after)

    def _new_templates(self, known: _Known) -> CommandTemplates:
        return CommandTemplates(self.terms[known[3]])

    def pack(self, script: Script, keys: tuple[bytes, ...], args: tuple[Arg, ...]) -> PackedCommand:
        """Return a command packed except for the claim; `args`: those after it."""
        return PackedCommand(script, keys, args, self._processes)

    def pack_numbered(self, script: Script, keys: tuple[bytes, ...], args: tuple[Arg, ...]) -> PackedNumberedCommand:
        """Return a command packed except for the claim and a number, its last argument; `args`: those between."""
        return PackedNumberedCommand(script, keys, args, self._processes)
