"""Nodes that answer errors, and users with restricted rights; on all supported servers."""

import contextlib
import threading

import redis


def refuse_writes(node):
    """Let a node refuse all writes, like one that can't save its data: here it is a replica without a master."""
    node.execute_command("REPLICAOF", "127.0.0.1", "1")


def accept_writes(node):
    node.execute_command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def read_only(admins):
    """Let nodes refuse all writes."""
    for admin in admins:
        refuse_writes(admin)
    try:
        yield "READONLY"
    finally:
        for admin in admins:
            accept_writes(admin)


@contextlib.contextmanager
def hanging(nodes, *indices):
    """Let nodes hang; what arrives meanwhile they execute at the end."""
    for i in indices:
        nodes.pause(i)
    try:
        yield
    finally:
        for i in indices:
            nodes.resume(i)


def version_of(admin):
    """Return the version of Redis that a server says it is compatible with: (7, 2)."""
    return tuple(map(int, admin.info("server")["redis_version"].split(".")[:2]))


def add_guest(admin, rules):
    """Add a user "guest" with the password "right", who may use these commands, with all keys and channels."""
    channels = {"channels": ["*"]} if version_of(admin) >= (6, 2) else {}  # earlier versions have no rules for them
    admin.acl_setuser("guest", enabled=True, passwords=["+right"], commands=rules, keys=["*"], **channels)


def _is_busy(admin):
    try:
        return not admin.ping()
    except redis.RedisError as error:
        return "busy" in str(error)


@contextlib.contextmanager
def busy(admins):
    """Let nodes run a script that does not end: after a while they answer only errors."""

    def run(admin):
        with admin.client() as connection, contextlib.suppress(redis.RedisError):
            connection.eval("while true do end", 0)

    for admin in admins:
        admin.config_set("lua-time-limit", 5)
    threads = [threading.Thread(target=run, args=(admin,)) for admin in admins]
    for thread in threads:
        thread.start()
    try:
        for admin in admins:
            while not _is_busy(admin):
                pass
        yield "BUSY"
    finally:
        for admin in admins:
            admin.script_kill()
        for thread in threads:
            thread.join()
