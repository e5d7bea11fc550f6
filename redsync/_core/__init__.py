"""The sans-IO vocabulary of redsync: values and arithmetic, nothing that acts.

Nothing in here knows a socket, a thread, a clock or a random number: time, random and identity come in as arguments or
in replies. That is what lets threads, asyncio and the simulator share every decision.
"""
