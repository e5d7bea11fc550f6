"""Scenarios: the actions of threads on one transport, and the required outcome. Each takes a world and returns a judge.

Commands are named by their owner's letter and a number, in the order in which that owner sends them: `a0`, `a1`, `b0`.
"""

from tests.support.interleaving.rig import Rig
from tests.support.interleaving.system import ROOM

__all__ = [
    "ALL_NODES",
    "breaking",
    "closing",
    "deadlines",
    "forgetting",
    "judge_owed",
    "messages",
    "overtaking",
    "ringing",
    "rounds",
    "send",
    "start",
    "tending",
]

ALL_NODES = 0b111


def send(rig, whats):
    """Send commands of one owner, one after the other, and wait for all replies to each."""
    owner = rig.owner()
    for what in whats:
        tally = rig.broadcast(owner, what)
        assert tally.replies == [what] * len(rig.nodes), f"{what} got {tally.replies}"


def start(rig, *programs):
    """Start a thread for each owner, which sends these commands: `"a0 a1"`."""
    commands = [program.encode().split() for program in programs]
    for whats in commands:
        rig.thread(whats[0][:1].decode(), send, rig, whats)
    return [what for whats in commands for what in whats]


def rounds(*programs, nodes=1, room=ROOM):
    """Threads send commands and wait for the replies of all nodes."""

    def scenario(world):
        rig = Rig(world, nodes, room=room)
        whats = start(rig, *programs)

        def judge():
            rig.judge()
            rig.judge_executed(*whats)

        return judge

    return scenario


def tending(*programs, nodes=1):
    """The maintenance tends the transport meanwhile."""

    def scenario(world):
        rig = Rig(world, nodes)
        whats = start(rig, *programs)
        rig.thread("maintenance", lambda: (rig.transport.tend(), rig.transport.tend()))

        def judge():
            rig.judge()
            rig.judge_executed(*whats)

        return judge

    return scenario


def deadlines(*timeouts, hurried=False):
    """Node 2 is silent, and each thread waits for its own timeout."""

    def scenario(world):
        rig = Rig(world)
        rig.servers[1].silent = True
        world.patient = True
        if hurried:
            world.hurry()
        ends = []

        def wait(what, timeout):
            tally = rig.broadcast(rig.owner(), what, timeout)
            assert tally.replies[1] == "no answer in time"
            assert tally.replies[0] == what or hurried
            ends.append((timeout, world.now))

        for letter, timeout in zip("abc", timeouts, strict=False):
            rig.thread(letter, wait, f"{letter}0".encode(), timeout)

        def judge():
            assert all(end >= timeout if hurried else end == timeout for timeout, end in ends), f"ended at {ends}"
            rig.servers[1].silent = False
            rig.judge()
            rig.judge_executed(*rig.requests)

        return judge

    return scenario


def closing(*programs):
    """One thread waits for a bell that never rings, one closes the transport; rounds run to their ends."""

    def scenario(world):
        rig = Rig(world, 1)
        start(rig, *programs)
        rig.thread("sleeper", rig.wait_for_bell, b"key", 60.0, lambda: False)
        rig.thread("closing", rig.transport.close)

        def judge():
            rig.judge()
            rig.judge_executed(*rig.requests)

        return judge

    return scenario


def ringing(*programs):
    """One thread waits until another lets it continue; that one sets a flag first and then rings."""

    def scenario(world):
        rig = Rig(world, 1)
        may_go_on = []

        def ring():
            may_go_on.append(True)
            rig.transport.wakeups.ring(b"key")

        start(rig, *programs)
        rig.thread("sleeper", rig.wait_for_bell, b"key", 60.0, lambda: bool(may_go_on))
        rig.thread("ringer", ring)
        return rig.judge

    return scenario


def messages(nodes=2):
    """One thread waits until all nodes have sent it a message, which they do when they execute another's command."""

    def scenario(world):
        rig = Rig(world, nodes)
        for server in rig.servers:
            server.signals[b"b0"] = b"key"

        def wait():
            wakeups = rig.transport.wakeups
            wakeups.subscribe(b"key")
            send(rig, [b"a0"])
            signals, marked = rig.transport.wait_for_wakeup(wakeups.wait_for_nodes(b"key", 60.0, nodes, 60.0, b"1"))
            assert signals == nodes
            assert marked == (1 << nodes) - 1
            wakeups.unsubscribe(b"key")

        rig.thread("a", wait)
        # Signals before the mailbox exists are lost, as the condition is checked after that.
        rig.thread("b", lambda: (world.wait_for(lambda: b"a0" in rig.requests), send(rig, [b"b0"])))

        def judge():
            rig.judge()
            rig.judge_executed(b"a0", b"b0")

        return judge

    return scenario


def forgetting(*programs, nodes=1):
    """Node 1 has forgotten the script."""

    def scenario(world):
        rig = Rig(world, nodes)
        rig.servers[0].scripts.clear()
        whats = start(rig, *programs)

        def judge():
            rig.judge()
            rig.judge_executed(*whats)

        return judge

    return scenario


def overtaking(*programs):
    """The node has forgotten the script, and one owner sends its second command before the first is answered."""

    def scenario(world):
        rig = Rig(world, 1)
        rig.servers[0].scripts.clear()
        owner = rig.owner()
        start(rig, *programs)
        rig.thread("o", lambda: (rig.tell(owner, b"o0"), rig.broadcast(owner, b"o1")))

        def judge():
            rig.judge()
            executed = rig.servers[0].executed
            of_one = [what for what in executed if what.startswith(b"o")]
            assert of_one in ([b"o1"], [b"o0", b"o1"]), f"executed in the wrong order: {executed}"
            assert len(set(executed)) == len(executed), f"executed twice: {executed}"

        return judge

    return scenario


def judge_owed(rig, letters):
    """Check that each node executed each owner's last command, the pending one, after its others."""
    rig.settle()
    for index, link in enumerate(rig.transport.links):
        if link is None:
            rig.connect(index)
    rig.judge()
    for server in rig.servers:
        for letter in letters:
            of_one = [what for what in server.executed if what.startswith(letter)]
            assert of_one[-1:] == [letter + b"1"], f"executed {server.executed}"
            assert of_one.count(letter + b"0") <= 1, f"executed twice: {server.executed}"


def breaking(letters="ab", *, nodes=2, reset=False, reconnecting=False):
    """Node 1 loses its connection at any time; each owner acquires, and then releases what it may have."""

    def scenario(world):
        rig = Rig(world, nodes)
        (connection,) = rig.servers[0].connections
        world.event("network", lambda: not connection.sock.gone, lambda: connection.lose(reset=reset))

        def claim(letter):
            owner = rig.owner()
            rig.broadcast(owner, letter + b"0")
            rig.tell(owner, letter + b"1", owed_to=ALL_NODES)

        def reconnect():
            world.wait_for(lambda: rig.transport.links[0] is None or ended(rig))
            if rig.transport.links[0] is None:
                rig.connect(0)

        for letter in letters:
            rig.thread(letter, claim, letter.encode())
        if reconnecting:
            rig.thread("maintenance", reconnect)
        return lambda: judge_owed(rig, [letter.encode() for letter in letters])

    def ended(rig):
        return all(letter.encode() + b"1" in rig.requests for letter in letters)

    return scenario
