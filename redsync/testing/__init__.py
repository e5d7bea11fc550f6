"""Tools for testing programs with distributed locks: real throwaway nodes, and network faults.

- `LocalNodes`: n independent servers on this machine; tests kill, restart and pause them.
- `FaultProxy`: a proxy in front of one node that delays, drops, cuts and corrupts traffic.
- `Simulation`: virtual machines, nodes, network and time, with all faults, by a seed; needs the extra `simulator`.
- The pytest fixtures `redsync_nodes` and `redsync_client`, which need no import: see `redsync.testing.pytest_plugin`.

pytest imports this package at every start, for its fixtures, so each name loads its module at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redsync.testing.local_nodes import LocalNodes
    from redsync.testing.proxy import FaultProxy
    from redsync.testing.servers import ServerNotFoundError, ServerStartError
    from redsync.testing.simulator.simulation import Simulation, SimulationError

__all__ = [
    "FaultProxy",
    "LocalNodes",
    "ServerNotFoundError",
    "ServerStartError",
    "Simulation",
    "SimulationError",
]

_MODULES = {
    "FaultProxy": "redsync.testing.proxy",
    "LocalNodes": "redsync.testing.local_nodes",
    "ServerNotFoundError": "redsync.testing.servers",
    "ServerStartError": "redsync.testing.servers",
    "Simulation": "redsync.testing.simulator.simulation",
    "SimulationError": "redsync.testing.simulator.simulation",
}


def __getattr__(name: str) -> Any:
    """Load a public name's module."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
