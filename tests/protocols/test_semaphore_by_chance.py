"""The bound of the semaphore, whatever chance does: the real scripts on virtual nodes, commands late, lost, unanswered.

Commands of one client reach a node in the order in which they were sent; all else is by chance: when, whether, whether
the reply comes back, which nodes forget everything, when somebody resizes. After each step all that is believed is
looked at: no slot twice, and never more permits than the limit of the newest version under which one was granted.
"""

import contextlib
import random
from collections import deque

import hiredis
import pytest

from redsync._core.effects import Broadcast, Command, Tell, Wait, Wakeup
from redsync._core.holds import HoldTable
from redsync._core.limits import Limit
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally, Verdict
from redsync._core.runner import Session
from redsync._core.slots import SlotKeys
from redsync._core.timing import Timing
from redsync._protocols.bids import Bid
from redsync._protocols.demands import Demand, Receipt
from redsync._protocols.holding import release
from redsync._protocols.renewal import renew
from redsync._protocols.semaphore import SEMAPHORE, Pool, acquire, resize
from redsync.exceptions import ConfigurationError, LeaseLostError, QuorumError
from redsync.testing.simulator.scripting import run_script
from redsync.testing.simulator.store import Store

pytest.importorskip("lupa")

LEASE = 1.0
EPOCH = 1_700_000_000.0


class Actor:
    """One thread of a client: a protocol under way, and what it waits for."""

    def __init__(self, client, steps):
        self.client, self.steps = client, steps
        self.tally = None
        self.until = 0.0
        self.resume(None)

    def resume(self, reply):
        self.tally = None
        while True:
            try:
                effect = self.steps.send(reply)
            except StopIteration:
                self.steps = None
                return
            reply = self.client.perform(self, effect)
            if self.tally is not None or self.until:
                return

    def end(self):
        """Interrupt the protocol: one that is left half-way must never be collected."""
        with contextlib.suppress(Stop, StopIteration):
            self.steps.throw(Stop())
            while True:
                self.steps.send(None)


class Stop(BaseException):
    """What ends a protocol."""


class Client:
    """A client with a queue of commands to each node."""

    def __init__(self, world, number):
        self.world = world
        self.id = f"00000000-0000-4000-8000-{number:012d}"
        timing = Timing(LEASE, node_timeout=0.05, restart_guard=LEASE)
        self.session = Session(world.n, timing, HoldTable(lambda: None), world.rng.random)
        self.queues = [deque() for _ in range(world.n)]
        self.pool = Pool("x", SlotKeys.of(b"redsync:", b"x"), Limit(world.permits))
        self.serial = 0

    def owner(self):
        self.serial += 1
        return Owner.of(self.id, self.serial)

    def perform(self, actor, effect):
        actor.until = 0.0
        if isinstance(effect, Wait):
            actor.until = min(effect.until, self.world.now + 0.3)
        if isinstance(effect, Tell | Broadcast):
            command = effect.command if isinstance(effect.command, Command) else effect.command()
            tally = None
            if isinstance(effect, Broadcast):
                tally = Tally([f"node{i}" for i in range(self.world.n)], effect.judge, effect.decide, late=effect.late)
                tally.sent_at, tally.sent = self.world.now, (1 << self.world.n) - 1
                actor.tally, actor.until = tally, self.world.now + effect.timeout
            if command is None:
                tally.close("nothing to send")
            else:
                for queue in self.queues:
                    queue.append((command, tally))

    # What a thread does.

    def live(self):
        rng, world = self.world.rng, self.world
        while True:
            wanted = rng.choice([1, 1, 1, 2, self.pool.limit.permits])
            if rng.random() < 0.04:
                with contextlib.suppress(QuorumError):
                    yield from self.change_limit(rng.randint(1, 5))
                continue
            owner, timeout = self.owner(), rng.choice([0.0, 0.0, 0.5, 2.0])
            wanted = min(wanted, self.pool.limit.permits)
            bid = Bid("x", owner, wanted, self.pool.limit, rng.random, waits=timeout != 0)
            demand = Demand(
                "x",
                SEMAPHORE,
                self.pool.keys,
                owner,
                Receipt(),
                rng.choice([None, LEASE]),
                timeout,
                holds=wanted,
                bid=bid,
            )
            try:
                state = yield from acquire(self.session, demand, self.pool.limit, world.now)
                if state is None:
                    continue
                world.granted += 1
                world.asked[state] = bid._asked[:2]
                for _ in range(rng.randint(0, 4)):
                    yield Wait(world.now + rng.random() * LEASE / 2)
                    if state.lost is None and state.live:
                        yield from renew(self.session, [state])
                if rng.random() < 0.8:
                    yield from release(self.session, state, world.now, rng.randint(1, state.count))
            except (QuorumError, LeaseLostError, ConfigurationError):
                continue

    def change_limit(self, permits):
        self.world.resizes += 1
        yield from resize(self.session, self.pool, self.owner(), permits)


class World:
    client = Client

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.n = self.rng.choice([1, 2, 3, 3, 4, 5])
        self.permits = self.rng.choice([1, 2, 3])
        self.asked = {}
        self.now = 1000.0
        self.granted = self.resizes = 0
        self.full = False
        self.clocks = [self.make_clock() for _ in range(self.n)]
        self.stores = [Store(clock, lambda *_: 1) for clock in self.clocks]
        self.newborn_at = [None] * self.n
        for store in self.stores:
            store.execute(b"set", b"redsync_birth", b"original 1 -")
        self.clients = [self.client(self, i) for i in range(1, 4)]
        self.actors = [Actor(client, client.live()) for client in self.clients for _ in range(2)]

    def make_clock(self):
        return lambda: EPOCH + self.now

    def step(self):
        rng = self.rng
        chance = rng.random()
        under_way = [(queue, node) for client in self.clients for node, queue in enumerate(client.queues) if queue]
        if chance < 0.9 and under_way:
            queue, node = rng.choice(under_way)
            self.deliver(queue.popleft(), node)
        elif chance < 0.999:
            self.now += rng.choice([0.0005, 0.002, 0.02])
        else:
            node = rng.randrange(self.n)
            self.stores[node].flush()
            self.newborn_at[node] = self.now + 0.1
        for node, at in enumerate(self.newborn_at):
            if at is not None and self.now >= at:
                self.newborn_at[node] = None
                self.stores[node].execute(b"set", b"redsync_birth", b"newborn %d -" % (self.clocks[node]() * 1000))
        for actor in self.actors:
            if actor.tally is not None:
                if actor.tally.verdict is Verdict.PENDING and self.now >= actor.until:
                    actor.tally.close("no answer")
                if actor.tally.verdict is not Verdict.PENDING:
                    actor.tally.at = self.now
                    actor.resume(actor.tally)
            elif self.now >= actor.until:
                actor.resume(Wakeup(self.now, 0))

    def deliver(self, parcel, node):
        command, tally = parcel
        is_undoing = tally is None or command.script.name.endswith("release")
        # What gives back is owed, so it arrives; sooner or later.
        if not is_undoing and self.rng.random() < 0.03:
            if tally is not None:
                tally.fail(node, "lost on the way")
            return
        reply = run_script(command.script, self.stores[node], command.keys, command.args)
        if tally is None:
            return
        if self.rng.random() < 0.03 or isinstance(reply, hiredis.ReplyError):
            tally.fail(node, str(reply))
        else:
            tally.record(node, reply)

    def look(self):
        states = [state for client in self.clients for state in client.session.holds if state.valid(self.now)]
        slots = [slot for state in states for slot in state.slots[: state.count]]
        assert len(set(slots)) == len(slots), f"a slot twice: {sorted(slots)}"
        _, limit = max((self.asked.get(state, (-1, 0)) for state in states), default=(0, 0))
        # One whose thread has not gone on yet is not known.
        if all(state in self.asked for state in states):
            assert len(slots) <= limit, f"{len(slots)} permits of {limit}"
            self.full = self.full or len(slots) == limit > 0


def run(seeds):
    """Run as many worlds; return how many permits were had, how many resizes there were, how often all were had."""
    granted = resizes = full = 0
    for seed in seeds:
        world = World(seed)
        try:
            for _ in range(4_000):
                world.step()
                world.look()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        finally:
            for actor in world.actors:
                actor.end()
        granted += world.granted
        resizes += world.resizes
        full += world.full
    return granted, resizes, full


def test_bound_holds_whatever_chance_does():
    first = random.randrange(2**32)
    print("seed", first)
    granted, resizes, full = run(range(first, first + 20))
    assert granted > 100
    assert resizes > 20
    assert full > 2


def test_checker_notices_when_grants_are_counted_instead_of_slots(monkeypatch):
    """A majority of nodes with a free slot each, whichever: what a counter on each node amounts to."""

    def decide(self, tally):
        if tally.granted >= tally.quorum:
            return Verdict.WON
        return Verdict.LOST if tally.granted + tally.refused + tally.failed == len(tally.nodes) else Verdict.PENDING

    monkeypatch.setattr(Bid, "decide", decide)
    with pytest.raises(AssertionError, match=r"a slot twice|permits of"):
        run(range(100))
