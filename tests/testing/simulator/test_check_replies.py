"""The checker of replies: it finds replies that go to the wrong request."""

import asyncio
from types import SimpleNamespace

import hiredis
import pytest

from redsync._core.effects import Command
from redsync._core.memory import Processes
from redsync._core.scripts import Script
from redsync._drivers.aio_link_sets import AioLinkSet, StreamLink
from redsync._drivers.channels import pack
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Replies
from redsync.testing.simulator.happenings import Handed
from tests.support.hunting import hunt


def test_checker_finds_replies_that_slip_by_one_after_a_discard(monkeypatch):
    """A link begins with the last request of the link before it, which the new connection never saw."""
    discard, install = AioLinkSet.discard, AioLinkSet.install
    left = {}

    def discard_all_but_one(links, link, reason, **options):
        if link.pending:
            left[links, link.index] = link.pending[-1]
        discard(links, link, reason, **options)

    def install_behind(links, link):
        install(links, link)
        if (links, link.index) in left:
            link.pending.appendleft(left.pop((links, link.index)))

    monkeypatch.setattr(AioLinkSet, "discard", discard_all_but_one)
    monkeypatch.setattr(AioLinkSet, "install", install_behind)
    assert "for the reply to" in hunt(Replies, range(5))


def answer_late():
    """Let a node's replies arrive long after their connection was abandoned, while another one is in use."""
    with Simulation(seed=7, checkers=[Replies], lease=2.0, restart_guard=0.0) as sim:
        machine = sim.machine("a")
        client = machine.client()
        sim.network.retransmits = True
        for node in sim.nodes:
            node.ends_former = False

        async def work(name, pause):
            while True:
                async with client.get_lock(name):
                    await asyncio.sleep(pause)

        machine.start(work("x", 1.0))
        sim.run(until=0.5)
        sim.cut(machine, 0, back=True)
        sim.run(until=13.0)
        sim.heal()
        sim.slow(machine, 0, seconds=0.05)
        for name in ("y", "z"):
            machine.start(work(name, 0.01))
        sim.run(until=20.0)


def test_checker_finds_late_replies_of_an_old_connection(monkeypatch):
    """Those that look like an answer; with others (seed 1) the driver abandons the new connection itself."""
    answer_late()
    newest = {}
    make, receive = StreamLink.__init__, StreamLink.data_received

    def note_newest(link, node, *rest):
        make(link, node, *rest)
        newest[node] = link

    monkeypatch.setattr(StreamLink, "__init__", note_newest)
    monkeypatch.setattr(StreamLink, "data_received", lambda link, data: receive(newest[link.node], data))
    monkeypatch.setattr(StreamLink, "reset", lambda link: None)
    with pytest.raises(SimulationError, match=r"replies: a took .* for the reply to"):
        answer_late()


# By hand.


def hand(asked, heard, words, said, command=None):
    with Simulation(seed=1, checkers=()) as sim:
        request = SimpleNamespace(data=pack(*asked), command=command)
        return Replies(sim).see(Handed(sim.now, "a", 0, request, heard, words, said))


def test_names_of_processes_may_be_later_ones_and_nothing_else():
    script = Script.load("lock_acquire")
    command = Command(script, (b"x",), (b"c:1:1", 1, 5000, Processes().guard(5000)))
    asked = [b"EVALSHA", script.sha, b"1", b"x", b"c:1:1", b"1", b"5000", b"5000,-,"]
    later, other = [*asked[:-1], b"5000,node-1,"], [*asked[:4], b"c:1:2", *asked[5:]]
    assert hand(asked, 1, later, 1, command) is None
    for words in (other, [*other[:-1], later[-1]], later[:-1]):
        assert "for the reply to" in hand(asked, 1, words, 1, command)
    assert "for the reply to" in hand(asked, 1, later, 2, command)


@pytest.mark.parametrize(
    ("heard", "said"), [(1, 1), ([1, [b"x", None]], [1, [b"x", None]]), (b"OK", b"OK"), (None, None)]
)
def test_reply_to_its_own_request_is_fine(heard, said):
    assert hand([b"GET", b"x"], heard, [b"GET", b"x"], said) is None


def test_error_is_compared_as_it_travels():
    error = hiredis.ReplyError("ERR in\nthe script")
    assert hand([b"GET", b"x"], hiredis.ReplyError("ERR in the script"), [b"GET", b"x"], error) is None
    assert hand([b"GET", b"x"], hiredis.ReplyError("ERR another"), [b"GET", b"x"], error) is not None
    assert hand([b"GET", b"x"], b"ERR in the script", [b"GET", b"x"], error) is not None


@pytest.mark.parametrize(("heard", "said"), [(1, 2), ([1], [1, 2]), (1, [1]), ([1, [2]], [1, [3]]), (None, 0)])
def test_reply_that_differs_from_the_node_s_is_found(heard, said):
    assert "but the node had replied" in hand([b"GET", b"x"], heard, [b"GET", b"x"], said)


def test_reply_to_another_request_is_found():
    assert "to GET y" in hand([b"GET", b"x"], 1, [b"GET", b"y"], 1)


def test_reply_to_nothing_is_found():
    assert "has replied to nothing" in hand([b"GET", b"x"], 1, [], None)
