"""A client loads all that it will need, and no driver of the other flavour; a command loads only its own modules.

`make bench` shows the cost. A program also needs redis-py, and `importlib.resources`, which reads our scripts and loads
what it likes.
"""

import pytest

from redsync._kinds import LOCKS
from tests.support.nursery import WarmPython

ASYNCIO = {f"redsync._drivers.{name}" for name in ("aio", "aio_link_sets", "aio_maintenance")}
THREADS = {f"redsync._drivers.{name}" for name in ("threads", "pool", "maintenance")}


@pytest.fixture(scope="module")
def python():
    with WarmPython(modules=["redis", "importlib.resources"]) as python:
        yield python


@pytest.fixture
def loaded(python, tmp_path):
    """Return the modules that a program loads besides those that every program needs."""

    def loaded(program, **environment):
        file = tmp_path / "program.py"
        file.write_text(f"import sys; before = set(sys.modules)\n{program}\nprint(*set(sys.modules) - before)")
        done = python.run(file, tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.splitlines()[-1].split())

    return loaded


def of_asyncio(modules):
    return {name for name in modules if name in ASYNCIO or "aio_" in name or "client_async" in name}


def test_program_of_threads_loads_no_driver_for_asyncio(loaded):
    modules = loaded("from redsync import Client; Client(['redis://127.0.0.1:1']).close()")
    assert modules >= THREADS
    assert of_asyncio(modules) == set()


def test_program_of_tasks_loads_no_driver_for_threads(loaded):
    modules = loaded("from redsync import AsyncClient")
    assert of_asyncio(modules) >= ASYNCIO - {"redsync._drivers.aio_maintenance"}
    assert {"redsync._drivers.threads", "redsync.client"} & modules == set()


def test_optional_and_slow_modules_are_not_loaded(loaded):
    modules = loaded("from redsync import Client, Lock, AsyncClient, AsyncLock")
    packages = {name.partition(".")[0] for name in modules if not name.startswith("_cython")}
    needed = {"redsync", "msgpack", "cython_runtime", "secrets", "hmac", "_hmac"}
    of_others = {"encodings", "stringprep", "unicodedata", "importlib", "ctypes", "_ctypes"}  # of some versions
    assert packages <= needed | of_others


USES = """
import sys
from redsync import {client}
before = set(sys.modules)
client = {client}(["redis://localhost:1"])
client.get_multi_lock(client.get_lock("x"), client.get_mutex("y"))
for noun in {locks}:
    getattr(client, "get_" + noun)("x")
client.get_read_write_lock("x")
client.get_semaphore("s", 2), client.get_rate_limiter("r", 2, 1.0), client.get_count_down_latch("l")
client.locked("x")
{client}("redis+sentinel://127.0.0.1:1/x"), {client}("redis+cluster://127.0.0.1:1?nodes=3")
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("client", ["Client", "AsyncClient"])
def test_client_imports_nothing_at_its_first_use(client, python, tmp_path):
    """A module that a thread imports while another one forks stays locked in the child."""
    file = tmp_path / "program.py"
    file.write_text(USES.format(client=client, locks=[kind.noun for kind in LOCKS]))
    done = python.run(file, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]"]


COMMON = {"cli", "cli.exits", "cli.arguments", "cli.output"}


@pytest.mark.parametrize(
    ("arguments", "mine"),
    [
        (["lock", "x", "-n", "-q", "--", "true"], {"lock_command", "supervisor", "shim", "process_tree"}),
        (["ls", "--json"], {"queries", "listing"}),
    ],
)
def test_command_loads_nothing_of_the_others(arguments, mine, loaded):
    modules = loaded(f"from redsync.cli import main; main({arguments!r})", REDSYNC_URLS="redis://127.0.0.1:1")
    ours = {name.removeprefix("redsync.") for name in modules if f"{name}.".startswith("redsync.cli.")}
    assert ours == COMMON | {f"cli.{name}" for name in mine}
    # Besides the modules that redis-py loads when it connects.
    assert {"rich", "fakeredis", "lupa", "statistics"} & modules == set()
    assert of_asyncio(modules) == set()
    assert not any("testing" in name for name in modules)
    if arguments[0] != "lock":
        assert "multiprocessing" not in modules
        assert not any(name.startswith("redsync._drivers") or name == "redsync.client" for name in modules)
