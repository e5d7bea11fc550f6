"""Interruptions of the threads that read: the pairing of replies, their cost, and the lead."""

import select
import threading
from contextlib import suppress
from functools import partial
from unittest.mock import ANY

import fakeredis
import pytest

from redsync._core.effects import Broadcast, Command
from redsync._core.quorum import Tally
from redsync._drivers.interruptions import HALF_READ
from redsync._drivers.links import GIVE_UP
from redsync._drivers.process import clock
from redsync._drivers.requests import Request
from redsync._drivers.transport import Transport
from tests.support.locks import PATIENCE
from tests.support.rigs import MANY, TOO_MANY, await_answers, await_instant, choices


@pytest.mark.usefixtures("boom")
@pytest.mark.parametrize("parsed", [True, False], ids=["text", "numbers"])
def test_interruption_at_any_point_never_mixes_up_replies(inject, all_votes, make_rig, points, parsed):
    """An interruption may cost one connection, but never the pairing of commands and replies on another one.

    Small numbers need no parser; those of several nodes are handed out together.
    """
    mixed = []
    rig = make_rig().connect()

    def wanted():
        yield from (b"%d:1" % point, b"%d:2" % point) if parsed else (2 * point % 50 + 1, 2 * point % 50 + 2)

    def ask():
        rig.ask(rig.echo, rig.owner(), b"interrupted") if parsed else rig.ask(rig.number, rig.owner(), 63)

    for point in points():
        broken = len(rig.broken)
        where = inject(point, ask)
        if where is None:
            break
        if len(rig.broken) > broken + 1:
            mixed.append(f"{where}: {rig.broken[broken:]}")
        if len(mixed) >= TOO_MANY:
            break
        for word in wanted():
            tally = rig.ask(rig.echo if parsed else rig.number, rig.owner(), word, decide=all_votes, timeout=1.0)
            if any(reply not in (None, word) for reply in tally.replies if isinstance(reply, type(word))):
                mixed.append(f"{where}: {tally.replies}")
        # A connection whose pairing has shifted would owe a reply until the transport gives it up.
        try:
            rig.settle(within=GIVE_UP / 2)
        except AssertionError as error:
            mixed.append(f"{where}: {error}")
            rig = make_rig().connect()
        for i in range(3):
            if rig.transport.links[i] is None:
                rig.connect(i)
    print(f"{point - 1} points")
    assert mixed == []
    assert point > MANY


@pytest.mark.parametrize("finds_it", ["the leader", "the maintenance"])
def test_replies_that_an_interrupted_thread_has_read_are_not_lost(rig, all_votes, monkeypatch, finds_it):
    rig.ask(rig.number, rig.owner(), 1, decide=all_votes)
    request = rig.send(rig.number, rig.owner(), 2, decide=all_votes)
    await_answers(rig)

    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(rig.transport, "_settle", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rig.transport.tend()
    if finds_it == "the maintenance":
        rig.transport.tend()
        assert request.done
    assert rig.finish(request).replies == [2] * 3
    assert rig.broken == []


def test_wake_ups_that_an_interrupted_thread_has_read_are_not_lost(rig, raw, all_votes, monkeypatch):
    rig.ask(rig.number, rig.owner(), 1, decide=all_votes)
    wakeups, key = rig.transport.wakeups, b"client-a:1 redsync:x"
    wakeups.subscribe(key)
    text = b"7 " + key
    piece = b">3\r\n$7\r\nmessage\r\n$4\r\nwake\r\n$%d\r\n%b\r\n" % (len(text), text)
    wakeups.known = piece, (b"message", b"wake", text)
    for node in raw:
        node.publish("wake", text)
    await_answers(rig)

    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(wakeups, "deliver", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rig.transport.tend()
    waits = wakeups.wait_for_nodes(key, clock() + PATIENCE, 3, 0.0, b"7")
    assert rig.transport.wait_for_wakeup(waits) == (3, 0b111)
    assert rig.broken == []


def test_connection_lost_in_the_middle_of_a_read_does_not_hide_what_other_nodes_have_answered(
    rig, all_votes, monkeypatch
):
    """Otherwise a suspended process would lose the round, and nodes that owe nothing would stay suspect."""
    rig.ask(rig.number, rig.owner(), 1, decide=all_votes)
    request = rig.send(rig.number, rig.owner(), 2)
    await_answers(rig)
    await_instant(request.tally.sent_at + 0.3)
    _, lost, _ = rig.transport.links
    poll = rig.transport._poller.poll

    class Poller:
        @staticmethod
        def poll(timeout):
            ready = poll(timeout)
            lost.reset()
            return ready

    with monkeypatch.context() as patched:
        patched.setattr(rig.transport, "_poller", Poller)
        rig.transport.end_round(request, "no answer in time")
    assert request.tally.replies[::2] == [2, 2]
    assert [index for index, _ in rig.broken] == [1]
    assert not any(link.suspect for link in rig.transport.links if link is not None)


def test_ready_link_without_data_stays_in_use(rig, all_votes, monkeypatch):
    rig.ask(rig.number, rig.owner(), 1, decide=all_votes)

    class Poller:
        @staticmethod
        def poll(_):
            return [(link.fileno, select.POLLIN) for link in rig.transport.links]

    with monkeypatch.context() as patched:
        patched.setattr(rig.transport, "_poller", Poller)
        rig.transport.tend()
    assert rig.broken == []


def test_timeout_error_of_a_signal_handler_during_a_read_is_not_the_nodes(rig, all_votes):
    rig.ask(rig.number, rig.owner(), 1, decide=all_votes)
    request = rig.send(rig.number, rig.owner(), 2)
    await_answers(rig)

    def interrupt():
        raise TimeoutError

    rig.transport.links[1].read = interrupt
    with pytest.raises(TimeoutError):
        rig.transport.tend()
    assert rig.broken == [(1, HALF_READ)]
    assert rig.finish(request).won


class OvertakenMutex:
    """A lock that calls `on_error`, once, when an error has released it: another thread may take it just then."""

    on_error = None

    def __init__(self):
        self._lock = threading.Lock()

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, kind, error, traceback):
        self._lock.__exit__(kind, error, traceback)
        action = OvertakenMutex.on_error
        if kind is KeyboardInterrupt and action is not None:
            OvertakenMutex.on_error = None
            action()


@pytest.mark.parametrize("fault", [SystemExit, None], ids=["interrupted too", "answers nonsense"])
def test_interrupted_read_costs_its_connection_whatever_happens_to_a_node_that_answers_at_once(
    make_rig, nodes, all_votes, monkeypatch, fault
):
    """A fakeredis instance answers within the write. So the thread that writes reads it, while another one leads."""
    monkeypatch.setattr(Transport, "make_lock", OvertakenMutex)
    fake = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    rig = make_rig([*nodes.urls[:2], fake]).connect()
    rig.ask(rig.number, rig.owner(), 1, decide=all_votes)

    def judge(reply, outcomes):
        """Judge by these outcomes, one after the other: an error, or None for a refusal; refuse all others."""
        if (error := next(outcomes, None)) is not None:
            raise error
        return False

    def write():
        # A number is nonsense to `fromhex`.
        wrong = bytes.fromhex if fault is None else partial(judge, outcomes=iter([fault]))
        with suppress(SystemExit):
            rig.send(rig.number, rig.owner(), 3, judge=wrong, decide=all_votes)

    interrupted = partial(judge, outcomes=iter([None, KeyboardInterrupt]))
    rig.send(rig.number, rig.owner(), 2, judge=interrupted, decide=all_votes)
    for link in rig.transport.links[:2]:
        assert select.select([link.fileno], [], [], PATIENCE)[0]
    other = threading.Thread(target=write)
    monkeypatch.setattr(OvertakenMutex, "on_error", lambda: (other.start(), other.join(PATIENCE)))
    with pytest.raises(KeyboardInterrupt):
        rig.transport.tend()
    assert not other.is_alive()
    # One of the real nodes, whose reply was about to be counted, and the fake one.
    assert sorted(rig.broken) in ([(i, HALF_READ), (2, ANY)] for i in (0, 1))
    rig.settle()
    for i in range(3):
        if rig.transport.links[i] is None:
            rig.connect(i)
    assert rig.ask(rig.number, rig.owner(), 4, decide=all_votes).replies == [4] * 3


@pytest.mark.usefixtures("boom")
def test_interruption_while_a_leader_sends_for_others_costs_one_connection(inject, make_rig, raw, points):
    """One node has forgotten a script, so the leader sends that again, and whatever else waits in the outbox."""
    costly = []
    rig = make_rig().connect()
    for point in points():
        rig.ask(rig.number, rig.owner(), 1)
        rig.settle()
        raw[0].script_flush()
        rig.send(rig.number, rig.owner(), 2)
        await_answers(rig)
        effect = Broadcast(Command(rig.number, (b"list",), (b"3",)), rig.owner(), bool, 60.0)
        rig.transport._outbox.items.append(Request(effect, effect.tally([node.address for node in rig.nodes])))
        broken = len(rig.broken)
        where = inject(point, rig.transport.tend)
        if where is None:
            break
        rig.settle()
        if len(rig.broken) > broken + 1:
            costly.append(f"{where}: {rig.broken[broken:]}")
        for i in range(3):
            if rig.transport.links[i] is None:
                rig.connect(i)
    assert costly == []
    assert point > MANY


@pytest.mark.parametrize("way", ["carry", "wait", "tend"])
def test_thread_interrupted_twice_while_it_gives_up_the_lead_does_not_keep_it(rig, all_votes, monkeypatch, way):
    """Otherwise no thread would ever read again."""
    leave, interruptions = rig.transport._leadership.leave, [KeyboardInterrupt(), KeyboardInterrupt()]

    def leave_or_not(sleeper):
        if interruptions:
            raise interruptions.pop()
        return leave(sleeper)

    monkeypatch.setattr(rig.transport._leadership, "leave", leave_or_not)
    effect = Broadcast(Command(rig.number, (b"list",), (b"3",)), rig.owner(), bool, 60.0)
    request = Request(effect, effect.tally([node.address for node in rig.nodes]))
    ways = {
        "carry": lambda: rig.transport.carry(request, clock() + PATIENCE),
        "wait": lambda: rig.transport.wait(rig.send(rig.number, rig.owner(), 3), clock() + PATIENCE),
        "tend": rig.transport.tend,
    }
    with pytest.raises(KeyboardInterrupt):
        ways[way]()
    assert interruptions == []
    assert rig.ask(rig.number, rig.owner(), 4, decide=all_votes).replies == [4] * 3


def test_replies_of_a_discarded_link_are_dropped(rig, all_votes):
    """A leader has read them; before it hands them out, other threads discard the link, and write to it once more."""
    link = rig.transport.links[0]
    feed = link.feed
    first, second = (rig.send(rig.echo, rig.owner(), word, decide=all_votes) for word in ("first", "second"))
    await_answers(rig)

    def give_up(data):
        feed(data)
        rig.transport._table.discard(link, "gone for a walk")
        link.pending.append(late)

    late = Request(first.effect, Tally([node.address for node in rig.nodes], bool, all_votes))
    assert late.make(1000)
    link.feed = give_up
    rig.transport.tend()
    assert [choices(request.tally)[0] for request in (first, second, late)] == ["failed"] * 3
