"""Processes at work on the same nodes: how they are started, and what they have written down."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redsync.testing import LocalNodes
from tests.soak import journal

ROOT = Path(__file__).parents[2]


@dataclass
class Member:
    """One process: `python -m MODULE SETTINGS`."""

    process: subprocess.Popen
    path: Path

    def tell(self, line: str):
        self.process.stdin.write(f"{line}\n")

    def hear(self, expected: str):
        assert self.process.stdout.readline() == f"{expected}\n"

    @property
    def notes(self) -> list[dict[str, Any]]:
        return journal.read(self.path)


@contextlib.contextmanager
def crew(
    module: str, nodes: LocalNodes, directory: Path, seed: int, flavours: list[str], **settings: Any
) -> Iterator[list[Member]]:
    """Start a process for each flavour; all are ready then, and killed in the end if they have not ended by then."""
    with contextlib.ExitStack() as stack:
        members = []
        for number, flavour in enumerate(flavours):
            path = directory / f"{number}.journal"
            mine = {"urls": nodes.urls, "seed": f"{seed} {number}", "journal": str(path), "flavour": flavour}
            command = [sys.executable, "-m", module, json.dumps(mine | settings)]
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            members.append(Member(stack.enter_context(process), path))
            stack.callback(process.kill)
        for member in members:
            member.hear("ready")
        yield members


def ended(members: list[Member]) -> bool:
    """Wait for all processes; return whether they ended well."""
    return [member.process.wait(60) for member in members] == [0] * len(members)
