"""A Sentinel group on this machine: a master, its replicas, and the Sentinels that choose another master.

**How a master is isolated.** Clients are the user `default`, without a password. Servers and Sentinels talk to each
other as a separate user, `group`. Isolating a master revokes all commands from that user there, and ends the
connections of the replicas. The master then refuses PING, INFO, PSYNC and REPLICAOF from its group, so the Sentinels
consider it down and promote another. Clients notice nothing: their connections stay open, and new ones to the same
address are served. This needs no second address, no proxy in the path of every command, and no rights on the machine.

Such an isolation is not silence. The master refuses members at once where a real network would hold their packets, and
replicas lose the isolated master at once, so none acknowledges a write of it after that. All Sentinels are on the side
of the new master; to be on the other side, connect to the address that `isolate_master` returns.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import redis

from redsync.testing.servers import ServerGroup
from tests.support.group_commands import UNANSWERED, Address, command, until

_HOST = "127.0.0.1"
_NAME = "mymaster"
_SENTINELS = 3
_SECRET = "group-secret"

# Sentinel's own periods are 1 to 10 s, and some decisions wait for a multiple of them. Two must not be too short:
# - While the master is down, Sentinel asks replicas for INFO once a second whatever its period, and promotes only those
#   whose INFO is younger than five ping periods. With less than 200 ms it finds no good replica most of the time, and
#   tries again after twice `failover-timeout`.
# - A Sentinel that has not heard of a promotion undoes it after four publishing periods, and hearing may take 1 s.
_PERIODS_MS = {"ping-period": 350, "info-period": 200, "ask-period": 100}
_ACQUAINTING_MS = 100
_ASK_AGAIN = 10.0
_PUBLISH_PERIOD_MS = 750


class LocalSentinel(ServerGroup):
    """One real Sentinel group on free loopback ports: a master, `replicas`, and three Sentinels.

    When the constructor returns, all replicas follow the master and all Sentinels know each other. It needs Redis 7.0
    or Valkey. Methods raise RuntimeError if the group does not agree within 40 seconds.
    """

    def __init__(self, replicas: int) -> None:
        self._size = 1 + replicas
        self._isolated: set[int] = set()
        self._leader: Address | None = None  # the master that a starting replica follows
        super().__init__([1, replicas, _SENTINELS], None)
        try:
            self._settle()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The URL of the group, with all Sentinels and the number of replicas; it never changes."""
        sentinels = ",".join(f"{host}:{port}" for host, port in self.sentinels)
        return f"redis+sentinel://{sentinels}/{_NAME}/0?replicas={self._size - 1}"

    @property
    def servers(self) -> list[Address]:
        """The addresses of master and replicas, by index; no change of roles alters the order."""
        return [(_HOST, port) for port in self._ports[: self._size]]

    @property
    def sentinels(self) -> list[Address]:
        """The addresses of the Sentinels."""
        return [(_HOST, port) for port in self._ports[self._size :]]

    @property
    def master(self) -> Address:
        """The address of the master, according to the Sentinel with the newest configuration."""
        return max(self._views())[1]

    @property
    def epoch(self) -> int:
        """The configuration epoch in which `master` was promoted; grows with every failover."""
        return max(self._views())[0]

    def kill_master(self) -> Address:
        """Kill the master with SIGKILL; return its address when another is promoted and all others follow that one."""
        old, epoch = self.master, self.epoch
        self._end(self.servers.index(old))
        self._await_promotion(epoch)
        return old

    def isolate_master(self) -> Address:
        """Cut the master off from its group, not from clients; return its address when another is promoted.

        From then on there are two masters, until `heal`. Clients keep their connections to the old one and can open new
        ones. Programs that ask the Sentinels learn the new one.
        """
        old, epoch = self.master, self.epoch
        command(old, "ACL", "SETUSER", "group", "-@all")
        command(old, "CLIENT", "KILL", "TYPE", "replica")
        self._isolated.add(self.servers.index(old))
        self._await_promotion(epoch)
        return old

    def heal(self) -> None:
        """Rejoin isolated servers; return when they have been demoted and follow the master.

        This discards what clients wrote to them meanwhile, as after a real partition.
        """
        for i in self._isolated:
            if self._servers[i].is_alive():
                command(self.servers[i], "ACL", "SETUSER", "group", "+@all")
        self._isolated.clear()
        until(self._is_settled, "the isolated server follows the master")

    def kill_replica(self) -> Address:
        """Kill the first of the servers that are not the master with SIGKILL; return its address."""
        address = next(server for server in self.servers if server != self.master)
        self._end(self.servers.index(address))
        return address

    def restart(self, i: int) -> None:
        """Replace server `i`, whatever its state, by a new one on the same port; return when the group is complete.

        It becomes a replica of the present master. If it was still master itself, it starts as an empty master, and its
        data and that of its replicas is lost.

        Args:
            i: The index in `servers`.
        """
        self._leader = self.master
        self._relaunch(i)
        self._isolated.discard(i)
        until(self._is_settled, "the restarted server is part of the group")

    def _launch_options(self, i: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        if i == 0 and not self._servers:  # the first master
            return (), _MEMBER
        leader = self._leader or (_HOST, self._servers[0].port)
        if i < self._size:
            leads = i < len(self._servers) and self._servers[i].port == leader[1]
            following = {} if leads else {"replicaof": f"{leader[0]} {leader[1]}"}
            return (), _MEMBER | following
        file = directory / "sentinel.conf"  # the Sentinel rewrites it
        host, port = leader
        file.write_text(
            f"sentinel monitor {_NAME} {host} {port} {_SENTINELS // 2 + 1}\n"
            f"sentinel auth-user {_NAME} group\n"
            f"sentinel auth-pass {_NAME} {_SECRET}\n"
            f"sentinel down-after-milliseconds {_NAME} 400\n"
            f"sentinel failover-timeout {_NAME} 2000\n"
            f"sentinel parallel-syncs {_NAME} {self._size}\n"
        )
        return (str(file), "--sentinel"), {}

    def _settle(self) -> None:
        self._tune(_PERIODS_MS | {"publish-period": _ACQUAINTING_MS})
        until(self._is_settled, "the replicas follow the master and the Sentinels know them all")
        self._tune({"publish-period": _PUBLISH_PERIOD_MS})

    def _tune(self, periods_ms: Mapping[str, int]) -> None:
        for sentinel in self.sentinels:
            for period, milliseconds in periods_ms.items():
                command(sentinel, "SENTINEL", "DEBUG", period, milliseconds)

    def _await_promotion(self, epoch: int) -> Address:
        ask_again_at = time.monotonic() + _ASK_AGAIN

        def is_promoted() -> bool:
            nonlocal ask_again_at
            if self._is_settled(after=epoch):
                return True
            if time.monotonic() > ask_again_at:
                # A failover that takes too long, as on a busy machine, is aborted, and no Sentinel tries again by
                # itself.
                ask_again_at = time.monotonic() + _ASK_AGAIN
                self._ask_again()
            return False

        until(is_promoted, "the Sentinels agree on a new master and replicas follow it")
        return self.master

    def _ask_again(self) -> None:
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.ResponseError, *UNANSWERED):  # not possible now, or one is under way
                command(sentinel, "SENTINEL", "FAILOVER", _NAME)
                return

    def _is_settled(self, after: int = -1) -> bool:
        """Return whether all running Sentinels agree, and all members they can reach have the right role."""
        views = self._views()
        epoch, master = max(views)
        if len(set(views)) > 1 or epoch <= after:
            return False
        members = [
            address
            for i, (address, server) in enumerate(zip(self.servers, self._servers, strict=False))
            if i not in self._isolated and server.is_alive() and not server.is_paused
        ]
        if master not in members or not all(_follows(address, master) for address in members):
            return False
        sentinels = zip(self.sentinels, self._servers[self._size :], strict=True)
        return all(self._knows_all(sentinel) for sentinel, server in sentinels if server.is_alive())

    def _knows_all(self, sentinel: Address) -> bool:
        state = _state(sentinel, _NAME)
        counts = (int(state["num-slaves"]), int(state["num-other-sentinels"]))
        return counts == (self._size - 1, len(self.sentinels) - 1) and state["flags"] == "master"

    def _views(self) -> list[tuple[int, Address]]:
        """Return the epoch and the master according to each Sentinel that answers."""
        views = []
        for sentinel in self.sentinels:
            try:
                state = _state(sentinel, _NAME)
            except UNANSWERED:
                continue
            views.append((int(state["config-epoch"]), (state["ip"], int(state["port"]))))
        if not views:
            raise RuntimeError("no Sentinel of this group answers")
        return views


_MEMBER = {
    "user": f"group on >{_SECRET} ~* &* +@all",
    "masteruser": "group",
    "masterauth": _SECRET,
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
}


def _follows(address: Address, master: Address) -> bool:
    try:
        role = command(address, "ROLE")
    except UNANSWERED:  # for example, it is loading what its master sent
        return False
    if address == master:
        return bool(role[0] == "master")
    return bool(role[:4] == ["slave", *master, "connected"])


def _state(sentinel: Address, name: str) -> dict[str, str]:
    flat = command(sentinel, "SENTINEL", "MASTER", name)
    return dict(zip(flat[::2], flat[1::2], strict=True))
