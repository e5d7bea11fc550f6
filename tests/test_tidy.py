"""House rules that no linter checks. CONTRIBUTING.md gives the reasons."""

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from redsync._core.holds import HoldState
from redsync._protocols import rate  # noqa: F401  (what it claims is then known)
from redsync._protocols.claims import Claim
from redsync._protocols.queue_policies import QueuePolicy

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "redsync"
SANS_IO = ("redsync._core", "redsync._protocols")
HANDS = (
    "redsync._drivers",
    "redsync.any_client",
    "redsync.cli",
    "redsync.client",
    "redsync.client_async",
    "redsync.testing",
)  # hold objects of threading and asyncio
LINES_MAX = 700


@dataclass
class Module:
    """A parsed module: all nodes with their parents, its functions (name -> is annotated as Steps), its calls, and what
    its imported names stand for.
    """

    name: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    functions: dict[str, bool] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        nodes: list[ast.AST] = [self.tree]
        for node in nodes:
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                nodes.append(child)
            match node:
                case ast.Call():
                    self.calls.append(node)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    # If a method and a function share a name, the one that must be driven counts.
                    self.functions[name] = self.functions.get(name, False) or returns_steps(node)
                case ast.ImportFrom(module=str(source)):
                    self.imports |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names}
                case ast.Import():
                    self.imports |= {alias.asname: alias.name for alias in node.names if alias.asname}


def returns_steps(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    annotation = ast.unparse(function.returns) if function.returns else ""
    return re.match(r"""['"]?(\w+\.)*Steps\b""", annotation) is not None


@functools.cache
def load_package() -> list[Module]:
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    return [Module(name, ast.parse(path.read_text())) for name, path in paths.items()]


# A protocol that is called but not driven does nothing, and type checkers accept it.


def find_undriven(modules: list[Module]) -> Iterator[str]:
    """Yield each call of a protocol whose steps are not performed.

    Steps may be the operand of `yield from`, an argument of another call (`runner.run(release(...))`), returned, or
    yielded together with the object that performs them (`yield lock, release(...)`).
    """
    by_name = {module.name: module for module in modules}
    driven = {name for module in modules for name, is_steps in module.functions.items() if is_steps}
    plain = {name for module in modules for name, is_steps in module.functions.items() if not is_steps}

    def gives_steps(path: str) -> bool:
        source, _, name = path.rpartition(".")
        if source not in by_name:
            return False
        module = by_name[source]
        if name in module.functions:
            return module.functions[name]
        return name in module.imports and gives_steps(module.imports[name])  # re-exported

    def is_protocol(callee: ast.expr, module: Module, user: ast.AST) -> bool:
        match callee:
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if (
                name in module.functions
            ):
                return module.functions[name]
            case ast.Name(id=name):
                return gives_steps(module.imports.get(name, ""))
            case ast.Attribute(value=ast.Name(id=base), attr=name) if module.imports.get(base) in by_name:
                return gives_steps(f"{module.imports[base]}.{name}")
            case ast.Attribute(attr=name) if name in driven:
                # `thing.release()`: only the name tells. A protocol has nothing else to release, but a facade may.
                if module.name.startswith(SANS_IO):
                    return isinstance(user, ast.Expr | ast.Assign | ast.AnnAssign)
                return name not in plain and not module.name.startswith(HANDS)
        return False

    for module in modules:
        for call in module.calls:
            user, paired = module.parents[call], False
            while isinstance(user, ast.IfExp | ast.Starred | ast.keyword | ast.Tuple):  # these only pass it on
                paired = paired or isinstance(user, ast.Tuple)
                user = module.parents[user]
            performed = isinstance(user, ast.YieldFrom | ast.Call | ast.Return | ast.Lambda)
            performed = performed or (paired and isinstance(user, ast.Yield))
            if not performed and is_protocol(call.func, module, user):
                yield f"{module.name}:{call.lineno}: {ast.unparse(call)}"


def test_protocol_calls_are_driven():
    assert list(find_undriven(load_package())) == []


def test_checker_finds_planted_violations():
    sources = {
        "redsync._protocols.planted": """
            def release(key) -> Steps[None]:
                yield from tell(key)

            def is_free(key) -> "effects.Steps[bool]":
                return release(key)

            def acquire(key, queue) -> Steps[bool]:
                yield from release(key)
                release("bare")
                queue.release("by name")
                won = is_free("assigned")
                if is_free("tested"):
                    return won
                yield from release(key) if key else is_free(key)
                return (yield from is_free(key))
            """,
        "redsync._protocols": """
            from redsync._protocols.planted import is_free
            """,
        "redsync.planted": """
            from redsync._protocols import is_free as free, planted

            class Lock:
                def release(self):
                    self._runner.run(planted.release(self))
                    self._runner.run(steps=free(self))
                    self._locks[0].release()
                    self.release()
                    planted.release("module")
                    free("alias")
                    self._protocol.is_free("method")
            """,
        "redsync._drivers.planted": """
            def close(self):
                self._event.is_free()
            """,
    }
    modules = [Module(name, ast.parse(textwrap.dedent(source))) for name, source in sources.items()]
    found = [re.search(r"'(.+)'", line).group(1) for line in find_undriven(modules)]
    assert sorted(found) == ["alias", "assigned", "bare", "by name", "method", "module", "tested"]


def test_bare_yield_stands_only_in_traps():
    """`tally = yield from broadcast(...)` has an exact type, `reply = yield Broadcast(...)` has not."""
    found = [
        f"{module.name}:{node.lineno}"
        for module in load_package()
        if module.name.startswith(SANS_IO) and module.name != "redsync._core.effects"
        for node in module.parents
        if isinstance(node, ast.Yield)
    ]
    assert found == []


def test_modules_are_short_and_have_docstrings():
    found = []
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        lines = len(source.splitlines())
        if lines > LINES_MAX or not re.match(r'[rR]?"""', source):
            found.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert found == []


FOLDERS = {"_facades": "kinds"}
"""The folders of the tests of a part, where they do not bear its name."""


def test_each_part_has_its_tests():
    parts = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    folders = {part: ROOT / "tests" / FOLDERS.get(part, part.removeprefix("_")) for part in parts}
    assert {part for part, folder in folders.items() if not list(folder.glob("test_*.py"))} == set()


def test_core_and_protocols_import_nothing_for_types_alone():
    """The import contracts do not see such imports, so a circle could stay open."""
    found = [
        module.name
        for module in load_package()
        if module.name.startswith(SANS_IO) and "typing.TYPE_CHECKING" in module.imports.values()
    ]
    assert found == []


NEUTRAL = ["_protocols/acquiring.py", "_protocols/renewal.py", "_core/holds.py"]


@pytest.mark.parametrize("path", NEUTRAL)
def test_loop_renewal_and_holds_do_not_ask_for_the_kind(path):
    kinds = {each.__name__ for each in (*_below(Claim), *_below(QueuePolicy), *_below(HoldState))}
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"), ast.unparse(node)
        assert not (isinstance(node, ast.ImportFrom) and kinds & {alias.name for alias in node.names})


def _below(base):
    """Return all classes below a class."""
    return [each for sub in base.__subclasses__() for each in (sub, *_below(sub))]


def test_scripts_open_with_their_contract():
    found = []
    for path in sorted((PACKAGE / "_lua").glob("*.lua")):
        header = re.match(r"(?:[ \t]*--.*\n?)*", path.read_text()).group()
        wanted = ["--"] if path.name.startswith("_") else ["KEYS", "ARGV", "Reply:"]  # _*.lua: shared snippets
        found += [f"{path.name}: no {word}" for word in wanted if word not in header]
    assert found == []


def test_nothing_is_left_unfinished():
    marks = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"]) + r")\b")
    folders = ["redsync", "tests", "bench", "examples", "docs", ".ci"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(paths)
        if path.is_file() and path.suffix != ".pyc"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if marks.search(line)
    ]
    assert found == []
