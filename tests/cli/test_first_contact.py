"""The command line on first contact: no `--`, no password, the wrong scheme, no such command, no completion."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from redsync.cli import main
from redsync.cli.arguments import parse
from redsync.testing import LocalNodes


def run(capsys, *arguments):
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "command", "wait"),
    [
        (["x", "echo", "-n", "--wait", "3"], ["echo", "-n", "--wait", "3"], None),
        (["-n", "x", "echo"], ["echo"], 0.0),
        (["x", "-w", "2", "echo", "-w", "3"], ["echo", "-w", "3"], 2.0),
        (["x", "-w", "2", "--", "-echo", "-w", "3"], ["-echo", "-w", "3"], 2.0),
        (["x", "git", "log", "--", "file"], ["git", "log", "--", "file"], None),
        (["x", "echo", "--help"], ["echo", "--help"], None),
    ],
)
def test_first_word_after_the_name_that_is_no_option_begins_the_command(arguments, command, wait, monkeypatch):
    got = []
    monkeypatch.setattr("redsync.cli.lock_command.run", got.append)
    main(["lock", *arguments])
    assert [(options.name, options.wrapped, options.wait) for options in got] == [("x", command, wait)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x", "--nonblocking", "echo"], "--nonblocking; if it belongs to the command, put -- before the command\n"),
        (["x", "-n", "-z", "--", "echo"], "unrecognized arguments: -z\n"),
        (["x", "-c", "true", "echo"], "give the command either with -c or after the name, not both\n"),
        (["x", "--"], "no command to run: give it after the name, as in: redsync lock NAME COMMAND\n"),
    ],
)
def test_unclear_command_is_wrong_usage(arguments, said, capsys):
    status, out, err = run(capsys, "lock", *arguments)
    assert (status, out) == (64, "")
    assert err.endswith(said)


def test_options_of_the_command_are_not_taken_for_abbreviations():
    assert parse(["lock", "x", "mytool", "--m", "3"]).wrapped == ["mytool", "--m", "3"]


def test_command_runs_without_dashes(run_lock):
    assert run_lock("nightly", "-n", "echo", "hi") == (0, "hi\n", "")


def test_missing_command_is_named(run_lock):
    assert run_lock("x", "no\nsuch") == (127, "", "redsync lock: can't run 'no\\nsuch': No such file or directory\n")


@pytest.mark.parametrize("user", ["", ":wrong@"])
def test_commands_agree_on_a_refused_password(user, server_path, capsys, monkeypatch):
    advice = "     -> correct the user or password in its URL, or its rule for that user"
    with LocalNodes(1, server=server_path, config={"requirepass": "right"}) as locked:
        monkeypatch.setenv("REDSYNC_URLS", locked.urls[0].replace("://", f"://{user}"))
        for command in ["lock", "x", "true"], ["lock", "x", "-w", "2", "true"], ["doctor"], ["show", "x"], ["ls"]:
            status, out, err = run(capsys, *command)
            assert status == 77
            assert advice in (out + err).splitlines() or command[0] in ("show", "ls")
            assert "start" not in out + err
            assert "wrong" not in out + err


@pytest.fixture
def tls_port(tmp_path):
    """A port whose server speaks TLS, and ends each connection that begins with anything else."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate")
    both = tmp_path / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout - -out -"
    both.write_bytes(subprocess.run(command, shell=True, check=True, capture_output=True).stdout)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)

    def serve():
        with contextlib.suppress(OSError):  # at the end
            while True:
                answer(server.accept()[0])

    def answer(peer):
        peer.settimeout(5)
        with contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True) as tls:
            while tls.recv(65536):
                tls.sendall(b"-NOAUTH Authentication required.\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("command", [["lock", "x", "-n", "true"], ["doctor"]])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://127.0.0.1:{plain}", "its port does not speak TLS\n     -> begin its URL with redis://, or"),
        ("redis://127.0.0.1:{tls}", "its port speaks TLS\n     -> begin its URL with rediss://\n"),
        ("rediss://127.0.0.1:{tls}", "     -> give the certificate of its CA: ?ssl_ca_certs=PATH"),
    ],
)
def test_wrong_scheme_is_named(redsync, nodes, tls_port, eventually, *, command, url, said):
    def told():
        done = redsync(*command, REDSYNC_URLS=url.format(plain=nodes.ports[0], tls=tls_port))
        return done.status == 69 and said in done.out + done.err

    eventually(told)  # a machine that pauses makes a node of either kind late


@pytest.mark.parametrize("arguments", [[], ["lock"], ["doctor"]])
def test_help_ends_with_the_place_of_the_documentation(arguments, capsys):
    status, out, _ = run(capsys, *arguments, "--help")
    assert status == 0
    assert out.splitlines()[-1].startswith("documentation: docs/")


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_completion_in_bash_knows_commands_and_options(capsys):
    status, script, _ = run(capsys, "--completion", "bash")
    assert status == 0
    asking = 'COMP_WORDS=(redsync lock x --min); COMP_CWORD=3; _shtab_redsync redsync --min x; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{asking}"], capture_output=True, text=True, check=True)
    assert done.stdout == "--min-hold\n"


def test_completion_without_shtab_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    status, _, err = run(capsys, "--completion", "zsh")
    assert (status, err) == (69, 'redsync: needs shtab: pip install "redsync-toolkit[cli]"\n')
