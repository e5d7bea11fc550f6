"""All output goes through `redsync.cli.output`, and each line there appears as one line, with no other effect."""

import ast
import contextlib
import json
from pathlib import Path

import msgpack
import pytest

from redsync.cli import main, output
from tests.cli.command_process import Terminal
from tests.support.fake_server import FakeServer, answering
from tests.support.hostile import bulk
from tests.support.sweeps import swept

HOSTILE = "h\x1b]0;OWNED\x07\x1b[2J\x9b31m\u202eevil\u2066\x7f\r\nnode 1: a line of ours?\u2028\x85."
ESCAPED = "h\\x1b]0;OWNED\\x07\\x1b[2J\\x9b31m\\u202eevil\\u2066\\x7f\\r\\nnode 1: a line of ours?\\u2028\\x85."


def tricks(text):
    """Return the characters of a text that would not just be displayed; line ends are ours."""
    return {c for c in text if not c.isprintable() and c != "\n"}


# The only way out


def touches(tree):
    """Yield each place where a module prints or touches the streams."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno, "print"
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stderr", "sys.__stdout__", "sys.__stderr__"):
            yield node.lineno, node.attr
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "stdout"
            and node.attr not in ("isatty", "fileno", "flush")
        ):
            yield node.lineno, f"stdout.{node.attr}"


def test_no_command_bypasses_output():
    found = {
        path.name: list(touches(ast.parse(path.read_text())))
        for path in Path(output.__file__).parent.glob("*.py")
        if path.name != "output.py"
    }
    assert {name: places for name, places in found.items() if places} == {}


# Its functions


def test_line_appears_as_one_line_with_no_other_effect(capsys):
    output.put(HOSTILE, "second")
    output.warn(HOSTILE)
    out, err = capsys.readouterr()
    assert out == f"{ESCAPED}\nsecond\n"
    assert err == f"{ESCAPED}\n"


def test_json_is_ascii_and_one_line(capsys):
    output.write_json({"name": HOSTILE})
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.count("\n") == 1
    assert tricks(out) == set()
    assert json.loads(out) == {"name": HOSTILE}


def test_characters_that_the_stream_can_not_encode_are_escaped(redsync):
    done = redsync("show", "naïve 名", PYTHONIOENCODING="ascii")
    assert done.out.startswith("na\\xefve \\u540d: free")


def test_internal_error_ends_with_125_and_is_shown(capsys, monkeypatch):
    def fail(options):
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("redsync.cli.lock_command.run", fail)
    assert main(["lock", "x", "--", "true"]) == 125
    err = capsys.readouterr().err
    assert tricks(err) == set()
    assert "Traceback" in err
    assert err.splitlines()[-1] == "redsync lock: internal error in redsync: please report it"


# From the nodes to the terminal


@pytest.fixture
def hostile_holder(client, raw, eventually):
    """A lock whose name, holder's record and waiters were chosen by an attacker with write access to the nodes."""
    name = f"x{HOSTILE}".encode()
    with client.get_fenced_lock(name) as hold:
        record = {"host": HOSTILE, "pid": 1, "program": HOSTILE, "since": 1.0}
        for node in raw:
            eventually(lambda node=node: node.exists(b"redsync:" + name))
            node.set(f"redsync:client:{client.id}", msgpack.packb(record))
            node.hset("redsync:y", HOSTILE, 1)
            node.pexpire("redsync:y", 60_000)
            node.set(f"redsync:z{HOSTILE}", HOSTILE, px=60_000)
        yield name.decode(), hold.owner


@pytest.mark.parametrize("command", ["ls", "show", "lock", "break", "top", *swept("ls --json", "show --json")])
def test_text_from_nodes_is_escaped(hostile_holder, command, redsync, start, environment):
    name, owner = hostile_holder
    word, *more = command.split()
    if word == "top":
        ran = start(word, terminal=Terminal(200, 40))
        seen = ran.read_until("h\\x1b]0;OWNED")
        ran.interrupt()
        assert "OWNED\x07" not in seen
        assert "\x1b[2J" not in seen
        assert ran.end() in (0, 130)
        return
    arguments = {
        "show": [name, *more],
        "ls": more,
        "lock": ["-v", "-w", "0.2", name, "--", "true"],
        "break": [name, "--owner", f"{owner}{HOSTILE}", "--yes"],
    }[word]
    done = redsync(word, *arguments)
    assert done.status == {"lock": 75, "break": 1}.get(word, 0), done.err
    assert tricks(done.out + done.err) == set()
    if "--json" not in more:
        assert "\\x1b]0;OWNED" in done.out + done.err


def test_lock_escapes_log_lines_about_nodes(redsync, nodes):
    info = bulk(f"redis_version:{HOSTILE}\r\n".encode())
    with contextlib.closing(FakeServer(answering(info=info))) as fake:
        urls = [f"--url={url}" for url in [*nodes.urls[:2], fake.url]]
        done = redsync("lock", "x", "-v", *urls, "--", "sleep", "0.3")
    assert done.status == 0
    assert tricks(done.err) == set()
    assert "is down: does not tell its uptime" in done.err
