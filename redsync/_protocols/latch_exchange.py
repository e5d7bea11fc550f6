"""Nodes' knowledge of a latch, and the exchange of knowledge with them; see `latch`.

* *Reading.* The caller joins what a quorum tells. If less than a quorum knows all of it, the caller writes it back
  before it acts on it. So from then on every client sees what one client has seen.
* *Forgetting.* To a node that forgot the latest setting, the latch looks open: as if it had never been set, or as it
  was before. So a node that says so must know, and a node that has remembered for less time than latches are kept may
  have known more. While such a node knows nothing, it has no vote. What clients tell it then is *hearsay*, and counts
  only if all nodes answer: any node that knows more is then among them. Hearsay ends when a client tells the node what
  a quorum knew at an instant after the node had forgotten. Setting a latch again requires only the memory that new
  grants require; else no client could set one for a day after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from redsync._core.effects import Broadcast, Command, Steps, Tell, broadcast, tell
from redsync._core.keys import LatchKeys
from redsync._core.latches import LatchState, Told
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally, Verdict, Votes
from redsync._core.runner import Session
from redsync._core.scripts import Script
from redsync._core.timing import milliseconds
from redsync._protocols.answers import FOREIGN, Refusal
from redsync._protocols.rounds import no_quorum, type_error
from redsync.exceptions import QuorumError

__all__ = ["PLACE_KEPT", "Caller", "Latch", "agree", "is_known", "is_noted", "may_set", "told_by"]

EXCHANGE = Script.load("latch_exchange")

PLACE_KEPT = 5.0
"""Seconds for which nodes keep a waiter's place; each look renews it."""

_LAST_TRY = 0.03
"""Seconds that a look may take if the caller's timeout is over."""

_Decide: TypeAlias = Callable[[Tally], Verdict]


def _read(reply: Any) -> Told | Refusal:
    return FOREIGN if reply.__class__ is int and reply == 0 else Told.read(reply)


def told_by(tally: Votes) -> list[tuple[int, Told]]:
    """Return the nodes' replies with their indices, without nodes that keep a foreign value."""
    return [(i, answer) for i, answer in enumerate(tally.answers) if isinstance(answer, Told)]


def is_known(tally: Tally) -> Verdict:
    """Return WON once a quorum that forgot nothing has answered, or all nodes: then one of them knows everything."""
    if tally.granted >= tally.quorum:
        return Verdict.WON
    if None not in tally.choices:
        return Verdict.WON if len(told_by(tally)) == len(tally.nodes) else Verdict.LOST
    possible = len(tally.nodes) - tally.refused - tally.failed >= tally.quorum
    hearsay = len(told_by(tally)) == len(tally.nodes) - tally.choices.count(None)
    return Verdict.PENDING if possible or hearsay else Verdict.LOST


def is_noted(tally: Tally) -> Verdict:
    """Return WON once a quorum knows what the exchange told it."""
    told = len(told_by(tally))
    if told >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if told + tally.choices.count(None) >= tally.quorum else Verdict.LOST


def may_set(tally: Tally) -> Verdict:
    """Return WON as `is_known` does, or, once each node has answered or failed, if a quorum may grant."""
    if tally.granted >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if None in tally.choices else is_noted(tally)


class Latch:
    """One latch object's knowledge of its latch; guarded by the atomicity of protocol steps.

    Attributes:
        name: The latch's name, for messages.
        keys: Its keys.
        keep: Seconds after its last use for which nodes keep the latch.
        known: The state, as far as the object knows; it tells nodes this for as long as they would have kept it.
        lives: For nodes that have hearsay: since when each remembers, by index.
        settled: The lives that began before the client asked a quorum for `known`; in these, `known` is not hearsay.
        latest: The latest round; it records late votes.
    """

    __slots__ = ("_until", "keep", "keys", "known", "latest", "lives", "name", "settled")

    def __init__(self, name: str | bytes, keys: LatchKeys, keep: float) -> None:
        self.name = name
        self.keys = keys
        self.keep = keep
        self.known = LatchState()
        self.lives: dict[int, int] = {}
        self.settled: list[int] = []
        self.latest: Tally | None = None
        self._until = math.inf

    def recall(self, now: float) -> None:
        """Forget knowledge that is too old to believe."""
        if now >= self._until:
            self.known, self.settled, self.latest, self._until = LatchState(), [], None, math.inf

    def learn(self, told: LatchState, now: float) -> None:
        """Add a node's or this client's knowledge."""
        self.known = self.known.join(told)
        self._until = max(now + self.keep, -math.inf if self._until == math.inf else self._until)

    def hear(self, tally: Tally) -> None:
        """Add the nodes' knowledge, and record which of them have hearsay."""
        for i, told in told_by(tally.all_votes):
            self.learn(told.state, tally.at)
            self.lives.pop(i, None)
            if told.life is not None and told.life > 0:
                self.lives[i] = told.life


class Caller:
    """One call: its latch, owner and place, and the memory that it requires of nodes that know nothing."""

    def __init__(self, session: Session, latch: Latch, owner: Owner, memory: float | None = None) -> None:
        self.session = session
        self.latch = latch
        self.owner = owner
        wanted = milliseconds(latch.keep if memory is None else memory)
        self._memory = session.processes.guard(wanted) if session.timing.restart_guard else 0
        self._found = LatchState()
        self.place = owner.channel + b" " + owner.wire
        self.wake_key = owner.wire + b" " + latch.keys.latch

    def command(self, state: LatchState, *, waits: bool = False) -> Command:
        """Return the exchange that tells nodes this state."""
        place = self.place if waits else b""
        settled = b" ".join(b"%d" % life for life in self.latch.settled)
        args = (milliseconds(self.latch.keep), place, milliseconds(PLACE_KEPT), self._memory, settled)
        return Command(EXCHANGE, self.latch.keys.all, args + state.words())

    def exchange(
        self, now: float, decide: _Decide = is_known, *, timeout: float = math.inf, waits: bool = False
    ) -> Steps[Tally]:
        """Tell all nodes the known state, and learn theirs."""
        latch = self.latch
        latch.recall(now)
        if self._found.generation:
            # However long that takes: a caller that waits while nodes are down keeps the latch in use.
            latch.learn(self._found, now)
        if latch.latest is not None:
            latch.hear(latch.latest)
        lives = list(latch.lives.values())
        tally = yield from broadcast(
            Broadcast(
                self.command(latch.known, waits=waits),
                self.owner,
                _read,
                min(self.session.timing.node_timeout, max(timeout, _LAST_TRY)),
                decide=decide,
                subscribe=self.wake_key if waits else None,
                late=True,
            )
        )
        latch.latest = tally
        latch.hear(tally)
        self._found = latch.known
        if tally.won and decide is is_known:
            latch.settled = lives
            if any(told.life in lives for _, told in told_by(tally)):
                yield from tell(Tell(self.command(latch.known), self.owner))
        return tally

    def consult(self, now: float, decide: _Decide = is_known) -> Steps[tuple[LatchState, Tally]]:
        """Return the state that a quorum knows, once a quorum knows all of it, and the last round.

        Raises:
            QuorumError: Too few nodes answered.
            KeyTypeError: The key holds a value of another type.
        """
        tally = yield from self.exchange(now, decide)
        self.require(tally)
        state = self.latch.known
        if not agree(tally, state):
            tally = yield from self.exchange(tally.at, is_noted)
            self.require(tally)
        return state, tally

    def require(self, tally: Tally) -> None:
        """Return if the round was won, else raise the reason."""
        if not tally.won:
            raise self.foreign(tally) or self._no_quorum(tally)

    def foreign(self, tally: Tally) -> Exception | None:
        """Return the error to raise if values of another type prevented a win."""
        return None if tally.won else type_error(self.latch.name, tally, "latch")

    def _no_quorum(self, tally: Tally) -> QuorumError:
        hearsay = sum(told.life is not None for _, told in told_by(tally))
        if not hearsay or tally.without_quorum:
            return no_quorum(self.latch.name, tally, "latch")
        sentence = f"{hearsay} of {len(tally.nodes)} nodes may have forgotten it, and not all others answer"
        return QuorumError(self.latch.name, f"latch {self.latch.name!r}: {sentence}", tally.votes)


def agree(tally: Tally, state: LatchState) -> bool:
    """Return whether a quorum knows all of that state."""
    return sum(told.state.covers(state) for _, told in told_by(tally)) >= tally.quorum
