"""The facades: the public interface, one module per synchronizer, for threads and for asyncio; one line per method.

A facade checks its arguments, chooses the owner, and hands a protocol to the client's driver.
"""
