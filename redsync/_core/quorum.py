"""Counting votes: when a round over N independent nodes is won, lost, or still open.

A *round* sends one command to every node. Each node casts one vote: GRANTED or REFUSED if it answered, FAILED if it
did not (error, timeout, kept out after a restart). The *tally* of a round has one of three verdicts:

* WON as soon as a quorum of nodes GRANTED;
* LOST as soon as a quorum of GRANTED has become impossible;
* PENDING otherwise.

The quorum is `n // 2 + 1` of the *configured* nodes, never of those that happen to answer. So two quorums always share
a node, also for even N. The whole safety argument rests on that shared node.

A LOST round is either *busy* (enough nodes answered, they refused) or *without quorum* (more than `n - quorum` nodes
FAILED). The two are never merged: busy is an answer, no quorum is an outage.

A tally does not change while a resumed protocol reads it: votes that come after the verdict are not counted. If they
are recorded, then in a copy. Not thread-safe: the driver that fills a tally guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from redsync._core.interruptions import is_interruption
from redsync._core.text import outline

__all__ = ["NO_REPLY", "Cast", "Choice", "Judge", "Tally", "Verdict", "Vote", "Votes", "quorum_of"]


class Choice(Enum):
    """One node's vote in one round."""

    GRANTED = "granted"
    REFUSED = "refused"
    FAILED = "failed"


class Verdict(Enum):
    """The verdict of a tally."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


# Module-level names spare the hot path an attribute look-up on the enum classes.
_GRANTED, _REFUSED, _FAILED = Choice.GRANTED, Choice.REFUSED, Choice.FAILED
_PENDING, _WON, _LOST = Verdict.PENDING, Verdict.WON, Verdict.LOST

NO_REPLY: Final = object()
"""No reply, not even a null."""

Judge: TypeAlias = Callable[[Any], object]
"""Reads a script's reply and returns its meaning: true for a grant, false for a refusal.

Raises on a reply of unknown shape."""

_ODD = (TypeError, ValueError, ArithmeticError, IndexError, KeyError, AttributeError, RecursionError)
"""The errors of a judge that meets a reply of unknown shape."""


def quorum_of(nodes: int) -> int:
    """Return how many of `nodes` configured nodes make a quorum.

    Raises:
        ValueError: There is no node.
    """
    if nodes < 1:
        raise ValueError("a quorum needs at least one node")
    return nodes // 2 + 1


class Vote(NamedTuple):
    """One node's vote, for people and error handlers to read.

    Attributes:
        node: The node's address, `host:port` or a path.
        choice: GRANTED, REFUSED or FAILED.
        detail: The node's reply, or why it FAILED, as text.
    """

    node: str
    choice: Choice
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.node} {self.choice.value}{': ' if self.detail else ''}{self.detail}"


Cast: TypeAlias = tuple[Choice, Any, Any]
"""A node's choice, its reply as the judge reads it, and the raw reply or (text) why it FAILED."""


class Votes:
    """The vote of each node.

    Attributes:
        nodes: The addresses of the configured nodes.
        quorum: The number of grants that win.
        cast: Each node's vote; None if it has not voted.
    """

    __slots__ = ("cast", "nodes", "quorum")

    def __init__(self, nodes: Sequence[str], cast: list[Cast | None]) -> None:
        self.nodes = nodes
        self.quorum = len(nodes) // 2 + 1
        self.cast = cast

    @property
    def choices(self) -> list[Choice | None]:
        """Each node's choice; None if it has not voted."""
        return [None if vote is None else vote[0] for vote in self.cast]

    @property
    def answers(self) -> list[Any]:
        """Each node's reply as the judge reads it; None if the node has not voted, or FAILED."""
        return [None if vote is None else vote[1] for vote in self.cast]

    @property
    def replies(self) -> list[Any]:
        """Each node's raw reply, or the reason (text) why it FAILED; for people to read."""
        return [None if vote is None else vote[2] for vote in self.cast]

    @property
    def unheard(self) -> int:
        """The number of nodes that have not voted."""
        return self.cast.count(None)

    @property
    def grants(self) -> list[Any]:
        """The answers of the nodes that GRANTED."""
        return [vote[1] for vote in self.cast if vote is not None and vote[0] is _GRANTED]

    @property
    def refusals(self) -> list[Any]:
        """The answers of the nodes that REFUSED."""
        return [vote[1] for vote in self.cast if vote is not None and vote[0] is _REFUSED]

    @property
    def backers(self) -> int:
        """Bit set of the nodes that granted."""
        return sum(1 << node for node, vote in enumerate(self.cast) if vote is not None and vote[0] is _GRANTED)

    @property
    def refusers(self) -> int:
        """Bit set of the nodes that refused."""
        return sum(1 << node for node, vote in enumerate(self.cast) if vote is not None and vote[0] is _REFUSED)

    @property
    def votes(self) -> tuple[Vote, ...]:
        """Each node's vote, for people to read; a node not waited for appears as FAILED, but does not count."""
        return tuple(
            Vote(node, vote[0], vote[2] if vote[0] is _FAILED else outline(vote[2]))
            if vote is not None
            else Vote(node, _FAILED, "not waited for")
            for node, vote in zip(self.nodes, self.cast, strict=True)
        )


class Tally(Votes):
    """The votes of one round so far; has the attributes of `Votes`, and these.

    Attributes:
        granted: The number of nodes that GRANTED; `refused`, `failed` likewise. They add up to the nodes that voted.
        verdict: WON, LOST or PENDING; once it is WON or LOST, neither it nor the counts change any more.
        late: True to record votes that come after the round was won, see `all_votes`.
        lingers: True to wait for these votes too, and record failures among them, until the tally is frozen.
        sent: Bit set of the nodes to which the driver handed the command: only these may ever execute it.
        sent_at: The instant before the first byte was sent, seconds on the driver's clock.
        at: The instant at which the protocol was resumed, seconds on the driver's clock.
        judge: Reads a reply.
        decide: Replaces the plain count of votes; None if they are simply counted, or once it has decided.
        same: The number that each reply so far was, if all are grants and more of them decide nothing before they are a
            quorum; else NO_REPLY. For nodes that reply with it a driver may cast `vote` and add to `granted` by itself,
            and then call `conclude`. It may set both from a former round of the same command with the same judge.
        vote: The vote of the latest grant.
        grant: The number that was that node's reply; NO_REPLY if it was none. It outlives the verdict.
        further: The same number once `conclude` has won a round that records `late` votes; else NO_REPLY. For nodes
            that reply with it a driver may just add their bits to `confirmed`.
    """

    __slots__ = (
        "_late_votes",
        "_thorough",
        "at",
        "confirmed",
        "decide",
        "failed",
        "further",
        "grant",
        "granted",
        "judge",
        "late",
        "lingers",
        "refused",
        "same",
        "sent",
        "sent_at",
        "verdict",
        "vote",
    )

    def __init__(  # noqa: PLR0917  (keywords would cost the hot path a fifth of a microsecond)
        self,
        nodes: Sequence[str],
        judge: Judge,
        decide: Callable[[Tally], Verdict] | None = None,
        thorough: bool | Callable[[Tally], bool] = False,
        late: bool = False,
        lingers: bool = False,
    ) -> None:
        """Begin a tally without votes.

        Args:
            nodes: The addresses of the configured nodes.
            judge: Reads a reply.
            decide: Replaces the plain count of votes, from the vote on by which a quorum has granted, or a node has
                refused or failed. May be called once for several equal grants, so more of them must not change what it
                has decided.
            thorough: The round is LOST only by refusals that rule a quorum out, or when every node has voted: silence
                must not count as a refusal. A function returns whether these refusals also say enough about the holder.
            late: Record votes that come after the round was won.
            lingers: Record votes and failures that come after that, and wait for them.
        """
        # Inlined: each round makes a tally, and `super` is not cheap.
        n = len(nodes)
        self.nodes, self.quorum = nodes, n // 2 + 1
        self.cast = [None] * n
        self.granted = self.refused = self.failed = self.confirmed = self.sent = 0
        self.verdict = _PENDING
        self.late = late or lingers
        self.lingers = lingers
        self.sent_at = self.at = 0.0
        self.judge = judge
        self.same = self.grant = self.further = NO_REPLY
        self.vote: Cast | None = None
        # Nodes and their votes; replaced as a whole.
        self._late_votes: tuple[tuple[int, Cast], ...] = ()
        self.decide = decide
        self._thorough = thorough

    def record(self, node: int, reply: object) -> bool | None:
        """Count the reply of the node with that index; return True if this vote ended the wait.

        None means that the judge does not know such a reply, so the vote FAILED: it may answer another command.
        """
        if self.verdict is not _PENDING:
            return self._note_late(node, reply) if self.late and self.verdict is _WON else False
        cast = self.cast
        if cast[node] is not None:
            return False
        if reply is not self.grant:
            try:
                answer = self.judge(reply)
                grants = True if answer else False  # noqa: SIM210  (`bool` would be a call)
            except _ODD as error:
                if is_interruption(error):
                    raise
                self.fail(node, f"unexpected reply {outline(reply)}")
                return None
            if not grants:
                self.same = NO_REPLY
                cast[node] = _REFUSED, answer, reply
                self.refused += 1
                return self._decided()
            # First: an interruption of the call below must not leave a number that the new vote does not belong to.
            self.same = NO_REPLY
            self.vote, self.grant = (_GRANTED, answer, reply), reply if reply.__class__ is int else NO_REPLY
            if not (self.granted or self.refused or self._may_be_lost()):
                self.same = self.grant
        cast[node] = self.vote
        self.granted = votes = self.granted + 1
        if votes < self.quorum:
            if not (self.refused or self.failed):
                # Before a quorum has granted, only refusals and failures decide anything.
                return False
        elif self.decide is None:
            self.verdict, self.same = _WON, NO_REPLY
            return True
        return self._decided()

    def conclude(self) -> bool:
        """Decide after grants that a driver has counted; return True if that ended the wait."""
        if self.granted < self.quorum or self.verdict is not _PENDING:
            return False
        if self.decide is not None:
            return self._decided()
        self.verdict, self.same, self.grant = _WON, NO_REPLY, self.same
        if self.late and not self.lingers:
            self.further = self.grant
        return True

    def _note_late(self, node: int, reply: object) -> bool | None:
        """Record a vote that no longer counts, but shows which nodes keep the claim; returns the same as `record`."""
        vote = self.vote
        if reply is not self.grant or vote is None:
            vote = self._judge_late(reply)
        if not self.lingers:
            # Kept apart, because the protocol may be reading the tally.
            self._late_votes += ((node, vote),)
            return False if vote[0] is not _FAILED else None
        if self.cast[node] is not None:
            return False
        self.cast[node] = vote
        return not self.open if vote[0] is not _FAILED else None

    def _judge_late(self, reply: object) -> Cast:
        try:
            answer = self.judge(reply)
            return _GRANTED if answer else _REFUSED, answer, reply
        except _ODD as error:
            if is_interruption(error):
                raise
            return _FAILED, None, f"unexpected reply {outline(reply)}"

    @property
    def all_votes(self) -> Votes:
        """All votes so far, late ones included; the returned object never changes."""
        if not (self._late_votes or self.confirmed):
            return self
        votes = Votes(self.nodes, self.cast[:])
        usual = [(node, self.vote) for node in range(len(self.nodes)) if self.confirmed >> node & 1]
        for node, vote in (*self._late_votes, *usual):
            votes.cast[node] = votes.cast[node] or vote
        return votes

    @property
    def open(self) -> bool:
        """True while the round waits for votes."""
        return self.verdict is _PENDING or (self.lingers and self.verdict is _WON and None in self.cast)

    def freeze(self) -> None:
        """Record no more votes of a round that lingers."""
        self.late = self.lingers = False

    def fail(self, node: int, reason: str) -> bool:
        """Count the node as FAILED for that reason, if it has not voted; return True if that ended the wait."""
        if self.verdict is not _PENDING:
            if not self.open or self.cast[node] is not None:
                return False
            self.cast[node] = _FAILED, None, reason
            return not self.open
        if self.cast[node] is not None:
            # An interruption may have struck after that vote was counted, but before the verdict.
            return self.conclude() or self._decided()
        # As in `record`.
        same, self.same = self.same, NO_REPLY
        self.cast[node] = _FAILED, None, reason
        self.failed += 1
        if not self._may_be_lost():
            self.same = same
        return self._decided()

    def _may_be_lost(self) -> bool:
        """Return True if failures may decide the round although all replies are grants."""
        return self.failed > 0 and (self.decide is not None or self.without_quorum)

    def close(self, reason: str) -> None:
        """End the round: nodes that have not voted become FAILED for that reason, and the verdict is WON or LOST."""
        for node, vote in enumerate(self.cast):
            if vote is None and self.verdict is _PENDING:
                self.fail(node, reason)
        # An interruption may have struck after a driver counted the votes, but before the verdict.
        if self.verdict is _PENDING and not self.conclude():
            # Only a custom decision can leave a full tally PENDING. No more votes will come, so the round was not won.
            self.verdict = _LOST

    def _decided(self) -> bool:
        """Update the verdict after a vote, and return whether it is final; `record` detects a plain win by itself."""
        if self.decide is not None:
            self.verdict = self.decide(self)
            if self.verdict is not _PENDING:
                # Not needed again. It may refer to a hold that refers to this tally: only the cycle collector would
                # free both.
                self.decide, self.same = None, NO_REPLY
        elif len(self.nodes) - self.refused - self.failed < self.quorum and self._is_definite():
            self.verdict = _LOST
        return self.verdict is not _PENDING

    def _is_definite(self) -> bool:
        if not self._thorough or None not in self.cast:
            return True
        ruled_out = self.refused > len(self.nodes) - self.quorum
        return ruled_out and (self._thorough is True or self._thorough(self))

    @property
    def won(self) -> bool:
        """True if a quorum GRANTED."""
        return self.verdict is _WON

    @property
    def without_quorum(self) -> bool:
        """True if too many nodes FAILED for the others to form a quorum: an outage, not contention."""
        return self.failed > len(self.nodes) - self.quorum
