"""The node registry: whether two nodes are one server, and when they only look like it."""

from types import SimpleNamespace

import pytest
import redis

from redsync import ConfigurationError
from redsync._core.memory import BLANK, LOOK, NEWBORN, ORIGINAL, Birth
from redsync._core.observing import NodeChanged
from redsync._drivers.any_maintenance import NodeRegistry
from redsync._drivers.discovery import Location
from redsync._drivers.nodes import NodeInfo, make_nodes
from tests.support.scripted import StandIn

URLS = [f"redis://node-{i}" for i in range(3)]


class Net:
    """Three addresses, the server behind each, and a client's connections to them."""

    def __init__(self, restart_guard=0.0, urls=URLS):
        self.now = 100.0
        self.servers = ["s0", "s1", "s2"]
        self.names = {server: b"%b@15" % server.encode() for server in self.servers}
        self.births = [None] * 3
        self.nodes = make_nodes(urls, redis.Redis)
        self.links = [None] * len(self.nodes)
        self.life = StandIn(self.nodes, lambda: self.now, restart_guard=restart_guard)
        self.registry = NodeRegistry(self.life, self, 2.0, lambda: None)

    def meet(self, i):
        """Meet the server at an address; return True if it is accepted."""
        node = self.nodes[i]
        try:
            self.registry.meet(
                node,
                NodeInfo(self.servers[i], "valkey 9", 1000.0, self.births[i], self.names.get(self.servers[i], b"-")),
            )
        except ConfigurationError as error:
            self.registry.note_tried(node, str(error))
            return False
        return True

    def connect(self, *indices):
        """Connect these nodes, one after the other; return the accepted ones."""
        accepted = []
        for i in indices:
            if self.meet(i):
                self.links[i] = SimpleNamespace(suspect=False)
                self.registry.note_tried(self.nodes[i], None)
                accepted.append(i)
        return accepted

    def cut(self, *indices):
        for i in indices:
            self.links[i] = None
            self.registry.note_broken(self.nodes[i], "cut")


@pytest.fixture
def net():
    net = Net()
    assert net.connect(0, 1, 2) == [0, 1, 2]
    return net


def test_servers_that_move_in_a_circle_are_accepted_in_any_order(net):
    net.cut(0, 1, 2)
    net.servers[:] = "s1", "s2", "s0"
    assert net.connect(2, 0, 1) == [2, 0, 1]


def test_server_is_refused_at_its_new_address_until_its_old_connection_ends(net):
    net.cut(1)
    net.servers[:2] = "s1", "s0"
    assert net.connect(1) == []
    assert "node-0:6379 and node-1:6379 are the same server" in net.nodes[1].down_reason
    net.cut(0)
    assert net.connect(1, 0) == [1, 0]


def test_no_set_keeps_links_to_a_server_in_the_name_of_a_former_node(net):
    """Through them the server would have two votes in one round."""
    before = [node.generation for node in net.nodes]
    net.cut(0, 1)
    net.servers[:2] = "s1", "s0"
    assert net.connect(0) == [0]
    assert [node.generation - old for node, old in zip(net.nodes, before, strict=True)] == [1, 1, 0]


@pytest.fixture
def group():
    """A group that is down, and its master according to its Sentinels."""
    net = Net(urls=["redis+sentinel://s1,s2,s3/mymaster?replicas=2"])
    net.nodes[0].locator.present = Location("a", 1, 7)
    net.registry.due(connecting=[])
    return net


def test_no_set_keeps_links_to_a_former_master_though_the_maintenance_has_none(group):
    (node,) = group.nodes
    before = node.generation
    node.locator.present = Location("b", 1, 8)
    assert group.registry.due(connecting=[]) == [node]
    assert node.location == Location("b", 1, 8)
    assert node.generation > before


def test_master_that_was_replaced_during_the_connect_is_refused(group):
    (node,) = group.nodes
    node.locator.present = Location("b", 1, 8)
    with pytest.raises(ConnectionError, match="its Sentinels name b:1 as the master now, epoch 8"):
        group.meet(0)
    assert node.info is None


def test_server_has_one_name_though_two_nodes_had_it(net):
    """A server that finds two names for itself takes the older one, and other clients the newer one."""
    net.cut(0, 1)
    net.servers[:2] = "s1", "s0"
    net.names["s1"] = b"s1@20"
    assert net.connect(0) == [0]
    assert net.life.session.processes.named == b",s1@20,s2@15,"


@pytest.fixture
def guarded():
    """Connected nodes that take part in new grants only once their birth records are known."""
    net = Net(restart_guard=1.0)
    net.connect(0, 1, 2)
    return net


def answer(request, record, *indices):
    """Let nodes answer the question about their memory."""
    for index in indices:
        name = b"s%d@15" % index
        request.tally.record(index, [record + b" " + name, 1000, name])


def knows(net):
    return [node.birth and node.birth.kind for node in net.nodes]


def test_answer_under_a_former_name_counts_for_nothing(guarded):
    asked = []
    guarded.registry.initialize(asked.append)
    guarded.cut(0)
    guarded.names["s0"] = b"s0@20"
    guarded.connect(0)
    answer(asked[0], b"newborn 1", 0, 1, 2)
    guarded.registry.initialize(asked.append)
    assert knows(guarded) == [None] * 3
    assert len(asked) == 2, "all are asked again"
    assert b"s0@20" in guarded.life.session.processes.named


def test_node_that_does_not_answer_the_question_about_its_memory_is_asked_again(guarded):
    asked, known = [], []
    guarded.registry.initialize(asked.append)
    answer(asked[0], b"original 1", 0, 1)
    for later in (0.0, 1.0, 1.0):
        guarded.now += later
        guarded.registry.initialize(asked.append)
        known.append(knows(guarded))
    assert known == [[None] * 3, *[[ORIGINAL, ORIGINAL, None]] * 2], "at first, the third may yet answer"
    answer(asked[1], b"original 1", 0, 1)
    answer(asked[1], b"newborn 1", 2)
    guarded.registry.initialize(asked.append)
    assert knows(guarded) == [ORIGINAL, ORIGINAL, NEWBORN]


def test_look_from_before_a_connect_does_not_show_that_nodes_are_new():
    """Nodes 2 and 3 may have been emptied after it, and node 1 before its connect: no instant had all three records."""
    net, asked = Net(restart_guard=1.0), []
    net.births = [Birth(BLANK, 5000, b"s%d@15" % index, 0.0) for index in range(3)]
    net.connect(0, 1, 2)
    net.registry.initialize(asked.append)
    net.cut(0)
    asked[0].tally.fail(0, "cut")
    net.births[0] = Birth(BLANK, 5000, b"s0@15", 0.0)
    net.connect(0)
    answer(asked[0], b"blank 5000", 1, 2)
    for later in (0.0, 0.1, 1.0, 0.1):
        net.now += later
        net.registry.initialize(asked.append)
        answer(asked[-1], b"blank 5000", 0)
    assert [request.effect.command.args[0] for request in asked] == [LOOK, LOOK, NEWBORN]


def test_node_that_can_not_write_its_record_is_asked_once_a_second(guarded):
    """It is out of memory, or its disk is full, for hours."""
    asked = []
    guarded.registry.initialize(asked.append)
    answer(asked[0], b"original 1", 0, 1)
    asked[0].tally.record(2, [b"", 1000, b"s2@15"])
    for _ in range(100):
        guarded.now += 0.1
        guarded.registry.initialize(asked.append)
        answer(asked[-1], b"original 1", 0, 1)
        asked[-1].tally.record(2, [b"", 1000, b"s2@15"])
    assert len(asked) <= 18, "more often only while it may be new"


def test_client_that_knew_nodes_before_does_not_believe_that_they_are_new(guarded):
    """Another client may believe so, if it connects after all of them were emptied."""
    asked, known = [], []
    for record in (b"original 1", b"original 2"):
        guarded.registry.initialize(asked.append)
        answer(asked[-1], record, 0, 1, 2)
        guarded.registry.initialize(asked.append)
        known.append(knows(guarded))
        for node in guarded.nodes:
            node.remember(None, guarded.now)  # it has said that it forgot
        guarded.now += 1.0
    assert known == [[ORIGINAL] * 3, [NEWBORN] * 3]


def test_servers_without_an_identity_are_not_mistaken_for_one(net):
    net.cut(0, 1)
    net.servers[:2] = None, None
    assert net.connect(0, 1) == [0, 1]


def test_node_whose_connect_takes_too_long_delays_no_start():
    """A TLS handshake byte by byte, or a resolver that hangs."""
    net = Net()
    net.connect(0, 1)
    assert not net.registry.is_heard()
    net.now += 2.0
    assert net.registry.is_heard()
    assert [node.index for node in net.registry.due(connecting=[])] == [2]
    assert net.registry.due(connecting=[2]) == []


def test_nodes_that_a_client_knew_are_never_marked_as_new_again(guarded):
    """All were emptied at once: other clients, which did not know them, believe the marks."""
    asked = []
    guarded.registry.initialize(asked.append)
    answer(asked[0], b"original 1", 0, 1, 2)
    guarded.registry.initialize(asked.append)
    assert knows(guarded) == [ORIGINAL] * 3
    guarded.births = [Birth(BLANK, 5000, b"s%d@15" % index, 0.0) for index in range(3)]
    guarded.cut(0, 1, 2)
    guarded.connect(0, 1, 2)
    for _ in range(5):
        guarded.now += 10.0
        guarded.registry.initialize(asked.append)
        answer(asked[-1], b"blank 5000", 0, 1, 2)  # as nodes that are out of memory
    assert len(asked) > 2
    assert {request.effect.command.args[0] for request in asked} == {NEWBORN}


def test_node_whose_connection_ends_as_it_is_installed_is_tried_again_after_a_pause(net):
    """It sends a reply to no command, say."""
    net.now += 10.0
    net.cut(0)
    net.registry.note_tried(net.nodes[0], None)
    assert net.registry.due(connecting=[]) == []
    net.now += 1.0
    assert net.registry.due(connecting=[]) == [net.nodes[0]]
    assert net.nodes[0].down_reason == "cut"


def test_mistake_is_logged_once_though_sets_of_callers_meet_it_while_the_node_is_up(net, caplog):
    for _ in range(3):
        net.registry.note_failure(net.nodes[0], KeyError("no token"))
    assert len(caplog.records) == 1
    assert net.nodes[0].last_error == "KeyError: 'no token'"


def test_node_whose_first_connect_takes_too_long_is_reported_once():
    net = Net()
    net.connect(0, 1)
    net.registry.report_changes()
    assert net.life.told == [], "the look-up of its name may take a while"
    net.now += 2.0
    for _ in range(2):
        net.registry.report_changes()
        assert net.life.told == [NodeChanged("node-2:6379", "down", "not connected yet")]
