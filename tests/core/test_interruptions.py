"""The origin of a caught error, by the modules through which it came."""

import socket
import ssl
import threading

import pytest

from redsync._core.interruptions import expected, is_interruption

OURS = {"__name__": "redsync._drivers.somewhere"}


def caught(source, **names):
    """Run a function `f` in one of our modules; return its error, and whether that is an interruption."""
    scope = {**OURS, "is_interruption": is_interruption, "expected": expected, **names}
    exec(source, scope)
    return scope["f"]()


ASK = """
def f():
    try:
        call()
    except BaseException as error:
        return is_interruption(error)
"""


def fail(error):
    def call():
        raise error

    return call


def test_error_of_a_function_in_c_is_not_an_interruption():
    with socket.socket() as sock:
        assert caught(ASK.replace("call()", "sock.recv(1)"), sock=sock) is False


def test_error_of_modules_that_wrap_sockets_is_not_an_interruption():
    with socket.socket() as sock, sock.dup() as plain:
        context = ssl.create_default_context()
        with context.wrap_socket(plain, server_hostname="x", do_handshake_on_connect=False) as wrapped:
            assert caught(ASK, call=wrapped.do_handshake) is False


@pytest.mark.parametrize("module", ["gevent._socketcommon", "eventlet.greenio.base"])
def test_error_of_a_library_that_replaces_sockets_is_not_an_interruption(module):
    scope = {"__name__": module}
    exec("def recv(): raise BlockingIOError", scope)
    assert caught(ASK, call=scope["recv"]) is False


def test_error_of_threads_is_not_an_interruption():
    """The system may be out of threads."""
    assert caught(ASK, call=threading.Thread().join) is False


@pytest.mark.parametrize("error", [TimeoutError(), BlockingIOError(), ValueError()])
def test_error_that_came_through_another_module_is_an_interruption(error):
    assert caught(ASK, call=fail(error)) is True


def test_error_that_a_handler_gets_from_us_is_an_interruption():
    """The handler has called one of our methods, and has not caught its error."""
    source = "def f():\n    raise ConnectionError"
    ours = dict(OURS)
    exec(source, ours)
    assert caught(ASK, call=ours["f"]) is False

    def handler():
        ours["f"]()

    assert caught(ASK, call=handler) is True


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_anything_but_an_exception_is_an_interruption(error):
    assert caught(ASK.replace("call()", "raise it"), it=error) is True


def test_expected_suppresses_errors_but_no_interruption():
    source = "def f():\n    with expected(OSError):\n        {}\n    return True"
    assert caught(source.format("raise OSError"))
    with pytest.raises(OSError, match="limit"):
        caught(source.format("call()"), call=fail(OSError("limit")))
    with pytest.raises(KeyError):
        caught(source.format("raise KeyError"))
    assert caught(source.format("pass"))
