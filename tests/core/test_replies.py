"""Replies: hiredis reads them, and what is no reply is an error of the protocol."""

import hiredis
import pytest

from redsync._core.replies import NOTHING, new_reader, next_reply


def test_reader_gives_each_reply_once_it_is_complete_and_tells_null_from_nothing():
    reader = new_reader()
    assert next_reply(reader.gets) is NOTHING
    reader.feed(b":1\r\n_\r\n+O")
    assert [next_reply(reader.gets) for _ in range(3)] == [1, None, NOTHING]
    reader.feed(b"K\r\n")
    assert next_reply(reader.gets) == b"OK"


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"%1\r\n*0\r\n:1\r\n"], ids=["text", "map"])
def test_bytes_that_are_no_reply_are_an_error_of_the_protocol(data):
    reader = new_reader()
    reader.feed(data)
    with pytest.raises(hiredis.ProtocolError):
        next_reply(reader.gets)


def test_error_of_a_signal_handler_stays_what_it_is():
    class Interrupted:
        def gets(self):
            raise TypeError("the handler's")

    with pytest.raises(TypeError, match="the handler's"):
        next_reply(Interrupted().gets)
