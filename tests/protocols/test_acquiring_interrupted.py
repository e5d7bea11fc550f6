"""New acquires of each kind, interrupted at every point of our code where an interruption can strike."""

import itertools
from functools import partial

import pytest

from redsync._core.effects import Broadcast, Tell, Wait
from redsync._core.permits import Limit, SlotKeys
from redsync._protocols.claims import Claim
from redsync._protocols.fenced_lock import FENCED_LOCK, Fence, FencedClaim
from redsync._protocols.lock import FAIR_LOCK, LOCK
from redsync._protocols.rate import RATE
from redsync._protocols.semaphore import SEMAPHORE
from redsync._protocols.slot_claims import SlotClaim, WindowClaim
from redsync._protocols.windows import Window
from tests.support.injection import inject_at_calls as inject
from tests.support.slots import full, got
from tests.support.sweeps import swept
from tests.support.toy_replies import A, held

ALL = 0b11111
SLOTS = SlotKeys.of(b"redsync:", b"x")

# The kind, the maker of its claim, the refusals of both rounds before it waits, and a grant.
KINDS = {
    "lock": (LOCK, lambda toy: Claim, [held(), held()], 1),
    "fair lock": (FAIR_LOCK, lambda toy: Claim, [[20_000, A, 1], [20_000, A, 2, 1]], 1),
    "fenced lock": (FENCED_LOCK, lambda toy: partial(FencedClaim, fence=Fence()), [held(), held()], None),
    "semaphore": (SEMAPHORE, lambda toy: partial(SlotClaim, limit=Limit(4)), [full(), full()], got(2)),
    "rate limiter": (
        RATE,
        lambda toy: partial(WindowClaim, limit=Limit(4, 1_000_000), window=Window(1.0, toy.session.timing)),
        [full(), full()],
        got(2),
    ),
}


class Acquire:
    """A new acquire that succeeds on all nodes, at once or after a wait, unless it is interrupted.

    If nodes hand over, it does not ask after its wait: then they have.
    """

    def __init__(self, toy, what, *, waits):
        kind, claims, refusals, self._grant = KINDS[what]
        self._refusals = refusals[:] if waits else []
        self._handed = ALL if kind in (LOCK, FAIR_LOCK) else 0
        self.toy, self.kind = toy, kind
        keys = SLOTS if kind in (SEMAPHORE, RATE) else toy.keys
        self._steps = toy.acquiring(claims=claims(toy), kind=kind, keys=keys)
        self.request = toy.requested
        self.asked, self.rolled_back = set(), set()
        self.returned = []

    def run(self):
        self.returned.append(self.toy.drive(self._steps, self._answer))

    def _answer(self, described, effect):
        toy = self.toy
        match effect:
            case Broadcast() if described.endswith("write_back"):
                return toy.all_say(9)
            case Broadcast():
                self.asked.add(toy.commands[-1].args[0])
                if self._refusals:
                    return toy.all_say(self._refusals.pop(0))
                # Tokens that differ are written back.
                return toy.all_say(self._grant) if self._grant else toy.answers(*range(5, 10))
            case Wait(until=until):
                return toy.slept(min(0.05, max(until - toy.now, 0.0)), handed=self._handed)
            case Tell() if ("_release" in described or "_abandon" in described) and effect.deliver_to == ALL:
                self.rolled_back.add(effect.command.args[0])
        return None

    def check(self):
        """Return which of the correct ends it has come to; else fail."""
        assert not self.returned, "the interruption is raised"
        assert not self.toy.session.queues._queues
        if self.request.state is not None:
            held = [] if self.kind is RATE else [self.request.state]
            assert list(self.toy.session.holds) == held, "the caller finds it, and releases it"
            return "reported"
        assert list(self.toy.session.holds) == []
        assert self.asked <= self.rolled_back, "for every command, on all nodes"
        return "rolled back" if self.asked else "sent nothing"


@pytest.mark.parametrize(
    ("what", "waits"),
    [("lock", False), ("lock", True), *swept(*itertools.product(list(KINDS)[1:], (False, True)))],
    ids=lambda value: value if isinstance(value, str) else "waits" if value else "at once",
)
def test_acquire_interrupted_at_any_point_holds_and_reports_it_or_leaves_nothing(make_toy, what, waits):
    ways = set()
    for point in itertools.count(1):
        toy = make_toy()
        acquire = Acquire(toy, what, waits=waits)
        where = inject(point, acquire.run)
        if where is None:
            assert acquire.returned == [acquire.request.state]
            break
        try:
            ways.add(acquire.check())
        except AssertionError as error:
            error.add_note(f"interrupted at point {point}, {where}")
            raise
    assert ways == {"sent nothing", "rolled back", "reported"}
