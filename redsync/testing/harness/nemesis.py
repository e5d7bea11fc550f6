"""Carries out a plan of faults on nodes, connections and clients.

If one fault is late, because the machine is busy or a server is slow, all later ones are postponed by as much: the plan
relies on the gaps between faults, and no gap is ever shorter than planned.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from redsync.testing.harness.journal import now_ns
from redsync.testing.servers import ask

if TYPE_CHECKING:
    from redsync.testing.harness.crew import Crew
    from redsync.testing.harness.journal import Journal
    from redsync.testing.local_nodes import LocalNodes
    from redsync.testing.proxy import FaultProxy

__all__ = ["Done", "Fault", "Nemesis"]

_TICK: Final = 0.1


class Fault(NamedTuple):
    """One fault of a plan.

    Attributes:
        at: Its time, in seconds from the start.
        action: The name of the nemesis's method.
        target: Its arguments: a node or a client; for a fault of a connection, a client and a node.
        value: One more, for the actions that take it.
    """

    at: float
    action: str
    target: tuple[int, ...]
    value: float | None = None


class Done(NamedTuple):
    """A fault that was carried out.

    Attributes:
        fault: The fault.
        before: The instant in ns before it.
        after: The instant in ns after it.
    """

    fault: Fault
    before: int
    after: int


class Nemesis:
    """Carries faults out.

    Attributes:
        done: The faults carried out so far.
        late: Seconds by which the plan was postponed in total.
    """

    def __init__(
        self,
        nodes: LocalNodes,
        crew: Crew,
        proxies: Mapping[tuple[int, int], FaultProxy] | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Make a nemesis, with the proxies by client and node, and the journal that records what it does, if any."""
        self._nodes, self._proxies, self._crew = nodes, proxies or {}, crew
        self._journal = journal
        self.done: list[Done] = []
        self.late = 0.0

    def run(self, faults: Iterable[Fault], seconds: float) -> None:
        """Carry out all faults, and return after `seconds` seconds at the earliest.

        Raises:
            RunFailedError: A client ended by itself.
            ServerStartError: A node did not start again.
        """
        began = base = time.monotonic()
        for fault in faults:
            self._wait(base + fault.at)
            before = now_ns()
            if self._journal is not None:
                self._journal.note(fault.action, at=before, target=fault.target, value=fault.value)
            values = () if fault.value is None else (fault.value,)
            getattr(self, f"_{fault.action}")(*fault.target, *values)
            self.done.append(Done(fault, before, now_ns()))
            base = max(base, time.monotonic() - fault.at)
        self._wait(base + seconds)
        self.late = base - began

    def _wait(self, instant: float) -> None:
        while (left := instant - time.monotonic()) > 0:
            self._crew.check()
            time.sleep(min(left, _TICK))

    # Nodes.

    def _kill(self, node: int) -> None:
        self._nodes.kill(node)

    def _restart(self, node: int) -> None:
        self._nodes.restart(node)

    def _pause(self, node: int) -> None:
        self._nodes.pause(node)

    def _resume(self, node: int) -> None:
        self._nodes.resume(node)

    def _flush_scripts(self, node: int) -> None:
        self._order(node, "SCRIPT FLUSH")

    def _flush_all(self, node: int) -> None:
        self._order(node, "FLUSHALL")

    def _order(self, node: int, command: str) -> None:
        reply = ask(self._nodes.ports[node], command, timeout=10.0)
        assert reply.startswith(b"+OK"), f"{command} was answered by {reply!r}"

    # Connections.

    def _delay(self, client: int, node: int, seconds: float) -> None:
        self._proxies[client, node].delay = seconds

    def _blackhole(self, client: int, node: int) -> None:
        self._proxies[client, node].blackhole = True

    def _drop_requests(self, client: int, node: int) -> None:
        self._proxies[client, node].drop_requests = True

    def _drop_replies(self, client: int, node: int) -> None:
        self._proxies[client, node].drop_replies = True

    def _half_replies(self, client: int, node: int) -> None:
        self._proxies[client, node].half_replies = True

    def _heal(self, client: int, node: int) -> None:
        self._proxies[client, node].heal()

    # Clients.

    def _kill_client(self, client: int) -> None:
        self._crew.kill(client)

    def _start_client(self, client: int) -> None:
        self._crew.start(client)
        self._crew.go(client=client)

    def _stop_client(self, client: int) -> None:
        self._crew.stop(client)

    def _continue_client(self, client: int) -> None:
        self._crew.go_on(client)
