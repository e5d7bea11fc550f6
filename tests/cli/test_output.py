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


def test_search_finds_planted_bypasses():
    program = "print(1)\nsys.stderr.write('x')\nsys.stdout.write('x')\nfile = sys.stderr\nsys.stdout.isatty()"
    assert sorted(touches(ast.parse(program))) == [(1, "print"), (2, "stderr"), (3, "stdout.write"), (4, "stderr")]


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


@pytest.fixture
def fake():
    """Start a node with the given answers."""
    with contextlib.ExitStack() as stack:

        def start(**answers):
            server = FakeServer(answering(**answers))
            stack.callback(server.close)
            return server.url

        yield start


@pytest.mark.parametrize(
    "arguments",
    [["lock", "x", "-n", "--", "true"], ["ls"], *swept(["lock", "x", "-vw", "0.3", "--", "true"], ["doctor"])],
)
def test_error_of_a_node_is_escaped(redsync, arguments, fake):
    error = f"-ERR {HOSTILE}".replace("\r\n", " ").encode() + b"\r\n"
    url = fake(evalsha=error, eval=error, script=error, scan=error, ping=error, info=error, time=error, get=error)
    done = redsync(*arguments[:2], "--url", url, *arguments[2:])
    assert done.status == 69, done.err
    assert tricks(done.out + done.err) == set()
    assert "\\x1b]0;OWNED" in done.out + done.err


def bulk(text):
    return b"$%d\r\n%b\r\n" % (len(text.encode()), text.encode())


def test_doctor_escapes_the_fields_of_info(redsync, fake, nodes):
    info = (
        f"redis_version:7.2.0{HOSTILE}\r\nserver_name:redis\r\nuptime_in_seconds:100000\r\nrun_id:{'e' * 40}\r\n"
        f"role:master\x1b[2J\r\nmaxmemory_policy:noeviction\x1b[1m\r\naof_enabled:1\r\n"
    )
    empty = {"dbsize": b":0\r\n", "scan": b"*2\r\n$1\r\n0\r\n*0\r\n", "time": b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n"}
    done = redsync("doctor", *(f"--url={url}" for url in [*nodes.urls[:2], fake(info=bulk(info), **empty)]))
    assert tricks(done.out + done.err) == set()
    assert "redis 7.2.0h\\x1b]0;OWNED" in done.out
    assert "master\\x1b[2J" in done.out


def test_lock_escapes_log_lines_about_nodes(redsync, nodes, fake):
    info = bulk(f"redis_version:{HOSTILE}\r\n")
    done = redsync(
        "lock", "x", "-v", *(f"--url={url}" for url in [*nodes.urls[:2], fake(info=info)]), "--", "sleep", "0.3"
    )
    assert done.status == 0
    assert tricks(done.err) == set()
    assert "is down: does not tell its uptime" in done.err
