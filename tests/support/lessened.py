"""Runs a program without what Windows lacks: fork, epoll and poll, unix sockets, POSIX signals, fcntl and the like.

The standard library of this system needs some of it for itself, so it is loaded first. What a real Windows does
differently (its event loop, errors of its sockets) does not show here.
"""

import builtins
import importlib
import os
import re
import select
import selectors
import signal
import socket
import sys
import time

NEEDING = ("asyncio", "multiprocessing.util", "ssl", "subprocess")
"""Modules of the standard library that look at what there is when they are loaded."""

MISSING = {
    os: r"(register_at_)?fork(pty)?|[gs]et(re|res)?[ug]id|gete[ug]id|[gs]et(pgid|pgrp|sid|priority|groups)|killpg|nice"
    r"|wait(id|3|4)|W[A-Z]+|posix_.*|sched_.*|p(read|write)v?|sendfile|mk(fifo|nod)|openpty|pipe2|tc[gs]etpgrp|uname"
    r"|eventfd.*|memfd_create|l?chown|fchown|statvfs|sysconf|O_(CLOEXEC|NOCTTY|NONBLOCK|NOFOLLOW|DIRECTORY)",
    select: r"e?poll|kqueue|kevent|(E?POLL|KQ_).*",
    selectors: r"(Epoll|Poll|Kqueue)Selector",
    signal: r"SIG(HUP|QUIT|ALRM|KILL|CHLD|TSTP|STOP|CONT|TTIN|TTOU|USR1|USR2|PIPE)|alarm|[gs]etitimer|pthread_.*"
    r"|sig.*wait.*",
    socket: r"AF_UNIX|TCP_USER_TIMEOUT|(send|recv)(msg.*|_fds)|CMSG_.*|SCM_.*|MSG_(DONTWAIT|NOSIGNAL)",
    time: r"CLOCK_.*|(pthread_get|clock_[gs]et).*|tzset",
}
"""Patterns of names, by module."""

MODULES = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}


def make_pair():
    """Return a connected pair of sockets, made as on Windows."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        return near, far


def take_away():
    for name in NEEDING:
        importlib.import_module(name)
    for module, pattern in MISSING.items():
        for name in [name for name in vars(module) if re.fullmatch(pattern, name)]:
            delattr(module, name)
    socket.socketpair = make_pair
    selectors.DefaultSelector = selectors.SelectSelector
    load = builtins.__import__

    def load_if_present(name, *more, **options):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return load(name, *more, **options)

    builtins.__import__ = load_if_present


if __name__ == "__main__":
    take_away()
    program = sys.argv.pop(1)
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
