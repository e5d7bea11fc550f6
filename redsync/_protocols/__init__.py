"""The protocols: one module per synchronizer, plain generators that make every decision.

A protocol gets time, random numbers and identity as arguments or in replies, and performs nothing itself; see
`_core.effects`. `holding.py` has what all synchronizers with leases share: releasing, rolling back, losing, and waiting
for the end.
"""
