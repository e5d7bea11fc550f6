"""Commands as real processes, found again, with all that they started, by a mark in their environment."""

import os
import subprocess
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 30

RELUCTANT = "trap '' TERM INT; echo ready; while :; do sleep 0.02; done"
"""A shell program that ends by SIGKILL only."""


class Marked(subprocess.Popen):
    """A command whose descendants are found by a mark that they inherit."""

    def __init__(self, arguments, environment, **options):
        self.mark = f"redsync-test-{uuid.uuid4()}"
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        super().__init__(
            arguments,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "MARK": self.mark, **environment},
            text=True,
            start_new_session=True,
            **streams | options,
        )

    def finish(self):
        """Return what it said, when it has ended."""
        return self.communicate(timeout=PATIENCE)

    def family(self):
        """Return the processes with the mark, itself included."""
        found = set()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (path / "environ").read_bytes():
                    found.add(int(path.name))
            except OSError:  # it has ended, or belongs to somebody else
                continue
        return found

    def command_group(self):
        """Return the process group of the command that `redsync lock` runs with -c."""
        (leader,) = (
            number
            for number in self.family()
            if command_line(number)[:2] == [b"/bin/sh", b"-c"]
            and os.getpgid(number) == number
            and os.getsid(number) != number
        )
        return leader

    def await_line(self, word):
        """Read its output up to a line."""
        for line in self.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"ended without {word!r}: {self.stderr.read()}")


def command_line(number):
    return Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
