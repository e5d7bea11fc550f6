"""Faults of the network between machines and nodes, as methods of a simulation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from redsync.testing.simulator.happenings import Faulted, Happening
from redsync.testing.simulator.network import Network, Route

if TYPE_CHECKING:
    from redsync.testing.simulator.groups import Group, VirtualSentinel
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.nodes import VirtualNode
    from redsync.testing.simulator.worlds import World

__all__ = ["Troubles"]


class Troubles:
    """The part of a simulation that causes faults of the network; `Simulation` describes its attributes."""

    machines: list[Machine]
    world: World
    nodes: list[VirtualNode]
    groups: list[Group]
    servers: Sequence[VirtualNode]
    sentinels: list[VirtualSentinel]
    addresses: dict[str, VirtualNode | VirtualSentinel]
    network: Network

    @property
    @abstractmethod
    def now(self) -> float:
        """The present instant of true time."""

    @abstractmethod
    def saw(self, happening: Happening) -> None:
        """Record a happening."""

    def partition(self, machine: Machine, *nodes: int) -> None:
        """Let no packets through between a machine and nodes (indices; all if none is given)."""
        self.cut(machine, *nodes, there=True, back=True)

    def cut(self, machine: Machine, *nodes: int, there: bool = False, back: bool = False) -> None:
        """Let no packets through from a machine to nodes (`there`), or from nodes to a machine (`back`)."""
        for node, route in self._routes(machine, nodes):
            arrow = "<->" if there and back else "->" if there else "<-"
            self._note("partition", f"nothing gets through {machine.name} {arrow} {node.name}")
            route.there.blocked |= there
            route.back.blocked |= back

    def cut_off(self, machine: Machine, ends: Sequence[VirtualNode | VirtualSentinel]) -> None:
        """Let no packets through between a machine and some servers and Sentinels."""
        names = ", ".join(end.name for end in ends)
        self._note("partition", f"nothing gets through {machine.name} <-> {names}")
        for end in ends:
            route = self.network.route(machine, end)
            route.there.blocked = route.back.blocked = True

    def heal(self, machine: Machine | None = None, *nodes: int) -> None:
        """End partitions, slowness and loss between a machine (all if none is given) and nodes."""
        for each in self.machines if machine is None else [machine]:
            for node, route in self._routes(each, nodes):
                if route.troubled:
                    self._note("heal", f"everything gets through again {each.name} <-> {node.name}")
                    self.network.heal(route)

    def slow(self, machine: Machine, *nodes: int, seconds: float) -> None:
        """Let packets between a machine and nodes take up to that much longer."""
        for node, route in self._routes(machine, nodes):
            self._note("delay", f"packets {machine.name} <-> {node.name} take up to {seconds:.3f} s longer")
            route.there.delay = route.back.delay = seconds

    def delay_pushes(self, machine: Machine, *nodes: int, seconds: float = 0.0) -> None:
        """Let wake-ups and hand-overs from nodes to a machine take up to that much longer; replies do not."""
        for node, route in self._routes(machine, nodes):
            self._note("late pushes", f"pushes {machine.name} <- {node.name} take up to {seconds:.3f} s longer")
            route.back.push_delay = seconds

    def lose(self, machine: Machine, *nodes: int, there: float = 0.0, back: float = 0.0) -> None:
        """Let packets be lost with that probability; each lost packet ends its connection."""
        for node, route in self._routes(machine, nodes):
            self._note(
                "loss", f"{there:.0%} of requests, {back:.0%} of replies are lost {machine.name} <-> {node.name}"
            )
            route.there.loss, route.back.loss = there, back

    def tear(self, machine: Machine, *nodes: int, there: float = 0.0, back: float = 0.0) -> None:
        """Let connections end, with that probability, in the middle of a message, whose beginning arrives."""
        for node, route in self._routes(machine, nodes):
            self._note(
                "tear", f"{there:.0%} of requests, {back:.0%} of replies are cut short {machine.name} <-> {node.name}"
            )
            route.there.tears, route.back.tears = there, back

    def swap(self, one: int, other: int) -> None:
        """Swap the addresses of two nodes, as when names or services move; their connections end."""
        first, second = self.nodes[one], self.nodes[other]
        self._note("swap", f"{first.name} and {second.name} swap addresses")
        self.addresses[first.name], self.addresses[second.name] = second, first
        for machine in self.machines:
            for _, route in self._routes(machine, (one, other)):
                for connection in list(route.connections):
                    connection.reset()

    def narrow(self, room: int) -> None:
        """Limit how many bytes of a connection a machine keeps until they arrive; clients keep the rest."""
        if self.network.room != room:
            self._note("room", f"machines keep {room} bytes of a connection")
            self.network.room = room

    def _routes(self, machine: Machine, nodes: Sequence[int]) -> list[tuple[VirtualNode | VirtualSentinel, Route]]:
        """Return the routes between a machine and all servers of nodes; without nodes, to Sentinels as well."""
        chosen: Sequence[VirtualNode | VirtualSentinel] = [*self.servers, *self.sentinels]
        if nodes:
            chosen = [server for i in nodes for server in self.world.servers_of(i)]
        return [(node, self.network.route(machine, node)) for node in chosen]

    def _note(self, kind: str, text: str) -> None:
        self.saw(Faulted(self.now, kind, text))
