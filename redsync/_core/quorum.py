"""Counting votes: when a round over N independent nodes is won, lost, or still open.

A *round* sends one command to every node. Each node casts one vote: GRANTED or REFUSED when it answered, FAILED when
it did not (error, timeout, kept out after a restart). The *tally* of a round has a three-valued verdict:

* WON as soon as a quorum of nodes GRANTED;
* LOST as soon as a quorum of GRANTED has become impossible;
* PENDING otherwise.

The quorum is `n // 2 + 1` of the *configured* nodes, never of those that happen to answer: two quorums then always
share a node, also for even N, and that shared node is the whole safety argument.

A LOST round is either *busy* (enough nodes answered, they refused) or *without quorum* (more than `n - quorum` nodes
FAILED). The two are never merged: busy is an answer, no quorum is an outage.

A tally does not change while a resumed protocol reads it: votes that come after the verdict are not counted, and are
recorded, if at all, in a copy. Not thread-safe: the driver that fills a tally guards it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from redsync._core.interruptions import is_interruption

__all__ = ["Choice", "Judge", "Tally", "Verdict", "Vote", "Votes", "outline", "quorum_of"]


class Choice(Enum):
    """What one node said in one round."""

    GRANTED = "granted"
    REFUSED = "refused"
    FAILED = "failed"


class Verdict(Enum):
    """What a tally amounts to."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


# Module-level names spare the hot path an attribute look-up on the enum classes.
_GRANTED, _REFUSED, _FAILED = Choice.GRANTED, Choice.REFUSED, Choice.FAILED
_PENDING, _WON, _LOST = Verdict.PENDING, Verdict.WON, Verdict.LOST

Judge: TypeAlias = Callable[[Any], object]
"""Reads a script's reply and returns its meaning: true if the node grants, false if it refuses.

It raises on a reply of unknown shape."""


_ODD = (TypeError, ValueError, ArithmeticError, IndexError, KeyError, AttributeError, RecursionError)
"""What a judge raises on a reply of unknown shape."""


class _Outline(reprlib.Repr):
    """Formats a reply, neither long nor deep: formatting all of it could take too much time or stack."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 60, 60

    def repr_bytes(self, reply: bytes, level: int) -> str:  # noqa: ARG002  (as the base class calls it)
        return repr(reply[:60])


_outline = _Outline()


def outline(reply: object) -> str:
    """Return the beginning of a reply, for people."""
    return _outline.repr(reply)[:80]


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
        detail: What the node replied, or why it FAILED, as text.
    """

    node: str
    choice: Choice
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.node} {self.choice.value}{': ' if self.detail else ''}{self.detail}"


class Votes:
    """The vote of each node.

    Attributes:
        nodes: The addresses of the configured nodes.
        quorum: How many grants win.
        choices: Each node's choice, None while it has not voted.
        answers: Each node's reply as the judge reads it; None for a node that has not voted, or FAILED.
        replies: Each node's reply as it came, or the reason (text) for which it FAILED: for people.
    """

    __slots__ = ("answers", "choices", "nodes", "quorum", "replies")

    def __init__(
        self, nodes: Sequence[str], choices: list[Choice | None], answers: list[Any], replies: list[Any]
    ) -> None:
        self.nodes = nodes
        self.quorum = len(nodes) // 2 + 1
        self.choices = choices
        self.answers = answers
        self.replies = replies

    @property
    def grants(self) -> list[Any]:
        """The answers of the nodes that GRANTED."""
        votes = zip(self.choices, self.answers, strict=True)
        return [answer for choice, answer in votes if choice is _GRANTED]

    @property
    def refusals(self) -> list[Any]:
        """The answers of the nodes that REFUSED."""
        votes = zip(self.choices, self.answers, strict=True)
        return [answer for choice, answer in votes if choice is _REFUSED]

    @property
    def backers(self) -> int:
        """Bit set of the nodes that granted."""
        return sum(1 << node for node, choice in enumerate(self.choices) if choice is _GRANTED)

    @property
    def refusers(self) -> int:
        """Bit set of the nodes that refused."""
        return sum(1 << node for node, choice in enumerate(self.choices) if choice is _REFUSED)

    @property
    def votes(self) -> tuple[Vote, ...]:
        """Each node's vote, for people; a node that the round did not wait for is listed as FAILED, but not counted."""
        return tuple(
            Vote(node, choice, reply if choice is _FAILED else outline(reply))
            if choice is not None
            else Vote(node, _FAILED, "not waited for")
            for node, choice, reply in zip(self.nodes, self.choices, self.replies, strict=True)
        )


class Tally(Votes):
    """The votes of one round so far; attributes as for `Votes`, and these.

    Attributes:
        granted: How many nodes GRANTED; `refused`, `failed` likewise. They add up to the nodes that voted.
        verdict: WON, LOST or PENDING; once it is not PENDING neither it nor the counts change any more.
        late: Whether to record votes that come after the round was won too, see `all_votes`.
        lingers: Whether to wait for these votes as well, and so to record failures too, until the tally is frozen.
        sent: Bit set of the nodes that were handed the command: only these may ever execute it.
        sent_at: The instant before the first byte was sent, seconds on the driver's clock.
        at: The instant at which the protocol was resumed, seconds on the driver's clock.
    """

    __slots__ = (
        "_decide",
        "_judge",
        "_late_votes",
        "_thorough",
        "at",
        "failed",
        "granted",
        "late",
        "lingers",
        "refused",
        "sent",
        "sent_at",
        "verdict",
    )

    def __init__(
        self,
        nodes: Sequence[str],
        judge: Judge,
        decide: Callable[[Tally], Verdict] | None = None,
        *,
        thorough: bool | Callable[[Tally], bool] = False,
        late: bool = False,
        lingers: bool = False,
    ) -> None:
        """Begin a tally without votes.

        Args:
            nodes: The addresses of the configured nodes.
            judge: Reads a reply.
            decide: Replaces the plain count of votes.
            thorough: A round is LOST only by refusals that rule a quorum out, or when every node has voted: silence
                must not count as a refusal. A function returns whether these refusals also say enough about the holder.
            late: Record votes after the round was won.
            lingers: Record votes and failures after that.
        """
        # Spelled out: each round has one, and `super` is not cheap.
        n = len(nodes)
        self.nodes, self.quorum = nodes, n // 2 + 1
        self.choices, self.answers, self.replies = [None] * n, [None] * n, [None] * n
        self.granted = self.refused = self.failed = 0
        self.verdict = _PENDING
        self.sent = 0
        self.late = late or lingers
        self.lingers = lingers
        self.sent_at = self.at = 0.0
        self._judge = judge
        # Replaced as a whole: node, choice, answer and reply of each.
        self._late_votes: tuple[tuple[int, Choice, Any, object], ...] = ()
        self._decide = decide
        self._thorough = thorough

    def record(self, node: int, reply: object) -> bool | None:
        """Count the reply of the node with that index; return True if this vote ended the waiting.

        None means that the judge knows no such reply, and the vote FAILED: it may be the answer to another command.
        """
        if self.verdict is not _PENDING:
            return self._note_late(node, reply) if self.late and self.verdict is _WON else False
        if self.choices[node] is not None:
            return False
        try:
            answer = self._judge(reply)
            grants = True if answer else False  # noqa: SIM210  (`bool` would be a call)
        except _ODD as error:
            if is_interruption(error):
                raise
            self.fail(node, f"unexpected reply {outline(reply)}")
            return None
        # No call from here on until the choice is stored: an interruption would leave an answer without a choice.
        self.replies[node], self.answers[node] = reply, answer
        if grants:
            self.choices[node] = _GRANTED
            self.granted = votes = self.granted + 1
            if self._decide is None:
                if votes >= self.quorum:
                    self.verdict = _WON
                    return True
                if not (self.refused or self.failed):
                    # Only refusals and failures can lose it.
                    return False
        else:
            self.choices[node] = _REFUSED
            self.refused += 1
        return self._decided()

    def _note_late(self, node: int, reply: object) -> bool | None:
        """Record a vote that came after the verdict; return values as for `record`.

        The vote does not count any more, but shows which nodes keep the claim.
        """
        if self.choices[node] is not None:
            return False
        if self._late_votes and [late for late in self._late_votes if late[0] == node]:
            return False
        answer = None
        try:
            answer = self._judge(reply)
            choice = _GRANTED if answer else _REFUSED
        except _ODD as error:
            if is_interruption(error):
                raise
            choice, reply = _FAILED, f"unexpected reply {outline(reply)}"
        if self.lingers:
            self.replies[node], self.answers[node], self.choices[node] = reply, answer, choice
        else:
            # Apart, because the protocol may be reading the tally.
            self._late_votes += ((node, choice, answer, reply),)
        return (self.lingers and not self.open) if choice is not _FAILED else None

    @property
    def all_votes(self) -> Votes:
        """All votes so far, late ones included; votes that were returned do not change any more."""
        late = self._late_votes
        if not late:
            return self
        votes = Votes(self.nodes, self.choices[:], self.answers[:], self.replies[:])
        for node, choice, answer, reply in late:
            votes.choices[node], votes.answers[node], votes.replies[node] = choice, answer, reply
        return votes

    @property
    def open(self) -> bool:
        """Whether the round still waits for votes."""
        return self.verdict is _PENDING or (self.lingers and self.verdict is _WON and None in self.choices)

    def freeze(self) -> None:
        """Record no more votes."""
        self.late = self.lingers = False

    def fail(self, node: int, reason: str) -> bool:
        """Count the node as FAILED for that reason, if it has not voted; return True if that ended the waiting."""
        if self.verdict is not _PENDING:
            if not self.open or self.choices[node] is not None:
                return False
            self.replies[node] = reason
            self.choices[node] = _FAILED
            return not self.open
        if self.choices[node] is not None:
            # An interruption may have come between the count of that vote and the verdict.
            return self._decided()
        self.replies[node] = reason
        self.choices[node] = _FAILED
        self.failed += 1
        return self._decided()

    def close(self, reason: str) -> None:
        """End the round: nodes that have not voted FAILED for that reason. Then the verdict is no longer PENDING."""
        for node, choice in enumerate(self.choices):
            if choice is None and self.verdict is _PENDING:
                self.fail(node, reason)
        if self.verdict is _PENDING:
            # Only a custom decision can leave a full tally open: no more votes will come, so the round was not won.
            self.verdict = _LOST

    def _decided(self) -> bool:
        """Update the verdict after a vote, and return whether there is one; `record` sees a plain win by itself."""
        if self._decide is not None:
            self.verdict = self._decide(self)
            if self.verdict is not _PENDING:
                # Not called again. It may refer to a hold that keeps this tally: only the cycle collector would free
                # both.
                self._decide = None
        elif len(self.nodes) - self.refused - self.failed < self.quorum and self._is_definite():
            self.verdict = _LOST
        return self.verdict is not _PENDING

    def _is_definite(self) -> bool:
        if not self._thorough or None not in self.choices:
            return True
        ruled_out = self.refused > len(self.nodes) - self.quorum
        return ruled_out and (self._thorough is True or self._thorough(self))

    @property
    def won(self) -> bool:
        """Whether a quorum GRANTED."""
        return self.verdict is _WON

    @property
    def without_quorum(self) -> bool:
        """Whether so many nodes FAILED that the others could not have granted: an outage, not contention."""
        return self.failed > len(self.nodes) - self.quorum
