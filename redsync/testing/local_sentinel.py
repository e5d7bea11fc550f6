"""A Sentinel group on this machine: a master, its replicas, and the Sentinels that choose another master.

**How a master is isolated.** Clients are the user `default`, without a password. Servers and Sentinels talk to each
other as a user of their own, `group`. Isolating a master takes all commands from that user there, and ends the
connections of the replicas. So PING, INFO, PSYNC and REPLICAOF of its group are refused, the Sentinels find it down
and promote another, and clients notice nothing: their connections live, and new ones to the same address are served.
It takes no second address, no proxy in the path of every command, and no rights on the machine.

Such an isolation is not silence. Members are refused at once where a real network would hold what they sent, and
replicas lose the isolated master at once, so none of them acknowledges a write of it after that. And all Sentinels
are on the side of the new master: who wants to be on the other side connects to the address that `isolate_master`
returns.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import redis

from redsync.testing.asking import UNANSWERED, Address, command, until
from redsync.testing.server_group import ServerGroup
from redsync.testing.servers import ServerProcess, ServerStartError

__all__ = ["LocalSentinel"]

_HOST = "127.0.0.1"
_SECRET = "group-secret"  # noqa: S105  keeps nobody out: it tells members from clients

# Sentinel's own periods are 1 to 10 s, and it decides some things after a multiple of them. One must not be too short:
# a Sentinel that has not heard of a promotion undoes it after four periods of publishing, and hearing may take 1 s.
_PERIODS_MS = {"ping-period": 100, "info-period": 200, "ask-period": 100}
_ACQUAINTING_MS = 100
_ASK_AGAIN = 10.0
_PUBLISH_PERIOD_MS = 750

_log = logging.getLogger("redsync")


class LocalSentinel(ServerGroup):
    """One real Sentinel group on free loopback ports: a master, replicas, and Sentinels.

    When the constructor returns, all replicas follow the master and all Sentinels know each other. The group lives
    until `close()`, and never longer than the process that made it. It needs Redis 7.0 or Valkey.

    Args:
        replicas: The number of replicas.
        sentinels: The number of Sentinels; a majority of them decides.
        name: The name of the master in the Sentinels.
        down_after_ms: After so long without an answer a Sentinel holds a server to be down.
        failover_timeout_ms: Sentinel's `failover-timeout`.
        server: Path or command of the server to run, see `LocalNodes`.
        config: Further settings of master and replicas, such as `{"min-replicas-to-write": "1"}`.

    Raises:
        ValueError: There would be no replica, or no Sentinel.
        ServerNotFoundError: There is no server to run.
        ServerStartError: A server did not answer within 10 seconds, or the group was not complete within 40.

    Example:
        ```python
        with LocalSentinel(replicas=2) as group:
            old = group.isolate_master()  # two masters at once: `old`, and `group.master`
            group.heal()
        ```
    """

    def __init__(
        self,
        replicas: int = 2,
        sentinels: int = 3,
        name: str = "mymaster",
        *,
        down_after_ms: int = 400,
        failover_timeout_ms: int = 2000,
        server: str | os.PathLike[str] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        if replicas < 1 or sentinels < 1:
            raise ValueError(f"a group needs a replica and a Sentinel, not {replicas} and {sentinels}")
        self.name = name
        self._size = 1 + replicas
        self._isolated: set[int] = set()
        self._down_after_ms = down_after_ms
        self._failover_timeout_ms = failover_timeout_ms
        self._quorum = sentinels // 2 + 1
        self._leader: Address | None = None  # whom a starting replica follows
        self._config = dict(config or {})
        super().__init__([1, replicas, sentinels], server)
        _log.info("started a Sentinel group: %s, %s", self.version, self.url)

    @property
    def url(self) -> str:
        """The URL of the group, with all Sentinels and the number of replicas; nothing changes it."""
        sentinels = ",".join(f"{host}:{port}" for host, port in self.sentinels)
        return f"redis+sentinel://{sentinels}/{self.name}/0?replicas={self._size - 1}"

    @property
    def servers(self) -> list[Address]:
        """The addresses of master and replicas, in the order of their index; no change of roles alters it."""
        return [(_HOST, port) for port in self._ports[: self._size]]

    @property
    def sentinels(self) -> list[Address]:
        """The addresses of the Sentinels."""
        return [(_HOST, port) for port in self._ports[self._size :]]

    @property
    def master(self) -> Address:
        """The address of the master by the Sentinel with the newest configuration.

        Raises:
            RuntimeError: No Sentinel answers.
        """
        return max(self._views())[1]

    @property
    def epoch(self) -> int:
        """The configuration epoch under which `master` became it; grows with every failover.

        Raises:
            RuntimeError: No Sentinel answers.
        """
        return max(self._views())[0]

    def failover(self) -> Address:
        """Let the Sentinels promote a replica; return its address when all agree and all others follow it.

        Raises:
            RuntimeError: The group did not agree within 40 seconds, or is closed, or belongs to the parent process.
        """
        with self._control():
            epoch = self.epoch

            def is_begun() -> bool:
                try:
                    command(self.sentinels[0], "SENTINEL", "FAILOVER", self.name)
                except redis.ResponseError as error:  # NOGOODSLAVE: it has not heard of a replica lately; INPROG
                    return str(error).startswith("INPROG")
                return True

            until(is_begun, "the Sentinels begin a failover")
            return self._await_promotion(epoch)

    def kill_master(self) -> Address:
        """End the master with SIGKILL; return its address when another one is promoted and all others follow that.

        Raises:
            RuntimeError: As for `failover`.
        """
        with self._control():
            old, epoch = self.master, self.epoch
            self._end(self.servers.index(old))
            self._await_promotion(epoch)
            return old

    def isolate_master(self) -> Address:
        """Cut the master off from its group, not from clients; return its address when another is promoted.

        From then on there are two masters, until `heal`. Connections of clients to the old one live, and new ones are
        served. Programs that ask the Sentinels are told of the new one.

        Raises:
            RuntimeError: As for `failover`.
        """
        with self._control():
            old, epoch = self.master, self.epoch
            command(old, "ACL", "SETUSER", "group", "-@all")
            command(old, "CLIENT", "KILL", "TYPE", "replica")
            self._isolated.add(self.servers.index(old))
            self._await_promotion(epoch)
            return old

    def heal(self) -> None:
        """Rejoin isolated servers; return when they have been demoted and follow the master.

        What they were told meanwhile is lost then, as in life.

        Raises:
            RuntimeError: As for `failover`.
        """
        with self._control():
            for i in self._isolated:
                if self._servers[i].is_alive():
                    command(self.servers[i], "ACL", "SETUSER", "group", "+@all")
            self._isolated.clear()
            until(self._is_settled, "the isolated server follows the master")

    def kill_replica(self, i: int = 0) -> Address:
        """End the i-th of the servers that are not the master, with SIGKILL; return its address.

        Raises:
            RuntimeError: No Sentinel answers, or the group is closed or belongs to the parent process.
        """
        with self._control():
            address = [server for server in self.servers if server != self.master][i]
            self._end(self.servers.index(address))
            return address

    def restart(self, i: int) -> None:
        """Replace server `i`, whatever its state, by a new one on the same port; return when the group is complete.

        It is a replica of the present master; if it was still that itself, it is an empty master, and what it and its
        replicas knew is lost.

        Args:
            i: Which of `servers`.

        Raises:
            RuntimeError: As for `failover`.
            ServerStartError: The server did not start within 10 seconds.
        """
        with self._control():
            i = range(self._size)[i]
            self._leader = self.master
            self._relaunch(i)
            self._isolated.discard(i)
            until(self._is_settled, "the restarted server is part of the group")

    def pause(self, i: int) -> None:
        """Stop server `i` of `servers` with SIGSTOP; when this returns it executes nothing more.

        Raises:
            RuntimeError: The server is not running, or the group is closed or belongs to the parent process.
        """
        with self._control():
            self._running(range(self._size)[i]).pause()

    def resume(self, i: int) -> None:
        """Let server `i` of `servers` go on; if another is master by now, the Sentinels demote it soon after.

        Raises:
            RuntimeError: As for `pause`.
        """
        with self._control():
            self._running(range(self._size)[i]).resume()

    def _launch_options(self, i: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        if i == 0 and not self._servers:  # the first master
            return (), _MEMBER | self._config
        leader = self._leader or (_HOST, self._servers[0].port)
        if i < self._size:
            leads = i < len(self._servers) and self._servers[i].port == leader[1]
            following = {} if leads else {"replicaof": f"{leader[0]} {leader[1]}"}
            return (), _MEMBER | following | self._config
        file = directory / "sentinel.conf"  # which a Sentinel rewrites
        host, port = leader
        file.write_text(
            f"sentinel monitor {self.name} {host} {port} {self._quorum}\n"
            f"sentinel auth-user {self.name} group\n"
            f"sentinel auth-pass {self.name} {_SECRET}\n"
            f"sentinel down-after-milliseconds {self.name} {self._down_after_ms}\n"
            f"sentinel failover-timeout {self.name} {self._failover_timeout_ms}\n"
            f"sentinel parallel-syncs {self.name} {self._size}\n"
        )
        return (str(file), "--sentinel"), {}

    def _settle(self) -> None:
        self._tune(_PERIODS_MS | {"publish-period": _ACQUAINTING_MS})
        try:
            until(self._is_settled, "the replicas follow the master and the Sentinels know them all")
        except RuntimeError as error:
            logs = "\n".join(server.log_tail() for server in self._servers)
            raise ServerStartError(f"{error}; the logs end with\n{logs}") from None
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
                # A failover that took too long, as on a busy machine, is aborted, and then nobody may try again.
                ask_again_at = time.monotonic() + _ASK_AGAIN
                self._ask_again()
            return False

        until(is_promoted, "the Sentinels agree on a new master and replicas follow it")
        return self.master

    def _ask_again(self) -> None:
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.ResponseError, *UNANSWERED):  # it can't now, or one is under way
                command(sentinel, "SENTINEL", "FAILOVER", self.name)
                return

    def _is_settled(self, after: int = -1) -> bool:
        """Tell whether all Sentinels that run agree, and all members they can reach have the role they should have."""
        views = self._views()
        epoch, master = max(views)
        if len(set(views)) > 1 or epoch <= after:
            return False
        members = [
            address
            for i, (address, server) in enumerate(zip(self.servers, self._servers, strict=False))
            if i not in self._isolated and _is_running(server)
        ]
        return master in members and all(_follows(address, master) for address in members) and self._are_all_known()

    def _are_all_known(self) -> bool:
        running = [s for s in self.sentinels if self._servers[self._index(s)].is_alive()]
        return all(self._knows_all(sentinel) for sentinel in running)

    def _index(self, address: Address) -> int:
        return self._ports.index(address[1])

    def _knows_all(self, sentinel: Address) -> bool:
        state = _state(sentinel, self.name)
        counts = (int(state["num-slaves"]), int(state["num-other-sentinels"]))
        return counts == (self._size - 1, len(self.sentinels) - 1) and state["flags"] == "master"

    def _views(self) -> list[tuple[int, Address]]:
        """Return the epoch and the master by each Sentinel that answers."""
        views = []
        for sentinel in self.sentinels:
            try:
                state = _state(sentinel, self.name)
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


def _is_running(server: ServerProcess) -> bool:
    return server.is_alive() and not server.is_paused


def _follows(address: Address, master: Address) -> bool:
    try:
        role = command(address, "ROLE")
    except UNANSWERED:  # it loads what its master sent, for one
        return False
    if address == master:
        return bool(role[0] == "master")
    return bool(role[:4] == ["slave", *master, "connected"])


def _state(sentinel: Address, name: str) -> dict[str, str]:
    flat = command(sentinel, "SENTINEL", "MASTER", name)
    return dict(zip(flat[::2], flat[1::2], strict=True))
