"""A node that answers nonsense: the commands name it, and continue with the others."""

import contextlib
import json

import pytest

from redsync import LeaseLostError
from redsync._protocols.surveys import NameLook
from tests.cli.command_process import run_here
from tests.support.fake_server import GARBAGE, ODD_ANSWERS, FakeServer, answering

SCAN = b"*2\r\n$1\r\n0\r\n*1\r\n$9\r\nredsync:x\r\n"


def replying(look):
    """Answer as a node that has one name, with this look at it."""
    return answering(scan=SCAN, eval=look)


def listed(*fields):
    return b"*%d\r\n%b" % (len(fields), b"".join(fields))


NOTHING, NONE = b"*0\r\n", b"$4\r\nnone\r\n"
NUMBER, WORD = b":5\r\n", b"$1\r\nx\r\n"

GARBLED = {
    **ODD_ANSWERS,
    "garbage": replying(GARBAGE),
    "number": replying(NUMBER),
    "short latch": replying(listed(NONE, NOTHING, NUMBER, NOTHING, NUMBER, NUMBER, NUMBER, listed(NUMBER, NUMBER))),
    "claim of words": replying(
        listed(NONE, listed(listed(*[WORD] * 5)), NUMBER, NOTHING, NUMBER, NUMBER, NUMBER, NOTHING)
    ),
    "endless text": replying(b"$2000000000\r\n" + b"x" * (9 << 20)),
    "deep": replying(b"*1\r\n" * 1000 + NUMBER),
    "scan of numbers": answering(scan=listed(NUMBER, listed(NUMBER)), eval=NUMBER),
    "scan without end": answering(scan=GARBAGE, eval=NUMBER),
    "info of words": answering(
        info=b"$76\r\nredis_version:7.0.0\r\nuptime_in_seconds:soon\r\nconnected_slaves:many\r\nrole:x\r\n    \r\n",
        eval=NUMBER,
    ),
}


@pytest.fixture
def garbled(request):
    """The URL of a node that answers nonsense."""
    with contextlib.closing(FakeServer(GARBLED[request.param])) as server:
        yield server.url


@pytest.fixture
def run(nodes, capsys, monkeypatch):
    """Run a command on two good nodes and the one given."""
    monkeypatch.setenv("REDSYNC_RESTART_GUARD", "0")

    def run(word, *arguments, url):
        urls = [*nodes.urls[:2], url]
        return run_here([word, *(f"--url={each}" for each in urls), "--timeout", "0.5", *arguments], capsys)

    return run


@pytest.mark.parametrize("garbled", GARBLED, indirect=True)
def test_commands_name_an_unreadable_node_and_continue_with_the_others(garbled, run, make_client):
    with pytest.raises(LeaseLostError), make_client(n=2).get_lock("x", lease=60) as hold:  # noqa: PT012  (released by force at the end)
        status, out, err = run("ls", url=garbled)
        assert (status, "Traceback" in err) == (0, False), err
        assert "2/3" in out
        status, out, err = run("show", "x", url=garbled)
        assert (status, "Traceback" in err) == (0, False), err
        assert out.count(hold.owner) == 1
        status, out, err = run("show", "x", "--json", url=garbled)
        assert [node["error"] for node in json.loads(out)["nodes"][:2]] == [None, None]
        status, out, err = run("doctor", url=garbled)
        assert (status in (0, 1), "Traceback" in err) == (True, False), err
        status, out, err = run("break", "x", "--owner", hold.owner, "--yes", url=garbled)
        assert (status, "Traceback" in err) == (0, False), err
        assert out.startswith("released on 2 of 3")


@pytest.mark.parametrize("garbled", ["number", "claim of words", "garbage", "scan of numbers"], indirect=True)
def test_unreadable_node_is_shown_as_such(garbled, run):
    address = garbled.removeprefix("redis://").removesuffix("/0")
    _, out, err = run("show", "x", url=garbled)
    assert f"node {address}: unreadable answer: " in err
    assert f"{address}  unreadable" in out
    assert "too few" not in err


@pytest.mark.parametrize("garbled", ["number"], indirect=True)
def test_unreadable_node_does_not_count_for_a_quorum(garbled, nodes, run):
    nodes.kill(0)
    status, _, err = run("ls", url=garbled)
    assert status == 69
    assert "too few nodes answer: 1 of 3" in err


@pytest.mark.parametrize("garbled", ["number"], indirect=True)
def test_top_continues(garbled, nodes, start, make_client):
    urls = [f"--url={url}" for url in [*nodes.urls[:2], garbled]]
    with make_client(n=2).get_lock("x"):
        top = start("top", "--interval", "0.05", *urls, terminal=True)
        top.read_until("unreadable answer")
        top.read_until("2/3")
    top.interrupt()
    assert top.end() == 0


WORDS = [5, [b"a", b"1", b"", 1, b""], [b"a", 1, b"", b"1", b""], [1, 1, b"", 1, b""], [b"a", 1, b"z", 1, b""]]


@pytest.mark.parametrize("words", WORDS, ids=repr)
def test_malformed_claim_is_refused(words):
    with pytest.raises(ValueError, match="lock"):
        NameLook.read([b"lock", [words], 1, [], 0, 0, 0, []])
