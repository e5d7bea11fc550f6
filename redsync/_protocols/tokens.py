"""Fencing tokens: numbers that grow with each acquisition, whichever nodes granted it.

Each node keeps the latest token that it gave or was told of. A grant raises it by one, in the same step, also where the
claim was ours already. The token of a round is the highest of a quorum's. That alone is not enough: with A at 10, B and
C at 1, a quorum of A and B grants 11, and then one of B and C grants 3. So the token is handed out only when a quorum
of nodes, while they *keep our claim*, stand at it: else it is written back first.

Why they grow: let X be handed out its token before Y, and m be a node of both quorums. When m stood at X's token, it
kept X's claim. Y's claim on m was not there before: it would have had to end in between, while Y's owner believes in it
until after that. So m granted to Y later, hence more than X's token, and Y's token is no less than what m granted. (A
node that merely stands at the token may have granted to Y long before; that tells nothing, so it does not count.)

A node that forgot its token, or has not given one for a day, begins with its clock, in microseconds since 1970. No
lock is acquired a million times a second, so that is more than all it has given, if clocks are roughly right. It takes
no part in grants before what it forgot is over (`restart_guard`), so the proof holds for forgotten claims too.
"""

from __future__ import annotations

from typing import Any

from redsync._core.effects import Broadcast, Command, Steps, broadcast
from redsync._core.keys import LockKeys
from redsync._core.ownership import Owner
from redsync._core.quorum import Choice, Tally
from redsync._core.scripts import Script

__all__ = ["Fence"]


def _stands(reply: Any) -> bool:
    if reply.__class__ is not int or reply <= 0:
        raise ValueError("a write-back is answered by the token at which the node stands")
    return True


class Fence:
    """The tokens of one acquire.

    Attributes:
        token: The highest that is known; once the acquire has won, its own.
    """

    __slots__ = ("_keys", "_owner", "_write_back", "token")

    def __init__(self, write_back: Script, keys: LockKeys, owner: Owner, token: int) -> None:
        self._write_back = write_back
        self._keys = keys
        self._owner = owner
        self.token = token

    def ask(self, command: Command) -> Command:
        """Return the command that asks for a token as well, higher than any that is known."""
        return Command(command.script, (*command.keys, self._keys.token), (*command.args, self.token))

    def level(self, tally: Tally, patience: float) -> Steps[Tally]:
        """See to it that a quorum stands at the token of a round that was won.

        Returns that round, and when it was settled; or the one that failed to write the token back.
        """
        # The choice is read first: votes that come late are noted in the other order.
        votes = zip(tally.choices, tally.replies, strict=True)
        tokens = [reply[1] for choice, reply in votes if choice is Choice.GRANTED]
        self.token = max(tokens)
        if tokens.count(self.token) >= tally.quorum:
            return tally
        command = Command(self._write_back, (self._keys.lock, self._keys.token), (self._owner.wire, self.token))
        written = yield from broadcast(Broadcast(command, self._owner.lane, self._owner, _stands, patience))
        if not written.won:
            return written
        tally.at = written.at
        return tally
