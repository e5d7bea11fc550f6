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


class Uses(ast.NodeVisitor):
    """The parts that a program uses of the classes of its functions' parameters.

    Attributes:
        members: Attributes and methods, by class; `with` and a call count as the methods behind them.
        options: The keywords given, by `Class.method`; for a class itself, by `Class`.
    """

    def __init__(self, program: ast.Module):
        self.members = defaultdict(set)
        self.options = defaultdict(set)
        self._kinds = {name: [name] for name in KINDS}
        self.visit(program)

    def visit_FunctionDef(self, node):
        outer = self._kinds
        taken = {argument.arg: argument.annotation for argument in node.args.args + node.args.kwonlyargs}
        self._kinds = outer | {name: names_in(note) for name, note in taken.items() if note is not None}
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Name):
                self._note(decorator, "__call__")
        self.generic_visit(node)
        self._kinds = outer

    def visit_AsyncFunctionDef(self, node):
        self.visit_FunctionDef(node)

    def visit_Attribute(self, node):
        self._note(node.value, node.attr)
        self.generic_visit(node)

    def visit_With(self, node):
        for item in node.items:
            self._note(item.context_expr, "__enter__")
        self.generic_visit(node)

    def visit_AsyncWith(self, node):
        for item in node.items:
            self._note(item.context_expr, "__aenter__")
        self.generic_visit(node)

    def visit_Call(self, node):
        given = {keyword.arg for keyword in node.keywords}
        if isinstance(node.func, ast.Attribute):
            for kind in self._kinds_of(node.func.value):
                self.options[f"{kind}.{node.func.attr}"] |= given
        for kind in self._kinds_of(node.func):
            self._note(node.func, "__call__")
            self.options[f"{kind}.__call__"] |= given
        self.generic_visit(node)

    def _kinds_of(self, node):
        return self._kinds.get(node.id, []) if isinstance(node, ast.Name) else []

    def _note(self, node, member):
        for kind in self._kinds_of(node):
            self.members[kind].add(member)


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
USES = Uses(PROGRAM)


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
    assert [f"{name}.{member}" for _, name, member in members() if member not in USES.members[name]] == []


def test_consumer_gives_every_option():
    for kind, name, member in members():
        method = inspect.getattr_static(kind, member, None)
        if inspect.isfunction(method):
            options = {p.name for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY}
            assert options <= USES.options[f"{name}.{member}"], f"{name}.{member}"


@pytest.mark.parametrize("name", ["Client", "AsyncClient", "LocalNodes"])
def test_consumer_gives_every_option_of_a_class(name):
    options = {p.name for p in inspect.signature(KINDS[name]).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert options
    assert options <= USES.options[f"{name}.__call__"]


def test_missing_call_is_found():
    uses = Uses(ast.parse("async def use(lock: AsyncLock | AsyncMutex, n: int) -> None:\n    await lock.acquire()"))
    assert uses.members == {"AsyncLock": {"acquire"}, "AsyncMutex": {"acquire"}}
    assert public(redsync.AsyncLock) - uses.members["AsyncLock"] >= {"release", "__aenter__"}
