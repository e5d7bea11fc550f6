"""The deterministic simulator: runs programs with distributed locks in virtual time, with faults chosen by a seed.

Read `simulation` first: its docstring is the manual. Then, from the bottom up:

| module | contents |
|---|---|
| `timeline`, `loop` | virtual time, clocks that drift, an asyncio event loop over many machines |
| `store`, `commands`, `sorted_sets`, `values`, `scripting` | one node's memory, and the shipped Lua scripts on it |
| `network`, `machines` | paths, connections and machines, and their faults |
| `nodes`, `sessions` | servers that speak RESP |
| `sockets` | asyncio transports over virtual connections |
| `runner`, `letters` | the client, and the driver for asyncio, with observers |
| `happenings`, `checks/` | events, the trace of them, and the checks on them |
| `workload`, `workers`, `faults`, `campaign` | many runs by seed |
| `scenario`, `stage` | stories as text files |
"""

from redsync.testing.simulator.scenario import Scenario, ScenarioError
from redsync.testing.simulator.simulation import Simulation, SimulationError

__all__ = ["Scenario", "ScenarioError", "Simulation", "SimulationError"]
