"""The transport for threads: the order of commands, the pairing of replies, and nodes that do not answer."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redsync._drivers.process import clock
from redsync.testing.servers import free_ports
from tests.support.locks import PATIENCE
from tests.support.rigs import await_answers, await_instant, choices, tend_until

# Order, and the pairing of replies.


def test_commands_of_an_owner_run_in_order_on_every_node(rig, raw):
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


def test_round_ends_at_its_verdict_and_late_replies_are_read_later(rig, nodes, raw):
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


@pytest.mark.parametrize("silent", [False, True])
def test_process_suspended_beyond_the_deadline_finds_the_answers_received(rig, nodes, all_votes, silent):
    """They are in the sockets, unread: a stopped process must not mistake them for silence."""
    if silent:
        nodes.pause(1)
    request = rig.send(rig.echo, rig.owner(), 1, decide=all_votes, timeout=0.05)
    await_answers(rig, *([0, 2] if silent else []))
    await_instant(request.tally.sent_at + 0.05)
    tally = rig.finish(request)
    assert choices(tally) == ["granted", "failed" if silent else "granted", "granted"]
    assert not silent or tally.replies[1] == "no answer in time"


# Suspects.


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


def test_suspect_node_gets_only_what_it_is_owed(make_rig, nodes, raw):
    rig = make_rig(node_timeout=0.05).connect()
    owner = rig.owner()
    nodes.pause(1)
    assert rig.ask(rig.append, owner, "acquire").won
    tend_until(rig, lambda: rig.transport.links[1].suspect)
    later = clock() + 60
    assert rig.ask(rig.append, owner, "release", owed_to=0b111, owed_until=later).won
    assert rig.ask(rig.append, owner, "new").won
    rig.tell(rig.append, owner, "undo", owed_to=0b010, owed_until=later)
    # When it resumes, it makes claims whose time begins then, so no command is too late.
    rig.tell(rig.append, owner, "late undo", owed_to=0b010, owed_until=clock() - 1)
    nodes.resume(1)
    rig.settle()
    assert raw[1].lrange("list", 0, -1) == ["acquire", "release", "undo", "late undo"]
    assert raw[0].lrange("list", 0, -1) == ["acquire", "release", "new", "undo", "late undo"]


def test_silent_connection_is_replaced_at_last(make_rig, nodes, raw, monkeypatch):
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
    # The bytes written before still arrived, and owed commands are sent again behind them.
    deadline = time.monotonic() + PATIENCE
    while raw[1].lrange("list", 0, -1) != ["acquire", "release", "release"]:
        assert time.monotonic() < deadline


# Large commands.


def test_big_commands_wait_for_room_and_arrive_whole(narrow, nodes, raw, all_votes, make_script):
    rig = narrow
    length = make_script("length", "redis.call('rpush', KEYS[1], #ARGV[1]) return #ARGV[1]")
    owner = rig.owner()
    # All must vote: a node that still lacks the script when two others have decided does not get the claim.
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


def test_node_that_does_not_read_for_too_long_loses_its_connection(narrow, nodes, all_votes):
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


# Ended connections, and malformed replies.


def test_tend_notices_an_idle_connection_that_ended(rig, raw, all_votes):
    raw[1].execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    raw[1].execute_command("CLIENT", "KILL", "TYPE", "normal")
    tend_until(rig, lambda: rig.transport.links[1] is None)
    assert rig.broken == [(1, "closed the connection")]
    tally = rig.ask(rig.echo, rig.owner(), 1, decide=all_votes)
    assert choices(tally) == ["granted", "failed", "granted"]
    rig.connect(1)
    assert choices(rig.ask(rig.echo, rig.owner(), 1, decide=all_votes)) == ["granted"] * 3


def test_error_reply_is_the_nodes_failed_vote(rig, raw, all_votes, make_script):
    wrong = make_script("wrong", "return redis.call('hget', KEYS[1], 'x')")
    raw[1].set("list", "text")
    tally = rig.ask(wrong, rig.owner(), decide=all_votes)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert "WRONGTYPE" in tally.replies[1]
    assert "WRONGTYPE" in rig.nodes[1].last_error
    assert rig.broken == []


def test_reply_that_the_judge_rejects_is_a_failed_vote(rig):
    tally = rig.ask(rig.echo, rig.owner(), "text", judge=int, timeout=1.0)
    assert tally.failed == 2
    assert tally.without_quorum
    assert tally.replies.count("unexpected reply b'text'") == 2
    assert {reason for _, reason in rig.broken} == {"sent an unexpected reply b'text'"}


def test_transport_without_reachable_nodes_is_quick(make_rig):
    ports = free_ports()
    rig = make_rig([f"redis://127.0.0.1:{next(ports)}/0" for _ in range(3)])
    started_at = time.monotonic()
    tally = rig.ask(rig.echo, rig.owner(), 1)
    assert time.monotonic() - started_at < PATIENCE
    assert tally.without_quorum


# Lingering.


def test_lingering_round_hears_all_nodes_even_refusals(rig, raw, make_script):
    raw[1].set("bad", 1)
    picky = make_script("picky", "if redis.call('get', 'bad') then return redis.error_reply('ERR bad') end return 1")
    for _ in range(50):
        tally = rig.ask(picky, rig.owner(), lingers=True)
        assert tally.won
        assert [vote.detail for vote in tally.votes] == ["1", "ERR bad", "1"]
        assert not tally.open
