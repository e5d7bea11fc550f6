"""The protocols: one module per synchronizer, plain generators, every decision is made here.

A protocol gets time, random and identity as arguments or in replies and performs nothing itself; see `_core.effects`.
`lease.py` holds what all leased things share: losing, renewing, the watchdog.
"""
