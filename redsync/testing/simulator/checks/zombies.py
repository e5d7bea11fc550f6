"""No zombies: no node keeps a claim, or a place in a queue, of an owner that neither holds nor waits.

Whenever a node has answered all that a live client has sent it over a connection that is still in use, and the client
is not about to send refused commands again:

* each claim there of one of the client's owners belongs to a hold that is not lost, to an acquire whose votes are still
  being counted, or to an acquire that waits and has a place there, so that the lock may have been handed over to it (a
  waiter for a read-write lock has lost its place by then);
* each unexpired place in a queue there belongs to an acquire that is still waiting, or to a hold;
* each unexpired place of a latch there belongs to a waiter of that latch;
* each unexpired permit of a semaphore there keeps only slots that its hold has. Extra slots that a node gave when the
  permit was won may stay until they have been exchanged; a lease without faults is enough for that;
* each permit of a rate limiter there belongs to a success: to an acquire that was won and not rolled back;
* at any time, for every client: a claim expires, and no later than the longest requested lease. The keys of a semaphore
  last for twice that; its permits have their own expiries.

Commands on their way to a node, and commands that the client owes to a node it can't reach, are not yet answered. So
the only extra time is `_SETTLED`, in which a client that has just begun to connect may hold its commands. Only the last
point judges what a crashed client leaves.

One thing is excused: leftovers of commands that a node executed after the client had abandoned their connection, so
perhaps later than their rollback. They expire, which the last point checks.

Not seen: slots that a node keeps for a rate limiter's permit beyond those of the success; nodes to which a client has
no connection, or owes commands; clients that are closed; nodes, and clients on machines, whose clock has jumped, and
nodes that came back with older data, for as long as a claim or a place may last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from redsync._core.permits import PermitState, read_slots
from redsync.testing.simulator.checks.checker import Checker, Simulation, describe
from redsync.testing.simulator.checks.kept import Kept, kept_at, kept_claims, kept_places, now_ms
from redsync.testing.simulator.checks.latches import EXCHANGE
from redsync.testing.simulator.checks.rounds import MODES, PERMIT, Rounds, claims, parse
from redsync.testing.simulator.happenings import Decided, Executed, Faulted, Sent
from redsync.testing.simulator.values import Hash, SortedSet

if TYPE_CHECKING:
    from redsync._drivers.links import AnyLink
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.nodes import VirtualNode
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["Zombies"]

_SETTLED = 0.3
"""Seconds for which a leftover must exist before it counts."""

_RETRY = 1.0
"""Seconds within which the client sends refused commands again."""

_PLACE = 3.0
"""Seconds for which a place is kept."""

_OF_LIMITER = 13
"""The number of arguments of a rate limiter's acquire request, one more than of a semaphore's."""

_PLACE_OF_LATCH: Final = {EXCHANGE: 1, "latch_leave": 0}
"""The index of the argument that is a place of a latch, or empty, by script."""

_UNDECIDED = 1.0
"""Seconds for which a round may be open: an interrupted one never ends."""


class Zombies(Checker):
    """Nodes keep only what owners have, or ask for."""

    name = "zombies"
    watches = (Sent, Decided, Executed, Faulted)
    every = 0.1  # leftovers stay long

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._rounds: Final = Rounds()
        self._strays: Final[dict[tuple[int, bytes, bytes, bytes], int]] = {}
        self._names: Final[dict[bytes, tuple[bytes, bytes]]] = {}
        self._slots: Final[dict[bytes, bytes]] = {}
        self._latches: Final[dict[bytes, bytes]] = {}
        self._limiters: Final[dict[bytes, None]] = {}
        self._spent: Final[dict[tuple[bytes, bytes], None]] = {}
        self._left: dict[str, float] = {}
        # The claims that nodes keep at the instant of a look.
        self._kept: Final[dict[tuple[VirtualNode, bytes], list[Kept]]] = {}
        self._jumped: Final[dict[str, float]] = {}
        self._longest = 0.0
        self._disturbed = -math.inf

    def see(self, happening: Sent | Decided | Executed | Faulted) -> None:
        """Record requests."""
        match happening:
            case Sent():
                self._note_sent(happening)
            case Decided():
                self._note_decided(happening)
            case Executed():
                self._note_executed(happening)
            case Faulted():
                if happening.kind == "machine resume":
                    # That machine counts its votes late.
                    self._disturbed = happening.at
                if happening.kind in {"machine jump", "node jump", "node restart older"}:
                    self._jumped[happening.who] = happening.at

    def look(self) -> Iterable[str]:
        """Look at all nodes."""
        hosts: list[Machine | VirtualNode] = [*self.sim.machines, *self.sim.nodes]
        for host in hosts:
            if self.sim.calm.lag(host.clock):
                self._jumped[host.name] = self.sim.now
        self._kept.clear()
        before, self._left = self._left, {}
        for text, timeout in self._look_at_clients():
            since = self._left[text] = before.get(text, self.sim.now)
            if self.sim.now >= since + timeout:
                yield text
        yield from self._look_at_expiries()

    def _look_at_clients(self) -> Iterator[tuple[str, float]]:
        """Return leftovers, each with the seconds for which it may stay."""
        for machine in self.sim.machines:
            for runner in machine.runners:
                if not (machine.crashed or machine.paused or runner.closed or self._is_confused(machine.name)):
                    for line in runner.links.links if runner.links is not None else ():
                        if line is not None and not self._is_busy(runner, line) and not self._is_retrying(runner, line):
                            yield from self._look_at(runner, line)

    @staticmethod
    def _is_busy(runner: SimulatedRunner, line: AnyLink) -> bool:
        """Return whether the node has yet to answer, or to end a former connection."""
        ours = [links.links[line.index] for links in runner.link_sets]
        following = any(index == line.index for links in runner.link_sets for index, _ in links.following)
        former = len(ours) > 1 and bool(line.node.former)
        return following or former or any(link is not None and bool(link.pending) for link in ours)

    @staticmethod
    def _is_retrying(runner: SimulatedRunner, line: AnyLink) -> bool:
        assert runner.links is not None, "it has that link"
        return 0.0 <= runner.links._shared.releases.due_at(line.index) - runner.now() < _RETRY

    def _note_sent(self, sent: Sent) -> None:
        if sent.script == EXCHANGE:
            self._latches[sent.keys[0]] = sent.keys[1]
        for claim in claims(sent.script, sent.keys, sent.args):
            self._longest = max(self._longest, claim.lease)
            if sent.script.endswith(("_acquire", "_write_back")):
                self._rounds.ask(sent, self.sim.now)
                if len(sent.args) == _OF_LIMITER:
                    self._limiters[claim.key] = None
            elif sent.script.endswith("_abandon"):
                self._spent.pop((claim.key, claim.id), None)
            noun, verb = parse(sent.script)
            if noun == PERMIT and verb != "renew":
                self._names[sent.keys[0]], self._slots[sent.keys[0]] = (sent.keys[1], sent.keys[2]), sent.keys[3]
            elif len(sent.keys) >= 3 and verb != "renew":
                self._names[sent.keys[0]] = sent.keys[1], sent.keys[2]
            else:
                self._names.setdefault(claim.key, (b"", b""))

    def _note_decided(self, decided: Decided) -> None:
        for outcome in self._rounds.decide(decided):
            if decided.verdict == "won" and outcome.claim.key in self._limiters:
                self._spent[outcome.claim.key, outcome.claim.id] = None

    def _note_executed(self, executed: Executed) -> None:
        if not (executed.stray or self._strays):
            return
        for key, whose, mode in _concerned(executed, self._names):
            place = executed.node, key, whose, mode
            if executed.stray:
                self._strays[place] = executed.number
            elif not executed.script.endswith("_renew") and executed.number >= self._strays.get(place, 0):
                self._strays.pop(place, None)

    def _look_at(self, runner: SimulatedRunner, line: AnyLink) -> Iterator[tuple[str, float]]:
        node, prefix = self.sim.nodes[line.node.index], f"{runner.client_id}:".encode()
        if self._is_confused(node.name):
            return
        for key, (queue, places) in self._names.items():
            waiting = kept_places(node, queue, places)
            for claim in self._claims(node, key):
                if claim.id.startswith(prefix) and (node.index, key, *claim[:2]) not in self._strays:
                    yield from self._look_at_claim(runner, node, key, claim, claim.owner in waiting)
            for owner in waiting:
                strays = ((node.index, key, owner, mode) in self._strays for mode in (b"", *MODES.values()))
                if owner.startswith(prefix) and not any(strays):
                    for text in self._look_at_place(runner, node, key, owner):
                        yield text, _SETTLED
        for text in self._look_at_latches(runner, node, prefix):
            yield text, _SETTLED

    def _claims(self, node: VirtualNode, key: bytes) -> list[Kept]:
        found = self._kept.get((node, key))
        if found is None:
            found = self._kept[node, key] = kept_claims(node, key)
        return found

    def _look_at_claim(
        self, runner: SimulatedRunner, node: VirtualNode, key: bytes, claim: Kept, has_place: bool
    ) -> Iterator[tuple[str, float]]:
        state = self.hold(runner, key, claim.id, claim.mode)
        if state is not None and state.lost is None:
            if isinstance(state, PermitState):
                yield from self._look_at_slots(node.index, key, state)
            return
        # A waiter that is handed a read-write lock loses its place.
        handed = runner.listens(claim.owner + b" " + key) and (has_place or claim.mode)
        spent = (key, claim.id) in self._spent
        if not handed and not spent and not self._may_be_won(runner, key, claim.id):
            yield f"{node.name} keeps an ownerless claim: {describe(key, claim.id, claim.mode)}", _SETTLED

    def _look_at_place(self, runner: SimulatedRunner, node: VirtualNode, key: bytes, owner: bytes) -> Iterator[str]:
        holds = runner.session.holds
        if any(state.keys.lock == key and state.owner.wire == owner and state.lost is None for state in holds):
            return
        if not runner.listens(owner + b" " + key):
            yield f"{node.name} keeps a place in the queue without a waiter: {describe(key, owner)}"

    def _look_at_latches(self, runner: SimulatedRunner, node: VirtualNode, prefix: bytes) -> Iterator[str]:
        for key, waiters in self._latches.items():
            for place, until_ms in kept_at(node, waiters, SortedSet).items():
                owner = place.rpartition(b" ")[2]
                is_ours = owner.startswith(prefix) and until_ms > node.clock.now() * 1000
                is_stray = (node.index, key, owner, b"") in self._strays
                if is_ours and not is_stray and not runner.listens(owner + b" " + key):
                    yield f"{node.name} keeps a latch place without a waiter: {describe(key, owner)}"

    def _look_at_slots(self, index: int, key: bytes, state: PermitState) -> Iterator[tuple[str, float]]:
        has = kept_at(self.sim.nodes[index], self._slots[key], Hash).get(state.claim)
        others = set(read_slots(has)) - set(state.slots[: state.count]) if has else None
        if others and self.sim.calm.lasted() > self._longest:
            what = f"slots {sorted(others)} besides those it has: {describe(key, state.claim)}"
            yield f"{self.sim.nodes[index].name} keeps for a permit {what}", self._longest

    def _is_confused(self, name: str) -> bool:
        """Return whether a node may keep what its client thinks is gone: a clock has jumped, or old data came back."""
        return self.sim.now < self._jumped.get(name, -math.inf) + self._longest + _PLACE

    def _may_be_won(self, runner: SimulatedRunner, key: bytes, claim: bytes) -> bool:
        since = self.sim.now - _UNDECIDED
        return self._disturbed > since or self._rounds.asks(runner.name, key, claim, since)

    def _look_at_expiries(self) -> Iterator[str]:
        for node in self.sim.nodes:
            allowed = (self._longest + self.sim.calm.lag(node.clock)) * 1000 + 2
            for key in self._names:
                found = node.store.peek(key)
                if found is None:
                    continue
                name = key.decode(errors="replace")
                if found[1] is None or found[1] > (2 * allowed if key in self._slots else allowed):
                    lasting = "forever" if found[1] is None else f"for another {found[1]} ms"
                    yield f"{node.name} keeps {name!r} {lasting}"
                elif any(claim.until_ms > now_ms(node) + allowed + 1 for claim in self._claims(node, key)):
                    yield f"{node.name} keeps a claim on {name!r} for too long"


def _concerned(executed: Executed, names: Mapping[bytes, tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Return the claims or places that a command was about: each as a key, an owner or its claim, and a mode."""
    # A rollback by a waiter that stays leaves its place as it is; so does an ask without one.
    stays = executed.script.endswith("_abandon") and executed.args[1] == 0
    for claim in claims(executed.script, executed.keys, executed.args):
        yield claim.key, claim.id, claim.mode
        if not stays and names.get(claim.key, executed.keys)[0] in executed.keys:
            yield claim.key, claim.owner, claim.mode
    if executed.script in _PLACE_OF_LATCH and (place := executed.args[_PLACE_OF_LATCH[executed.script]]):
        assert isinstance(place, bytes), "it names a channel and an owner"
        yield executed.keys[0], place.rpartition(b" ")[2], b""
