"""Carries out a plan of faults on nodes, connections and clients.

If one fault is late, because the machine is busy or a server is slow, all later ones are postponed by as much: the plan
relies on the gaps between faults, and no gap is ever shorter than planned.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from redsync.testing.local_nodes import LocalNodes
from redsync.testing.proxy import FaultProxy
from redsync.testing.servers import ask
from tests.chaos.history import History
from tests.chaos.process_pool import ProcessPool

_TICK: Final = 0.1


class Fault(NamedTuple):
    """One fault of a plan.

    Attributes:
        at: Its time, in seconds from the start.
        action: Of a node: "kill", "restart", "pause", "resume" or "flush_all"; of a client:
            "kill_client", "start_client", "stop_client" or "continue_client"; of a connection: "heal", or the name of a
            proxy's switch.
        target: A node or a client; for a fault of a connection, a client and a node.
        value: The value of a proxy's switch; None for True.
    """

    at: float
    action: str
    target: tuple[int, ...]
    value: float | None = None


class Nemesis:
    """Carries faults out.

    Attributes:
        late: Seconds by which the plan was postponed in total.
    """

    def __init__(
        self,
        nodes: LocalNodes,
        pool: ProcessPool,
        proxies: Mapping[tuple[int, int], FaultProxy],
        history: History,
    ) -> None:
        """Make a nemesis, with the proxies by client and node, and the history that records what it does."""
        self._nodes, self._proxies, self._pool = nodes, proxies, pool
        self._history = history
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
            self._history.note(fault.action, target=fault.target, value=fault.value)
            self._perform(fault.action, fault.target, fault.value)
            base = max(base, time.monotonic() - fault.at)
        self._wait(base + seconds)
        self.late = base - began

    def _wait(self, instant: float) -> None:
        while (left := instant - time.monotonic()) > 0:
            self._pool.check()
            time.sleep(min(left, _TICK))

    def _perform(self, action: str, target: tuple[int, ...], value: float | None) -> None:
        first = target[0]
        match action:
            case "kill" | "restart" | "pause" | "resume":
                getattr(self._nodes, action)(first)
            case "flush_all":
                reply = ask(self._nodes.ports[first], "FLUSHALL", timeout=10.0)
                assert reply.startswith(b"+OK"), f"FLUSHALL was answered by {reply!r}"
            case "kill_client":
                self._pool.kill(first)
            case "start_client":
                self._pool.start(first)
                self._pool.go(first)
            case "stop_client":
                self._pool.stop(first)
            case "continue_client":
                self._pool.go_on(first)
            case _:
                self._trouble(self._proxies[first, target[1]], action, value)

    @staticmethod
    def _trouble(proxy: FaultProxy, action: str, value: float | None) -> None:
        if action == "heal":
            proxy.heal()
        else:
            assert hasattr(proxy, action), f"a proxy has no switch {action!r}"
            setattr(proxy, action, True if value is None else value)
