"""A server that speaks RESP and says whatever a test wants: errors, nonsense, silence."""

from tests.support.hostile import HELLO, Hostile, bulk, information


class FakeServer(Hostile):
    """Answers each command with the result of `answer` for its words; None closes the connection."""

    def __init__(self, answer):
        super().__init__(lambda words: [_sendable(answer(words))])


def _sendable(reply):
    if reply is None:
        raise ConnectionAbortedError
    return reply


LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


def answering(**answers):
    """Return an `answer` that greets as a node does, and replies to each command as given here, or OK."""
    answers = {"hello": HELLO, "subscribe": b"", "ping": b"+PONG\r\n", **answers}

    def answer(words):
        command = words[0].decode().lower()
        if command in answers:
            return answers[command]
        if command == "info":
            return information()
        return b"+OK\r\n"

    return answer


GARBAGE = b"\x00garbage\r\n"

ODD_ANSWERS = {
    "loading": answering(script=LOADING, subscribe=LOADING, ping=LOADING, evalsha=LOADING),
    "silent": lambda words: b"",
    "silent_on_evalsha": answering(evalsha=b""),
    "closing": lambda words: None,
    "closing_on_info": answering(info=None),
    "closing_on_evalsha": answering(evalsha=None),
    "no_resp": lambda words: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "ok_to_all": lambda words: b"+OK\r\n",
    "null_to_all": lambda words: b"_\r\n",
    "empty_info": answering(info=b"$0\r\n\r\n"),
    "number_for_info": answering(info=b":1\r\n"),
    "word_for_uptime": answering(info=bulk(b"redis_version:7.0.0\r\nuptime_in_seconds:soon\r\n")),
    "list_as_key_for_info": answering(info=b"%1\r\n*0\r\n:1\r\n"),
    "list_as_key_for_hello": answering(hello=b"%1\r\n*0\r\n:1\r\n"),
    "garbage_for_info": answering(info=GARBAGE),
    "garbage_for_scripts": answering(script=GARBAGE),
    "garbage_for_subscribe": answering(subscribe=GARBAGE),
    "garbage_for_evalsha": answering(evalsha=GARBAGE),
    "text_for_evalsha": answering(evalsha=b"+OK\r\n"),
    "too_much_for_evalsha": answering(evalsha=b"_\r\n" * 3),
    "list_for_evalsha": answering(evalsha=b"*3\r\n:1\r\n:2\r\n_\r\n"),
}
