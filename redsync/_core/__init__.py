"""The sans-IO vocabulary of redsync: values and arithmetic, nothing that acts.

Nothing here knows a socket, a thread, a clock or a random number: time, random numbers and identity come in as
arguments or in replies. So threads, asyncio and the simulator share every decision.
"""
