"""Sends and receives that keep the GIL, and the plain calls that replace them where they can't."""

import errno
import select
import socket
import ssl
import struct
import sys
import threading
import time
from contextlib import suppress

import pytest

from redsync._drivers import kept_calls
from redsync._drivers.kept_calls import receiver, sender


@pytest.fixture(params=["kept", "without ctypes"])
def calls(request, monkeypatch):
    """Both ways to send and to receive."""
    if request.param == "kept":
        assert kept_calls._LIBRARY is not None, "this system has the functions"
    else:
        monkeypatch.setattr(kept_calls, "_LIBRARY", None)


@pytest.fixture
def pair():
    near, far = socket.socketpair()
    near.setblocking(False)
    far.settimeout(30)
    with near, far:
        yield near, far


@pytest.fixture
def tcp():
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    near.setblocking(False)
    with near, far:
        yield near, far


def fill(send):
    """Send until the system takes no more; return how many bytes it took, and the error."""
    data, taken = bytes(range(256)) * 4000, 0
    while True:
        try:
            taken += send(data[taken % 256 :])
        except OSError as error:
            return taken, error


@pytest.mark.usefixtures("calls")
def test_send_takes_a_part_and_then_nothing_while_the_other_end_does_not_read(pair):
    near, far = pair
    taken, error = fill(sender(near))
    assert isinstance(error, BlockingIOError)
    assert error.errno == errno.EAGAIN
    assert taken > 0
    received = bytearray()
    while len(received) < taken:
        received += far.recv(100_000)
    assert received == (bytes(range(256)) * (taken // 256 + 1))[:taken], "in order, without a gap"


@pytest.mark.usefixtures("calls")
def test_receive_returns_nothing_at_the_end_and_says_when_nothing_has_come(pair):
    near, far = pair
    receive = receiver(near)
    with pytest.raises(BlockingIOError) as caught:
        receive()
    assert caught.value.errno == errno.EAGAIN
    far.sendall(b"last words")
    far.close()
    assert receive() == b"last words"
    assert receive() == b""


@pytest.mark.usefixtures("calls")
def test_receive_tells_that_a_connection_was_reset(tcp):
    """The system reports a reset once; a second call learns that the connection has ended."""
    near, far = tcp
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    receive = receiver(near)
    while not select.select([near], [], [], 1.0)[0]:
        pass
    with suppress(ConnectionResetError):
        assert receive() == b""
    assert receive() == b""


@pytest.mark.usefixtures("calls")
def test_pieces_arrive_as_they_were_sent_and_are_separate_objects(pair):
    """The buffer is used again: what was received before must not change."""
    near, far = pair
    receive = receiver(near)
    pieces, received = [b"one", b"with a \0 in it", b"x" * 10_000], []
    for piece in pieces:
        assert sender(near)(piece) == len(piece)
        assert far.recv(100_000) == piece
        far.sendall(piece)
        received.append(receive())
    assert received == pieces


def test_tls_keeps_its_own_calls(certificate, pair):
    """Below it there are only encrypted bytes."""
    made, key = certificate
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(made))
    server.load_cert_chain(made, key)
    near, far = pair
    near.setblocking(True)

    def serve():
        with server.wrap_socket(far, server_side=True) as theirs:
            theirs.sendall(theirs.recv(1000).upper())

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(near, server_hostname="127.0.0.1") as ours:
        assert sender(ours)(b"words") == 5
        assert receiver(ours)() == b"WORDS"
    thread.join()


def test_calls_do_not_let_a_thread_that_computes_run_in_between(pair):
    """A call that gives the GIL up comes back only after the other thread's switch interval.

    A local pair delivers at once; TCP may take a moment, and a receive that finds nothing is made again by the socket.
    """
    near, far = pair
    far.setblocking(False)
    send, receive, data = sender(near), receiver(far), b"x" * 10_000
    steps, stop = [0], []

    def compute():
        while not stop:
            steps[0] += 1

    thread, interval = threading.Thread(target=compute), sys.getswitchinterval()
    thread.start()
    sys.setswitchinterval(2.0)
    try:
        time.sleep(0)  # Gives the GIL up once: a wait for it that began before keeps the interval of that time.
        before = steps[0]
        for _ in range(400):
            sent = send(data)
            while sent > 0:
                sent -= len(receive())
            if steps[0] != before:
                break
        assert steps[0] == before
    finally:
        sys.setswitchinterval(interval)
        stop.append(True)
        thread.join()
