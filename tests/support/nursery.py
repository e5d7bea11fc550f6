"""Commands and Python files without their startup: a process that has imported what they need forks a copy for each.

A short command spends nine tenths of its time importing redis. A copy is a process like any other, with its own
session, streams and environment, and the interpreter's whole exit. To test the interpreter's start, or a command behind
another program, a test starts a fresh process.
"""

import contextlib
import fcntl
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
LENGTH = struct.Struct("!I")
LIBRARY = ("redsync.client", "redsync.client_async", "redsync.testing")


class Nursery:
    """Our side: asks for copies, which are commands unless it has `modules`. It ends with us.

    `options` are the interpreter's.
    """

    def __init__(self, *options, modules=()):
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *options, "-m", "tests.support.nursery", str(theirs.fileno()), *modules],
                env={**os.environ, "PYTHONPATH": str(ROOT), **({} if modules else {"PYTHONWARNINGS": "error"})},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def bear(self, arguments, environment, streams):
        """Start a copy with these arguments; return its number, and a pipe that reports its wait status."""
        told, tells = os.pipe()
        asked = json.dumps([[os.fsdecode(each) for each in arguments], environment]).encode()
        socket.send_fds(self._socket, [LENGTH.pack(len(asked))], [*streams, tells])
        os.close(tells)
        self._socket.sendall(asked)
        return LENGTH.unpack(os.read(told, LENGTH.size))[0], told

    def end(self):
        self._socket.close()
        self._process.wait()


class WarmPython(Nursery):
    """A nursery for Python files that run as programs; `with` ends it."""

    def run(self, file, folder, **environment):
        """Run a file in a folder; return its exit status and its output."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        with Born(self, [folder, file], env=os.environ | environment, text=True, **pipes) as process:
            try:
                out, err = process.communicate()
            except BaseException:  # it took too long: see pytest-timeout
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess([str(file)], process.returncode, out, err)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Born(subprocess.Popen):
    """A process from a nursery: not our child, so another reports how it ended. Without a nursery, an ordinary process.

    It replaces the methods of `Popen` that start a process and wait for it; its pipes and the rest stay.
    """

    def __init__(self, nursery, words, **options):
        self._nursery, self._told = nursery, -1
        super().__init__(words, **options)

    def _execute_child(self, words, *more):
        if not self._nursery:
            super()._execute_child(words, *more)
            return
        environment, pipes = more[5], more[9:15]
        streams = (end if end >= 0 else number for number, end in enumerate((pipes[0], pipes[3], pipes[5])))
        try:
            self.pid, self._told = self._nursery.bear(words, environment, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)

    def _internal_poll(self, *more, **options):
        if not self._nursery:
            return super()._internal_poll(*more, **options)
        if self.returncode is None and (status := self._try_wait(os.WNOHANG))[0]:
            self._handle_exitstatus(status[1])
        return self.returncode

    def _try_wait(self, flags):
        if not self._nursery:
            return super()._try_wait(flags)
        if flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        (status,) = LENGTH.unpack(os.read(self._told, LENGTH.size))
        os.close(self._told)
        return self.pid, status


def serve(connection):
    """Make a copy for each request; return in the copy."""
    while True:
        length, streams, _, _ = socket.recv_fds(connection, LENGTH.size, 4)
        if not length:
            sys.exit()
        asked = connection.recv(LENGTH.unpack(length)[0], socket.MSG_WAITALL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not os.fork():
            number = os.fork()
            if not number:
                return (*json.loads(asked), streams)
            for each in streams[:3]:
                os.close(each)
            os.write(streams[3], LENGTH.pack(number))
            os.write(streams[3], LENGTH.pack(os.waitpid(number, 0)[1]))
            os._exit(0)
        for each in streams:
            os.close(each)


def become_separate(arguments, environment, streams):
    """Become a separate process, as after the interpreter's start."""
    os.setsid()
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    os.closerange(3, 64)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115


def load_command():
    """Import what commands import."""
    from redsync import cli

    for module in pkgutil.iter_modules(cli.__path__, "redsync.cli."):
        if "demo" not in module.name and not module.name.endswith("__main__"):
            import_module(module.name)
    import_module("redsync.client")
    gc.freeze()  # copies would look for garbage there at their end
    return cli.main


def run_file():
    """Run the file that is the second argument in the folder that is the first."""
    folder, file = sys.argv[1:]
    os.chdir(folder)
    sys.argv, sys.path[0] = [file], str(Path(file).parent)
    sys.modules["__main__"] = program = ModuleType("__main__")
    program.__file__ = file
    exec(compile(Path(file).read_text(), file, "exec"), program.__dict__)


def load(modules):
    """Import these modules, or what commands import; return what copies run."""
    for name in modules:
        import_module(name)
    return run_file if modules else load_command()


if __name__ == "__main__":
    main = load(sys.argv[2:])
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        begun = serve(connection)
    become_separate(*begun)
    sys.exit(main())
