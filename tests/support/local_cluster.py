"""A cluster on this machine: masters that share the slots, and replicas that can replace them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import redis

from redsync._core.clusters import ClusterServer, owner_in, read_cluster
from redsync.testing.servers import ServerGroup, free_ports
from tests.support.group_commands import UNANSWERED, Address, command, until

_HOST = "127.0.0.1"
_SLOTS = 16384
_MASTERS = 3
_KEYS_AT_A_TIME = 100
_MIGRATE_TIMEOUT_MS = 2000
_CONFIG = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "1000",
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync-delay": "0",
}


class LocalCluster(ServerGroup):
    """One real cluster on free loopback ports: three masters that share the slots evenly, each with `replicas`.

    When the constructor returns, all servers agree and all slots are served. It needs Redis 7.0 or Valkey. Methods
    raise RuntimeError if the servers do not agree within 40 seconds.
    """

    def __init__(self, replicas: int) -> None:
        self._bus_ports: Iterator[int] = free_ports()
        super().__init__([_MASTERS * (1 + replicas)], None)
        try:
            self._settle()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The URL of the cluster, with the servers that were its masters at first; it never changes."""
        seeds = ",".join(f"{host}:{port}" for host, port in self.servers[:_MASTERS])
        return f"redis+cluster://{seeds}?nodes={_MASTERS}&replicas={len(self.servers) // _MASTERS - 1}"

    @property
    def servers(self) -> list[Address]:
        """The addresses of all servers, by index; no change of roles alters the order."""
        return [(_HOST, port) for port in self._ports]

    @property
    def masters(self) -> list[Address]:
        """The addresses of the masters that own the beginnings of equal parts of the slots, in slot order."""
        return [self.slot_owner(first) for first, _ in self._parts()]

    def slot_owner(self, slot: int) -> Address:
        """Return the address of the master that owns a slot, according to most servers."""
        owners = [_address(owner) for view in self._views() if (owner := owner_in(view, slot)) is not None]
        if not owners:
            raise RuntimeError(f"no server of this cluster knows an owner of slot {slot}")
        return max(set(owners), key=owners.count)

    def failover(self, i: int, how: str = "") -> Address:
        """Let a replica replace the i-th of `masters`; return its address when all servers agree.

        Args:
            i: The index in `masters`.
            how: `FORCE` skips the master's consent, `TAKEOVER` also that of the other masters.
        """
        old, slot = self.masters[i], self._parts()[i][0]
        view = self._views()[0]
        replicas = [_address(each) for each in view if each.master == _of(view, old).name]
        running = [address for address in replicas if self._runs(address)]
        if not running:
            raise RuntimeError(f"master {i} has no running replica")
        command(running[0], "CLUSTER", "FAILOVER", *([how] if how else []))
        until(lambda: self._all_name(slot, running[0]), "all servers know the promoted replica")
        return running[0]

    def kill_master(self, i: int) -> Address:
        """Kill the i-th of `masters` with SIGKILL; return its address when a replica owns its slots."""
        old, slot = self.masters[i], self._parts()[i][0]
        self._end(self.servers.index(old))
        until(lambda: self.slot_owner(slot) != old and self._is_settled(), "a replica owns its slots")
        return old

    def restart(self, i: int) -> None:
        """Replace server `i` by an empty one on the same port; return when it is a replica.

        It follows the master with the fewest replicas.
        """
        address = self.servers[i]
        gone = _of(self._views()[0], address).name
        self._relaunch(i)
        for server in self._running_servers():
            if server != address:
                _try(server, "CLUSTER", "FORGET", gone)
        other = next(server for server in self._running_servers() if server != address)
        self._meet(other, address)
        view = self._views()[self._running_servers().index(other)]
        masters = [each for each in view if _slots(each)]
        short = min(masters, key=lambda master: sum(each.master == master.name for each in view))
        until(partial(_try, address, "CLUSTER", "REPLICATE", short.name), "it becomes a replica")
        until(self._is_settled, "the cluster is complete again")

    def move_slot(self, slot: int, to: int) -> None:
        """Move a slot with all its keys to server `to` of `servers`, which must be a master."""
        self.begin_move_slot(slot, to)
        self.end_move_slot(slot, to)

    def begin_move_slot(self, slot: int, to: int) -> None:
        """Begin to move a slot: until `end_move_slot`, its owner replies ASK for keys that it does not have."""
        source, target, view = self.slot_owner(slot), self.servers[to], self._views()[0]
        command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", _of(view, source).name)
        command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", _of(view, target).name)

    def end_move_slot(self, slot: int, to: int) -> None:
        """Move the keys of a slot, and then the slot itself, after `begin_move_slot`."""
        source, target = self.slot_owner(slot), self.servers[to]
        while keys := command(source, "CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_A_TIME):
            command(source, "MIGRATE", *target, "", 0, _MIGRATE_TIMEOUT_MS, "KEYS", *keys)
        name = _of(self._views()[0], target).name
        for server in (target, source):
            command(server, "CLUSTER", "SETSLOT", slot, "NODE", name)
        until(lambda: self._all_name(slot, target), "all servers know the slot's new owner")

    def _launch_options(self, i: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        return (), _CONFIG | {"cluster-port": str(next(self._bus_ports))}

    def _settle(self) -> None:
        first, *others = self.servers
        for number, (begin, end) in enumerate(self._parts()):
            # Otherwise all masters begin with epoch 0, and the order of their ids decides which of them raise theirs.
            command(self.servers[number], "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            command(self.servers[number], "CLUSTER", "ADDSLOTSRANGE", begin, end)
        for other in others:
            self._meet(first, other)
        until(lambda: all(len(view) == len(self.servers) for view in self._views()), "all servers know each other")
        view = self._views()[0]
        for number, replica in enumerate(self.servers[_MASTERS:]):
            name = _of(view, self.servers[number % _MASTERS]).name
            until(partial(_try, replica, "CLUSTER", "REPLICATE", name), "it becomes a replica")
        until(self._is_settled, "all slots are served and all replicas follow")

    def _meet(self, one: Address, other: Address) -> None:
        bus = command(other, "CONFIG", "GET", "cluster-port")[1]
        command(one, "CLUSTER", "MEET", *other, bus)

    def _parts(self) -> list[tuple[int, int]]:
        ends = [_SLOTS * number // _MASTERS for number in range(_MASTERS + 1)]
        return [(begin, end - 1) for begin, end in pairwise(ends)]

    def _runs(self, address: Address) -> bool:
        server = self._servers[self.servers.index(address)]
        return server.is_alive() and not server.is_paused

    def _running_servers(self) -> list[Address]:
        return [address for address in self.servers if self._runs(address)]

    def _views(self) -> list[list[ClusterServer]]:
        """Return the view of each server that answers."""
        views = []
        for server in self._running_servers():
            try:
                views.append(read_cluster(str(command(server, "CLUSTER", "NODES")).encode()))
            except UNANSWERED:
                continue
        return views

    def _all_name(self, slot: int, owner: Address) -> bool:
        owners = [owner_in(view, slot) for view in self._views()]
        return all(each is not None and _address(each) == owner for each in owners)

    def _is_settled(self) -> bool:
        """Return whether all running servers agree on the owners, serve all slots, and follow the right master."""
        views = self._views()
        owners = [{(_address(each), slots) for each in view if (slots := _slots(each))} for view in views]
        if any(each != owners[0] for each in owners):
            return False
        return all(_is_well(server) for server in self._running_servers())


def _address(server: ClusterServer) -> Address:
    return server.host or _HOST, server.port  # a server may not know its own host


def _slots(server: ClusterServer) -> tuple[str, ...]:
    """Return the slots that a server owns, without marks of slots that move."""
    return tuple(each for each in server.ranges if not each.startswith("["))


def _of(view: Sequence[ClusterServer], address: Address) -> ClusterServer:
    return next(each for each in view if _address(each) == address)


def _is_well(server: Address) -> bool:
    try:
        info = command(server, "CLUSTER", "INFO")
        replication = command(server, "INFO", "replication")
    except UNANSWERED:
        return False
    return "cluster_state:ok" in str(info) and replication.get("master_link_status", "up") == "up"


def _try(server: Address, *words: str) -> bool:
    try:
        command(server, *words)
    except redis.ResponseError:  # it does not know that server yet, or no longer does
        return False
    return True
