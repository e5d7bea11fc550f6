"""Outboxes: commands made when sent, and commands sent again, on real nodes."""

import itertools
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redsync._core.effects import Broadcast
from redsync._core.quorum import Tally
from redsync._drivers.requests import Request
from tests.support.ours import of_ours
from tests.support.rigs import LATER, choices
from tests.support.trouble import accept_writes, refuse_writes


def test_command_made_when_sent_may_turn_out_unnecessary(rig):
    request = rig.send(rig.echo, rig.owner(), 1)
    rig.finish(request)
    nothing = request.effect._replace(command=lambda: None)
    request = type(request)(nothing, type(request.tally)(["a", "b", "c"], lambda reply: True))
    rig.transport.send(request)
    assert request.done
    assert choices(request.tally)[:2] == ["failed", "failed"]
    assert request.tally.sent == 0


def test_command_whose_making_fails_delays_no_other(rig, all_votes):
    def fail():
        raise KeyError("mine")

    before = rig.send(rig.echo, rig.owner(), 1)
    tally = Tally([node.address for node in rig.nodes], bool)
    failing = Request(Broadcast(of_ours(fail), None, bool, 30.0), tally)
    rig.transport._outbox.flushing = True
    rig.transport.send(failing)
    behind = rig.send(rig.echo, rig.owner(), 2, decide=all_votes, timeout=30.0)
    rig.transport._outbox.flushing = False
    with pytest.raises(KeyError, match="mine"):
        rig.transport.tend()
    assert failing.done
    assert tally.replies[0] == "'mine'"
    assert choices(rig.finish(behind)) == ["granted"] * 3
    assert rig.finish(before).won


def test_lone_request_is_written_at_once_unless_a_flush_is_under_way(rig, raw):
    outbox = rig.transport._outbox

    def ask(number):
        effect = rig.send(rig.append, rig.owner(), number).effect
        rig.settle()
        return Request(effect, effect.tally([node.address for node in rig.nodes]))

    alone, later = ask(1), ask(2)
    dispatch, outbox.dispatch = outbox.dispatch, None
    outbox.send_alone(alone)
    outbox.dispatch = dispatch
    rig.settle()
    assert alone.tally.won
    outbox.flushing = True
    outbox.send_alone(later)
    assert list(outbox.items) == [later]
    assert outbox.flushing
    outbox.flushing = False
    outbox.flush()
    rig.settle()
    assert later.tally.won
    assert raw[0].lrange("list", 0, -1) == ["1", "2", "1", "2"]


def test_lone_request_comes_behind_those_that_an_interruption_left(rig, raw):
    outbox = rig.transport._outbox
    outbox.flushing = True
    left = rig.send(rig.append, rig.owner(), 1)
    outbox.flushing = False
    effect = left.effect._replace(command=left.effect.command._replace(args=(2,)))
    outbox.send_alone(Request(effect, effect.tally([node.address for node in rig.nodes])))
    rig.settle()
    assert raw[0].lrange("list", 0, -1) == ["1", "2"]


# Unknown scripts.


def test_unknown_script_is_loaded_and_the_command_sent_again(make_rig, raw, all_votes):
    rig = make_rig().connect(load=False)
    for node in raw:
        node.script_flush()
    tally = rig.ask(rig.append, rig.owner(), 1, decide=all_votes)
    assert choices(tally) == ["granted"] * 3
    assert [node.lrange("list", 0, -1) for node in raw] == [["1"]] * 3


@pytest.fixture
def forgetful(rig, nodes, raw):
    """The transport on nodes, the last of which has forgotten all scripts and is stopped until `resume`."""
    raw[2].script_flush()
    nodes.pause(2)
    return rig


def test_resent_commands_of_an_owner_keep_their_order(forgetful, nodes, raw):
    """Two NOSCRIPTs in one read: the second command counts, and must not be dropped for the first."""
    owner = forgetful.owner()
    for what in ("release 1", "release 0"):
        assert forgetful.ask(forgetful.append, owner, what, owed_to=0b111, owed_until=LATER).won
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1)[-1:] == ["release 0"]
    assert raw[2].lrange("list", 0, -1) in (["release 0"], ["release 1", "release 0"])


@pytest.fixture
def scripts(forgetful, nodes, raw, make_script):
    """Two scripts that append; the forgetful node knows only the second."""
    forgotten = make_script("forgotten", "redis.call('rpush', KEYS[1], ARGV[2]) return 1")
    known = make_script("known", "redis.call('rpush', KEYS[1], ARGV[2]) return 2")
    nodes.resume(2)
    for node in raw:
        node.script_load(known.source)
    nodes.pause(2)
    return forgotten, known


def test_resent_command_does_not_overtake_a_later_one_for_its_claim(forgetful, nodes, raw, scripts):
    forgotten, known = scripts
    owner = forgetful.owner()
    assert forgetful.ask(forgotten, owner, "claim", "first", owed_to=0b111, owed_until=LATER).won
    assert forgetful.ask(known, owner, "claim", "second", owed_to=0b111, owed_until=LATER).won
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1) == ["second"]
    assert raw[0].lrange("list", 0, -1) == ["first", "second"]


def test_release_is_sent_again_behind_its_owners_command_for_a_later_claim(forgetful, nodes, raw, scripts):
    """Nothing else releases that hold, so it must not be dropped for the owner's next one of that key."""
    forgotten, known = scripts
    owner = forgetful.owner()
    assert forgetful.ask(forgotten, owner, "hold 1", "release", owed_to=0b111, owed_until=LATER).won
    assert forgetful.ask(known, owner, "hold 2", "acquire").won
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1) == ["acquire", "release"]


def test_resent_release_is_not_dropped_for_other_owners_renewals(forgetful, nodes, raw):
    """A renewal includes nothing that was released before it is sent, so a release may come after it."""
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
    """Threads get no errors except of their rounds; a resend must not disturb the reader."""
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


def test_script_that_a_node_forgets_repeatedly_is_loaded_each_time(forgetful, nodes, raw, make_script):
    """The first SCRIPT LOAD may itself be refused: owed commands survive that."""
    stubborn = make_script("stubborn", "redis.call('rpush', KEYS[1], ARGV[1]) return 1")
    request = forgetful.send(stubborn, forgetful.owner(), "release", owed_to=0b111, owed_until=LATER)
    request.healed |= 0b100  # as if the script had been loaded, and was forgotten again
    forgetful.finish(request)
    nodes.resume(2)
    forgetful.settle()
    assert raw[2].lrange("list", 0, -1) == ["release"]


# Refused commands.


@pytest.fixture
def refusing(rig, raw):
    """The transport on nodes, the last of which refuses to write."""
    refuse_writes(raw[2])
    yield rig
    accept_writes(raw[2])


def test_refused_release_is_sent_again_until_executed(refusing, raw, all_votes):
    tally = refusing.ask(
        refusing.append, refusing.owner(), "release", decide=all_votes, owed_to=0b111, owed_until=LATER
    )
    assert choices(tally) == ["granted", "granted", "failed"]
    assert "READONLY" in tally.replies[2]
    assert refusing.changes["suspect"], "the maintenance learns of it"
    for _ in range(20):
        assert refusing.transport.tend(), "the node is owed something"
        time.sleep(0.005)
    assert raw[2].lrange("list", 0, -1) == []
    accept_writes(raw[2])
    refusing.settle()
    assert [node.lrange("list", 0, -1) for node in raw] == [["release"]] * 3


def test_command_that_is_not_owed_is_not_sent_again(refusing, raw, all_votes):
    assert choices(refusing.ask(refusing.append, refusing.owner(), "acquire", decide=all_votes))[2] == "failed"
    accept_writes(raw[2])
    refusing.settle()
    assert refusing.transport.retry_at == math.inf
    assert raw[2].lrange("list", 0, -1) == []


def test_invalid_release_is_not_sent_again(rig, raw, all_votes):
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


def test_refused_release_is_not_sent_again_behind_a_later_command_for_its_claim(refusing, raw, make_script, all_votes):
    """A rollback behind the next try would end the claim that this try has won."""
    undo = make_script("undo", "redis.call('rpush', KEYS[1], ARGV[2]) return 1")
    owner = refusing.owner()
    refusing.ask(undo, owner, "claim", "undo", decide=all_votes, owed_to=0b111, owed_until=LATER)
    accept_writes(raw[2])
    assert refusing.ask(undo, owner, "claim", "try", decide=all_votes).granted == 3
    refusing.settle()
    assert raw[2].lrange("list", 0, -1) == ["try"]


def test_all_refused_commands_are_sent_once_the_node_executes_again(refusing, raw):
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
    assert raw[2].info("stats")["total_commands_processed"] - asked < 50, "a failing node gets few commands"
    accept_writes(raw[2])
    refusing.settle(60)
    assert sorted(raw[2].lrange("list", 0, -1)) == sorted(f"release {number}" for number in range(1000))
