"""What a process or a node has of ours at this instant, to see later what a client has left."""

import os
import stat
import threading

__all__ = ["claims", "is_claim", "open_sockets", "redsync_threads"]


RECORDS = (b"redsync:client:", b"redsync_birth")


def claims(node, pattern="*"):
    """Return what is on a node but for the records of clients and of its birth: claims, and places in queues."""
    return sorted(key for key in node.keys(pattern) if is_claim(key))


def is_claim(key):
    return not (key if isinstance(key, bytes) else key.encode()).startswith(RECORDS)


def redsync_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("redsync-")}


def open_sockets() -> set[tuple[int, int]]:
    """Return the open sockets of this process: descriptor and inode."""
    found = set()
    for name in os.listdir("/dev/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:  # the descriptor of the listing itself
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.add((int(name), status.st_ino))
    return found
