"""The limits of semaphores and rate limiters, and the records of slots behind them."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from redsync._core.holds import HoldState
from redsync._core.permits import PermitState, read_slots
from redsync._core.quorum import quorum_of
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.store import Hash, SortedSet
from redsync.testing.simulator.trace_events import Did, Executed, Faulted, Sent, Stepped
from tests.simulation.checks.base import OwnChecker, Trial
from tests.simulation.checks.rounds import PERMIT, Claim, claims, granted_slots, parse

_Limit: TypeAlias = tuple[int, int]
"""The version and the number of permits under which a permit was requested."""


class PermitBound(OwnChecker):
    """The permit bound: at no instant do live machines believe in more permits of a semaphore than there are.

    The number of permits is the newest limit, by version, under which any of the believed permits was granted: a shrink
    takes nothing from holders, but grants nothing more until the new limit is kept. That holds at every instant,
    whatever the faults, even where nodes forget limits; see `docs/semaphores.md`.

    `Exclusion` checks that no two owners believe in the same slot.
    """

    name = "permit bound"
    watches = (Stepped, Sent)
    rests_on_clocks = True

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._asked: Final[dict[bytes, _Limit]] = {}
        self._held: Final[dict[HoldState, tuple[Machine, _Limit]]] = {}

    def see(self, event: Stepped | Sent) -> str | None:
        """Record requests with their limits, and count the believed permits."""
        if isinstance(event, Stepped):
            self._take_up(event.machine)
            return self._count()
        if parse(event.script) == (PERMIT, "acquire"):
            claim, version, permits = event.args[0], event.args[7], event.args[8]
            assert isinstance(claim, bytes), "a claim is text"
            self._asked[claim] = int(version), int(permits)
        return None

    def _take_up(self, machine: Machine) -> None:
        for state in machine.holds():
            if isinstance(state, PermitState) and state not in self._held:
                # The votes that count are those of the latest acquire request.
                self._held[state] = machine, self._asked[state.claim]

    def _count(self) -> str | None:
        believed: dict[bytes, list[tuple[_Limit, Machine, HoldState]]] = {}
        for state, (machine, asked) in list(self._held.items()):
            if state.lost is not None or not state.live or machine.crashed:
                del self._held[state]
            elif state.valid(machine.clock.now()):
                believed.setdefault(state.keys.lock, []).append((asked, machine, state))
        for key, permits in believed.items():
            count = sum(state.count for _, _, state in permits)
            _, limit = max(asked for asked, _, _ in permits)
            if count > limit:
                who = ", ".join(f"{state.count} by {state.owner} on {machine.name}" for _, machine, state in permits)
                what = f"{count} permits of {key.decode(errors='replace')!r} are held where there are {limit}"
                return f"at {self.sim.now:.6f} {what}: {who}"
        return None


_OF_EACH = 6
"""The number of keys of each semaphore: claim, queue, places, slots, taken, limit."""


class Slots(OwnChecker):
    """Slots: a node's records of a semaphore or a rate limiter agree with each other, after every script.

    * A slot is marked as taken if and only if a permit has it on that node, and no two permits have the same slot.
    * Each permit in the list of slots has an expiry, and each with an expiry is in that list.
    * The three keys of these records expire at the same instant: a bit map that outlived its permits would block slots
      forever.

    It holds at every instant, for each node separately, until its clock jumps. When a clock is set back to before the
    end of the keys, the node has those keys again that no command has touched in between, and not the others. So
    unowned slots may be blocked there until the last permit is gone; the checker ignores that. A promoted replica may
    have some of the keys without the others, see `_slots.lua`; the checker ignores that until they are deleted.
    """

    name = "slots"
    watches = (Executed, Faulted)

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._jumped: Final[dict[str, None]] = {}
        self._promoted: Final[dict[str, None]] = {}

    def see(self, event: Executed | Faulted) -> str | None:
        """Look at the records after a script."""
        if isinstance(event, Executed):
            return None if self._node(event) in self._jumped else self._see_executed(event)
        if event.kind == "node jump":
            self._jumped[event.text.partition(" ")[0]] = None
        elif event.kind == "group failover":
            self._promoted[event.text.partition(": ")[2].partition(" ")[0]] = None
        return None

    def _see_executed(self, event: Executed) -> str | None:
        if parse(event.script)[0] != PERMIT:
            return None
        keys = event.keys
        books = [(keys[i], keys[i + 3], keys[i + 4]) for i in range(0, len(keys), _OF_EACH)]
        return next((text for each in books for text in self._look_at(event, *each)), None)

    def _look_at(self, executed: Executed, claim: bytes, slots: bytes, taken: bytes) -> Iterator[str]:
        (permits, ends), (has, slots_end), (bits, bits_end) = (
            self._peek(executed, key) for key in (claim, slots, taken)
        )
        if permits is not None and not isinstance(permits, SortedSet):
            return
        if None in (permits, has, bits) and self._node(executed) in self._promoted:
            return  # the next acquire request or renewal deletes the rest
        where = f"{self._node(executed)} after {executed.script}: {claim.decode(errors='replace')!r}"
        assert isinstance(has, Hash | None), "no other code writes there"
        # Other fields name the successes that get a slot as soon as it is free.
        permitted = {permit: text for permit, text in (has or {}).items() if not permit.startswith(b">")}
        given = [slot for text in permitted.values() if text for slot in read_slots(text)]
        marked = [i for i in range(8 * len(bits or b"")) if (bits or b"")[i // 8] >> (7 - i % 8) & 1]
        if sorted(given) != marked:
            yield f"{where}: permits have slots {sorted(given)}, and {marked} are marked as taken"
        if permitted.keys() != set(permits or ()):
            yield f"{where}: {len(permitted)} permits have slots, and {len(permits or ())} have an expiry"
        if not ends == slots_end == bits_end:
            yield f"{where}: its keys end in {ends}, {slots_end} and {bits_end} ms"

    def _peek(self, executed: Executed, key: bytes) -> tuple[Any, int | None]:
        return self.sim.nodes[executed.node].store.peek(key) or (None, None)

    def _node(self, executed: Executed) -> str:
        return self.sim.nodes[executed.node].name


class _Success(NamedTuple):
    """A success of one rate: when, of how many, its claim, and under which version and rate it was requested."""

    at: float
    n: int
    permit: str
    limit: _Limit


class SlidingWindow(OwnChecker):
    """The sliding window: no window of a limiter's length has more successes than its rate, over all machines.

    A success counts at the instant of true time at which the acquire returned to its program, as programs report
    (`Machine.tell` with "success", the limiter's `name`, its `rates` as programs state them, `n`, and `permits`, its
    claims under each rate). Windows are closed: two successes that are exactly `per` apart are in one. There is no
    tolerance for clocks, because nodes allow for clocks that are as wrong as `drift_factor` says.

    Where programs change a rate, the newest one, by version, under which any success in the window was requested is the
    rate. A success counts even if the machine crashed in the next instant, so that no program learned of it. It no
    longer does once its program returns it ("cancels", with its `permits`).
    """

    name = "sliding window"
    watches = (Did, Sent)
    rests_on_clocks = True

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._asked: Final[dict[str, _Limit]] = {}
        self._successes: Final[dict[tuple[str, float], deque[_Success]]] = {}

    def see(self, event: Did | Sent) -> str | None:
        """Record requests with their limits, and count the successes in each window that ends now."""
        if isinstance(event, Sent):
            if parse(event.script) == (PERMIT, "acquire"):
                claim, version, permits = event.args[0], event.args[7], event.args[8]
                assert isinstance(claim, bytes), "a claim is text"
                self._asked[claim.decode()] = int(version), int(permits)
            return None
        about = event.about
        if event.what == "cancels":
            for successes in self._successes.values():
                for success in [each for each in successes if each.permit in about["permits"]]:
                    successes.remove(success)
        if event.what != "success":
            return None
        found = []
        for (rate, per), permit in zip(about["rates"], about["permits"], strict=True):
            version, changed = self._asked[permit]
            success = _Success(event.at, about["n"], permit, (version, changed if version else rate))
            found.append(self._count(about["name"], success, per))
        return next(filter(None, found), None)

    def _count(self, name: str, success: _Success, per: float) -> str | None:
        successes = self._successes.setdefault((name, per), deque())
        successes.append(success)
        while success.at - successes[0].at > per:
            successes.popleft()
        count = sum(each.n for each in successes)
        _, rate = max(each.limit for each in successes)
        if count <= rate:
            return None
        when = ", ".join(f"{each.n} at {each.at:.6f}" for each in successes)
        return f"{count} successes of {name!r}, {when}, where there are {rate} in any {per:g} s"


_DRIFT, _ROOM_AGAIN = 1.01, 0.005
"""The longest promised time is the window times the first of these, plus the second in seconds."""

_WINDOW = 11
"""The index of the argument of an acquire request that is a rate limiter's window, in us."""

_FURTHER = " (window "
"""The text between the name of a limiter and the number of a further window, in keys."""

_QUIESCENCE = 2.0
"""Seconds without faults before that: until every client is connected again."""

_QUICK, _WAY = 0.0005, 0.0025
"""Telling nodes that took less time is quick; then come the seconds for the way to the caller, and some rounding."""


class RetryAfterAccuracy(OwnChecker):
    """Promised room: a program that waits for as long as `retry_after` said, and then tries once, succeeds.

    The exception is that others came meanwhile: nodes got requests for the same limiter since the program began to ask;
    or that a program changed its rate then, or did not learn whether it has; or that its own rollback came behind its
    next ask, because nodes had forgotten that script.
    The promise must hold without faults (see `fault_free`), because a node that could not be asked may keep more than
    the others. Programs report what they do (`Machine.tell` with "wonders", "room", "asks" with `how="told"`, and with
    the outcome).

    The promised time is never longer than the window, 1 % and 5 ms. A program that got exactly that time may be refused

    * if any node's clock runs slower than its own, because that node keeps slots longer;
    * if no quorum of nodes is without a success that they still keep: because a message about it came late, or from a
      client that needs more time to tell nodes. It may take more only if it was slow at least twice, and no more than
      four times the longest of these times.

    Not seen: programs that asked while others wait; times that are longer than necessary.
    """

    name = "retry_after"
    watches = (Did, Executed, Sent)
    rests_on_clocks = True

    def __init__(self, sim: Trial) -> None:
        super().__init__(sim)
        self._asked: Final[dict[str, dict[bytes, float]]] = {}
        self._told: Final[dict[tuple[str, str], tuple[float, float, float]]] = {}
        self._per: Final[dict[str, float]] = {}
        self._changing: Final[Counter[str]] = Counter()
        self._changed: Final[dict[str, float]] = {}
        self._kept: Final[dict[str, dict[tuple[int, bytes], float]]] = {}
        # For each rollback, its client, the instant at which it was sent, and the nodes that have executed it.
        self._undone: Final[dict[bytes, tuple[str, float, set[int]]]] = {}

    def see(self, event: Did | Executed | Sent) -> str | None:
        """Record answers and requests, and look at outcomes and messages."""
        if isinstance(event, Did):
            return self._see_did(event)
        noun, verb = parse(event.script)
        if noun != PERMIT or verb not in {"acquire", "confirm", "abandon"}:
            return None
        name = event.keys[0].decode().rpartition(":")[2]
        claim = claims(event.script, event.keys, event.args)[0]
        if isinstance(event, Sent):
            if verb == "abandon":
                self._undone[claim.id] = event.client, event.at, set()
            return self._see_message(event, name, claim) if verb == "confirm" else None
        if verb == "abandon" and claim.id in self._undone:
            self._undone[claim.id][2].add(event.node)
        kept, which = self._kept.setdefault(name, {}), (event.node, claim.id)
        if verb == "acquire":
            # Under several rates an owner asks for the longest window first.
            self._asked.setdefault(name.partition(_FURTHER)[0], {})[claim.owner] = event.at
            if len(event.args) > _WINDOW:
                self._per[name] = int(event.args[_WINDOW]) / 1e6
        if verb == "abandon" or (verb == "acquire" and not granted_slots(event.reply)):
            kept.pop(which, None)
        else:
            # The message about a success shortens its time; later asks never do.
            kept[which] = event.at + claim.lease
        return None

    def _longest(self, name: str) -> float:
        return self._per[name] * _DRIFT + _ROOM_AGAIN

    def _see_message(self, sent: Sent, name: str, claim: Claim) -> str | None:
        slow = [delay for delay in self.runner(sent.client).delays if delay > _QUICK]
        needs = (self._per[name] + 4 * max(slow, default=0.0) + _WAY) * _DRIFT if len(slow) > 1 else 0.0
        if claim.lease <= max(self._longest(name), needs):
            return None
        return (
            f"{sent.client} lets nodes keep a success of {name!r} for {claim.lease:.6f} s, although it was slow "
            f"{len(slow)} times before"
        )

    def _see_did(self, did: Did) -> str | None:
        who, about = (did.machine.name, did.who), did.about
        if did.what in {"resizes", "resized"}:
            self._changing[about["name"]] += 1 if did.what == "resizes" else -1
            self._changed[about["name"]] = did.at
        elif did.what == "wonders":
            self._told[who] = did.at, 0.0, 0.0
        elif did.what == "room" and who in self._told:
            self._told[who] = self._told[who][0], about["seconds"], 0.0
        elif did.what == "asks" and about.get("how") == "told" and who in self._told:
            self._told[who] = *self._told[who][:2], did.at
        else:
            told = self._told.pop(who, None)
            if told is not None and did.what == "busy":
                return self._judge(did, *told)
        return None

    def _judge(self, did: Did, since: float, seconds: float, asked: float) -> str | None:
        name = did.about["name"]
        if self._changing[name] or self._changed.get(name, 0.0) >= since:
            return None
        others = sum(at >= since for at in self._asked[name].values()) - 1
        for window in [each for each in self._per if each.partition(_FURTHER)[0] == name]:
            if seconds >= self._longest(window) and (self._is_slow(did) or self._is_kept(window, asked)):
                return None
        if others or self.sim.fault_free.lasted() < did.at - since + _QUIESCENCE:
            return None
        quorum, client = quorum_of(len(self.sim.nodes)), did.machine.name
        if any(who == client and at >= since and len(done) < quorum for who, at, done in self._undone.values()):
            return None
        return (
            f"{did.who} on {did.machine.name} learned at {since:.6f} that {name!r} has room in "
            f"{seconds:.6f} s, and was refused at {did.at:.6f}, although no other owner asked"
        )

    def _is_slow(self, did: Did) -> bool:
        """Return whether any node's clock runs slower than the program's."""
        return any(node.clock.rate < did.machine.clock.rate for node in self.sim.servers)

    def _is_kept(self, name: str, at: float) -> bool:
        """Return whether no quorum of nodes is without a success that it still keeps."""
        nodes = len(self.sim.nodes)
        keep = {node for (node, _), until in self._kept.get(name, {}).items() if until > at}
        return nodes - len(keep) < quorum_of(nodes)
