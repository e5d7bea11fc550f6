"""The fenced lock: the claim and re-entry of the reentrant lock, with grants that carry tokens.

Fencing tokens are numbers that grow with each acquisition, whichever nodes granted it.

Each node keeps the latest token that it gave or learned. A grant raises it by one, in the same step. The token of a
round is the highest that a quorum gave. That alone is not enough: with A at 10, B and C at 1, a quorum of A and B
grants 11, and then a quorum of B and C grants 3. So the client hands the token out only when a quorum of nodes *stand
at* it: it is their latest token, while they keep our claim. Otherwise the client first writes it back.

Why tokens grow: let X get its token before Y, and m be a node of both quorums. When m stood at X's token, it kept X's
claim. Y's claim on m was not there before: it would have had to end in between, while Y's owner believes in it until
after that. So m granted to Y later, and so more than X's token, and Y's token is no less than what m granted. (A node
that merely stands at the token may have granted to Y long before. That proves nothing, so it does not count.)

A node that forgot its token, or has not given one for a day, begins with its clock, in microseconds since 1970. No
lock is acquired a million times a second, so that is more than all it has given, if clocks are roughly right. The node
takes no part in grants until what it forgot is over (`restart_guard`), so the proof holds for forgotten claims too.

A node may also come back with an *older* token: from a snapshot, or a log that lost its end. Then its birth record is
of another process, and becomes newborn before the node executes any command. From then on each token is more than the
clock showed at that birth, plus the guard; and all tokens that the node gave before are lower. (See its script.)
So the proof holds whether m's memory is gone, old or whole, and even for one node without a guard.

A token that no clock shows before the year 2112 comes from a broken node, whose vote fails. A lower one that is far
ahead of the clocks is believed: all later tokens are higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from redsync._core.effects import Broadcast, Steps, broadcast
from redsync._core.holds import HoldState
from redsync._core.quorum import ReplyParser, Tally
from redsync._core.scripts import Arg, Command, Script
from redsync._core.session import Session
from redsync._core.timing import milliseconds
from redsync._protocols import lock
from redsync._protocols.answers import EXISTING, Refusal, read_answer
from redsync._protocols.claims import AcquireRequest, Claim
from redsync.exceptions import KeyTypeError

__all__ = ["FENCED_LOCK", "Fence", "FencedClaim", "acquire"]

FENCED_LOCK = lock.LOCK._replace(acquire=Script.load("fenced_lock_acquire"))
WRITE_BACK = Script.load("fenced_lock_write_back")

_HIGHEST = 1 << 52
"""Microseconds since 1970: the year 2112. Nodes count exactly up to twice as much."""


def _read_token(reply: Any) -> int | Refusal:
    """Return the token of a grant, or the refusal.

    Raises:
        ValueError: The reply is neither, or the token is above the highest that is believed.
    """
    if reply.__class__ is int and not -EXISTING <= reply <= EXISTING:
        token: int = abs(reply)
        if token > _HIGHEST:
            raise ValueError("the token is beyond all clocks")
        return token
    answer = read_answer(reply)
    if answer:
        raise ValueError("the grant lacks its fencing token")
    return answer


def _stands(reply: Any) -> bool:
    if reply.__class__ is not int or not 0 < reply <= _HIGHEST:
        raise ValueError("the reply to a write-back is the token at which the node stands")
    return True


class Fence:
    """The tokens of one lock object; guarded by the atomicity of protocol steps.

    Attributes:
        latest: The highest token that it has handed out; it asks for a higher one, even if all nodes forgot theirs.
    """

    __slots__ = ("latest",)

    def __init__(self, latest: int = 0) -> None:
        self.latest = latest


class FencedClaim(Claim):
    """A whole lock whose grants carry tokens: a round counts once a quorum stands at its token."""

    parse: ReplyParser = staticmethod(_read_token)

    def __init__(self, session: Session, request: AcquireRequest, fence: Fence) -> None:
        super().__init__(session, request)
        self._fence = fence
        self._token = 0

    @property
    def least_left(self) -> float:
        return math.inf  # A hand-over carries no token.

    @property
    def _memory(self) -> Arg:
        # Even without a guard, tokens depend on what the node remembers.
        return self.session.processes.guard(milliseconds(self.guard))

    def ask(self, claim: bytes, place: tuple[Arg, ...]) -> Command:
        command, keys = super().ask(claim, place), self.request.keys
        tokens = keys.foreign_token, keys.token
        return Command(command.script, (*command.keys, *tokens), (*command.args, self._fence.latest))

    def is_confirmed(self, tally: Tally) -> bool:
        tokens = tally.grants
        token: int = max(tokens, key=tokens.count)
        if tokens.count(token) < tally.quorum:
            self._token = max(tokens)
            return False
        self._token, self._fence.latest = token, max(token, self._fence.latest)
        return True

    def confirm(self, tally: Tally, claim: bytes, timeout_at: Callable[[float], float]) -> Steps[tuple[Tally, float]]:
        """Raise a quorum of nodes that keep the claim to the token."""
        keys, owner = self.request.keys, self.request.owner
        command = Command(WRITE_BACK, (keys.lock, keys.token), (claim, self._token))
        written = yield from broadcast(Broadcast(command, owner, _stands, timeout_at(tally.at)))
        if written.won:
            self._fence.latest = max(self._token, self._fence.latest)
        return tally if written.won else written, written.at

    def complete(self, state: HoldState, won: Tally | None) -> None:  # noqa: ARG002
        state.fencing_token = self._token


def acquire(session: Session, request: AcquireRequest, now: float, fence: Fence) -> Steps[HoldState | None]:
    """Acquire the lock; return the hold, which has a token, or None if others held it all the time.

    Raises:
        LeaseLostError: The owner held the lock, and that hold is lost.
        QuorumError: Too few nodes answered, or too few still kept the claim when the client wrote the token back.
        KeyTypeError: The key holds a value of another type, or the owner holds a plain lock of this name.
    """
    held = request.owner.holds.get(request.keys.hold)
    if held is not None and held.kind is not FENCED_LOCK:
        sentence = f"lock {request.name!r} is held already, but not as a fenced lock: it has no token"
        raise KeyTypeError(request.name, sentence)
    return lock.acquire(session, request, now, partial(FencedClaim, fence=fence))
