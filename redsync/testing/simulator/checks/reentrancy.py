"""Re-entrancy: a lock is held as often as it was acquired and not yet released, and the nodes have been told so.

* Counts are set: a node that was told a count and had or made the claim keeps exactly that count. So, when all commands
  of an owner have arrived, each node keeps what the owner's last command said.
* What the commands say is right: a release carries what remains, a renewal what there is, a re-entry one acquisition
  more at least. The count 0 travels only when the last acquisition is given back; no release of an inner one frees it.
* A re-entry wins only with a quorum of nodes that *had* the claim, and is not even tried by whoever has been told that
  it lost the lock: it never wins back what was lost meanwhile.
* Where programs tell of what they do (`Machine.tell` with "acquired", its `name`, `owner` and `count`, and "released"),
  the count is that of their own acquisitions.

It holds at every instant, for locks; a mutex is not re-entrant.

Not seen: that a program releases as often as it acquires, if it does not tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from redsync._core.holds import HoldState
from redsync.testing.simulator.checks.checker import Checker, describe
from redsync.testing.simulator.checks.rounds import REENTRANT, Outcome, Rounds, claims, parse
from redsync.testing.simulator.happenings import Decided, Did, Executed, Sent, Stepped
from redsync.testing.simulator.values import Hash

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimRunner
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Reentrancy"]


class Reentrancy(Checker):
    """The hold count is right: with the owner, in its commands, on the nodes."""

    name = "re-entrancy"
    watches = (Executed, Sent, Decided, Stepped, Did)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._rounds: Final = Rounds()
        self._fresh: Final[list[Outcome]] = []
        self._counts: Final[dict[HoldState, int]] = {}
        self._said: Final[dict[tuple[str, str], int]] = {}

    def see(self, happening: Executed | Sent | Decided | Stepped | Did) -> str | None:
        """Look at the counts."""
        match happening:
            case Executed():
                return self._see_executed(happening)
            case Sent():
                return self._see_sent(happening)
            case Did():
                return self._see_did(happening)
            case Decided():
                self._fresh.extend(self._rounds.decide(happening))
                return None
        found = [text for runner in happening.machine.runners for text in self._look_at(runner)]
        self._fresh.clear()
        return found[0] if found else None

    def _see_executed(self, executed: Executed) -> str | None:
        noun, verb = parse(executed.script)
        if noun not in REENTRANT:
            return None
        node, replies = self.sim.nodes[executed.node], executed.reply
        for i, claim in enumerate(claims(executed.script, executed.keys, executed.args)):
            code = replies[i] if verb == "renew" and isinstance(replies, list) else replies
            # 1 and 2: it made the claim, or had it already.
            if claim.holds and code in (1, 2):
                found = node.store.peek(claim.key)
                kept = found[0].get(claim.owner) if found is not None and isinstance(found[0], Hash) else None
                if kept != b"%d" % claim.holds:
                    return (
                        f"{node.name} was told by {executed.script} that {describe(claim.key, claim.owner)} counts "
                        f"{claim.holds}, and keeps {'nothing' if kept is None else kept.decode()}"
                    )
        return None

    def _see_sent(self, sent: Sent) -> str | None:
        noun, verb = parse(sent.script)
        if noun not in REENTRANT or verb == "abandon":
            return None
        runner = self.runner(sent.client)
        self._rounds.ask(sent, runner.machine.clock.now())
        for key, owner, count, *_ in claims(sent.script, sent.keys, sent.args):
            state = self.hold(runner, key, owner)
            has = 0 if state is None else state.count
            what = f"#{sent.number} of {sent.client}, {sent.script} with count {count} of {describe(key, owner)}"
            if verb == "acquire" and state is not None and state.lost is not None:
                return f"{what}: re-enters what it has lost"
            if verb == "acquire" and count <= has:
                return f"{what}: counts {has} already"
            if verb != "acquire" and count != has:
                return f"{what}: counts {has}"
        return None

    def _look_at(self, runner: SimRunner) -> Iterator[str]:
        for state in runner.session.holds:
            before = self._counts.get(state)
            self._counts[state] = state.count
            if before is not None and state.count > before and not self._is_founded(runner, state):
                yield f"{describe(state.keys.lock, state.owner.wire)} was re-entered without a quorum that had it"

    def _is_founded(self, runner: SimRunner, state: HoldState) -> bool:
        wanted = state.keys.lock, state.owner.wire, state.count
        return state.lost is None and any(
            outcome.claim[:3] == wanted and outcome.verb == "acquire" and outcome.existing >= runner.session.quorum
            for outcome in self._fresh
        )

    def _see_did(self, did: Did) -> str | None:
        about: dict[str, Any] = did.about
        if "owner" not in about or "name" not in about:
            return None
        whose = about["owner"], about["name"]
        said = self._said.get(whose, 0)
        if did.what == "acquired":
            self._said[whose] = said = said + 1
            if about.get("count", said) != said:
                return f"{about['owner']} has acquired {about['name']!r} {said} times, which counts {about['count']}"
        elif did.what == "released" and said:
            self._said[whose] = said - 1
        elif did.what in {"asks", "lost", "cancelled", "leaves"}:
            # Whatever ended it, what follows begins anew.
            self._said.pop(whose, None)
        return None
