"""Nodes that the command line can't use: they refuse the password, or the URL has the wrong scheme."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from redsync.cli import main
from redsync.testing import LocalNodes


@pytest.mark.parametrize("user", ["", ":wrong@"])
def test_commands_agree_on_a_refused_password(user, server_path, capsys, monkeypatch):
    advice = "     -> correct the user or password in its URL, or its rule for that user"
    with LocalNodes(1, server=server_path, config={"requirepass": "right"}) as locked:
        monkeypatch.setenv("REDSYNC_URLS", locked.urls[0].replace("://", f"://{user}"))
        for command in ["lock", "x", "true"], ["lock", "x", "-w", "2", "true"], ["doctor"], ["show", "x"], ["ls"]:
            assert main(command) == 77
            out, err = capsys.readouterr()
            assert advice in out.splitlines() or command[0] != "doctor"
            assert err.endswith("; `redsync doctor` says more\n") or command[0] != "lock"
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


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://127.0.0.1:{plain}", "its port does not speak TLS\n     -> begin its URL with redis://, or"),
        ("redis://127.0.0.1:{tls}", "its port speaks TLS\n     -> begin its URL with rediss://\n"),
        ("rediss://127.0.0.1:{tls}", "     -> give the certificate of its CA: ?ssl_ca_certs=PATH"),
    ],
)
def test_wrong_scheme_is_named(redsync, nodes, tls_port, eventually, *, url, said):
    def told():
        done = redsync("doctor", REDSYNC_URLS=url.format(plain=nodes.ports[0], tls=tls_port))
        return done.status == 69 and said in done.out

    eventually(told)  # a machine that pauses makes a node of either kind late
