"""Outboxes: an interruption of the flushing thread does not affect the others."""

import itertools
import random
import time
from collections import deque
from functools import partial

import fakeredis
import pytest

from redsync._core.effects import Broadcast, Command, Tell
from redsync._core.quorum import Tally
from redsync._drivers.process import clock
from redsync._drivers.requests import Request
from tests.support.locks import PATIENCE
from tests.support.rigs import LATER, MANY, TOO_MANY, await_answers, choices, tend_until


class Crowd:
    """Requests of three other owners, which rely on the next flush to send all of them."""

    def __init__(self, rig, everybody, mark):
        self.rig, self.mark = rig, mark
        self.anna, self.bert, self.carl = (rig.owner() for _ in range(3))
        self.composed = 0
        self.asked = self._round(self._command("anna", "asked"), self.anna, everybody)
        self.composing = self._round(self._compose, self.carl, everybody)
        requests = [
            self.asked,
            self._told("bert", "first", self.bert),
            self.composing,
            self._told("bert", "second", self.bert),
        ]
        self.mine = self._told("mine", "mine", rig.owner())
        # They find a flushing thread, which then checks once more: that flush is to be interrupted.
        rig.transport._outbox.flushing = True
        for request in requests:
            rig.transport.send(request)
        rig.transport._outbox.flushing = False

    def _command(self, key, word):
        return Command(self.rig.append, (b"%d %s" % (self.mark, key.encode()),), (word.encode(),))

    def _compose(self):
        self.composed += 1
        return self._command("carl", "composed")

    def _round(self, command, owner, everybody):
        tally = Tally([node.address for node in self.rig.nodes], bool, everybody)
        return Request(Broadcast(command, owner, bool, 30.0, decide=everybody), tally)

    def _told(self, key, word, owner):
        return Request(Tell(self._command(key, word), owner, 0b111, LATER), None)

    def flush(self):
        self.rig.transport.send(self.mine)

    def flush_alone(self):
        self.rig.transport._outbox.send_alone(self.mine)

    def await_votes(self, within=PATIENCE):
        """Wait until others' rounds are decided, long before their timeouts."""
        deadline = time.monotonic() + within
        while not (self.asked.done and self.composing.done):
            self.rig.transport.tend()
            if time.monotonic() > deadline:
                yield f"undecided: {choices(self.asked.tally)} {choices(self.composing.tally)}"
                return

    def next(self):
        for key, owner in (("anna", self.anna), ("bert", self.bert), ("carl", self.carl)):
            self.rig.transport.send(self._told(key, "next", owner))

    def check(self, raw, broken, where):
        """Yield the errors on the nodes, some of which lost their connection meanwhile."""
        for i, node in enumerate(raw):

            def there(key, node=node):
                return node.lrange(f"{self.mark} {key}", 0, -1)

            for key, request, word in (("anna", self.asked, "asked"), ("carl", self.composing, "composed")):
                vote = choices(request.tally)[i]
                possible = [[word, "next"]] if vote == "granted" else [["next"], [word, "next"]]
                if there(key) not in possible or (vote == "failed" and i not in broken):
                    yield f"{key} on {i}: {there(key)}, {vote}"
            # Commands lost with a connection may have been executed, and then come again, before anything new.
            possible = [["first", "second"]]
            if i in broken:
                possible += [[*words, "first", "second"] for words in (["first"], ["first", "second"])]
                possible += [["first", "second", "second"]]
            if there("bert") not in [[*words, "next"] for words in possible]:
                yield f"bert on {i}: {there('bert')}"
        if self.composed not in ((1, 2, 3) if " make" in where else (1,)):
            # After an interruption it is made again: nothing of the first try was sent.
            yield f"composed {self.composed} times"


class Trials:
    """Interrupts one flush after the other, each with a new crowd, on one transport."""

    def __init__(self, connect, raw, everybody):
        self._connect, self._raw, self._everybody = connect, raw, everybody
        self._rig = connect()
        self._marks = itertools.count()
        # So that it does not end within a flush: a finalizer raises no interruption.
        self.links = deque(maxlen=12)

    def __call__(self, interrupt, absent=()):
        """Interrupt a crowd's flush; return the place, and the errors."""
        rig = self._rig
        self.links.extend(rig.transport.links)
        for i in absent:
            rig.transport._table.discard(rig.transport.links[i], "gone for a walk")
        crowd = Crowd(rig, self._everybody, next(self._marks))
        rig.broken.clear()
        where = interrupt(crowd)
        wrong = list(crowd.await_votes())
        broken = {i for i, link in enumerate(rig.transport.links) if link is None} | {i for i, _ in rig.broken}
        for i in range(3):
            if rig.transport.links[i] is None:
                rig.connect(i)
        crowd.next()
        try:
            rig.settle()
        except AssertionError as error:
            wrong.append(str(error))
        wrong += crowd.check(self._raw, broken, str(where))
        if wrong:
            self._rig = self._connect()
        return where, [f"{where}: {each}" for each in wrong]


@pytest.fixture
def interrupt_flush(make_rig, raw, all_votes):
    trials = Trials(lambda: make_rig().connect(), raw, all_votes)
    yield trials
    trials.links.clear()


@pytest.fixture
def interrupt_calls(make_rig, all_votes):
    """The same on nodes without sockets."""
    servers = [fakeredis.FakeServer() for _ in range(3)]
    fakes = [fakeredis.FakeRedis(server=server) for server in servers]
    raw = [fakeredis.FakeRedis(server=server, decode_responses=True) for server in servers]
    trials = Trials(lambda: make_rig(fakes).connect(), raw, all_votes)
    yield trials
    trials.links.clear()


def interrupt_at(points, trial):
    """Try each point, until no call gets there; no trial may find anything wrong."""
    wrong = []
    for point in points:
        where, trouble = trial(point)
        wrong += trouble
        if where is None or len(wrong) > TOO_MANY:
            break
    print(f"{point - 1} points")
    assert wrong == []
    assert point > MANY


@pytest.mark.parametrize("absent", [(), (1,), (0, 2)])
def test_interrupted_flush_leaves_no_request_of_others_behind(absent, inject, interrupt_flush, points):
    """The flushing thread has the requests of all: others' rounds and owed releases must survive its end."""
    interrupt_at(points(), lambda point: interrupt_flush(lambda crowd: inject(point, crowd.flush), absent))


@pytest.mark.sweep
def test_interrupted_lone_send_leaves_no_request_of_others_behind(inject, interrupt_flush, points):
    """As with asyncio, if a finalizer or a signal handler has sent something meanwhile."""
    interrupt_at(points(), lambda point: interrupt_flush(lambda crowd: inject(point, crowd.flush_alone)))


def test_interrupted_flush_leaves_no_request_behind_on_nodes_without_sockets(inject, interrupt_calls, points):
    """There each command is a call, and the flushing thread hands out its answer."""
    interrupt_at(points(), lambda point: interrupt_calls(lambda crowd: inject(point, crowd.flush)))


@pytest.mark.sweep
def test_flush_may_be_interrupted_twice(inject, boom, interrupt_flush, seed):
    """The clean-up is interrupted too, at any point: then another thread finishes it."""
    dice, wrong, seconds = random.Random(seed), [], []

    def interrupt(crowd, point):
        outbox = crowd.rig.transport._outbox
        empty, calls = outbox.empty, itertools.count()

        def empty_or_not():
            if next(calls) != 1:
                return empty()
            second = inject(dice.randrange(1, 80), empty)
            if second is not None:
                seconds.append(second)
                raise boom(second)
            return None

        outbox.empty = empty_or_not
        before = len(seconds)
        where = inject(point, crowd.flush)
        outbox.empty = empty
        return where and ", ".join([where, *seconds[before:]])

    for point in itertools.count(1):
        found = [interrupt_flush(partial(interrupt, point=point), absent) for absent in ((), (), (1,))]
        wrong += [trouble for _, troubles in found for trouble in troubles]
        if all(where is None for where, _ in found) or len(wrong) > TOO_MANY:
            break
    print(f"{point - 1} points, {len(seconds)} times twice")
    assert wrong == []
    assert len(seconds) > MANY


def test_interrupted_resend_loses_no_release(inject, make_rig, raw, all_votes, points):
    """A node answers NOSCRIPT to another thread's release, and the thread that resends it is interrupted."""
    rig, wrong = make_rig().connect(), []
    old_links = deque(maxlen=12)
    for point in points():
        old_links.extend(rig.transport.links)
        key = b"%d" % point
        raw[1].script_flush()
        owner = rig.owner()
        request = rig.send(rig.append, owner, "release", key=key, owed_to=0b111, owed_until=LATER, decide=all_votes)
        await_answers(rig)
        where = inject(point, partial(rig.transport.wait, request, clock() + 5.0))
        tend_until(rig, lambda request=request: request.done)
        for i in range(3):
            if rig.transport.links[i] is None:
                rig.connect(i)
        rig.tell(rig.append, owner, "next", key=key)
        rig.settle()
        for i, node in enumerate(raw):
            there = node.lrange(key, 0, -1)
            if there not in (["release", "next"], ["release", "release", "next"]):
                wrong.append(f"{where}: {there} on {i}")
        if where is None or len(wrong) > TOO_MANY:
            break
    print(f"{point - 1} points")
    assert wrong == []
    assert point > MANY
