"""The facades: what callers touch, one module per synchronizer, for threads and for asyncio; one line per method.

A facade checks its arguments, says for whom to ask, and hands a protocol to the client's driver.
"""
