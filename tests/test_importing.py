"""A fork waits for the late imports of other threads; otherwise its child would inherit their locks."""

import ast
import inspect
from pathlib import Path

import pytest
import redis.connection

from tests.support.sweeps import swept
from tests.support.warm import WarmPython

PACKAGE = Path(__file__).parents[1] / "redsync"

CLIENT = "client = redsync.Client(['redis://127.0.0.1:1'])"
ASYNC_CLIENT = "client = redsync.AsyncClient(['redis://127.0.0.1:1'])"

COMMON = """
import importlib.util, logging, os, signal, sys, threading, time, warnings
import redsync

logging.disable()  # the nodes are down
warnings.filterwarnings("ignore", "This process")  # is multi-threaded, and forks

class Import:
    # Does something within the first import of a module.
    def __init__(self, module, meanwhile):
        self.module, self.meanwhile = module, meanwhile
        sys.meta_path.insert(0, self)
    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        self.execute, spec.loader.exec_module = spec.loader.exec_module, self.exec_module
        return spec
    def exec_module(self, module):
        self.meanwhile()
        self.execute(module)

def check_others():
    # Another thread imports without a wait.
    other = threading.Thread(target=lambda: redsync.Mutex, daemon=True)
    other.start()
    other.join(4)
    assert not other.is_alive()

def check(child):
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"the child ended with {status}"
"""

IN_ANOTHER_THREAD = """
inside, forking, forked = (threading.Event() for _ in range(3))
os.register_at_fork(before=forking.set, after_in_parent=forked.set)

def meanwhile():
    inside.set()
    assert forking.wait(20)
    forked.wait(0.2)  # a fork that does not wait for this import comes meanwhile

def use():
    USE

Import("MODULE", meanwhile)
thread = threading.Thread(target=use)
thread.start()
assert inside.wait(20)
child = os.fork()
if not child:
    signal.alarm(10)
    use()
    check_others()
    os._exit(0)
thread.join()
check_others()
check(child)
"""

IN_THE_SAME_THREAD = f"""
{CLIENT}

def fork():
    global child
    child = os.fork()

Import("redsync._protocols.lock", fork)
began = time.monotonic()
client.get_lock("x")
assert time.monotonic() - began < 4
check_others()
if not child:
    os._exit(0)
check(child)
"""

IMPORT_HANGS = f"""
{CLIENT}

def hang():
    inside.set()
    assert forked.wait(60)

inside, forked = threading.Event(), threading.Event()
Import("redsync._facades.lock", hang)
threading.Thread(target=client.get_lock, args=("x",)).start()
assert inside.wait(20)
child = os.fork()
if not child:
    began = time.monotonic()
    check_others()
    grandchild = os.fork()
    if grandchild:
        check(grandchild)
        assert time.monotonic() - began < 4
    os._exit(0)
forked.set()
check(child)
check_others()
"""

# As logging does: a fork waits for its lock, and a thread imports with it held.
FORK_HANGS = f"""
import os, threading

def before():
    forking.set()
    lock.acquire()

lock, forking = threading.Lock(), threading.Event()
# Called after our own function.
os.register_at_fork(before=before, after_in_parent=lock.release)
{COMMON}

def configure():
    with lock:
        inside.set()
        assert forking.wait(20)
        redsync.Client

inside = threading.Event()
thread = threading.Thread(target=configure)
thread.start()
assert inside.wait(20)
child = os.fork()
if not child:
    os._exit(0)
thread.join()
check(child)
check_others()
"""


@pytest.fixture(scope="module")
def python():
    with WarmPython(modules=["redis"]) as python:
        yield python


@pytest.fixture
def run(python, tmp_path):
    """Run a program that must succeed, and return what it said."""

    def run(program):
        file = tmp_path / "program.py"
        file.write_text(program)
        done = python.run(file, tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


@pytest.mark.parametrize(
    ("given", "use", "module"),
    [
        (CLIENT, "client.get_lock('x')", "redsync._facades.lock"),
        (ASYNC_CLIENT, "client.get_semaphore('x', 3)", "redsync._protocols.semaphore"),
        (CLIENT, "client._survey('x')", "redsync._protocols.lock_survey"),
        ("", CLIENT, "encodings.idna"),
        ("", CLIENT, "msgpack"),
        *swept(
            ("", "redsync.Client", "redsync.client"),
            ("", ASYNC_CLIENT, "redsync.client_async"),
            ("", ASYNC_CLIENT, "encodings.idna"),
            ("", "redsync.Client('redis+sentinel://127.0.0.1:1/x')", "redsync._core.cluster_urls"),
            ("", "redsync.Client('redis+sentinel://127.0.0.1:1/x')", "redsync._drivers.sentinels"),
            ("", "redsync.Client('redis+cluster://127.0.0.1:1?nodes=3')", "redsync._drivers.clusters"),
            (CLIENT, "client.locked('x')", "redsync._facades.decorator"),
            (ASYNC_CLIENT, "client.locked('x')", "redsync._facades.decorator"),
            (CLIENT, "client.get_lock('x')._holder_steps()", "redsync._protocols.lock_survey"),
            (CLIENT, "client.get_lock('x')._force_steps()", "redsync._protocols.lock_survey"),
        ),
    ],
)
def test_child_uses_what_another_thread_imported_during_the_fork(given, use, module, run):
    program = IN_ANOTHER_THREAD.replace("USE", use).replace("MODULE", module)
    assert run(f"{COMMON}\n{given}\n{program}") == ""


@pytest.mark.sweep
@pytest.mark.skipif("import secrets" not in inspect.getsource(redis.connection), reason="an older redis-py")
def test_child_makes_client_although_redis_py_imported_for_another_thread_during_the_fork(run):
    program = IN_ANOTHER_THREAD.replace("USE", CLIENT).replace("MODULE", "secrets")
    assert run(f"{COMMON}\n{program}") == ""


def test_fork_within_an_import_does_not_wait_and_the_import_continues_in_both_processes(run):
    """As in a signal handler or a finalizer."""
    assert run(f"{COMMON}\n{IN_THE_SAME_THREAD}") == ""


@pytest.mark.sweep
def test_fork_gives_up_on_an_import_that_hangs_and_the_child_imports_other_modules(run):
    assert "cannot release un-acquired lock" in run(f"{COMMON}\n{IMPORT_HANGS}")


@pytest.mark.sweep
def test_import_gives_up_on_a_fork_that_hangs(run):
    assert run(FORK_HANGS) == ""


def find_unguarded(source):
    """Return the late imports that do not stand within `with importing:`."""
    tree = ast.parse(source)
    guarded, late = set(), {}
    for node in ast.walk(tree):
        match node:
            case ast.With(items=[ast.withitem(ast.Name("importing"))]):
                guarded.update(imports_within(node))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                late.update(dict.fromkeys(imports_within(node)))
    return [ast.unparse(each) for each in late if each not in guarded]


def imports_within(block):
    for node in ast.walk(block):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Call(ast.Name("import_module")):
                yield node


def test_late_imports_stand_within_the_lock():
    planted = "def f():\n  import a\n  with importing:\n    import b\n  import_module('c')"
    assert find_unguarded(planted) == ["import a", "import_module('c')"]
    late = {}
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        if not name.startswith(("cli/", "testing/")):
            late[name] = find_unguarded(path.read_text())
    assert {name for name, found in late.items() if found} == {
        "_drivers/fake_nodes.py",  # asks for what fakeredis, which the program uses, has loaded
        "_drivers/given_nodes.py",  # `make_nodes` calls them with the lock held
        "_drivers/kept_calls.py",  # called while the module is imported
        "_drivers/redis_py.py",  # called while the module is imported
    }
