"""The connection table: each node's link, and the requests owed to a node without one."""

import threading
import time

import fakeredis
import pytest
import redis

from redsync._core.effects import Broadcast, Command
from redsync._drivers.connection_table import ConnectionTable
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.process import clock
from redsync._drivers.requests import Request
from tests.support.locks import PATIENCE
from tests.support.rigs import LATER, Wire, choices, lose

NOW = 100.0


class Desk:
    """A table of two nodes, on a stopped clock."""

    def __init__(self, script):
        self.nodes = make_nodes(["redis://a", "redis://b"], redis.Redis)
        self.script, self.broken = script, []
        self.table = ConnectionTable(
            self.nodes,
            lambda: NOW,
            threading.Lock(),
            None,
            lambda _: None,
            on_broken=lambda node, reason: self.broken.append((node.index, reason)),
            on_refused=lambda: None,
        )

    def install(self, i):
        link = Wire(self.nodes[i])
        return link, self.table.install(link)

    def ask(self, *, owed_to=0):
        effect = Broadcast(Command(self.script, (b"k",), ()), None, bool, 1.0, owed_to=owed_to, owed_until=NOW + 60)
        request = Request(effect, effect.tally(["a", "b"]))
        assert request.make(1)
        return request


@pytest.fixture
def desk(make_script):
    return Desk(make_script("ask", "return 1"))


# By hand.


def test_plan_has_links_that_get_everything_and_nodes_that_need_a_closer_look(desk):
    link, _ = desk.install(0)
    desk.table.recount()
    assert desk.table.plan == ([link], 0b01, [desk.nodes[1]])
    link.suspect = True
    desk.table.recount()
    assert desk.table.plan == ([], 0, desk.nodes)


def test_plan_is_recomputed_when_a_nodes_quarantine_ends(desk):
    young, old = (desk.install(i)[0] for i in range(2))
    young.node.remembers_since, old.node.remembers_since, desk.table.guard = NOW - 1, NOW - 30, 30.0
    desk.table.recount()
    assert desk.table.plan == ([old], 0b10, [young.node])
    assert desk.table.recount_at == NOW + 29


def test_link_whose_reset_is_interrupted_is_reset_and_reported_by_the_next_discard(desk):
    """With asyncio its connection would stay open otherwise."""
    link, _ = desk.install(0)
    interruptions, shut = [KeyboardInterrupt], link.shut

    def reset():
        if interruptions:
            raise interruptions.pop()
        shut()

    link.reset = reset
    with pytest.raises(KeyboardInterrupt):
        desk.table.discard(link, "first")
    assert desk.table.links == [link, None]
    desk.table.discard(link, "second")
    assert link.is_shut
    assert desk.table.links == [None, None]
    assert desk.broken == [(0, "first")]


def test_link_is_discarded_once_for_the_first_reason(desk):
    link, _ = desk.install(0)
    request = desk.ask()
    link.pending.append(request)
    desk.table.discard(link, "first")
    desk.table.discard(link, "second")
    assert desk.broken == [(0, "first")]
    assert desk.table.links == [None, None]
    assert link.is_shut
    assert choices(request.tally) == ["failed", None]
    assert request.tally.replies[0] == "first"


def test_next_link_begins_with_owed_requests(desk):
    link, owed = desk.install(0)
    assert not owed
    release, claim = desk.ask(owed_to=0b01), desk.ask()
    link.pending.extend([release, claim])
    desk.table.discard(link, "gone")
    after, owed = desk.install(0)
    assert owed
    assert list(after.pending) == [release]
    assert after.sent == [release.data]


def test_close_decides_a_round_without_those_that_have_not_voted(desk):
    request = desk.ask()
    request.tally.record(0, 1)
    desk.table.close(request, "no answer")
    assert request.done
    assert choices(request.tally) == ["granted", "failed"]


# The receivers of a new command, on real nodes.


def test_absent_node_fails_at_once_with_its_excuse(make_rig, all_votes):
    rig = make_rig().connect(0, 2)
    rig.nodes[1].excuse = "gone fishing"
    tally = rig.ask(rig.echo, rig.owner(), 1, decide=all_votes)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert tally.replies[1] == "gone fishing"


def test_quarantined_node_gets_no_new_claims_until_the_guard_is_over(rig, all_votes):
    rig.nodes[1].remembers_since = clock() - 0.2
    tally = rig.ask(rig.echo, rig.owner(), 1, decide=all_votes, guard=0.5)
    assert choices(tally) == ["granted", "failed", "granted"]
    assert "restart_guard" in tally.replies[1]
    assert choices(rig.ask(rig.echo, rig.owner(), 1, decide=all_votes)) == ["granted"] * 3
    # A claim with a shorter lease needs less.
    assert choices(rig.ask(rig.echo, rig.owner(), 1, decide=all_votes, guard=0.1)) == ["granted"] * 3
    while clock() < rig.nodes[1].remembers_since + 0.5:
        time.sleep(0.01)
    assert choices(rig.ask(rig.echo, rig.owner(), 1, decide=all_votes, guard=0.5)) == ["granted"] * 3


# Requests owed to an unreachable node.


def test_owed_commands_are_delivered_in_order_when_the_node_is_back(rig, nodes, raw):
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


def test_owed_commands_reach_a_node_that_left_commands_unanswered_no_matter_how_late(rig, nodes, raw):
    """It executes the commands when it resumes, so their claims have not expired before."""
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


def test_unanswered_commands_of_a_broken_connection_fail_and_are_owed(rig, nodes, raw, all_votes):
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


def test_big_owed_commands_are_delivered_when_the_node_is_back(rig, nodes, raw):
    owner = rig.owner()
    lose(rig, nodes, 1)
    for i in range(3):
        rig.tell(rig.append, owner, b"%d" % i + b"x" * 1_000_000, owed_to=0b010, owed_until=LATER)
    nodes.restart(1)
    rig.connect(1)
    rig.settle()
    assert [value[0] for value in raw[1].lrange("list", 0, -1)] == ["0", "1", "2"]


def test_new_link_takes_everything_owed_no_matter_how_much(narrow, nodes, raw, make_script, monkeypatch):
    """The limit is for a node that does not read; requests that waited for the node must not be lost to it."""
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


def test_owed_commands_reach_a_node_without_a_socket_one_by_one(make_rig):
    fake = fakeredis.FakeRedis(decode_responses=True)
    rig = make_rig([fake])
    for number in range(3):
        rig.tell(rig.append, rig.owner(), number, owed_to=0b1, owed_until=LATER)
    rig.connect()
    assert fake.lrange("list", 0, -1) == ["0", "1", "2"]
    assert rig.ask(rig.echo, rig.owner(), "mine").replies == [b"mine"]


# Replaced links.


def test_release_lost_with_a_replaced_link_precedes_its_owners_next_claim(rig, raw):
    """Other threads replace a link during a flush, which then writes to the old one."""
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
        "is owed commands that the previous connection lost",
    ]
    rig.connect(2)
    rig.tell(rig.append, owner, "next")
    rig.settle()
    assert [node.lrange("list", 0, -1) for node in raw] == [["release", "next"]] * 3
