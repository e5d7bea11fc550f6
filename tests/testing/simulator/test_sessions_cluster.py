"""Sessions of servers of a cluster: the command that a vote writes has a key, and the connection does not record it."""

from redsync._drivers.dialects import ClusterDialect
from redsync.testing.simulator import Simulation
from tests.testing.simulator.conftest import Caller

SIMULATION = {"seed": 3, "nodes": 1, "replicas": 2, "cluster": True, "checkers": (), "begin": 0.5}


def test_wait_counts_the_replicas_that_have_the_touched_key(sim, call):
    dialect = ClusterDialect(sim.world.slots[0])
    call.connection.requests = []
    assert b"".join(call.ask(*dialect.touch)) == b":1\r\n:1\r\n"
    assert call("WAIT", 2, 500) == b":2\r\n"
    sim.groups[0].servers[1].hang()
    assert b"".join(call.ask(*dialect.touch)) == b":0\r\n:1\r\n"
    assert call("WAIT", 2, 500) == b":1\r\n"


def test_node_in_trouble_answers_its_error_before_it_redirects(sim, call):
    key = sim.world.tags[0].decode() + "x"
    sim.nodes[0].refuse("LOADING")
    assert call("GET", key).startswith(b"-LOADING")
    assert call("WAIT", 0, 1).startswith(b"-LOADING")
    assert call("CLIENT", "ID").startswith(b":")


def test_commands_are_executed_for_the_node_of_their_keys():
    with Simulation(seed=3, nodes=2, cluster=True, checkers=()) as sim:
        sim.world.move(1, sim.world.groups[0], pause=0.0)
        sim.run(until=3.0)
        call = Caller(sim, sim.machine("a"))
        (session,) = sim.servers[0]._sessions.values()
        for place in (1, 0):
            assert call("EVAL", "return 1", 1, sim.world.tags[place].decode() + "x") == b":1\r\n"
            assert session.place == sim.servers[0].place_of(session) == place
