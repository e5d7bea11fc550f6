"""The claims on a node now, to see later what a client has left."""

import time

from tests.support.locks import PATIENCE

RECORDS = (b"redsync:client:", b"redsync_birth")


def claims(node, pattern="*"):
    """Return the keys on a node except the records of clients and of its birth: claims, and places in queues."""
    return sorted(key for key in node.keys(pattern) if is_claim(key))


def is_claim(key):
    return not (key if isinstance(key, bytes) else key.encode()).startswith(RECORDS)


def become(raw, expected):
    """Wait until each node has these claims and places and no others; return what they have if they never do."""
    # A discarded connection takes a moment to come back; then its node gets what is pending.
    deadline = time.monotonic() + PATIENCE
    while True:
        found = [[key for key in claims(node) if not key.startswith("redsync_limit:")] for node in raw]
        if found == [sorted(expected)] * len(raw):
            return None
        if time.monotonic() > deadline:
            return found
        time.sleep(0.002)
