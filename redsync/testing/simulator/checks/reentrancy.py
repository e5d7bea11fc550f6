"""Re-entrancy: the hold count is the number of acquires not yet released, and the nodes know it.

* Counts are set: a node that gets a count, and has or makes the claim, keeps exactly that count. So when all commands
  of an owner have arrived, each node keeps the count of the owner's last command.
* The counts in commands are right: a release carries the remaining count, a renewal the present one, a re-entry at
  least one more than that. A count of 0 is sent only with the last release; no release of an inner acquisition frees
  the lock.
* A re-entry wins only with a quorum of nodes that *had* the claim, and an owner that knows of its loss does not even
  try: re-entry never wins back what was lost meanwhile.
* A node that has the claim never refuses a re-entry, no matter which owners wait; nor does it refuse the read lock to
  its writer.
* Where programs report what they do (`Machine.tell` with "acquired", its `name`, `owner` and `count`, perhaps `mode`,
  and "released"), the count is that of their own acquisitions.

It holds at every instant, for locks; a mutex is not re-entrant.

Not seen: that a program releases as often as it acquires, if it does not report that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from redsync._core.holds import HoldState
from redsync.testing.simulator.checks.checker import Checker, Simulation, describe, whose
from redsync.testing.simulator.checks.kept import kept_claims
from redsync.testing.simulator.checks.rounds import REENTRANT, Claim, Outcome, Rounds, claims, code_of, parse
from redsync.testing.simulator.happenings import Decided, Did, Executed, Sent, Stepped

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["Reentrancy"]

_WRITE: Final = b"w:"


class Reentrancy(Checker):
    """The hold count is right: in the owner's client, in its commands, on the nodes."""

    name = "re-entrancy"
    watches = (Executed, Sent, Decided, Stepped, Did)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._rounds: Final = Rounds()
        self._fresh: Final[list[Outcome]] = []
        self._counts: Final[dict[HoldState, int]] = {}
        self._said: Final[dict[tuple[str, str], dict[str, int]]] = {}

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
        for i, claim in enumerate(claims(executed.script, executed.keys, executed.args)):
            code = code_of(executed.reply, verb, i)
            # 1 and 2: it made the claim, or had it already.
            complaint = None
            if claim.holds and code in (1, 2):
                complaint = self._look_at_count(executed, claim)
            elif verb == "acquire" and isinstance(code, list):
                complaint = self._look_at_refusal(executed, claim)
            if complaint is not None:
                return complaint
        return None

    def _look_at_count(self, executed: Executed, claim: Claim) -> str | None:
        node = self.sim.nodes[executed.node]
        kept = next((kept for kept in kept_claims(node, claim.key) if kept[:2] == claim.whose[1:]), None)
        if kept is not None and kept.holds == claim.holds:
            return None
        if not executed.script.endswith("_acquire") and kept is not None and node.store.refusal is not None:
            # A node that can't write keeps the old count until the next one is set.
            return None
        return (
            f"{node.name} got count {claim.holds} by {executed.script} for {describe(*claim.whose)}, "
            f"but keeps {'nothing' if kept is None else kept.holds}"
        )

    def _look_at_refusal(self, executed: Executed, claim: Claim) -> str | None:
        node = self.sim.nodes[executed.node]
        for kept in kept_claims(node, claim.key):
            # A reader must not write, but a writer may read.
            if kept[:2] == claim.whose[1:] or (kept.owner == claim.owner and kept.mode == _WRITE):
                return f"{node.name} refused {describe(*claim.whose)}, which has it there already"
        return None

    def _see_sent(self, sent: Sent) -> str | None:
        noun, verb = parse(sent.script)
        if noun not in REENTRANT or verb == "abandon":
            return None
        runner = self.runner(sent.client)
        self._rounds.ask(sent, runner.machine.clock.now())
        for claim in claims(sent.script, sent.keys, sent.args):
            state, count = self.hold(runner, *claim.whose), claim.holds
            has = 0 if state is None else state.count
            if verb == "acquire" and state is not None and state.lost is not None:
                wrong = "re-enters what it has lost"
            elif verb == "acquire" and count <= has:
                wrong = f"counts {has} already"
            elif verb != "acquire" and count != has:
                wrong = f"counts {has}"
            else:
                continue
            what = f"#{sent.number} of {sent.client}, {sent.script} with count {count} of {describe(*claim.whose)}"
            return f"{what}: {wrong}"
        return None

    def _look_at(self, runner: SimulatedRunner) -> Iterator[str]:
        for state in runner.session.holds:
            before = self._counts.get(state)
            self._counts[state] = state.count
            if before is not None and state.count > before and not self._is_founded(runner, state):
                yield f"{describe(*whose(state))} was re-entered without a quorum that had it"

    def _is_founded(self, runner: SimulatedRunner, state: HoldState) -> bool:
        return state.lost is None and any(
            outcome.verb == "acquire"
            and (outcome.claim.whose, outcome.claim.holds) == (whose(state), state.count)
            and outcome.existing >= runner.session.quorum
            for outcome in self._fresh
        )

    def _see_did(self, did: Did) -> str | None:
        about: dict[str, Any] = did.about
        if "owner" not in about or "name" not in about:
            return None
        said, mode = self._said.setdefault((about["owner"], about["name"]), {}), about.get("mode", "")
        if did.what == "acquired":
            said[mode] = count = said.get(mode, 0) + 1
            if about.get("count", count) != count:
                return f"{about['owner']} has acquired {about['name']!r} {count} times, which counts {about['count']}"
        elif did.what == "released" and said.get(mode):
            said[mode] -= 1
        elif did.what in {"asks", "lost", "cancelled", "leaves"}:
            # However the earlier holds ended, the next acquisition starts counting again.
            said.clear()
        return None
