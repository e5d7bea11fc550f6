"""The checkers of latches: they find latches that open early, late or never, and wrong answers."""

import pytest

from redsync._core.latches import LatchState
from redsync._core.quorum import Verdict
from redsync._protocols import latch as protocol
from redsync._protocols import latch_exchange
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import LatchNeverEarly, LatchOpens, Zombies
from redsync.testing.simulator.happenings import Did, Sent
from redsync.testing.simulator.workers import LatchWorker
from redsync.testing.simulator.workload import Workload
from tests.support.hunting import break_script, hunt

NO_WAKE_UPS = break_script("latch_exchange", ("wake(channel, '0', owner)", "wake('unused', '0', owner)"))


def write_nothing_back(monkeypatch):
    for module in (latch_exchange, protocol):
        monkeypatch.setattr(module, "agree", lambda *_: True)


def believe_one_node(tally):
    """Judge by the first node that answers."""
    if protocol.told_by(tally):
        return Verdict.WON
    return Verdict.PENDING if None in tally.choices else Verdict.LOST


# Runs by seed.


def test_checker_finds_repetitions_that_count_again():
    """Commands that are sent twice, or written back, add up."""
    maximum = "if tonumber(redis.call('hget', KEYS[1], ARGV[i]) or 0) < tonumber(ARGV[i + 1]) then"
    broken = break_script(
        "latch_exchange",
        (maximum, "do"),
        ("redis.call('hset', KEYS[1], ARGV[i], ARGV[i + 1])", "redis.call('hincrby', KEYS[1], ARGV[i], ARGV[i + 1])"),
    )
    # In some runs (seed 4) clients write back endlessly, and the simulator itself complains first.
    complaint = hunt(LatchNeverEarly, range(9, 42), kind="latch", scripts=broken)
    assert "had begun to be counted down" in complaint or "are left of" in complaint


def test_checker_finds_latch_that_is_set_while_it_is_not_open(monkeypatch):
    consult = protocol.Caller.consult

    def find_it_open(caller, now, decide=protocol.is_known):
        state, tally = yield from consult(caller, now, decide)
        return (LatchState(state.generation) if decide is protocol.may_set else state), tally

    monkeypatch.setattr(protocol.Caller, "consult", find_it_open)
    assert "replaced it" in hunt(LatchNeverEarly, range(1, 41), kind="latch")


def test_checker_finds_places_that_are_not_left():
    broken = break_script("latch_leave", ("return redis.call('zrem', KEYS[2], ARGV[1])", "return 0"))
    assert "keeps a latch place without a waiter" in hunt(Zombies, range(9, 29), kind="latch", scripts=broken)


# By hand.


class Story:
    """Workers on machines a to d, with connected clients, which act on request."""

    def __init__(self, sim):
        self.sim = sim
        workload = Workload(sim, "latch", until=60.0, lease=2.0)
        machines = [sim.machine(name) for name in "abcd"]
        self.a, self.b, self.c, self.d = (LatchWorker(workload, each, each.client(), "worker") for each in machines)
        for each in (self.a, self.b, self.c, self.d):
            self.do(each, each._ways.look, "another")

    def begin(self, who, way, *args):
        """Let a worker begin an action."""
        who._machine.start(who._try(lambda name: way(name, *args[1:]), args[0]))

    def do(self, who, way, *args):
        """Let a worker complete an action."""
        self.begin(who, way, *args)
        self.sim.run()

    def cut(self, who, *nodes):
        """Cut a worker off from nodes."""
        self.sim.partition(who._machine, *nodes)


def tell(story, checker=LatchNeverEarly, **options):
    """Play a story; return the last line about it."""
    with Simulation(seed=1, checkers=[checker], lease=2.0, restart_guard=2.0, **options) as sim:
        story(Story(sim))
        return [str(line) for line in sim.trace.happenings if isinstance(line, Did)][-1]


def set_on_two_nodes_and_ask_the_third(story):
    story.cut(story.a, 2)
    story.cut(story.b, 0, 1)
    story.do(story.a, story.a._ways.set, "x", 2)
    story.do(story.b, story.b._ways.look, "x")


def test_checker_finds_latch_that_believes_one_node(monkeypatch):
    assert "worker on b no quorum" in tell(set_on_two_nodes_and_ask_the_third)
    write_nothing_back(monkeypatch)
    exchange = protocol.Caller.exchange
    monkeypatch.setattr(
        protocol.Caller, "exchange", lambda caller, now, _=None, **how: exchange(caller, now, believe_one_node, **how)
    )
    with pytest.raises(
        SimulationError, match="latch never early: worker on b looked 'x', but learned 0, and from 2 to"
    ):
        tell(set_on_two_nodes_and_ask_the_third)


@pytest.mark.parametrize(("way", "args", "told"), [("set", [1], "not set"), ("delete", [], "not deleted")])
def test_worker_that_finds_others_setting_a_latch_does_not_count_as_finding_it_closed(monkeypatch, way, args, told):
    def taken(*_):
        return None
        yield

    monkeypatch.setattr(protocol, "acquire_new", taken)
    assert f"worker on a {told}" in tell(lambda story: story.do(story.a, getattr(story.a._ways, way), "x", *args))


def is_read(happening):
    """Return whether the second worker has learned what is left to count down; it sends its count next."""
    asks = isinstance(happening, Sent) and happening.script == "latch_exchange" and happening.client == "b"
    return asks and b"redsync_latch:{redsync:x}" in happening.keys


def count_down_on_one_node_and_ask_different_ones(story):
    sim = story.sim
    story.do(story.a, story.a._ways.set, "x", 1)
    # The lost command breaks the connection, and is not executed.
    story.begin(story.b, story.b._ways.count_down, "x", 1, 0.0)
    while not any(map(is_read, sim.trace.happenings)):
        sim.run(until=sim.now + 0.0001)
    sim.lose(story.b._machine, 1, 2, there=1.0)
    sim.run(until=sim.now + 5.0)
    story.cut(story.c, 2)
    story.cut(story.d, 0)
    story.do(story.c, story.c._ways.look, "x")
    story.do(story.d, story.d._ways.look, "x")


def test_checker_finds_answers_that_no_quorum_knows_yet(monkeypatch):
    assert "looked name=x client=d left=0" in tell(count_down_on_one_node_and_ask_different_ones)
    write_nothing_back(monkeypatch)
    with pytest.raises(SimulationError, match="worker on d looked 'x', but learned 1, and from 0 to 0 are left of 1"):
        tell(count_down_on_one_node_and_ask_different_ones)


def forget_one_after_the_other_and_ask_new_ones(story):
    """Two of three nodes forget; the third, which remembers, does not answer."""
    story.do(story.a, story.a._ways.set, "x", 2)
    for node in story.sim.nodes[:2]:
        node.crash()
        node.restart(forget=True)
        story.sim.run(until=story.sim.now + 5.0)
    story.cut(story.b, 2)
    story.do(story.b, story.b._ways.look, "x")


def test_checker_finds_nodes_that_forgot_and_are_believed():
    assert "worker on b no quorum" in tell(forget_one_after_the_other_and_ask_new_ones)
    broken = break_script("latch_exchange", ("if guard ~= '0' then", "if false then"))
    with pytest.raises(SimulationError, match="worker on b looked 'x', but learned 0, and from 2 to 2 are left of 2"):
        tell(forget_one_after_the_other_and_ask_new_ones, scripts=broken)


def forget_and_hear_of_an_earlier_setting(story):
    """Two nodes know the second setting; one forgets it, and learns the first from a client that knows no more."""
    for each in (story.a, story.b):
        latch = each._client.get_count_down_latch("x")
        each._ways._make = lambda name, latch=latch, **options: latch
    story.do(story.a, story.a._ways.set, "x", 1)
    story.do(story.a, story.a._ways.count_down, "x", 1, 1.0)
    story.do(story.b, story.b._ways.look, "x")
    story.cut(story.a, 2)
    story.do(story.a, story.a._ways.set, "x", 2)
    story.sim.nodes[0].crash()
    story.sim.nodes[0].restart(forget=True)
    story.sim.run(until=story.sim.now + 5.0)
    story.cut(story.b, 1)
    story.do(story.b, story.b._ways.look, "x")
    story.do(story.b, story.b._ways.look, "x")


def test_checker_finds_believed_hearsay():
    assert "worker on b no quorum" in tell(forget_and_hear_of_an_earlier_setting)
    broken = break_script("latch_exchange", ("local hearsay = life and told_in ~= life", "local hearsay"))
    with pytest.raises(SimulationError, match="worker on b looked 'x', but learned 0, and from 2 to 2 are left of 2"):
        tell(forget_and_hear_of_an_earlier_setting, scripts=broken)


def wait_for_two(story):
    """Let one wait for two count-downs; two others make one each."""
    story.do(story.a, story.a._ways.set, "x", 2)
    story.begin(story.a, story.a._ways.wait, "x", None)
    story.sim.run(until=story.sim.now + 2.0)
    for each in (story.b, story.c):
        story.begin(each, each._ways.count_down, "x", 1, 1.0)
        story.sim.run(until=story.sim.now + 2.0)


def test_waiter_learns_when_all_was_counted_down():
    for checker in (LatchNeverEarly, LatchOpens):
        assert "worker on a opened" in tell(wait_for_two, checker)


def test_checker_finds_waiters_that_are_not_woken_without_faults():
    with pytest.raises(SimulationError, match=r"latch opens: worker on a has waited for 'x' .* for more than 0.300 s"):
        tell(wait_for_two, LatchOpens, scripts=NO_WAKE_UPS)


def test_answer_that_comes_too_early_is_found(monkeypatch):
    monkeypatch.setattr(LatchState, "count", property(lambda state: max(state.size - 1 - len(state.arrivals), 0)))
    with pytest.raises(
        SimulationError, match=r"worker on a opened 'x', but of 2 of setting .* no more than 1 had begun"
    ):
        tell(wait_for_two)
