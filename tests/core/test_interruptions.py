"""The origin of a caught error: system calls give their errors a number, a signal handler's error has none."""

import errno
import socket
import ssl
import threading

import pytest

from redsync import LeaseLostError, QuorumError
from redsync._core.interruptions import expected, is_interruption


def caught(call):
    try:
        call()
    except BaseException as error:
        return is_interruption(error)
    raise AssertionError("it raises nothing")


def fail(error):
    raise error


def test_error_of_a_socket_is_not_an_interruption():
    with socket.socket() as sock:
        assert caught(lambda: sock.recv(1)) is False


def test_error_of_tls_is_not_an_interruption():
    with socket.socket() as sock, sock.dup() as plain:
        context = ssl.create_default_context()
        with context.wrap_socket(plain, server_hostname="x", do_handshake_on_connect=False) as wrapped:
            assert caught(wrapped.do_handshake) is False


def test_error_of_threads_is_not_an_interruption():
    """The system may be out of threads."""
    assert caught(threading.Thread().join) is False


@pytest.mark.parametrize("error", [TimeoutError("the time limit"), BlockingIOError(), ConnectionError("no answer")])
def test_error_of_the_system_without_a_number_is_an_interruption(error):
    assert caught(lambda: fail(error)) is True


@pytest.mark.parametrize("error", [QuorumError("x", "too few nodes", ()), LeaseLostError("x", "it is lost")])
def test_error_of_ours_is_not_an_interruption(error):
    assert caught(lambda: fail(error)) is False


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_anything_but_an_exception_is_an_interruption(error):
    assert caught(lambda: fail(error)) is True


def test_expected_suppresses_errors_but_no_interruption():
    with expected(OSError):
        fail(OSError(errno.ENOTCONN, "not connected"))
    with pytest.raises(TimeoutError, match="limit"), expected(OSError):
        fail(TimeoutError("the time limit"))
    with pytest.raises(KeyError), expected(OSError):
        fail(KeyError("x"))
    with expected(OSError):
        pass
