"""The claims on a node now, to see later what a client has left."""

from redsync.testing.harness.vitals import open_sockets, redsync_threads

__all__ = ["claims", "is_claim", "open_sockets", "redsync_threads"]


RECORDS = (b"redsync:client:", b"redsync_birth")


def claims(node, pattern="*"):
    """Return the keys on a node except the records of clients and of its birth: claims, and places in queues."""
    return sorted(key for key in node.keys(pattern) if is_claim(key))


def is_claim(key):
    return not (key if isinstance(key, bytes) else key.encode()).startswith(RECORDS)
