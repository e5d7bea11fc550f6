"""The requests of open rounds, for checkers that compare them with the outcome."""

import functools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from redsync.testing.simulator.trace_events import Decided, Sent

READ_WRITE: Final = "read_write_lock"
"""The kind of claim of readers and writers."""

MODES: Final = (b"r:", b"w:")
"""To read and to write: how their claims begin."""

STAYS: Final = -1
"""The count in the rollback of a waiter that keeps its place."""

REENTRANT: Final = ("lock", "fair_lock", "fenced_lock", READ_WRITE)
"""The kinds of claim with a hold count."""

PERMIT: Final = "semaphore"
"""The kind of claim of a semaphore's permits, and of a rate limiter's."""


@functools.cache
def parse(script: str) -> tuple[str, str]:
    """Return a script's kind of claim and its verb; two empty strings for a script without claims."""
    for noun in (*REENTRANT, PERMIT):
        if script.startswith(f"{noun}_"):
            return noun, script.removeprefix(f"{noun}_")
    return "", ""


def owner_in(claim: bytes) -> bytes:
    """Return the owner of a claim `<owner>:<number>`, as queues store it."""
    return claim.rpartition(b":")[0]


class Claim(NamedTuple):
    """One claim in a command.

    Attributes:
        key: The lock's key.
        id: Its name on the nodes.
        holds: Its hold count, 1 for a mutex; for a permit, the number of slots.
        lease: The seconds for which nodes must keep it; 0.0 if the command does not say.
        slots: The slots of a renewed or confirmed permit.
        mode: Read or write, as in `MODES`; empty if an owner can have only one claim at that key.
    """

    key: bytes
    id: bytes
    holds: int
    lease: float
    slots: bytes = b""
    mode: bytes = b""

    @property
    def owner(self) -> bytes:
        """Its owner, as queues name it."""
        return owner_in(self.id)

    @property
    def whose(self) -> tuple[bytes, bytes, bytes]:
        """Its identity among all claims."""
        return self.key, self.id, self.mode


_latest: tuple[object, list[Claim]] = None, []


def claims(script: str, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> list[Claim]:
    """Return the claims that a command makes, extends or releases, if any."""
    global _latest  # noqa: PLW0603  (many checkers ask for the same claims in turn)
    if _latest[0] is not args or not args:
        found = list(_read_claims(script, keys, args))
        if parse(script)[0] == READ_WRITE:
            found = [each._replace(id=each.id[2:], mode=each.id[:2]) for each in found]
        _latest = args, found
    return _latest[1]


def _read_claims(script: str, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> Iterator[Claim]:
    noun, verb = parse(script)
    if verb == "renew" and noun == PERMIT:
        # One semaphore has six keys and a limit, however many of its permits are renewed.
        for i in range(0, len(args) - len(keys) // 6 - 3, 4):
            number, permit, slots, lease_ms = args[i : i + 4]
            yield Claim(keys[6 * (number - 1)], permit, slots.count(b",") + 1, lease_ms / 1000, slots)
    elif verb == "renew":
        for i, key in enumerate(keys):
            yield Claim(key, args[3 * i], args[3 * i + 1] or 1, args[3 * i + 2] / 1000)
    elif verb == "acquire":
        yield Claim(keys[0], args[0], args[1] or 1, args[2] / 1000)
    elif verb == "confirm":
        yield Claim(keys[0], args[0], args[1].count(b",") + 1, float(args[2]) / 1000, args[1])
    elif verb == "release":
        yield Claim(keys[0], args[0], max(args[1], 0), 0.0)
    elif verb in {"abandon", "write_back"}:
        yield Claim(keys[0], args[0], 0, 0.0)


def code_of(reply: Any, verb: str, i: int = 0) -> Any:
    """Return a node's answer about the claim with that index in a command."""
    if verb == "renew" and reply.__class__ is list:
        return reply[i]
    if verb == "acquire" and reply.__class__ is int and abs(reply) > 2:  # granted, with a token
        return 1 if reply > 0 else 2
    return reply


class Outcome(NamedTuple):
    """The outcome for one claim of a round that is over.

    Attributes:
        sent_at: The instant the round was sent, by the machine's clock.
        verb: The script's name without its noun.
        claim: The requested claim.
        new: The number of nodes that made the claim.
        existing: The number of nodes that had it already.
    """

    sent_at: float
    verb: str
    claim: Claim
    new: int
    existing: int


_counted: tuple[object, list[tuple[Claim, int, int]]] = None, []


def _counts(sent: Sent, noun: str, verb: str, decided: Decided) -> list[tuple[Claim, int, int]]:
    """Return each claim of a round, how many nodes made it, and how many had it already; none for an ask for slots."""
    global _counted  # noqa: PLW0603  (as above)
    if _counted[0] is not decided:
        counts = []
        for i, claim in enumerate(claims(sent.script, sent.keys, sent.args)):
            # The reply to an ask for slots names slots, not codes.
            replies = () if (noun, verb) == (PERMIT, "acquire") else decided.replies
            codes = [code_of(reply, verb, i) for reply in replies]
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
        noun, verb = parse(sent.script)
        return [Outcome(sent_at, verb, *counted) for counted in _counts(sent, noun, verb, decided)]

    def asks(self, client: str, key: bytes, claim: bytes, since: float) -> bool:
        """Return whether a client still waits for votes about a claim that it requested at `since` or later."""
        return any(
            sent_at >= since
            and any(asked.whose[:2] == (key, claim) for asked in claims(sent.script, sent.keys, sent.args))
            for (name, _), (sent_at, sent) in self._open.items()
            if name == client
        )
