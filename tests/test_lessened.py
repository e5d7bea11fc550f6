"""redsync on a system without fork, epoll, poll, unix sockets and fcntl: imports, and a client of each flavour."""

import subprocess
import sys

import pytest

from tests.support.nursery import ROOT

NOT_OURS = ("redsync.cli", "redsync.contrib", "redsync.testing")
"""Packages that need a POSIX system, or a framework."""

WITH_TASKS = """
import asyncio, sys
from redsync import AsyncClient

async def main():
    urls = sys.argv[1:]
    async with AsyncClient(urls, restart_guard=0) as client, AsyncClient(urls, restart_guard=0) as other:
        async with client.get_lock("x"):
            assert not await other.get_lock("x").acquire(False)
            waiter = asyncio.create_task(other.get_lock("x").acquire())
            while not (await client.inspect("x")).waiters:
                await asyncio.sleep(0.01)
        await waiter
        while [node.state for node in client.nodes()] != ["up"] * 3:
            await asyncio.sleep(0.01)
        print("done")

asyncio.run(main())
"""

WITH_THREADS = """
import sys, threading, time
from redsync import Client

with Client(sys.argv[1:], restart_guard=0) as client, Client(sys.argv[1:], restart_guard=0) as other:
    with client.get_lock("x"):
        assert not other.get_lock("x").acquire(False)
        waiter = threading.Thread(target=other.get_lock("x").acquire)
        waiter.start()
        while not client.inspect("x").waiters:
            time.sleep(0.01)
    waiter.join()
    while [node.state for node in client.nodes()] != ["up"] * 3:
        time.sleep(0.01)
    print("done")
"""


@pytest.fixture
def run():
    """Run a program on such a system; return what it writes."""

    def run(program, *arguments):
        command = [sys.executable, "-m", "tests.support.lessened", program, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("program", [WITH_TASKS, WITH_THREADS], ids=["tasks", "threads"])
def test_client_excludes_others_on_real_nodes(program, run, nodes):
    assert run(program, *nodes.urls[:3]) == "done\n"


def test_package_and_its_pytest_plugin_can_be_imported(run):
    found = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "redsync").rglob("*.py")}
    names = {".".join(path.parts).removesuffix(".__init__") for path in found}
    ours = {name for name in names if not name.startswith(NOT_OURS)}
    names = sorted(ours | {"redsync.testing.pytest_plugin", "redsync.contrib.shared"})
    assert run("\n".join(f"import {name}" for name in names) + "\nprint('done')") == "done\n"
