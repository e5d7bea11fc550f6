"""Nodes that answer, but by errors."""

import contextlib
import threading

import redis

__all__ = ["busy"]


def _is_busy(admin):
    try:
        return not admin.ping()
    except redis.RedisError as error:
        return "busy" in str(error)


@contextlib.contextmanager
def busy(admins):
    """Let nodes run a script that does not end: after a while they answer everything by errors."""

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
