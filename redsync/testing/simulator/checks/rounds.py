"""What each round that a client waits for asked, for checkers that compare it with the outcome."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from redsync.testing.simulator.happenings import Decided, Sent

__all__ = ["MODES", "PERMIT", "REENTRANT", "Claim", "Rounds", "claims", "code_of", "is_granted", "owner_in", "parse"]

MODES: Final = {"read_lock": b"r:", "write_lock": b"w:"}
"""The kinds of claim that share the keys of one read-write lock, and how nodes tell them apart."""

REENTRANT: Final = ("lock", "fair_lock", "fenced_lock", *MODES)
"""The kinds of claim with a hold count."""

PERMIT: Final = "semaphore"
"""The kind of claim of a semaphore's permits, and of a rate limiter's."""


@functools.cache
def parse(script: str) -> tuple[str, str]:
    """Return a script's kind of claim, and what it does with one; two empty texts for a script without claims."""
    for noun in (*REENTRANT, "mutex", PERMIT):
        if script.startswith(f"{noun}_"):
            return noun, script.removeprefix(f"{noun}_")
    return "", ""


def owner_in(claim: bytes) -> bytes:
    """Return the owner of a claim `<owner>:<number>`, as queues store it."""
    return claim.rpartition(b":")[0]


class Claim(NamedTuple):
    """What a command says about one claim.

    Attributes:
        key: The lock's key.
        id: What nodes store it as.
        holds: The hold count that it carries; of a permit, how many slots.
        lease: For how many seconds nodes shall keep it; 0.0 if the command does not say.
        slots: The slots of a permit that is renewed or settled.
        mode: Whether the claim is to read or to write; empty if an owner can have only one claim at that key.
    """

    key: bytes
    id: bytes
    holds: int
    lease: float
    slots: bytes = b""
    mode: bytes = b""

    @property
    def owner(self) -> bytes:
        """Its owner, as queues have it."""
        return owner_in(self.id)

    @property
    def whose(self) -> tuple[bytes, bytes, bytes]:
        """What distinguishes it from all other claims."""
        return self.key, self.id, self.mode


_latest: tuple[object, list[Claim]] = None, []


def claims(script: str, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> list[Claim]:
    """Return the claims that a command makes, lengthens or gives back, if any."""
    global _latest  # noqa: PLW0603  (many checkers ask for the same, one after the other)
    if _latest[0] is not args or not args:
        _latest = args, list(_read_claims(script, keys, args))
    return _latest[1]


def _read_claims(script: str, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> Iterator[Claim]:
    noun, verb = parse(script)
    mode = MODES.get(noun, b"")
    if verb == "renew" and noun == PERMIT:
        # One semaphore has six keys and a limit, however many of its permits are renewed.
        for i in range(0, len(args) - len(keys) // 6 - 3, 4):
            number, permit, slots, lease_ms = args[i : i + 4]
            yield Claim(keys[6 * (number - 1)], permit, slots.count(b",") + 1, lease_ms / 1000, slots)
    elif verb == "renew":
        for i, key in enumerate(keys):
            yield Claim(key, args[3 * i], args[3 * i + 1], args[3 * i + 2] / 1000, mode=mode)
    elif verb == "acquire":
        yield Claim(keys[0], args[0], args[1], args[2] / 1000, mode=mode)
    elif verb == "settle":
        yield Claim(keys[0], args[0], args[1].count(b",") + 1, args[2] / 1000, args[1])
    elif verb == "release":
        yield Claim(keys[0], args[0], args[1], 0.0, mode=mode)
    elif verb in {"abandon", "write_back"}:
        yield Claim(keys[0], args[0], 0, 0.0, mode=mode)


def is_granted(reply: Any) -> bool:
    """Whether a node's reply grants slots for a permit."""
    return isinstance(reply, bytes) or (isinstance(reply, list) and isinstance(reply[0], bytes))


def code_of(reply: Any, verb: str, i: int = 0) -> Any:
    """Return a node's answer about the claim with that index in a command."""
    if reply.__class__ is list:
        if verb == "renew":
            return reply[i]
        if [word.__class__ for word in reply] == [int, int]:  # granted, with a token
            return reply[0]
    return reply


class Outcome(NamedTuple):
    """The outcome for one claim of a round that is over.

    Attributes:
        sent_at: When the round was sent, by the machine's clock.
        verb: The script's name without its noun.
        claim: The claim, as asked for.
        new: How many nodes made the claim.
        existing: How many nodes had it already.
    """

    sent_at: float
    verb: str
    claim: Claim
    new: int
    existing: int


_counted: tuple[object, list[tuple[Claim, int, int]]] = None, []


def _counts(sent: Sent, verb: str, decided: Decided) -> list[tuple[Claim, int, int]]:
    """Return each claim of a round, how many nodes made it, and how many had it already."""
    global _counted  # noqa: PLW0603  (as above)
    if _counted[0] is not decided:
        counts = []
        for i, claim in enumerate(claims(sent.script, sent.keys, sent.args)):
            codes = [code_of(reply, verb, i) for reply in decided.replies]
            counts.append((claim, codes.count(1), codes.count(2)))
        _counted = decided, counts
    return _counted[1]


class Rounds:
    """The open rounds about claims; `decide` returns the outcome of one that ends."""

    def __init__(self) -> None:
        self._open: Final[dict[tuple[str, int], tuple[float, Sent]]] = {}

    def ask(self, sent: Sent, sent_at: float) -> None:
        """Record a command; `sent_at` by the clock of the machine that sent it."""
        if sent.votes:
            self._open[sent.client, sent.number] = sent_at, sent

    def decide(self, decided: Decided) -> list[Outcome]:
        """Return the outcome of a round, for each claim in it."""
        asked = self._open.pop((decided.client, decided.number), None)
        if asked is None:
            return []
        sent_at, sent = asked
        verb = parse(sent.script)[1]
        return [Outcome(sent_at, verb, *counted) for counted in _counts(sent, verb, decided)]

    def asks(self, client: str, key: bytes, claim: bytes, since: float) -> bool:
        """Whether a client still waits for votes about a claim that it asked for at `since` or later."""
        return any(
            sent_at >= since
            and any(asked.whose[:2] == (key, claim) for asked in claims(sent.script, sent.keys, sent.args))
            for (name, _), (sent_at, sent) in self._open.items()
            if name == client
        )
