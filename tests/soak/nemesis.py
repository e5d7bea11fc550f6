"""Does to nodes, connections and clients what the plan says, when it says so.

If one fault is late, because the machine is busy or a server takes its time, all that follow are put off by as much:
gaps between faults are what the plan reckons with, and no gap is ever shorter than planned.
"""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from redsync.cli.demo_ledger import now_ns
from redsync.testing import FaultProxy, LocalNodes
from redsync.testing.servers import ask
from tests.soak.crew import Crew
from tests.soak.troubles import Fault

TICK = 0.1


class Nemesis:
    """Carries faults out.

    Attributes:
        late: By how many seconds the plan was put off in all.
    """

    def __init__(self, nodes: LocalNodes, proxies: Mapping[tuple[int, int], FaultProxy], crew: Crew, log: Path):
        """Make a nemesis.

        Args:
            nodes: The nodes.
            proxies: By client and node.
            crew: The clients.
            log: The file in which it notes what it did, and when.
        """
        self._nodes, self._proxies, self._crew = nodes, proxies, crew
        self._log = log
        self.late = 0.0

    def run(self, faults: Iterable[Fault], seconds: float):
        """Do all of it, and return after that many seconds at the earliest.

        Raises:
            RunFailedError: A client ended by itself.
            ServerStartError: A node did not start again.
        """
        began = base = time.monotonic()
        with self._log.open("w") as log:
            for fault in faults:
                self._await(base + fault.at)
                line = {"at": now_ns(), "action": fault.action, "target": fault.target, "value": fault.value}
                log.write(json.dumps(line) + "\n")
                log.flush()
                values = () if fault.value is None else (fault.value,)
                getattr(self, f"_{fault.action}")(*fault.target, *values)
                base = max(base, time.monotonic() - fault.at)
        self._await(base + seconds)
        self.late = base - began

    def _await(self, instant: float):
        while (left := instant - time.monotonic()) > 0:
            self._crew.check()
            time.sleep(min(left, TICK))

    # Nodes.

    def _kill(self, node: int):
        self._nodes.kill(node)

    def _restart(self, node: int):
        self._nodes.restart(node)

    def _pause(self, node: int):
        self._nodes.pause(node)

    def _resume(self, node: int):
        self._nodes.resume(node)

    def _flush_scripts(self, node: int):
        self._order(node, "SCRIPT FLUSH")

    def _flush_all(self, node: int):
        self._order(node, "FLUSHALL")

    def _order(self, node: int, command: str):
        reply = ask(self._nodes.ports[node], command, timeout=10.0)
        assert reply.startswith(b"+OK"), f"{command} was answered by {reply!r}"

    # Connections.

    def _delay(self, client: int, node: int, seconds: float):
        self._proxies[client, node].delay = seconds

    def _blackhole(self, client: int, node: int):
        self._proxies[client, node].blackhole = True

    def _drop_requests(self, client: int, node: int):
        self._proxies[client, node].drop_requests = True

    def _drop_replies(self, client: int, node: int):
        self._proxies[client, node].drop_replies = True

    def _half_replies(self, client: int, node: int):
        self._proxies[client, node].half_replies = True

    def _heal(self, client: int, node: int):
        self._proxies[client, node].heal()

    # Clients.

    def _kill_client(self, client: int):
        self._crew.kill(client)

    def _start_client(self, client: int):
        self._crew.start(client)

    def _stop_client(self, client: int):
        self._crew.stop(client)

    def _continue_client(self, client: int):
        self._crew.go_on(client)
