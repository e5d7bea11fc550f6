"""A network of the kernel's own between clients and nodes: namespaces, and a router that drops packets on request.

```text
client 0 |--.
client 1 |---- router ---- nodes (where the test runs), each with its own address
client 2 |--'
```

Neither side learns of a dropped packet: connections stay, and the kernel sends the data again and again, with growing
pauses. So a partition here is a real one, and data under way arrives when it is over.

Needs root, `ip`, and a kernel with network namespaces. All names and addresses contain the process id, so runs do not
collide. Everything is removed at the end; a shell does that if this process is killed.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence

__all__ = ["Network", "why_not"]

_REAPER = 'cat > /dev/null; for name; do ip netns del "$name" 2> /dev/null; done'


def _ip(*words: str):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=10.0, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def why_not() -> str:
    """Return why there can be no network here; empty if there can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and the command ip"
    name = f"redsync{os.getpid()}t"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except OSError as error:
        return f"no network namespaces: {error}"
    return ""


class Network:
    """The namespaces of one run, used in a `with` block.

    Attributes:
        addresses: The nodes' addresses, by index.
    """

    def __init__(self, clients: int, nodes: int):
        # 198.18.0.0/15 is for measurements, and never routed.
        self._base = f"198.{18 + os.getpid() % 2}.{os.getpid() // 2 % 120 * 2}"
        self._clients = f"198.{18 + os.getpid() % 2}.{os.getpid() // 2 % 120 * 2 + 1}"
        self.addresses = [f"{self._base}.{node + 1}" for node in range(nodes)]
        self._prefix = f"redsync{os.getpid()}"
        self._router = f"{self._prefix}r"
        self._names = [self._router, *(self._name(client) for client in range(clients))]
        self._cuts: set[tuple[str, str]] = set()

    def __enter__(self):
        self._reaper = subprocess.Popen(
            ["sh", "-c", _REAPER, "reaper", *self._names], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        # Interfaces vanish with the namespace of their other end, addresses and routes with them.
        self._reaper.stdin.close()
        self._reaper.wait(30.0)

    def _name(self, client: int) -> str:
        return f"{self._prefix}c{client}"

    def _address(self, client: int) -> str:
        return f"{self._clients}.{4 * client + 1}"

    def _build(self):
        outer = f"rs{os.getpid()}"
        for name in self._names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", outer, "type", "veth", "peer", "name", "nodes", "netns", self._router)
        for address in self.addresses:
            _ip("addr", "add", f"{address}/24", "dev", outer)
        _ip("link", "set", outer, "up")
        _ip("-n", self._router, "addr", "add", f"{self._base}.254/24", "dev", "nodes")
        _ip("-n", self._router, "link", "set", "nodes", "up")
        for client, name in enumerate(self._names[1:]):
            here, there = self._address(client), f"{self._clients}.{4 * client + 2}"
            _ip(
                "-n", self._router, "link", "add", f"c{client}", "type", "veth", "peer", "name", "router", "netns", name
            )
            _ip("-n", name, "addr", "add", f"{here}/30", "dev", "router")
            _ip("-n", self._router, "addr", "add", f"{there}/30", "dev", f"c{client}")
            _ip("-n", name, "link", "set", "router", "up")
            _ip("-n", self._router, "link", "set", f"c{client}", "up")
            _ip("-n", name, "route", "add", "default", "via", there)
        _ip("route", "add", f"{self._clients}.0/24", "via", f"{self._base}.254")
        command = [*self.within(None), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
        subprocess.run(command, check=True, timeout=10.0)

    def within(self, client: int | None) -> Sequence[str]:
        """Return the prefix of a command that must run where that client lives; None: in the router."""
        return ["ip", "netns", "exec", self._router if client is None else self._name(client)]

    def cut(self, client: int, node: int, *, there: bool = True, back: bool = True):
        """Drop what a client sends to a node, what the node sends to it, or both."""
        ways = [(self._address(client), self.addresses[node]), (self.addresses[node], self._address(client))]
        for way, wanted in zip(ways, (there, back), strict=True):
            if wanted and way not in self._cuts:
                _ip("-n", self._router, "rule", "add", "from", way[0], "to", way[1], "blackhole")
                self._cuts.add(way)

    def mend(self, client: int, node: int):
        """Let everything through again between a client and a node."""
        for way in [(self._address(client), self.addresses[node]), (self.addresses[node], self._address(client))]:
            if way in self._cuts:
                _ip("-n", self._router, "rule", "del", "from", way[0], "to", way[1], "blackhole")
                self._cuts.remove(way)
