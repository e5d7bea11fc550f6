"""The cost of replies: which are refused, and that no others are, however the bytes are cut into pieces."""

import os
import random

import hiredis
import pytest

from redsync._core.replies import LINES, MOST_BYTES, MOST_ELEMENTS, MOST_IN_LINE, NOTHING, BoundedReader, ReplyReader

SEEDS = 60
HUGE = b"*2147483647\r\n"
TOO_MANY = f"announced 2147483647 elements, more than {MOST_ELEMENTS}"


def read(*pieces, reader=None):
    """Return the replies in these pieces; PushNotification and set as lists."""
    reader = reader or ReplyReader()
    replies = []
    for piece in pieces:
        reader.feed(piece)
        while (reply := reader.gets()) is not NOTHING:
            replies.append(reply)
    return replies


def refusal(*pieces):
    with pytest.raises(hiredis.ProtocolError) as caught:
        read(*pieces)
    return str(caught.value)


def cut(data, rng, most):
    """Cut bytes into pieces of random sizes."""
    pieces = []
    while data:
        size = rng.randint(1, most)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


# Refused.


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b":1\r\n",
        b"*2\r\n:1\r\n",
        b"$5\r\nab\r\nc\r\n",
        b"$12\r\n*2147483647\r\r\n",
        b"*2\r\n$-1\r\n",
        b"=8\r\ntxt:abcd\r\n",
        b"%1\r\n:1\r\n",
        b"+OK\r\n" * 4000,
    ],
    ids=lambda before: repr(before)[:30],
)
def test_announcement_of_too_many_elements_is_refused_wherever_the_pieces_are_cut(before):
    data = before + HUGE
    assert refusal(data) == TOO_MANY or before.startswith((b"*", b"%"))
    for place in range(max(len(data) - 40, 1), len(data)):
        assert "more than 1000000" in refusal(data[:place], data[place:])
    assert "more than 1000000" in refusal(*(data[i : i + 1] for i in range(len(data))))


@pytest.mark.parametrize("kind", [b"*", b"~", b">", b"%", b"|"])
def test_every_kind_of_collection_is_bounded(kind):
    assert "more than 1000000" in refusal(kind + b"1000001\r\n")


def test_elements_of_nested_collections_are_counted_together():
    assert refusal(b"*300000\r\n" * 4) == f"announced 1199997 elements, more than {MOST_ELEMENTS}"


def test_elements_that_have_come_are_not_counted():
    reader = ReplyReader()
    for _ in range(3):
        assert read(b"*2000\r\n" + b":1\r\n" * 2000, reader=reader) == [[1] * 2000]
    assert len(read(b"*999999\r\n" + b"_\r\n" * 999_999, reader=reader)[0]) == 999_999


@pytest.mark.parametrize("line", [b"+", b":", b"*", b"$", b"("], ids=repr)
def test_line_without_an_end_is_refused(line):
    """A line that comes as a whole, and one that comes slowly."""
    assert refusal(line + b"1" * MOST_IN_LINE, b"1\r\n") == f"sent a line of more than {MOST_IN_LINE} bytes"
    assert refusal(line, *[b"1" * 1000] * 70) == f"sent a line of more than {MOST_IN_LINE} bytes"


@pytest.mark.parametrize("header", [b"*12x4\r\n", b"$99 9\r\nabc", b"%" + b"9" * 5000 + b"\r\n"], ids=lambda it: it[:9])
def test_invalid_number_is_refused(header):
    assert "where a number belongs" in refusal(header[:3], header[3:])


# Accepted.


@pytest.mark.parametrize("name", [HUGE, b"*99999", b"batch>20261122", b"%50000000\r\n"])
def test_names_that_look_like_headers_are_not_headers(name):
    reply = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%d\r\n%s\r\n" % (len(name), name)
    for place in range(1, len(reply)):
        assert read(reply[:place], reply[place:]) == [[b"message", b"c", name]]
    assert read(reply * 3) == [[b"message", b"c", name]] * 3


def test_missing_values_have_no_payload():
    assert read(b"*3\r\n$-1\r\n*-1\r\n", b"_\r\n", b"$0\r", b"\n\r\n") == [[None, None, None], b""]


def test_pieces_may_come_before_earlier_replies_are_taken():
    """As on an event loop: the reader does not walk a piece again from amid an element."""
    reader = ReplyReader()
    for piece in (b":1\r\n", b"$6\r\nab\r\n", b"cd\r\n:2\r\n", b"$3\r\n>99", b"\r\n"):
        reader.feed(piece)
    assert [reader.gets() for _ in range(5)] == [1, b"ab\r\ncd", 2, b">99", NOTHING]


def make_reply(rng, depth=0):
    """Return a random reply as bytes; some text in it looks like headers."""
    kind = rng.choice("::+-$$$$_(,#=" if depth > 3 else "::+-$$$_*****~%>(,#=")
    texts = (b"", b"abc", b"\r\n", b"*5000\r\n", b">12345", HUGE, b"x" * rng.randint(0, 300))
    match kind:
        case ":" | "(":
            return f"{kind}{rng.randint(-(10**12), 10**12)}\r\n".encode()
        case "+" | "-":
            return kind.encode() + rng.choice([b"OK", b"ERR no", b"*1234567", b""]) + b"\r\n"
        case "$":
            text = rng.choice(texts)
            return b"$-1\r\n" if rng.random() < 0.1 else b"$%d\r\n%s\r\n" % (len(text), text)
        case "=":
            text = b"txt:" + rng.choice(texts)
            return b"=%d\r\n%s\r\n" % (len(text), text)
        case "_" | "#" | ",":
            return {"_": b"_\r\n", "#": b"#t\r\n", ",": b",1.5\r\n"}[kind]
        case "%":
            n = rng.randint(0, 3)
            return b"%%%d\r\n" % n + b"".join(b"+%d\r\n" % i + make_reply(rng, depth + 1) for i in range(n))
    n = rng.choice([0, 1, 2, 3, 5]) if depth or rng.random() < 0.9 else rng.choice([1000, 1500])
    items = [make_reply(rng, depth + 1 if n < 1000 else 4) for _ in range(n)]
    return f"{kind}{n}\r\n".encode() + b"".join(items)


def test_replies_are_those_of_hiredis_and_the_bytes_after_them_are_bounded_however_they_are_cut():
    first = int(os.environ.get("REDSYNC_TEST_SEED") or random.SystemRandom().randrange(1_000_000))
    for seed in range(first, first + SEEDS):
        print(f"REDSYNC_TEST_SEED={seed}")
        rng = random.Random(seed)
        data = b"".join(make_reply(rng) for _ in range(rng.randint(1, 8)))
        plain = hiredis.Reader(notEnoughData=NOTHING)
        plain.feed(data)
        expected = [repr(reply) for reply in iter(plain.gets, NOTHING)]
        reader = ReplyReader()
        pieces = cut(data, rng, rng.choice([1, 10, 100, 5000]))
        assert [repr(reply) for reply in read(*pieces, reader=reader)] == expected
        with pytest.raises(hiredis.ProtocolError, match="announced"):
            read(*cut(rng.choice([HUGE, b"*1\r\n%2000000000\r\n", b">3000000\r\n"]), rng, 20), reader=reader)


# For redis-py.


def make_bounded():
    return BoundedReader(hiredis.Reader(notEnoughData=NOTHING))


def test_bounded_reader_reads_like_that_of_hiredis():
    reader = make_bounded()
    buffer = bytearray(b"..$3\r\nabc..")
    reader.feed(buffer, 2, 7)
    assert reader.gets() is NOTHING
    assert reader.has_data()
    reader.feed(b"\r\n")
    assert reader.gets(False) == b"abc"
    assert not reader.has_data()


def test_bounded_reader_refuses_too_large_replies():
    with pytest.raises(hiredis.ProtocolError, match="announced"):
        make_bounded().feed(HUGE)


def test_bounded_reader_counts_the_bytes_of_each_reply():
    reader = make_bounded()
    piece = b"x" * (1 << 20)
    for _ in range(3):
        reader.feed(b"$7340032\r\n")
        for _ in range(7):
            reader.feed(piece)
            assert reader.gets() is NOTHING
        reader.feed(b"\r\n")
        assert len(reader.gets()) == 7 << 20
    reader.feed(b"$999999999\r\n")
    for _ in range(7):
        reader.feed(piece)
        assert reader.gets() is NOTHING
    with pytest.raises(hiredis.ProtocolError, match=f"more than {MOST_BYTES} bytes"):
        reader.feed(piece)


# Pieces without a parser.

TOKEN = 1764093600000001


@pytest.mark.parametrize(
    "numbers",
    [(0,), (1,), (63,), (TOKEN,), (1, TOKEN), (TOKEN, 0), (10**18 - 1,), (1, TOKEN, 0), (*range(1000), TOKEN)],
)
def test_numbers_need_no_parser(numbers):
    piece = b"".join(b":%d\r\n" % number for number in numbers)
    assert LINES[piece] == numbers == tuple(read(piece))


@pytest.mark.parametrize(
    "piece",
    [
        *(
            b"",
            b":\r\n",
            b":1",
            b":1\r",
            b":1\n",
            b"1\r\n",
            b"+1\r\n",
            b"$1\r\n1\r\n",
            b":1\r\n:2\r\n:3\r\n$1\r\n1\r\n",
            b":1\r\n:2\r\n:3\r\n:",
            b":1\r\n:",
        ),
        *(b":01\r\n", b":00\r\n", b":1\r\n:01\r\n", b":-0\r\n", b":%d\r\n" % 10**30),
        *(b":-1\r\n", b":+1\r\n", b": 1\r\n", b":1_0\r\n", b":%d\r\n" % 10**18, "\N{ARABIC-INDIC DIGIT ONE}".encode()),
    ],
)
def test_other_pieces_need_the_parser(piece):
    size = len(LINES)
    assert LINES[piece] is None
    assert len(LINES) == size


def test_same_line_gives_the_same_number_again_alone_or_with_another():
    """So that a tally judges it once."""
    line = b":%d\r\n" % TOKEN
    (number,) = LINES[line]
    assert LINES[line][0] is LINES[line + b":1\r\n"][0] is LINES[b":0\r\n" + line][1] is number


def test_number_of_lines_kept_is_bounded():
    for number in range(10_000):
        assert LINES[b":%d\r\n:%d\r\n" % (number, TOKEN)] == (number, TOKEN)
        assert LINES[b":%d\r\n" % number * 3] == (number,) * 3
        assert len(LINES) <= 256
