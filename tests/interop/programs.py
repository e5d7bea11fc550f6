"""The programs of the fights: which libraries there are, how each is built and started, and how to talk to it.

A program gets the nodes' URLs as arguments, connects, and prints `ready`. Then each line to it is a command for one of
its workers, whose number comes second, and each command gets one line back, which starts with that number:

    acquire 3 NAME LEASE_MS    3 won, or 3 lost after about 5 s of trying
    release 3                  3 released
    any                        3 failed REASON

Commands to different workers run at the same time. A program ends with its input.
"""

import asyncio
import contextlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent
BUILD = ROOT / "build" / "interop"
LOG = BUILD / "programs.log"

NICE = ("nice",) if shutil.which("nice") else ()
"""Builds give way to the fights that run meanwhile."""

PATIENCE = 600.0
"""How many seconds a registry may take."""

READY = 120.0
"""How many seconds a program may take to start, and a worker to reply: a JVM on a busy machine."""


def told(error):
    """Return that a command failed or took too long, and the first lines that it printed."""
    printed = error.output if isinstance(error.output, str) else ""
    return "\n    ".join([str(error), *printed.splitlines()[:10]])


@dataclass(frozen=True)
class Source:
    """The source of a program that is not in Python.

    Attributes:
        folder: The folder of its source and build file.
        tools: The executables that it needs.
        fetch: The command that downloads what it needs. The registry may have no answer, or lack a package.
        build: The command that compiles it, if it needs that; a failure is a mistake of ours.
    """

    folder: str
    tools: tuple[str, ...]
    fetch: tuple[str, ...]
    build: tuple[str, ...] = ()

    def prepare(self):
        """Fetch and build the program; return why there is none, or an empty text."""
        if missing := [tool for tool in self.tools if shutil.which(tool) is None]:
            return f"this machine has no {' and no '.join(missing)}"
        shutil.copytree(SOURCES / self.folder, BUILD / self.folder, dirs_exist_ok=True)
        try:
            self._run(self.fetch, PATIENCE)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            return f"its packages can't be downloaded here: {told(error)}"
        if self.build:
            self._run(self.build)
        return ""

    def _run(self, command, timeout=None):
        subprocess.run(
            (*NICE, *command),
            cwd=BUILD / self.folder,
            check=True,
            timeout=timeout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@dataclass(frozen=True)
class Library:
    """A neighbour.

    Attributes:
        name: Its name in the table.
        ours: The kind of redsync's that docs/compare/other-languages.md recommends, as `python_side.py` takes it.
        command: The command that starts its program, in its folder of `build/interop`; the URLs follow.
        source: The source of that program; None for those in Python, which the tests' requirements install.
        leaves: Set if it may leave its own claims behind: its release may overtake the last of its claims, as it does
            not wait for that.
        stalls: Set if over several nodes no worker may get the lock for seconds, so that a fight shows no
            shares: node-redlock 5 keeps claims on a minority while it retries.
    """

    name: str
    ours: str
    command: tuple[str, ...]
    source: Source | None = None
    leaves: bool = False
    stalls: bool = False

    @property
    def slug(self):
        """Its name on a command line."""
        return self.name.lower().replace(" ", "-")


PYTHON = (sys.executable, "-m", "tests.interop.python_side")
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-cp", "libraries/*", "Main.java")

NPM = ("npm", "install", "--loglevel=error", "--no-audit", "--no-fund")
NODE = Source("node-redlock", ("node", "npm"), NPM)
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
MAVEN = ("mvn", "--quiet", "--batch-mode", COPY, "-DoutputDirectory=libraries")
REDISSON = Source("redisson", ("javac", "mvn"), MAVEN)
# A build that does not optimise takes half the time, most of it for the standard library.
COMPILE = ("go", "build", "-gcflags=all=-N -l", "-o", "main", ".")
GO = Source("go-redsync", ("go",), ("go", "list", "-mod=mod", "-deps", "-f={{/* no list */}}", "."), COMPILE)
RUST = Source("rslock", ("cargo",), ("cargo", "fetch", "-q"), ("cargo", "build", "-q", "--offline"))

LIBRARIES = [
    Library("redlock-py", "mutex:200:200", (*PYTHON, "redlock-py")),
    Library("pottery", "mutex:0:200", (*PYTHON, "pottery"), leaves=True),
    Library("node-redlock 4", "mutex:200:200", ("node", "main.js", "4"), NODE),
    Library("node-redlock 5", "mutex:100:300", ("node", "main.js", "5"), NODE, stalls=True),
    Library("Redisson", "spin:1:5", JAVA, REDISSON),
    Library("go-redsync", "mutex:50:250", ("./main",), GO, leaves=True),
    Library("rslock", "mutex:0:200", ("target/debug/interop-rslock",), RUST),
]


class Program:
    """A running program; it must be killed, or ended, by the one that started it."""

    def __init__(self, process):
        self._process = process
        self._replies = {}
        self._reader = None

    @classmethod
    async def start(cls, command, folder, urls):
        """Start a program, and wait until it is connected."""
        BUILD.mkdir(parents=True, exist_ok=True)
        pipe = asyncio.subprocess.PIPE
        with LOG.open("a") as log:
            process = await asyncio.create_subprocess_exec(
                *command, *urls, cwd=folder, stdin=pipe, stdout=pipe, stderr=log
            )
        self = cls(process)
        try:
            async with asyncio.timeout(READY):
                while (line := await process.stdout.readline()) != b"ready\n":  # libraries may print, too
                    assert line, f"{command[0]} ended before it was ready, see {LOG}"
        except BaseException:
            await self.kill()
            raise
        self._reader = asyncio.create_task(self._read())
        return self

    async def _read(self):
        while line := await self._process.stdout.readline():
            number, _, reply = line.decode().strip().partition(" ")
            if number in self._replies:
                self._replies.pop(number).set_result(reply)
        for waiting in self._replies.values():
            waiting.set_result("failed the program has ended")

    async def ask(self, verb, worker, *arguments):
        """Give a worker a command; return its reply."""
        number = str(worker)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write((" ".join([verb, number, *map(str, arguments)]) + "\n").encode())
        return await asyncio.wait_for(reply, READY)

    async def kill(self):
        """Kill it as kill -9 does."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._reader:
            await self._reader

    async def end(self):
        """Let it end, or kill it if it does not within 10 s."""
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 10)
        await self.kill()


async def start_ours(library, urls):
    return await Program.start((*PYTHON, library.ours), ROOT, urls)


async def start_theirs(library, urls):
    return await Program.start(library.command, BUILD / library.source.folder if library.source else ROOT, urls)
