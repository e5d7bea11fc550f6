"""Fencing tokens: numbers that grow with each acquisition, whichever nodes granted it.

Each node keeps the latest token that it gave or was told of. A grant raises it by one, in the same step. The token of a
round is the highest of a quorum's. That alone is not enough: with A at 10, B and C at 1, a quorum of A and B grants 11,
and then one of B and C grants 3. So the token is handed out only when a quorum of nodes, while they *keep our claim*,
stand at it: else it is written back first.

Why they grow: let X be handed out its token before Y, and m be a node of both quorums. When m stood at X's token, it
kept X's claim. Y's claim on m was not there before: it would have had to end in between, while Y's owner believes in it
until after that. So m granted to Y later, hence more than X's token, and Y's token is no less than what m granted. (A
node that merely stands at the token may have granted to Y long before; that tells nothing, so it does not count.)

A node that forgot its token, or has not given one for a day, begins with its clock, in microseconds since 1970. No
lock is acquired a million times a second, so that is more than all it has given, if clocks are roughly right. It takes
no part in grants before what it forgot is over (`restart_guard`), so the proof holds for forgotten claims too.

A node may also come back with an *older* token: from a snapshot, or a log that lost its end. Its birth record is of
another process then, and becomes a newborn one before any command is executed. From then on each token is more than the
clock showed at that birth, plus the guard; and whatever it gave before is less. (See `_next_token.lua`.) So the proof
holds with m's memory gone, old, or whole; for one node without a guard, too.

A token that no clock shows before the year 2112 comes from a broken node, and its vote fails. A lower one is judged by
each node's clock: no node lets itself be raised to what is more than a year ahead. So it is never handed out, and once
a quorum has refused it, who asked no longer counts votes of that size. (See `_absurd.lua`.)
"""

from __future__ import annotations

from typing import Any

from redsync._core.effects import Broadcast, Command, Steps, broadcast
from redsync._core.keys import LockKeys
from redsync._core.ownership import Owner
from redsync._core.quorum import Choice, Tally
from redsync._core.scripts import Script
from redsync._protocols.rounds import is_granted

__all__ = ["Fence"]

WRITE_BACK = Script.load("fenced_lock_write_back")

_GRANTED = Choice.GRANTED
_GRANTS = (1, 2)

_HIGHEST = 1 << 52
"""Microseconds since 1970: the year 2112. Nodes count exactly up to twice as much."""


def _stands(reply: Any) -> bool:
    if reply.__class__ is not int or not 0 < reply <= _HIGHEST:
        raise ValueError("a write-back is answered by the token at which the node stands")
    return True


class Fence:
    """The tokens of one lock object; guarded by the atomicity of protocol steps.

    Attributes:
        latest: The highest token that it has handed out. What it asks for is higher, also if all nodes forgot theirs.
    """

    __slots__ = ("_highest", "_keys", "latest")

    def __init__(self, keys: LockKeys, latest: int = 0) -> None:
        self._keys = keys
        self._highest = _HIGHEST
        self.latest = latest

    def ask(self, command: Command) -> Command:
        """Return the command that asks for a token as well."""
        return Command(command.script, (*command.keys, self._keys.token), (*command.args, self.latest))

    def judge(self, reply: Any) -> bool:
        """Judge a reply to an acquire whose grants carry tokens."""
        if reply.__class__ is list and len(reply) == 2 and reply[1].__class__ is int and reply[0] in _GRANTS:
            if self.is_absurd(reply[1]):
                raise ValueError("a token beyond all clocks")
            return True
        if is_granted(reply):
            raise ValueError("a grant that lacks its fencing token")
        return False

    def is_absurd(self, token: int) -> bool:
        """Whether only a broken node can tell that token."""
        return not 0 < token <= self._highest

    def read(self, tally: Tally) -> tuple[int, bool]:
        """Return the token of a round that was won, and whether a quorum is known to stand at it."""
        # The choice is read first: votes that come late are noted in the other order.
        votes = zip(tally.choices, tally.replies, strict=True)
        tokens = [reply[1] for choice, reply in votes if choice is _GRANTED]
        likely = [token for token in tokens if not self.is_absurd(token)]
        token: int = max(likely if len(likely) >= tally.quorum else tokens)
        is_level = tokens.count(token) >= tally.quorum
        if is_level:
            self.latest = max(token, self.latest)
        return token, is_level

    def level(self, owner: Owner, claim: bytes, token: int, patience: float) -> Steps[Tally]:
        """Raise a quorum of nodes that keep the claim to a token; return the round in which that was tried."""
        command = Command(WRITE_BACK, (self._keys.lock, self._keys.token), (claim, token))
        written = yield from broadcast(Broadcast(command, owner, _stands, patience))
        if written.won:
            self.latest = max(token, self.latest)
        elif sum(str(reply).startswith("ABSURD") for reply in written.replies) >= written.quorum:
            self._highest = token - 1
        return written
