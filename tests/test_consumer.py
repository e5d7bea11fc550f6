"""The program that `make check` gives to two type checkers uses every public name, method, option and attribute."""

import ast
import inspect
from collections import defaultdict
from pathlib import Path

import pytest

import redsync
import redsync.testing
from tools import twins

TYPING = Path(__file__).parent / "typing"
SYNTAX = {"__enter__", "__aenter__", "__call__"}

# Only the library itself calls these.
NOT_FOR_USERS = {"Client.runner", "AsyncClient.runner", "LockInfo.read"}
# The simulator has its own tests: tests/simulation.
NOT_HERE = {"Simulation", "SimulationError"}

KINDS = {name: getattr(redsync, name) for name in redsync.__all__} | {
    name: getattr(redsync.testing, name) for name in redsync.testing.__all__ if name not in NOT_HERE
}


def uses_in(program):
    """Return the parts that a program uses of the classes of its functions' parameters: members, and options.

    Members by class; `with` and a call count as the methods behind them. Options are the keywords given, by
    `Class.method`; for a class itself, by `Class.__call__`.
    """
    members, options = defaultdict(set), defaultdict(set)

    def note(kinds, node, member, given=()):
        for kind in kinds.get(node.id, []) if isinstance(node, ast.Name) else []:
            members[kind].add(member)
            options[f"{kind}.{member}"].update(keyword.arg for keyword in given)

    functions = [node for node in ast.walk(program) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for part in (program, *functions):
        taken = [] if part is program else part.args.args + part.args.kwonlyargs
        kinds = {name: [name] for name in KINDS} | {each.arg: names_in(each) for each in taken}
        for node in ast.walk(part):
            match node:
                case ast.Attribute():
                    note(kinds, node.value, node.attr)
                case ast.With() | ast.AsyncWith():
                    for item in node.items:
                        note(kinds, item.context_expr, "__enter__" if isinstance(node, ast.With) else "__aenter__")
                case ast.Call(func=ast.Attribute()):
                    note(kinds, node.func.value, node.func.attr, node.keywords)
                case ast.Call():
                    note(kinds, node.func, "__call__", node.keywords)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    for decorator in node.decorator_list:
                        note(kinds, decorator, "__call__")
    return members, options


def names_in(annotation):
    return [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name) and node.id in KINDS]


def public(kind):
    """Return the members of a class, except those of all errors or all tuples."""
    common = {name for base in (OSError, tuple) if issubclass(kind, base) for name in dir(base)} | set(dir(Exception))
    declared = {name for base in kind.__mro__ for name in inspect.get_annotations(base)}
    members = (set(dir(kind)) | declared) - common
    # Not by `hasattr`: every class can be called.
    syntax = {name for name in SYNTAX for base in kind.__mro__ if name in vars(base)}
    return {name for name in members if not name.startswith("_")} | syntax


TEXTS = [*((TYPING / name).read_text() for name in ("consumer.py", "consumer_async.py")), twins.consumer()]
PROGRAM = ast.parse("\n".join(TEXTS))
MEMBERS, OPTIONS = uses_in(PROGRAM)


def test_consumer_names_every_export():
    imported = {
        (node.module, alias.name) for node in PROGRAM.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {name for module, name in imported if module == "redsync"} == set(redsync.__all__)
    assert {name for module, name in imported if module == "redsync.testing"} == set(redsync.testing.__all__) - NOT_HERE


def members():
    """Yield every member that users may use: its class, and its name."""
    for name, kind in KINDS.items():
        yield from ((kind, name, member) for member in public(kind) if f"{name}.{member}" not in NOT_FOR_USERS)


def test_consumer_uses_every_member():
    assert [f"{name}.{member}" for _, name, member in members() if member not in MEMBERS[name]] == []


def test_consumer_gives_every_option():
    for kind, name, member in members():
        method = inspect.getattr_static(kind, member, None)
        if inspect.isfunction(method):
            options = {p.name for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY}
            assert options <= OPTIONS[f"{name}.{member}"], f"{name}.{member}"


@pytest.mark.parametrize("name", ["Client", "AsyncClient", "LocalNodes"])
def test_consumer_gives_every_option_of_a_class(name):
    options = {p.name for p in inspect.signature(KINDS[name]).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert options
    assert options <= OPTIONS[f"{name}.__call__"]


def test_missing_call_is_found():
    used, _ = uses_in(ast.parse("async def use(lock: AsyncLock | AsyncMutex, n: int):\n    await lock.acquire()"))
    assert used == {"AsyncLock": {"acquire"}, "AsyncMutex": {"acquire"}}
    assert public(redsync.AsyncLock) - used["AsyncLock"] >= {"release", "__aenter__"}
