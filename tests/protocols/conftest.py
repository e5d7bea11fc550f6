"""A toy driver: it performs nothing and follows a script, step by step.

A script is a sequence of steps: `(expected effect, reply)` or, where the reply is None, just the expected effect.
Effects are spelled:

    ask lock_acquire            a Broadcast of that script; "ask lock_acquire for a place" if the waiter queues
    ask nothing                 a Broadcast whose command was not made
    tell lock_release           a Tell of that script; "tell lock_release, stay" if the waiter keeps its places
    wait                        a plain Wait, or one for a turn to ask again, which comes at the earliest instant;
                                "wait for wake-up", "wait for end" with the key of either
    signal                      a Signal
    notify HoldLost             a Notify of that event

and likewise with the scripts of the mutex.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from redsync._core.effects import Broadcast, Notify, Signal, Tell, Wait, Wakeup
from redsync._core.holds import HoldTable, Owner
from redsync._core.keys import LockKeys, encode_name
from redsync._core.permits import Limit, SlotKeys
from redsync._core.quorum import Verdict
from redsync._core.scripts import Command
from redsync._core.session import Session
from redsync._core.timing import Timing
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.claims import AcquireRequest, Claim
from redsync._protocols.holding import release
from redsync._protocols.lock import FAIR_LOCK, LOCK
from redsync._protocols.queue_policies import FifoByArrival, FifoByTicket
from redsync._protocols.renewal import renew
from redsync._protocols.semaphore import SEMAPHORE, Pool, acquire
from redsync._protocols.watchdog import watchdog
from tests.support.injection import Interruption
from tests.support.latch_clients import LatchCaller
from tests.support.slots import ToySemaphore
from tests.support.virtual import World

CLIENT = "285475da-9152-4c83-822a-67ee2f116a79"


class Stop(BaseException):
    """Ends a watchdog that has slept often enough."""


@dataclasses.dataclass
class Answers:
    """The reply to a Broadcast: each node's reply, and when the protocol is resumed."""

    replies: tuple[Any, ...]
    takes: float
    sent: int | None
    meanwhile: Callable[[], Any] | None


@dataclasses.dataclass
class Sleep:
    """The reply to a Wait: how long it lasted, None for all of it, how many nodes signalled, which handed over."""

    seconds: float | None
    signals: int
    handed: int
    meanwhile: Callable[[], Any] | None


class Refused(FifoByArrival):
    """A place of a waiter that was refused before, so it asks for it with its first try."""

    def __init__(self, **waiting):
        super().__init__(**{**waiting, "asks": True})


class RefusedByTicket(FifoByTicket):
    """A ticket of a waiter that was refused before."""

    _ticket = 5


class Toy:
    """One client whose nodes, clock and random numbers follow the test; without a record it announces nothing."""

    def __init__(self, nodes=5, *, random=0.5, client=None, **timing):
        self.n = nodes
        self.random = random
        self.alarms = 0
        timing = Timing(**{"lease": 30.0, **timing})
        holds = HoldTable(self._ring)
        self.session = Session(
            nodes, timing, holds, lambda: self.random, record_key=b"redsync:client:toy", client=client
        )
        self.now = 1000.0
        self.serial = 0
        self.owner = self.new_owner()
        self.keys = LockKeys.of(b"redsync:", b"x")
        self.effects = []
        self.commands = []
        self.tallies = []
        self.on_alarm = lambda: None
        self._begun = []

    def _ring(self):
        self.alarms += 1
        self.on_alarm()

    def new_owner(self):
        self.serial += 1
        return Owner(CLIENT, self.serial)

    def request(self, name="x", crowded=False, **fields):
        keys = LockKeys.of(b"redsync:", encode_name(name))
        crowd = RefusedByTicket if fields.get("kind") is FAIR_LOCK else Refused
        queue = crowd if crowded else None
        usual = {"kind": LOCK, "keys": keys, "owner": self.owner, "queue": queue}
        self.requested = AcquireRequest(name=name, **{**usual, **fields})
        return self.requested

    def pass_time(self, seconds):
        """Let time pass while an effect is performed."""
        self.now += seconds

    # How most tests begin or end.

    def acquiring(self, name="x", claims=Claim, **fields):
        """Return the steps of a new acquire.

        Args:
            name: The lock.
            claims: Makes the claim.
            fields: Further arguments of the request; `crowded`: True for one that was refused before.
        """
        return acquire_new(claims(self.session, self.request(name, **fields)), self.now)

    def acquire(self, *script, **fields):
        """Acquire a new claim as the script says; return the hold, or None."""
        return self.play(self.acquiring(**fields), *script)

    def take(self, name="x", *, kind=LOCK, **fields):
        """Acquire at once, on all nodes, and return the hold."""
        return self.acquire((f"ask {kind.acquire.name}", self.all_say(1)), name=name, kind=kind, **fields)

    def give_back(self, state):
        """Release a hold of count one on all nodes, as its owner or another thread does."""
        step = f"ask {state.kind.release.name}"
        self.play(release(self.session, state, self.now), (step, self.all_say(1)))

    # Replies.

    @staticmethod
    def answers(*replies, takes=0.001, sent=None, meanwhile=None):
        """Return what the nodes answer, in the order of their index: a text means FAILED, None silence.

        Every node was sent the command, except where `sent` says otherwise.
        """
        return Answers(replies, takes, sent, meanwhile)

    def all_say(self, reply, **options):
        return self.answers(*[reply] * self.n, **options)

    def codes(self, *each_node, **options):
        """Return the nodes' replies to a renewal of one hold."""
        replies = [code if code is None or isinstance(code, str) else [code] for code in each_node]
        return self.answers(*replies, **options)

    @staticmethod
    def slept(seconds=None, *, signals=0, handed=0, meanwhile=None):
        """Return the end of a wait; `handed`: bit set of the nodes that handed over in reply to the last ask."""
        return Sleep(seconds, max(signals, handed.bit_count()), handed, meanwhile)

    # Performing.

    def describe(self, effect):
        match effect:
            case Broadcast() | Tell():
                command = effect.command if isinstance(effect.command, Command) else self.commands[-1]
                if command is None:
                    return "ask nothing"
                text = f"{'ask' if isinstance(effect, Broadcast) else 'tell'} {command.script.name}"
                if command.script.name.endswith("_acquire") and any(b"_queue:" in key for key in command.keys):
                    text += " for a place"
                if command.args[1:2] == (-1,):
                    text += ", stay"
                return text
            case Wait(key=None):
                return "wait"
            case Wait(key=key):
                return "wait for end" if key.startswith(b"end ") else "wait for wake-up"
            case Signal():
                return "signal"
            case Notify(event=event):
                return f"notify {type(event).__name__}"

    def begin(self, effect):
        """Record an effect at the instant at which it is performed; commands are made here."""
        self.effects.append(effect)
        if isinstance(effect, (Broadcast, Tell)):
            command = effect.command
            self.commands.append(command if isinstance(command, Command) else command())
        return self.describe(effect)

    def perform(self, effect, answer):
        match effect, answer:
            case Broadcast(), Answers():
                return self._broadcast(effect, answer)
            case Wait(), Sleep(seconds, signals, handed, meanwhile):
                until = effect.until
                if meanwhile is not None:
                    meanwhile()
                assert seconds is None or self.now + seconds <= until + 1e-9, "no wait lasts longer than requested"
                self.now = max(self.now, until) if seconds is None else self.now + seconds
                # Like a driver: a wait without an ask id gets none.
                return Wakeup(self.now, signals, handed if effect.ask_id is not None else 0)
            case ((Tell() | Signal() | Notify()), None):
                return None
        pytest.fail(f"the script answers {answer!r} to {effect!r}")

    def _count(self, effect, answer):
        assert len(answer.replies) == self.n
        tally = effect.tally([f"node{i}" for i in range(self.n)])
        tally.sent = (1 << self.n) - 1 if answer.sent is None else answer.sent
        tally.sent_at = tally.at = self.now
        for node, reply in enumerate(answer.replies):
            if isinstance(reply, str):
                tally.fail(node, reply)
            elif reply is not None:
                tally.record(node, reply)
        return tally

    def _broadcast(self, effect, answer):
        began = self.now
        if answer.meanwhile is not None:
            answer.meanwhile()
        if self.commands[-1] is None:
            tally = effect.tally([f"node{i}" for i in range(self.n)])
            tally.close("nothing to send")
        else:
            tally = self._count(effect, answer)
        tally.sent_at = began
        if tally.verdict is Verdict.PENDING:
            tally.close("no answer")
            self.now += max(effect.timeout, answer.takes)
        else:
            self.now += answer.takes
        tally.at = self.now
        self.tallies.append(tally)
        return tally

    # Driving.

    def drive(self, steps, answer):
        """Run a protocol; `answer(described effect, effect)` returns each reply, an exception is thrown in.

        So is an interruption of what is performed here, as drivers do.
        """
        self._begun.append(steps)
        try:
            effect = next(steps)
            while True:
                try:
                    reply = answer(self.begin(effect), effect)
                    if not isinstance(reply, BaseException):
                        reply = self.perform(effect, reply)
                except Interruption as interruption:
                    reply = interruption
                effect = steps.throw(reply) if isinstance(reply, BaseException) else steps.send(reply)
        except StopIteration as stop:
            return stop.value

    def play(self, steps, *script):
        """Run a protocol that must follow the script exactly to the end; return its result."""
        script = [(step, None) if isinstance(step, str) else step for step in script]
        done = []

        def answer(described, effect):
            assert len(done) < len(script), f"after {done} comes unscripted: {effect}"
            expected, reply = script[len(done)]
            assert described == expected, f"after {done} comes {effect}"
            done.append(described)
            return reply

        try:
            return self.drive(steps, answer)
        finally:
            left = [expected for expected, _ in script[len(done) :]]
            assert not left, f"the protocol ended without {left}"

    def interrupt(self, steps, script, at):
        """Follow the script, but interrupt its step `at`; return the effects of the clean-up, spelled.

        The clean-up asks nothing and waits for nothing, and the interruption propagates.
        """
        script = [(step, None) if isinstance(step, str) else step for step in script]
        interruption = Interruption()
        done = []

        def answer(described, effect):
            i = len(done)
            done.append(described)
            if i > at:
                assert described.startswith(("tell", "signal", "notify")), f"clean-up must not wait: {effect}"
                return None
            assert described == script[i][0], f"after {done} comes {effect}"
            return interruption if i == at else script[i][1]

        with pytest.raises(Interruption) as caught:
            self.drive(steps, answer)
        assert caught.value is interruption
        assert len(done) > at, "the protocol ended before it could be interrupted"
        return done[at + 1 :]

    def watchdog(self):
        """Return the steps of the watchdog."""
        return watchdog(self.session, self.now)

    def run_watchdog(self, answer=lambda command: [2] * len(command.keys), sleeps=1):
        """Run the watchdog until it has slept that often; return its steps, spelled.

        `answer(command)` is every node's reply to a renewal, or a list of their replies. By default all keep all
        claims. A wait that is over at once is not a sleep: the driver does its own work there.
        """
        steps = []

        def perform(described, effect):
            if isinstance(effect, Wait) and effect.until <= self.now:
                return self.slept()
            steps.append(described)
            if isinstance(effect, Wait):
                return self.slept() if steps.count("wait") < sleeps else Stop()
            if isinstance(effect, Broadcast):
                reply = answer(self.commands[-1])
                return reply if isinstance(reply, Answers) else self.all_say(reply)
            return None

        with pytest.raises(Stop):
            self.drive(self.watchdog(), perform)
        return steps

    def start(self, steps):
        """Begin a protocol by hand; return its first effect."""
        self._begun.append(steps)
        effect = next(steps)
        self.begin(effect)
        return effect

    def end(self):
        """Run protocols to the end that were left half-way: they must never be closed, or collected, before."""
        for steps in self._begun:
            with contextlib.suppress(Interruption, StopIteration):
                if steps.gi_frame is not None:
                    steps.throw(Interruption())
                while steps.gi_frame is not None:
                    steps.send(None)

    @property
    def told(self):
        """The Tells so far."""
        return [effect for effect in self.effects if isinstance(effect, Tell)]

    @property
    def asked(self):
        """The Broadcasts so far."""
        return [effect for effect in self.effects if isinstance(effect, Broadcast)]

    @property
    def waits(self):
        """The Waits so far."""
        return [effect for effect in self.effects if isinstance(effect, Wait)]

    @property
    def events(self):
        """The events so far."""
        return [effect.event for effect in self.effects if isinstance(effect, Notify)]


GARBAGE = [
    b"OK",
    b"",
    [],
    [b"1"],
    {},
    1.5,
    [None],
    [None] * 4,
    [1, 2, 3],
    [b"a", 1, [], 5],
    True,
    ["x", "y"],
    [5, 7],
    [5, [1]],
]


@pytest.fixture
def make_toy():
    """Make a separate client; each has its own clock, which begins at 1000."""
    toys = []

    def make(*args, **options):
        toys.append(Toy(*args, **options))
        return toys[-1]

    yield make
    for toy in toys:
        toy.end()


@pytest.fixture
def toy(make_toy):
    """Five nodes, a lease of 30 s, and average random."""
    return make_toy()


@pytest.fixture
def semaphore(toy):
    """On five nodes, starting from slot 2 of 4."""
    return ToySemaphore(toy)


# Virtual nodes, which run the shipped scripts.


SLOT_KEYS = SlotKeys.of(b"redsync:", b"x")


class Program:
    """A client of one semaphore on virtual nodes; each of its permits has another owner."""

    def __init__(self, world, permits):
        self.world = world
        self.session, self.owner = world.session(restart_guard=0.0)
        self.pool = Pool("x", SLOT_KEYS, Limit(permits))

    def asking(self, n=1, *, start=0.0, timeout=0.0):
        """Return the steps of an acquire; it prefers the slots from a share `start` of the limit on."""
        owner = self.owner = Owner(self.owner.client_id, self.owner.serial + 1)
        request = AcquireRequest(name="x", kind=SEMAPHORE, keys=SLOT_KEYS, owner=owner, timeout=timeout, holds=n)
        self.session.random = lambda: start
        return acquire(self.session, request, self.pool.limit, self.world.now)

    def renew(self, state):
        """Renew as the watchdog does; return whether a quorum confirmed it."""
        return self.world.run(renew(self.session, {state: state.lease}))[0] == [state]

    def release(self, state):
        self.world.run(release(self.session, state, self.world.now))


@pytest.fixture
def world():
    return World(3)


@pytest.fixture
def ada(world):
    """A client of a latch there."""
    return LatchCaller(world)


@pytest.fixture
def bob(world):
    """Another client."""
    return LatchCaller(world)
