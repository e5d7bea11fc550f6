"""The transport for threads: the order of commands, whose reply is whose, what is owed, what an interruption leaves."""

import itertools
import math
import random
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import fakeredis
import pytest

from redsync._core.effects import Broadcast, Command, Tell
from redsync._core.quorum import Tally
from redsync._drivers.process import clock
from redsync._drivers.requests import Request
from redsync.testing.servers import free_ports
from tests.support.locks import PATIENCE
from tests.support.ours import of_ours
from tests.support.trouble import accept_writes, refuse_writes


def choices(tally):
    return [choice.value if choice else None for choice in tally.choices]


# Order, and whose reply is whose.


def test_commands_of_an_owner_run_in_their_order_on_every_node(rig, raw):
    def work(number):
        owner = rig.owner()
        for i in range(40):
            # Decided early, so the next one is sent while a node may still owe this one.
            assert rig.ask(rig.append, owner, i, key=b"owner %d" % number).won

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    rig.settle()
    for node in raw:
        for number in range(8):
            assert node.lrange(f"owner {number}", 0, -1) == [str(i) for i in range(40)]


def test_round_ends_at_its_verdict_and_stragglers_are_read_later(rig, nodes, raw):
    nodes.pause(2)
    started_at = time.monotonic()
    tally = rig.ask(rig.append, rig.owner(), 1)
    assert time.monotonic() - started_at < PATIENCE
    assert choices(tally) == ["granted", "granted", None]
    assert tally.sent == 0b111
    assert len(rig.transport.links[2].pending) == 1
    nodes.resume(2)
    rig.settle()
    assert not rig.transport.links[2].pending
    assert [node.lrange("list", 0, -1) for node in raw] == [["1"]] * 3


def test_round_ends_at_its_deadline_when_nodes_are_silent(rig, nodes):
    nodes.pause(1)
    nodes.pause(2)
    started_at = time.monotonic()
    tally = rig.ask(rig.echo, rig.owner(), 1, timeout=0.1)
    assert 0.1 <= time.monotonic() - started_at < PATIENCE
    assert choices(tally) == ["granted", "failed", "failed"]
    assert tally.replies[1] == "no answer in time"


def test_process_that_stood_still_over_the_deadline_finds_the_answers_that_had_come(rig, all_votes):
    """They are in the sockets, unread: a stopped process must not take them for silence."""
    request = rig.send(rig.echo, rig.owner(), 1, decide=all_votes, timeout=0.05)
    await_readable(rig)
    await_instant(request.tally.sent_at + 0.05)
    tally = rig.finish(request)
    assert choices(tally) == ["granted"] * 3
    assert tally.won


def test_process_that_stood_still_finds_who_has_not_answered_over_the_deadline(rig, nodes, all_votes):
    nodes.pause(1)
    request = rig.send(rig.echo, rig.owner(), 1, decide=all_votes, timeout=0.05)
    await_readable(rig, 0, 2)
    await_instant(request.tally.sent_at + 0.05)
    tally = rig.finish(request)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert tally.replies[1] == "no answer in time"


def await_readable(rig, *indices):
    """Wait until nodes' answers lie unread in our sockets: all nodes' unless told otherwise."""
    for i in indices or range(len(rig.nodes)):
        assert select.select([rig.transport.links[i].fileno], [], [], PATIENCE)[0], "it has not answered"


def await_instant(at):
    """Stand still until that instant of the transport's clock is over."""
    while (left := at - clock()) >= 0:
        time.sleep(left + 0.001)


def test_command_that_is_made_when_sent_may_turn_out_to_be_none(rig):
    request = rig.send(rig.echo, rig.owner(), 1)
    rig.finish(request)
    nothing = request.effect._replace(command=lambda: None)
    request = type(request)(nothing, type(request.tally)(["a", "b", "c"], lambda reply: True))
    rig.transport.send(request)
    assert request.done
    assert choices(request.tally)[:2] == ["failed", "failed"]
    assert request.tally.sent == 0


# Suspects.


def tend_until(rig, condition, within=PATIENCE):
    deadline = time.monotonic() + within
    while not condition():
        rig.transport.tend()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def test_silent_node_becomes_suspect_and_its_votes_fail_at_once(make_rig, nodes, all_votes):
    rig = make_rig(node_timeout=0.1).connect()
    nodes.pause(1)
    assert rig.ask(rig.echo, rig.owner(), 1).won
    tend_until(rig, lambda: rig.transport.links[1].suspect)
    assert rig.changes["suspect"] == 1
    assert "owes 1 replies" in rig.nodes[1].last_error
    started_at = time.monotonic()
    tally = rig.ask(rig.echo, rig.owner(), 2, decide=all_votes)
    assert time.monotonic() - started_at < PATIENCE
    assert choices(tally) == ["granted", "failed", "granted"]
    assert tally.replies[1].startswith("suspect: owes 1 replies for 0.")
    assert tally.sent == 0b101
    nodes.resume(1)
    rig.settle()
    assert not rig.transport.links[1].suspect
    assert choices(rig.ask(rig.echo, rig.owner(), 3, decide=all_votes)) == ["granted"] * 3


def test_suspect_node_gets_what_it_is_owed_and_nothing_else(make_rig, nodes, raw):
    rig = make_rig(node_timeout=0.05).connect()
    owner = rig.owner()
    nodes.pause(1)
    assert rig.ask(rig.append, owner, "acquire").won
    tend_until(rig, lambda: rig.transport.links[1].suspect)
    later = clock() + 60
    assert rig.ask(rig.append, owner, "release", owed_to=0b111, owed_until=later).won
    assert rig.ask(rig.append, owner, "new").won
    rig.tell(rig.append, owner, "undo", owed_to=0b010, owed_until=later)
    # What it executes when it goes on lasts from then on, so nothing is too late.
    rig.tell(rig.append, owner, "late undo", owed_to=0b010, owed_until=clock() - 1)
    nodes.resume(1)
    rig.settle()
    assert raw[1].lrange("list", 0, -1) == ["acquire", "release", "undo", "late undo"]
    assert raw[0].lrange("list", 0, -1) == ["acquire", "release", "new", "undo", "late undo"]


def test_silent_connection_is_replaced_in_the_end(make_rig, nodes, raw, monkeypatch):
    monkeypatch.setattr("redsync._drivers.dispatcher.GIVE_UP", 0.3)
    rig = make_rig(node_timeout=0.1).connect()
    nodes.pause(1)
    owner = rig.owner()
    assert rig.ask(rig.append, owner, "acquire").won
    assert rig.ask(rig.append, owner, "release", owed_to=0b111, owed_until=clock() + 60).won
    tend_until(rig, lambda: rig.transport.links[1] is None)
    assert rig.broken[0][0] == 1
    assert "no answer for" in rig.broken[0][1]
    nodes.resume(1)
    rig.connect(1)
    rig.settle()
    # What was written before got there all the same, and what is owed is sent again behind it.
    deadline = time.monotonic() + PATIENCE
    while raw[1].lrange("list", 0, -1) != ["acquire", "release", "release"]:
        assert time.monotonic() < deadline


# What is owed to a node that can't be reached.


def lose(rig, nodes, i):
    nodes.kill(i)
    tend_until(rig, lambda: rig.transport.links[i] is None)


def test_owed_commands_are_delivered_in_order_when_node_is_back(rig, nodes, raw):
    owner = rig.owner()
    lose(rig, nodes, 1)
    for i in range(20):
        rig.tell(rig.append, owner, i, owed_to=0b111, owed_until=clock() + 60)
        assert rig.ask(rig.append, owner, "not owed").won
    nodes.restart(1)
    rig.connect(1)
    rig.tell(rig.append, owner, "new")
    rig.settle()
    assert raw[1].lrange("list", 0, -1) == [*(str(i) for i in range(20)), "new"]


def test_owed_commands_are_dropped_when_it_is_too_late(rig, nodes, raw):
    owner = rig.owner()
    lose(rig, nodes, 1)
    soon, later = clock() + 0.2, clock() + 60
    rig.tell(rig.append, owner, "kept", owed_to=0b010, owed_until=later)
    rig.tell(rig.append, owner, "dropped", owed_to=0b010, owed_until=soon)
    rig.tell(rig.append, owner, "kept too", owed_to=0b010, owed_until=later)
    rig.tell(rig.append, owner, "not owed to this one", owed_to=0b101, owed_until=later)
    nodes.restart(1)
    while clock() < soon:
        time.sleep(0.01)
    rig.connect(1)
    rig.settle()
    assert raw[1].lrange("list", 0, -1) == ["kept", "kept too"]


def test_owed_commands_are_delivered_however_late_to_a_node_that_had_not_answered(rig, nodes, raw):
    """It executes what it was sent when it goes on, so what that made has not expired before."""
    owner, soon = rig.owner(), clock() + 0.1
    nodes.pause(1)
    assert rig.ask(rig.append, owner, "acquire").won
    assert rig.ask(rig.append, owner, "release", owed_to=0b111, owed_until=soon).won
    while clock() < soon:
        time.sleep(0.01)
    rig.transport._table.discard(rig.transport.links[1], "a test")
    rig.tell(rig.append, owner, "undo", owed_to=0b010, owed_until=soon)
    nodes.resume(1)
    rig.connect(1)
    rig.settle()
    assert raw[1].lrange("list", 0, -1)[-2:] == ["release", "undo"]


def test_what_a_broken_connection_had_not_answered_fails_and_is_owed(rig, nodes, raw, all_votes):
    nodes.pause(2)
    owner = rig.owner()
    request = rig.send(rig.append, owner, "acquire", timeout=5.0, decide=all_votes)
    rig.tell(rig.append, owner, "release", owed_to=0b100, owed_until=clock() + 60)
    nodes.kill(2)
    tally = rig.finish(request)
    assert choices(tally) == ["granted", "granted", "failed"]
    assert tally.replies[2] == rig.broken[0][1]
    nodes.restart(2)
    rig.connect(2)
    rig.settle()
    assert raw[2].lrange("list", 0, -1) == ["release"]


def test_absent_node_fails_at_once_with_its_excuse(make_rig, all_votes):
    rig = make_rig().connect(0, 2)
    rig.nodes[1].excuse = "gone fishing"
    tally = rig.ask(rig.echo, rig.owner(), 1, decide=all_votes)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert tally.replies[1] == "gone fishing"


def test_young_node_gets_no_new_claims_until_it_is_old_enough(rig, all_votes):
    rig.nodes[1].remembers_since = clock() - 0.2
    tally = rig.ask(rig.echo, rig.owner(), 1, decide=all_votes, guard=0.5)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert "restart_guard" in tally.replies[1]
    assert choices(rig.ask(rig.echo, rig.owner(), 1, decide=all_votes)) == ["granted"] * 3
    # A claim with a shorter lease asks for less.
    assert choices(rig.ask(rig.echo, rig.owner(), 1, decide=all_votes, guard=0.1)) == ["granted"] * 3
    while clock() < rig.nodes[1].remembers_since + 0.5:
        time.sleep(0.01)
    assert choices(rig.ask(rig.echo, rig.owner(), 1, decide=all_votes, guard=0.5)) == ["granted"] * 3


# Scripts that a node does not know.


def test_unknown_script_is_loaded_and_the_command_sent_again(make_rig, raw, all_votes):
    rig = make_rig().connect(load=False)
    for node in raw:
        node.script_flush()
    tally = rig.ask(rig.append, rig.owner(), 1, decide=all_votes)
    assert choices(tally) == ["granted"] * 3
    assert [node.lrange("list", 0, -1) for node in raw] == [["1"]] * 3


@pytest.fixture
def forgetful(rig, nodes, raw):
    """The transport on nodes of which the last has forgotten all scripts, and stands still until `resume`."""
    raw[2].script_flush()
    nodes.pause(2)
    return rig


MANY = 50 if sys.version_info < (3, 12) else 10
"""At least so many points at which an interruption can come; later versions of Python let fewer be interrupted."""

LATER = 1e12


def test_resent_commands_of_an_owner_keep_their_order(forgetful, nodes, raw):
    """Two NOSCRIPTs in one read: the second command is the one that counts, it must not be dropped for the first."""
    owner = forgetful.owner()
    for what in ("release 1", "release 0"):
        assert forgetful.ask(forgetful.append, owner, what, owed_to=0b111, owed_until=LATER).won
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1)[-1:] == ["release 0"]
    assert raw[2].lrange("list", 0, -1) in (["release 0"], ["release 1", "release 0"])


@pytest.fixture
def scripts(forgetful, nodes, raw, make_script):
    """Two scripts that append, of which the forgetful node knows only the second."""
    forgotten = make_script("forgotten", "redis.call('rpush', KEYS[1], ARGV[2]) return 1")
    known = make_script("known", "redis.call('rpush', KEYS[1], ARGV[2]) return 2")
    nodes.resume(2)
    for node in raw:
        node.script_load(known.source)
    nodes.pause(2)
    return forgotten, known


def test_resent_command_does_not_overtake_later_one_about_its_claim(forgetful, nodes, raw, scripts):
    forgotten, known = scripts
    owner = forgetful.owner()
    assert forgetful.ask(forgotten, owner, "claim", "first", owed_to=0b111, owed_until=LATER).won
    assert forgetful.ask(known, owner, "claim", "second", owed_to=0b111, owed_until=LATER).won
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1) == ["second"]
    assert raw[0].lrange("list", 0, -1) == ["first", "second"]


def test_release_is_sent_again_behind_what_its_owner_sent_about_a_later_claim(forgetful, nodes, raw, scripts):
    """Nobody else gives that hold back, so it must not be dropped for the next one of the same owner and key."""
    forgotten, known = scripts
    owner = forgetful.owner()
    assert forgetful.ask(forgotten, owner, "hold 1", "release", owed_to=0b111, owed_until=LATER).won
    assert forgetful.ask(known, owner, "hold 2", "acquire").won
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1) == ["acquire", "release"]


def test_resent_release_is_not_dropped_for_others_renewals(forgetful, nodes, raw):
    """A renewal takes in nothing that was released before it is sent, so a release may well come after it."""
    assert forgetful.ask(forgetful.append, forgetful.owner(), "release", owed_to=0b111, owed_until=LATER).won
    forgetful.tell(forgetful.append, None, "renewal", key=b"another")
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1) == ["release"]


def test_late_claim_is_not_sent_again(forgetful, nodes, raw):
    assert forgetful.ask(forgetful.append, forgetful.owner(), "acquire").won
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1) == []
    assert raw[2].script_exists(forgetful.append.sha.decode()) == [True]


def test_scripts_may_be_flushed_while_threads_work(rig, raw, make_script):
    """No thread gets an error but that of the round; one pass of the resend must not disturb the reader."""
    write = make_script("write", "redis.call('rpush', KEYS[1], ARGV[2]) return 1")

    stop = threading.Event()

    def work(number):
        owner = rig.owner()
        sent = []
        for i in itertools.count():
            if stop.is_set():
                return sent
            if rig.ask(write, owner, "claim", i, key=b"%d" % number, owed_to=0b111, owed_until=LATER).won:
                sent.append(str(i))
        return None

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(work, number) for number in range(8)]
        ends_at = time.monotonic() + 0.5
        while time.monotonic() < ends_at:
            for node in raw:
                node.script_flush()
        stop.set()
        results = [worker.result() for worker in workers]
    rig.settle()
    for number, sent in enumerate(results):
        assert len(sent) > 10
        for node in raw:
            there = node.lrange(str(number), 0, -1)
            assert there == sorted(there, key=int)


# Much at once.


@pytest.fixture
def narrow(make_rig):
    """A transport to nodes of which one takes little at once."""
    rig = make_rig(node_timeout=60.0).connect()
    rig.transport.links[1]._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    return rig


def test_big_commands_wait_for_room_and_arrive_whole(narrow, nodes, raw, all_votes, make_script):
    rig = narrow
    length = make_script("length", "redis.call('rpush', KEYS[1], #ARGV[1]) return #ARGV[1]")
    owner = rig.owner()
    # All must vote: a node that still has to be told the script when two others have decided does not get the claim.
    assert rig.ask(length, owner, b"", decide=all_votes).won
    rig.settle()
    nodes.pause(1)
    for i in range(1, 4):
        tally = rig.ask(length, owner, b"x" * (1_000_000 + i), timeout=20)
        assert tally.won
    assert rig.transport.links[1].backlog
    nodes.resume(1)
    rig.settle()
    assert not rig.transport.links[1].backlog
    assert raw[1].lrange("list", 0, -1) == ["0", "1000001", "1000002", "1000003"]
    assert rig.broken == []


def test_node_that_takes_nothing_for_too_long_loses_its_connection(narrow, nodes, all_votes):
    rig = narrow
    nodes.pause(1)
    owner = rig.owner()
    for _ in range(12):
        assert rig.ask(rig.echo, owner, b"x" * 1_000_000).won
    assert rig.broken[0][0] == 1
    assert "does not read" in rig.broken[0][1]
    nodes.resume(1)
    rig.connect(1)
    assert choices(rig.ask(rig.echo, owner, 1, decide=all_votes)) == ["granted"] * 3


def test_big_owed_commands_are_delivered_when_node_is_back(rig, nodes, raw):
    owner = rig.owner()
    lose(rig, nodes, 1)
    for i in range(3):
        rig.tell(rig.append, owner, b"%d" % i + b"x" * 1_000_000, owed_to=0b010, owed_until=LATER)
    nodes.restart(1)
    rig.connect(1)
    rig.settle()
    assert [value[0] for value in raw[1].lrange("list", 0, -1)] == ["0", "1", "2"]


# Leaders and followers.


def start(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def await_pending(rig, i, n):
    deadline = time.monotonic() + PATIENCE
    while len(rig.transport.links[i].pending) < n:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def interrupt_after(boom):
    """Return a function that makes a signal's handler raise in the main thread, some seconds later."""

    def raise_boom(number, frame):
        raise boom

    timers = []

    def interrupt_after(seconds):
        arguments = (threading.get_ident(), signal.SIGUSR1)
        timers.append(threading.Timer(seconds, signal.pthread_kill, arguments))
        timers[-1].start()

    before = signal.signal(signal.SIGUSR1, raise_boom)
    yield interrupt_after
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGUSR1, before)


def test_follower_takes_the_lead_when_the_leader_is_interrupted(rig, nodes, interrupt_after, boom):
    nodes.pause(1)
    nodes.pause(2)
    request = rig.send(rig.echo, rig.owner(), "leader", timeout=20)
    tallies = []

    def follow():
        await_pending(rig, 1, 1)
        tallies.append(rig.ask(rig.echo, rig.owner(), "follower", timeout=10.0))

    follower = start(follow)
    interrupt_after(0.3)
    with pytest.raises(boom):
        rig.finish(request)
    assert follower.is_alive()
    nodes.resume(1)
    follower.join(20)
    assert tallies[0].won
    nodes.resume(2)


def test_closing_ends_sleeps_but_not_rounds(rig, nodes):
    nodes.pause(1)
    nodes.pause(2)
    ends = {}

    def sleep():
        ends["slept"] = rig.transport.wait_for_wakeup(rig.transport.wakeups.wait_for_nodes(None, clock() + 30, 1, 0.0))

    def ask():
        ends["won"] = rig.ask(rig.echo, rig.owner(), 1, timeout=10.0).won

    threads = [start(sleep), start(ask)]
    await_pending(rig, 1, 1)
    rig.transport.close()
    threads[0].join(20)
    assert ends["slept"] == (0, 0)
    nodes.resume(1)
    threads[1].join(20)
    assert ends["won"]
    nodes.resume(2)


# Connections that end, and nodes that talk nonsense.


def test_connection_that_ends_while_idle_is_noticed_when_tended(rig, raw, all_votes):
    raw[1].execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    raw[1].execute_command("CLIENT", "KILL", "TYPE", "normal")
    tend_until(rig, lambda: rig.transport.links[1] is None)
    assert rig.broken == [(1, "closed the connection")]
    tally = rig.ask(rig.echo, rig.owner(), 1, decide=all_votes)
    assert choices(tally) == ["granted", "failed", "granted"]
    rig.connect(1)
    assert choices(rig.ask(rig.echo, rig.owner(), 1, decide=all_votes)) == ["granted"] * 3


@pytest.fixture
def refusing(rig, raw):
    """The transport on nodes of which the last refuses to write."""
    refuse_writes(raw[2])
    yield rig
    accept_writes(raw[2])


def test_release_that_a_node_refused_is_sent_again_until_it_is_executed(refusing, raw, all_votes):
    tally = refusing.ask(
        refusing.append, refusing.owner(), "release", decide=all_votes, owed_to=0b111, owed_until=LATER
    )
    assert choices(tally) == ["granted", "granted", "failed"]
    assert "READONLY" in tally.replies[2]
    assert refusing.changes["suspect"], "somebody is told to see to it"
    for _ in range(20):
        assert refusing.transport.tend(), "the node is owed something"
        time.sleep(0.005)
    assert raw[2].lrange("list", 0, -1) == []
    accept_writes(raw[2])
    refusing.settle()
    assert [node.lrange("list", 0, -1) for node in raw] == [["release"]] * 3


def test_command_that_nobody_owes_is_not_sent_again(refusing, raw, all_votes):
    assert choices(refusing.ask(refusing.append, refusing.owner(), "acquire", decide=all_votes))[2] == "failed"
    accept_writes(raw[2])
    refusing.settle()
    assert refusing.transport.retry_at == math.inf
    assert raw[2].lrange("list", 0, -1) == []


def test_release_that_is_wrong_is_not_sent_again(rig, raw, all_votes):
    raw[2].set("list", "of another type")
    rig.ask(rig.append, rig.owner(), "release", decide=all_votes, owed_to=0b111, owed_until=LATER)
    assert "WRONGTYPE" in rig.nodes[2].last_error
    assert rig.transport.retry_at == math.inf
    assert not rig.transport.tend()


def test_refused_release_goes_first_over_the_next_connection(refusing, nodes, raw, all_votes):
    refusing.ask(refusing.append, refusing.owner(), "release", decide=all_votes, owed_to=0b111, owed_until=LATER)
    nodes.restart(2)
    refusing.transport.tend()
    assert refusing.transport.links[2] is None
    refusing.connect(2)
    refusing.send(refusing.append, refusing.owner(), "acquire")
    refusing.settle()
    assert raw[2].lrange("list", 0, -1) == ["release", "acquire"]


def test_refused_release_is_not_sent_again_behind_later_command_about_its_claim(refusing, raw, make_script, all_votes):
    """An undo that came behind the next try would take away what that has won."""
    undo = make_script("undo", "redis.call('rpush', KEYS[1], ARGV[2]) return 1")
    owner = refusing.owner()
    refusing.ask(undo, owner, "claim", "undo", decide=all_votes, owed_to=0b111, owed_until=LATER)
    accept_writes(raw[2])
    assert refusing.ask(undo, owner, "claim", "try", decide=all_votes).granted == 3
    refusing.settle()
    assert raw[2].lrange("list", 0, -1) == ["try"]


def test_all_that_a_node_refused_is_sent_when_it_executes_again(refusing, raw):
    owners = [refusing.owner() for _ in range(1000)]
    for number, owner in enumerate(owners):
        refusing.tell(refusing.append, owner, f"release {number}", owed_to=0b111, owed_until=LATER)
    for _ in range(50):
        refusing.transport.tend()
        time.sleep(0.002)
    asked = raw[2].info("stats")["total_commands_processed"]
    for _ in range(100):
        refusing.transport.tend()
        time.sleep(0.002)
    assert raw[2].info("stats")["total_commands_processed"] - asked < 50, "a node in trouble is asked little"
    accept_writes(raw[2])
    refusing.settle(60)
    assert sorted(raw[2].lrange("list", 0, -1)) == sorted(f"release {number}" for number in range(1000))


def test_script_that_a_node_forgets_again_and_again_is_loaded_each_time(forgetful, nodes, raw, make_script):
    """The first SCRIPT LOAD may itself be refused: what is owed is not given up for that."""
    stubborn = make_script("stubborn", "redis.call('rpush', KEYS[1], ARGV[1]) return 1")
    request = forgetful.send(stubborn, forgetful.owner(), "release", owed_to=0b111, owed_until=LATER)
    request.healed |= 0b100  # as if the script had been loaded, and was forgotten again
    forgetful.finish(request)
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1) == ["release"]


def test_error_reply_is_the_nodes_failed_vote(rig, raw, all_votes, make_script):
    wrong = make_script("wrong", "return redis.call('hget', KEYS[1], 'x')")
    raw[1].set("list", "text")
    tally = rig.ask(wrong, rig.owner(), decide=all_votes)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert "WRONGTYPE" in tally.replies[1]
    assert "WRONGTYPE" in rig.nodes[1].last_error
    assert rig.broken == []


def test_reply_that_the_judge_does_not_understand_is_a_failed_vote(rig):
    tally = rig.ask(rig.echo, rig.owner(), "text", judge=int, timeout=1.0)
    assert tally.failed == 2
    assert tally.without_quorum
    assert tally.replies.count("unexpected reply b'text'") == 2
    assert {reason for _, reason in rig.broken} == {"sent an unexpected reply b'text'"}


def test_transport_that_reaches_nobody_is_quick(make_rig):
    ports = free_ports()
    rig = make_rig([f"redis://127.0.0.1:{next(ports)}/0" for _ in range(3)])
    started_at = time.monotonic()
    tally = rig.ask(rig.echo, rig.owner(), 1)
    assert time.monotonic() - started_at < PATIENCE
    assert tally.without_quorum


# Interruptions.


def test_interruption_at_any_point_never_mixes_replies_up(boom, inject, all_votes, make_rig, points):
    """An interruption may cost connections, but never the pairing of commands and replies of one that goes on."""
    mixed = []
    rig = make_rig().connect()

    def ask():
        rig.ask(rig.echo, rig.owner(), b"interrupted")

    for point in points():
        where = inject(point, ask)
        if where is None:
            break
        for wanted in (b"%d:1" % point, b"%d:2" % point):
            tally = rig.ask(rig.echo, rig.owner(), wanted, decide=all_votes, timeout=1.0)
            if any(reply not in (None, wanted) for reply in tally.replies if isinstance(reply, bytes)):
                mixed.append(f"{where}: {tally.replies}")
        # A connection whose pairing has slipped would owe a reply for ever.
        try:
            rig.settle()
        except AssertionError as error:
            mixed.append(f"{where}: {error}")
            rig = make_rig().connect()
        for i in range(3):
            if rig.transport.links[i] is None:
                rig.connect(i)
    print(f"{point - 1} points")
    assert mixed == []
    assert point > MANY


class Crowd:
    """Requests of three other owners, who rely on the next one to flush the outbox: that it does so, and for all."""

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
        # They find somebody flushing, who then looks once more: that is the one to be interrupted.
        rig.transport._outbox._flushing = True
        for request in requests:
            rig.transport.send(request)
        rig.transport._outbox._flushing = False

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

    def await_votes(self, within=PATIENCE):
        """Let others' rounds be decided long before they time out."""
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
        """Tell what is wrong on the nodes, some of which lost their connection meanwhile."""
        for i, node in enumerate(raw):

            def there(key, node=node):
                return node.lrange(f"{self.mark} {key}", 0, -1)

            for key, request, word in (("anna", self.asked, "asked"), ("carl", self.composing, "composed")):
                vote = choices(request.tally)[i]
                possible = [[word, "next"]] if vote == "granted" else [["next"], [word, "next"]]
                if there(key) not in possible or (vote == "failed" and i not in broken):
                    yield f"{key} on {i}: {there(key)}, {vote}"
            # What went down with a connection may have been executed, and then comes again: before anything new.
            possible = [["first", "second"]]
            if i in broken:
                possible += [[*words, "first", "second"] for words in (["first"], ["first", "second"])]
                possible += [["first", "second", "second"]]
            if there("bert") not in [[*words, "next"] for words in possible]:
                yield f"bert on {i}: {there('bert')}"
        if self.composed not in ((1, 2, 3) if " make" in where else (1,)):
            # Interrupted while it is made, it is made anew: nothing of the first try was sent.
            yield f"composed {self.composed} times"


class Trials:
    """Interrupts one flush after the other, with a new crowd each, on a transport that lives through all of it."""

    def __init__(self, connect, raw, everybody):
        self._connect, self._raw, self._everybody = connect, raw, everybody
        self._rig = connect()
        self._marks = itertools.count()
        # Not to end within a flush: from a finalizer no interruption comes out.
        self.links = deque(maxlen=12)

    def __call__(self, interrupt, absent=()):
        """Let a crowd's flush be interrupted; return where, and what went wrong."""
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


TOO_MANY = 10
"""Faults after which a test has seen enough."""


@pytest.mark.parametrize("absent", [(), (1,), (0, 2)])
def test_interrupted_flush_leaves_no_request_of_others_behind(absent, inject, interrupt_flush, points):
    """Whoever flushes has the requests of all in hand: others' rounds and owed releases must not die with it."""
    wrong = []
    for point in points():
        where, trouble = interrupt_flush(lambda crowd, point=point: inject(point, crowd.flush), absent)
        wrong += trouble
        if where is None or len(wrong) > TOO_MANY:
            break
    print(f"{point - 1} points")
    assert wrong == []
    assert point > MANY


def test_interrupted_flush_leaves_no_request_behind_on_nodes_without_sockets(inject, interrupt_calls, points):
    """There each command is a call, and its answer is handed out by the one who flushes."""
    wrong = []
    for point in points():
        where, trouble = interrupt_calls(lambda crowd, point=point: inject(point, crowd.flush))
        wrong += trouble
        if where is None or len(wrong) > TOO_MANY:
            break
    print(f"{point - 1} points")
    assert wrong == []
    assert point > MANY


@pytest.mark.sweep
def test_flush_may_be_interrupted_twice(inject, boom, interrupt_flush, seed):
    """The one who cleans up is interrupted in turn, at any point: then somebody else does."""
    dice, wrong, seconds = random.Random(seed), [], []

    def interrupt(crowd, point):
        outbox = crowd.rig.transport._outbox
        empty, calls = outbox._empty, itertools.count()

        def empty_or_not():
            if next(calls) != 1:
                return empty()
            second = inject(dice.randrange(1, 80), empty)
            if second is not None:
                seconds.append(second)
                raise boom(second)
            return None

        outbox._empty = empty_or_not
        before = len(seconds)
        where = inject(point, crowd.flush)
        outbox._empty = empty
        return where and ", ".join([where, *seconds[before:]])

    for point in itertools.count(1):
        found = [interrupt_flush(partial(interrupt, point=point), absent) for absent in ((), (), (1,))]
        wrong += [trouble for _, troubles in found for trouble in troubles]
        if all(where is None for where, _ in found) or len(wrong) > TOO_MANY:
            break
    print(f"{point - 1} points, {len(seconds)} times twice")
    assert wrong == []
    assert len(seconds) > MANY


def test_replies_of_a_link_that_was_given_up_go_to_nobody(rig, all_votes):
    """A leader has read them, and before it hands them out others give the link up, and write to it once more."""
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


def test_release_lost_with_a_replaced_link_comes_before_its_owners_next_claim(rig, raw):
    """Others replace a link while a flush is under way, which then writes to the old one."""
    first = rig.transport.links[0]
    send = first.send

    def replace_another(data):
        first.send = send
        rig.transport._table.discard(rig.transport.links[2], "gone for a walk")
        rig.connect(2)
        return send(data)

    rig.ask(rig.echo, rig.owner(), 1)
    rig.settle()
    first.send = replace_another
    owner = rig.owner()
    rig.tell(rig.append, owner, "release", owed_to=0b111, owed_until=LATER)
    assert [reason for _, reason in rig.broken] == [
        "gone for a walk",
        "is owed what was lost with the connection before",
    ]
    rig.connect(2)
    rig.tell(rig.append, owner, "next")
    rig.settle()
    assert [node.lrange("list", 0, -1) for node in raw] == [["release", "next"]] * 3


def test_owed_commands_reach_a_node_without_a_socket_one_by_one(make_rig):
    fake = fakeredis.FakeRedis(decode_responses=True)
    rig = make_rig([fake])
    for number in range(3):
        rig.tell(rig.append, rig.owner(), number, owed_to=0b1, owed_until=LATER)
    rig.connect()
    assert fake.lrange("list", 0, -1) == ["0", "1", "2"]
    assert rig.ask(rig.echo, rig.owner(), "mine").replies == [b"mine"]


def test_command_that_fails_to_be_made_holds_nobody_up(rig, all_votes):
    def fail():
        raise KeyError("mine")

    before = rig.send(rig.echo, rig.owner(), 1)
    tally = Tally([node.address for node in rig.nodes], bool)
    failing = Request(Broadcast(of_ours(fail), None, bool, 30.0), tally)
    rig.transport._outbox._flushing = True
    rig.transport.send(failing)
    behind = rig.send(rig.echo, rig.owner(), 2, decide=all_votes, timeout=30.0)
    rig.transport._outbox._flushing = False
    with pytest.raises(KeyError, match="mine"):
        rig.transport.tend()
    assert failing.done
    assert tally.replies[0] == "'mine'"
    assert choices(rig.finish(behind)) == ["granted"] * 3
    assert rig.finish(before).won


def test_interrupted_resend_loses_no_release(inject, make_rig, raw, all_votes, points):
    """A node answers NOSCRIPT to a release of another thread, and who sends it again is interrupted."""
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


def await_answers(rig):
    """Return when all nodes have answered, so that the next one to tend the transport reads all of it."""
    for link in rig.transport.links:
        assert select.select([link.fileno], [], [], PATIENCE)[0]


def test_new_link_takes_all_that_is_owed_however_much(narrow, nodes, raw, make_script, monkeypatch):
    """The limit is for a node that does not read; what waited for its return must not be lost to it."""
    monkeypatch.setattr("redsync._drivers.links.BACKLOG_LIMIT", 1000)
    owner = narrow.owner()
    nodes.kill(2)
    eventually_gone = time.monotonic() + PATIENCE
    while narrow.transport.links[2] is not None:
        assert time.monotonic() < eventually_gone
        narrow.transport.tend()
    for number in range(50):
        narrow.tell(narrow.append, owner, b"%d" % number, owed_to=0b100, owed_until=1e12)
    nodes.restart(2)
    narrow.connect(2)
    narrow.settle()
    assert raw[2].lrange("list", 0, -1) == [str(number) for number in range(50)]


# Lingering.


def test_lingering_round_hears_everybody_also_those_that_refuse(rig, raw, make_script):
    raw[1].set("bad", 1)
    picky = make_script("picky", "if redis.call('get', 'bad') then return redis.error_reply('ERR bad') end return 1")
    for _ in range(50):
        tally = rig.ask(picky, rig.owner(), lingers=True)
        assert tally.won
        assert [vote.detail for vote in tally.votes] == ["1", "ERR bad", "1"]
        assert not tally.open
