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

A tally does not change while a resumed protocol reads it: votes that come after the verdict are not counted. Not
thread-safe: the driver that fills a tally guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from redsync._core.interruptions import is_interruption
from redsync._core.replies import UNREADABLE
from redsync._core.text import outline

__all__ = [
    "Ballot",
    "Choice",
    "ReplyParser",
    "Tally",
    "Verdict",
    "Vote",
    "quorum_of",
    "thoroughly",
    "verdict_of",
]


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


_GRANTED, _REFUSED, _FAILED = Choice.GRANTED, Choice.REFUSED, Choice.FAILED
_PENDING, _WON, _LOST = Verdict.PENDING, Verdict.WON, Verdict.LOST

ReplyParser: TypeAlias = Callable[[Any], object]
"""Reads a script's reply and returns its meaning: true for a grant, false for a refusal.

Raises on a reply of unknown shape."""


def quorum_of(nodes: int) -> int:
    """Return how many of `nodes` configured nodes make a quorum.

    Raises:
        ValueError: There is no node.
    """
    if nodes < 1:
        raise ValueError("a quorum needs at least one node")
    return nodes // 2 + 1


def verdict_of(choices: Sequence[Choice | None], *, failures_refuse: bool = True) -> Verdict:
    """Return the verdict of a round in which each configured node cast that choice; None if it has not voted.

    If failures do not refuse, a round is LOST only by refusals that rule a quorum out, or when every node has voted.
    """
    nodes = len(choices)
    quorum = nodes // 2 + 1
    granted = choices.count(_GRANTED)
    if granted >= quorum:
        return _WON
    missing = choices.count(None)
    if granted + missing >= quorum:
        return _PENDING  # The missing votes decide.
    if missing and not failures_refuse and nodes - choices.count(_REFUSED) >= quorum:
        return _PENDING  # Failures alone rule a quorum out.
    return _LOST


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


Ballot: TypeAlias = tuple[Choice, Any, Any, float]
"""A node's choice, its reply parsed, the raw reply or (text) why it FAILED, and the instant of the reply."""


class Tally:
    """The votes of one round so far.

    Attributes:
        nodes: The addresses of the configured nodes.
        quorum: The number of grants that win.
        ballots: Each node's vote; None if it has not voted.
        choices: Each node's choice; None if it has not voted.
        verdict: WON, LOST or PENDING; once it is WON or LOST, nothing here changes any more.
        sent: Bit set of the nodes to which the driver handed the command: only these may ever execute it.
        sent_at: The instant before the first byte was sent, seconds on the driver's clock.
        at: The instant at which the protocol was resumed, seconds on the driver's clock.
        repeated: True if nodes may have executed the command before, in a round without a result.
        parse: Reads a reply.
        decide: Returns the verdict of the votes so far; None: `verdict_of`.
    """

    __slots__ = (
        "at",
        "ballots",
        "choices",
        "decide",
        "nodes",
        "parse",
        "quorum",
        "repeated",
        "sent",
        "sent_at",
        "verdict",
    )

    def __init__(
        self,
        nodes: Sequence[str],
        parse: ReplyParser,
        decide: Callable[[Tally], Verdict] | None = None,
    ) -> None:
        """Begin a tally without votes."""
        self.nodes = nodes
        self.quorum = quorum_of(len(nodes))
        self.ballots: list[Ballot | None] = [None] * len(nodes)
        self.choices: list[Choice | None] = [None] * len(nodes)
        self.verdict = _PENDING
        self.sent = 0
        self.sent_at = self.at = 0.0
        self.repeated = False
        self.parse = parse
        self.decide = decide

    def record(self, node: int, reply: object, at: float = 0.0) -> bool | None:
        """Count the reply that the node with that index gave at an instant; return True if this vote ended the wait.

        None means that the parser does not know such a reply, so the vote FAILED: it may answer another command.
        """
        if self.ballots[node] is not None or self.verdict is not _PENDING:
            return False
        try:
            answer = self.parse(reply)
            choice = _GRANTED if answer else _REFUSED
        except UNREADABLE as error:
            if is_interruption(error):
                raise
            self._count(node, (_FAILED, None, f"unexpected reply {outline(reply)}", at))
            return None
        return self._count(node, (choice, answer, reply, at))

    def fail(self, node: int, reason: str) -> bool:
        """Count the node as FAILED for that reason, if it has not voted; return True if that ended the wait."""
        return (
            self.verdict is _PENDING and self.ballots[node] is None and self._count(node, (_FAILED, None, reason, 0.0))
        )

    def close(self, reason: str) -> None:
        """End the round: nodes that have not voted become FAILED for that reason, and the verdict is WON or LOST."""
        for node in range(len(self.nodes)):
            if self.verdict is _PENDING and self.ballots[node] is None:
                self._count(node, (_FAILED, None, reason, 0.0))
        if self.verdict is _PENDING:
            # Only a custom decision can leave a full tally PENDING. No more votes will come, so the round was not won.
            self.verdict = _LOST

    def _count(self, node: int, vote: Ballot) -> bool:
        """Count a node's vote, which is its first, in an open round; return True if it ended the wait."""
        self.ballots[node], self.choices[node] = vote, vote[0]
        self.verdict = verdict_of(self.choices) if self.decide is None else self.decide(self)
        return self.verdict is not _PENDING

    @property
    def answers(self) -> list[Any]:
        """Each node's reply parsed; None if the node has not voted, or FAILED."""
        return [None if vote is None else vote[1] for vote in self.ballots]

    @property
    def replies(self) -> list[Any]:
        """Each node's raw reply, or the reason (text) why it FAILED; for people to read."""
        return [None if vote is None else vote[2] for vote in self.ballots]

    @property
    def granted(self) -> int:
        """The number of nodes that GRANTED."""
        return self.choices.count(_GRANTED)

    @property
    def refused(self) -> int:
        """The number of nodes that REFUSED."""
        return self.choices.count(_REFUSED)

    @property
    def failed(self) -> int:
        """The number of nodes that FAILED."""
        return self.choices.count(_FAILED)

    @property
    def unheard(self) -> int:
        """The number of nodes that have not voted."""
        return self.ballots.count(None)

    @property
    def grants(self) -> list[Any]:
        """The answers of the nodes that GRANTED."""
        return [vote[1] for vote in self.ballots if vote is not None and vote[0] is _GRANTED]

    @property
    def refusals(self) -> list[Any]:
        """The answers of the nodes that REFUSED."""
        return [vote[1] for vote in self.ballots if vote is not None and vote[0] is _REFUSED]

    def nodes_with(self, choice: Choice) -> int:
        """Return the bit set of the nodes that made that choice."""
        return sum(1 << node for node, made in enumerate(self.choices) if made is choice)

    @property
    def votes(self) -> tuple[Vote, ...]:
        """Each node's vote, for people to read; a node not waited for appears as FAILED, but does not count."""
        return tuple(
            Vote(node, vote[0], vote[2] if vote[0] is _FAILED else outline(vote[2]))
            if vote is not None
            else Vote(node, _FAILED, "not waited for")
            for node, vote in zip(self.nodes, self.ballots, strict=True)
        )

    @property
    def won(self) -> bool:
        """True if a quorum GRANTED."""
        return self.verdict is _WON

    @property
    def without_quorum(self) -> bool:
        """True if too many nodes FAILED for the others to form a quorum: an outage, not contention."""
        return self.failed > len(self.nodes) - self.quorum


def thoroughly(tally: Tally) -> Verdict:
    """Return the plain verdict, but LOST only by refusals that rule a quorum out, or when every node has voted."""
    return verdict_of(tally.choices, failures_refuse=False)
