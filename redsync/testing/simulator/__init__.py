"""The deterministic simulator: runs programs with distributed locks in virtual time, with faults chosen by a seed.

Read `simulation` first: its docstring is the manual. Then, from the bottom up:

| module | contents |
|---|---|
| `loop` | virtual time, clocks that drift, an asyncio event loop over many machines |
| `store`, `commands`, `scripting` | one node's memory, and the shipped Lua scripts on it |
| `network`, `machines` | paths, connections and their transports; machines |
| `virtual_nodes` | servers that speak RESP |
| `runner` | the client, and the driver for asyncio, with observers |
| `trace_events` | events, and the trace of them |
| `faults` | random faults of all kinds |
"""

from redsync.testing.simulator.simulation import Checker, Simulation, SimulationError

__all__ = ["Checker", "Simulation", "SimulationError"]
