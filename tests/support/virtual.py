"""Protocols on virtual nodes, one effect at a time: a test decides which nodes hear what, and in which order."""

import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Generator, Mapping

import hiredis

from redsync._core.effects import Broadcast, Steps, Tell, Wait, Wakeup
from redsync._core.holds import HoldTable, Owner
from redsync._core.quorum import Tally, Verdict
from redsync._core.scripts import Command, Script
from redsync._core.session import Session
from redsync._core.timing import Timing
from redsync.testing.simulator.scripting import run_script
from redsync.testing.simulator.store import Store
from tests.simulation.stores import execute


class _Dropped(BaseException):
    """Ends a protocol that is not played to its end."""


_EPOCH = 1_700_000_000.0


class World:
    """Nodes, one clock for all, and the fate of each command.

    Args:
        n: The number of nodes.
        fate: Returns the fate of a command by client and node: "ok"; "lost": its reply is lost; "late": it is executed
            just before the client's next command that arrives there; "lost".
        random: Numbers in [0, 1) for delays.
        scripts: Sources that replace shipped scripts on all nodes, by name.
    """

    def __init__(
        self,
        n: int,
        fate: Callable[[str, int], str] = lambda *_: "ok",
        random: Callable[[], float] = lambda: 0.5,
        scripts: Mapping[str, str] | None = None,
    ):
        self.n, self.fate, self.random = n, fate, random
        self._scripts = {
            name: Script(name, source.encode(), hashlib.sha1(source.encode()).hexdigest().encode())
            for name, source in (scripts or {}).items()
        }
        self.now = 1000.0
        self.offsets = [0.0] * n
        self.stores = [Store(lambda i=i: _EPOCH + self.now + self.offsets[i]) for i in range(n)]
        self._late = {}
        self._clients = 0
        self.rounds = 0

    def session(self, **timing) -> tuple[Session, Owner]:
        """Return a new client, and its only owner."""
        self._clients += 1
        holds = HoldTable(lambda: None)
        session = Session(self.n, Timing(**{"lease": 30.0, **timing}), holds, self.random)
        return session, Owner(f"client-{self._clients}", 1)

    def initialize(self):
        """Give all nodes an original birth record: they never forgot anything."""
        for store in self.stores:
            execute(store, b"SET", b"redsync_birth", b"original 1 -")

    def run(self, steps: Steps, *reach):
        """Run a protocol to its end; its first rounds reach the nodes of one item of `reach` each, later ones all."""
        rounds, usual = deque(reach), self.fate
        effect = next(steps)
        try:
            while True:
                nodes = rounds.popleft() if rounds and isinstance(effect, Broadcast) else range(self.n)
                self.fate = lambda _, node, nodes=nodes: "ok" if node in nodes else "lost"
                effect = steps.send(self.perform(effect))
        except StopIteration as stop:
            return stop.value
        finally:
            self.fate = usual

    def play(self, steps: Steps) -> Generator:
        """Run a protocol, and let others run before each of its effects."""
        try:
            effect = next(steps)
            while True:
                yield
                effect = steps.send(self.perform(effect))
        except StopIteration as stop:
            return stop.value
        except GeneratorExit:
            # A protocol is never closed half-way: it is interrupted, and its clean-up is not reported.
            with contextlib.suppress(StopIteration, _Dropped):
                steps.throw(_Dropped())
                while True:
                    steps.send(None)
            raise

    def perform(self, effect):
        """Perform one effect; return its reply."""
        match effect:
            case Broadcast():
                return self._broadcast(effect)
            case Tell():
                for node in range(self.n):
                    self._send(effect, effect.command, node)
            case Wait(until=until):
                self.now += min(max(until - self.now, 0.0), 0.5 * self.random())
                return Wakeup(self.now, 0)
        return None

    def _broadcast(self, effect: Broadcast) -> Tally:
        self.rounds += 1
        nodes = [f"node{i}" for i in range(self.n)]
        tally = effect.tally(nodes)
        tally.sent, tally.sent_at = (1 << self.n) - 1, self.now
        command = effect.command if isinstance(effect.command, Command) else effect.command()
        for node in sorted(range(self.n), key=lambda _: self.random()):
            reply = self._send(effect, command, node)
            if isinstance(reply, hiredis.ReplyError):
                tally.fail(node, str(reply))
            elif reply is not None:
                tally.record(node, reply)
        if tally.verdict is Verdict.PENDING:
            tally.close("no answer")
            self.now += effect.timeout
        self.now += 0.001
        tally.at = self.now
        return tally

    def _send(self, effect, command: Command, node: int):
        """Return a node's reply; None if there is none."""
        client = effect.owner.client_id
        fate, late = self.fate(client, node), self._late.setdefault((client, node), deque())
        if fate == "lost":
            return None
        late.append(command)
        if fate == "late":
            return None
        reply = None
        while late:
            script = self._scripts.get(late[0].script.name, late[0].script)
            reply = run_script(script, self.stores[node], late[0].keys, late[0].args)
            late.popleft()
        return None if fate == "lost" else reply
