"""Python files run as programs, each in a fork of one process that has already loaded the library.

An interpreter's start and the imports take longer than most programs of the documentation. A fork has its own threads,
signals, streams and exit, and sees no changes of other forks.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

LIBRARY = ("redsync.client", "redsync.client_async", "redsync.testing")


class WarmPython:
    """A process with some modules that forks; `with` ends it. `options` are the interpreter's."""

    def __init__(self, *options: str, modules: Sequence[str] = LIBRARY) -> None:
        command = [sys.executable, *options, "-m", "tests.support.warm", *modules]
        folder = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def run(self, file: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a file in a folder; return its exit status and its output."""
        streams = {name: f"{folder / name}" for name in ("stdout", "stderr")}
        order = {"file": str(file), "folder": str(folder), "environment": environment, **streams}
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            status = os.waitstatus_to_exitcode(int(self._process.stdout.readline()))
        except BaseException:  # it took too long: see pytest-timeout
            os.killpg(self._process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess([str(file)], status, *(Path(path).read_text() for path in streams.values()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.communicate()


def become(order) -> None:
    """Run the order; this process ends as any program does."""
    os.chdir(order["folder"])
    os.environ.update(order["environment"])
    writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path in enumerate([os.devnull, order["stdout"], order["stderr"]]):
        os.dup2(os.open(path, writing if number else os.O_RDONLY), number)
    path = Path(order["file"])
    sys.argv, sys.path[0] = [str(path)], str(path.parent)
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__file__ = str(path)
    exec(compile(path.read_text(), path, "exec"), main.__dict__)


def serve() -> None:
    for name in sys.argv[1:]:
        __import__(name)
    while line := os.read(0, 1 << 16):
        child = os.fork()
        if not child:
            return become(json.loads(line))
        print(os.waitpid(child, 0)[1], flush=True)
    return None


if __name__ == "__main__":
    serve()
