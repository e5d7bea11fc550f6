"""The limits of semaphores and rate limiters, and the records of slots behind them."""

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from redsync._core.holds import HoldState
from redsync._core.permits import PermitState, read_slots
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.store import Hash, SortedSet
from redsync.testing.simulator.trace_events import Did, Executed, Faulted, Sent, Stepped
from tests.simulation.checks.base import OwnChecker, Trial
from tests.simulation.checks.rounds import PERMIT, parse

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
