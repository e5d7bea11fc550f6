"""`redsync ls`, `show` and `break` on real nodes, as a user runs them."""

import os
import re
import sys
import time

import pytest

from redsync._core.client_records import short
from redsync._kinds import KINDS
from redsync._protocols import watchdog
from redsync.cli.output import told
from redsync.cli.tables import print_table

LOCKS = [kind for kind in KINDS.values() if kind.like == "lock"]


def owner_of(client, name):
    return client.inspect(name).holders[0].owner


@pytest.fixture
def everything(three):
    """A held synchronizer of each kind."""
    for kind in LOCKS:
        assert kind.maker(three)(kind.noun).acquire(timeout=10)
    mutex = three.get_mutex("mutex")
    permits = three.get_semaphore("semaphore", 3)
    limiter = three.get_rate_limiter("limiter", 5, 60.0)
    read_write = three.get_read_write_lock("read-write")
    latch = three.get_count_down_latch("{l}atch")
    assert mutex.acquire(timeout=10)
    assert permits.acquire(timeout=10, n=2)
    assert limiter.acquire(timeout=10)
    assert read_write.read_lock.acquire(timeout=10)
    assert latch.try_set_count(3)
    latch.count_down()
    return mutex, permits


def test_ls_lists_every_kind(everything, redsync):
    done = redsync("ls", "--json")
    assert (done.status, done.err) == (0, "")
    names = {entry["name"]: entry for entry in done.json["names"]}
    assert {name: entry["kind"] for name, entry in names.items()} == {
        **{kind.noun: kind.shown for kind in LOCKS},
        "mutex": "mutex",
        "semaphore": "semaphore",
        "limiter": "rate limiter",
        "read-write": "read-write lock",
        "{l}atch": "latch",
    }
    for name in names.keys() - {"{l}atch"}:
        (holder,) = names[name]["holders"]
        assert (holder["pid"], holder["quorum"]) == (os.getpid(), True)
        assert holder["nodes"] >= 2
        assert 0 < holder["remaining"] <= 62
    assert names["semaphore"]["permits"] == 3
    assert names["semaphore"]["holders"][0]["hold_count"] == 2
    assert names["read-write"]["holders"][0]["mode"] == "read"
    assert names["{l}atch"]["latch"] == {"size": 3, "left": 2}


def test_ls_shows_a_table(everything, redsync):
    done = redsync("ls")
    heading, *rows = done.out.splitlines()
    assert heading.split() == ["NAME", "KIND", "HELD", "BY", "FOR", "NODES", "LIFE", "LEFT", "WAITING"]
    assert len(rows) == len(LOCKS) + 5
    assert any("semaphore of 3" in row for row in rows)
    assert any("2 of 3 to come" in row for row in rows)
    assert any("read lock" in row for row in rows)
    assert any(" x2 " in row for row in rows), "two permits at once"


def test_ls_marks_a_remnant_without_quorum(raw, redsync):
    raw[2].hset("redsync:rest", "stranger:1", 1)
    raw[2].pexpire("redsync:rest", 60_000)
    (entry,) = redsync("ls", "--json").json["names"]
    assert [(holder["owner"], holder["quorum"]) for holder in entry["holders"]] == [("stranger:1", False)]
    assert "1/3 no quorum" in redsync("ls").out


def test_ls_lists_no_more_names_than_its_limit_and_says_that_there_are_more(raw, redsync):
    for name in ("a", "b", "c"):
        raw[0].set(f"redsync:{name}", "me", px=60_000)
    done = redsync("ls", "--limit", "2")
    assert (done.status, len(done.out.splitlines())) == (0, 3)
    assert done.err == "there are more names than these 2: give a pattern, or raise --limit\n"
    cut, whole = redsync("ls", "--limit", "1", "--json").json, redsync("ls", "--limit", "3", "--json").json
    assert (len(cut["names"]), cut["more"]) == (1, True)
    assert ([entry["name"] for entry in whole["names"]], whole["more"]) == (["a", "b", "c"], False)


def test_ls_lists_names_under_the_given_prefix(make_client, redsync):
    make_client(n=3, prefix="app*:").get_lock("x").acquire()
    assert redsync("ls").out == ""
    assert [e["name"] for e in redsync("ls", "--json", "--prefix", "app*:").json["names"]] == ["x"]
    assert [e["name"] for e in redsync("ls", "--json", REDSYNC_PREFIX="app*:").json["names"]] == ["x"]


@pytest.mark.parametrize(("fault", "error"), [("kill", "refused"), ("pause", "Timeout")])
def test_ls_continues_without_a_node_that_is_away(three, nodes, redsync, fault, error):
    three.get_lock("x").acquire()
    getattr(nodes, fault)(1)
    done = redsync("ls", "--json", "--timeout", "0.3")
    assert done.status == 0
    assert [entry["name"] for entry in done.json["names"]] == ["x"]
    errors = [node["error"] for node in done.json["nodes"]]
    assert errors[0] is errors[2] is None
    assert error in errors[1]
    assert str(nodes.ports[1]) in done.err


def test_urls_in_one_option_are_a_node_each(redsync, nodes):
    done = redsync("ls", "--json", "--url", ",".join(nodes.urls[:2]), "--url", nodes.urls[2], REDSYNC_URLS="")
    assert (done.status, len(done.json["nodes"])) == (0, 3)


def test_name_with_nothing_but_a_limit_is_not_listed(redsync, three, eventually):
    """Nodes keep a semaphore's limit, and a rate, for a day."""
    with three.get_semaphore("idle", 3):
        assert [entry["name"] for entry in redsync("ls", "--json").json["names"]] == ["idle"]
    eventually(lambda: not redsync("ls", "--json").json["names"])
    assert redsync("show", "idle", "--json").json["nodes"][0]["permits"] == 3


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@host",
        "redis://:secret@host:port",
        "redis://:secret@h?db=x",
        "redis://h?secret=1",
        "rediss://h?ssl_cert_reqs=secret",
        "rediss+sentinel://h/m?ssl_cert_reqs=secret",
    ],
)
@pytest.mark.parametrize("command", [["ls"], ["doctor"], ["lock", "x", "-n", "--", "true"]])
def test_invalid_url_ends_with_status_78_and_shows_no_password(redsync, command, url):
    done = redsync(command[0], "--url", url, *command[1:])
    assert done.status == 78, done.err
    assert "secret" not in done.err


@pytest.mark.parametrize(
    "get", ["get_lock", "get_mutex", "get_fair_lock", "get_fenced_lock", "get_semaphore", "get_read_write_lock"]
)
@pytest.mark.usefixtures("all_nodes_met")
def test_show_prints_when_the_hold_began(make_client, redsync, eventually, monkeypatch, get):
    # Before the client is made, which announces itself at once.
    monkeypatch.setattr(watchdog, "_ANNOUNCED_EVERY", 0.2)
    monkeypatch.setattr(watchdog, "_WORTH_TELLING", 0.1)
    make = getattr(make_client(n=3), get)
    lock = make("x", 2) if get == "get_semaphore" else make("x")
    lock = lock.read_lock if get == "get_read_write_lock" else lock
    before = time.time()
    lock.acquire()
    after = time.time()
    held = lambda: redsync("show", "x", "--json").json["nodes"][0]["holders"][0]["held_since"]  # noqa: E731
    # A client reads both of its clocks as it begins: a pause between the two makes all its instants earlier.
    assert before - 5 <= eventually(held) <= after + 0.1
    *_, told = redsync("show", "x").out.splitlines()
    assert re.fullmatch(r"    holds it since 20[0-9 :-]+, for [0-9.]+ s", told)
    (entry,) = redsync("ls", "--json").json["names"]
    assert before - 0.1 <= entry["holders"][0]["held_since"] <= after + 0.1


def test_show_has_a_row_for_each_node(three, nodes, redsync, eventually):
    three.get_lock("x").acquire()
    three.get_lock("x").acquire()

    def counts():
        return [node["holders"][0]["hold_count"] for node in redsync("show", "x", "--json").json["nodes"]]

    eventually(lambda: counts() == [2, 2, 2])
    nodes.kill(2)
    done = redsync("show", "x", "--json")
    assert done.status == 0
    first, _, third = done.json["nodes"]
    (holder,) = first["holders"]
    assert holder["owner"] == owner_of(three, "x")
    assert (holder["pid"], holder["hold_count"]) == (os.getpid(), 2)
    assert holder["since"] > 1e9
    assert 0 < holder["remaining"] <= 30
    assert "refused" in third["error"]
    title, _, heading, *rows = redsync("show", "x").out.splitlines()
    assert title == "x: lock"
    assert heading.split() == ["NODE", "HELD", "BY", "OWNER", "COUNT", "LIFE", "LEFT", "WAITING"]
    process = f"{holder['host']}:{holder['pid']}"
    assert [row.split()[1:4] for row in rows[:2]] == [[process, short(holder["owner"]), "2"]] * 2
    assert rows[2].split()[1:3] == ["no", "answer"]
    assert rows[4] == "holders:"
    assert rows[5].strip() == holder["owner"]
    assert f"{process} ({holder['program']}), client since 20" in rows[6]


def test_show_does_not_say_free_if_too_few_nodes_answer(nodes, redsync):
    assert redsync("show", "x").out.startswith("x: free, no waiters\n")
    nodes.kill(0)
    nodes.kill(1)
    done = redsync("show", "x")
    assert (done.status, done.out.splitlines()[0]) == (69, "x: unknown")
    assert done.err.splitlines()[-1] == "too few nodes answer: 1 of 3; a quorum is 2"


def test_show_lists_waiters(three, make_client, other, redsync, eventually):
    lock = three.get_lock("x")
    lock.acquire()
    waiting = make_client(n=3)
    attempt = other.start(lambda: waiting.get_lock("x").acquire(timeout=30) and waiting.get_lock("x").release())
    eventually(lambda: three.inspect("x").waiters)
    answers = [node for node in redsync("show", "x", "--json").json["nodes"] if node["waiting"]]
    assert answers
    assert answers[0]["waiters"][0]["pid"] == os.getpid()
    assert waiting.id in redsync("show", "x").out.partition("waiting:")[2]
    lock.release()
    attempt.result(20)


def test_break_refuses_if_it_can_not_ask(three, redsync):
    three.get_lock("x").acquire()
    done = redsync("break", "x", "--owner", owner_of(three, "x"))
    assert done.status == 64
    assert "--yes" in done.err
    assert three.get_lock("x").owned()
    assert three.get_lock("x").locked()


@pytest.mark.parametrize("name", [*(kind.noun for kind in LOCKS), "mutex", "read-write", "semaphore"])
def test_break_releases_every_kind(name, everything, redsync):
    (entry,) = redsync("ls", name, "--json").json["names"]
    owner = entry["holders"][0]["owner"]
    done = redsync("break", name, "--owner", owner, "--yes", "--json")
    assert done.status == 0
    assert done.json["kind"] == entry["kind"]
    assert sum(node["broken"] for node in done.json["nodes"]) >= 2
    left = [holder for each in redsync("ls", name, "--json").json["names"] for holder in each["holders"]]
    assert [holder for holder in left if holder["owner"] == owner and holder["quorum"]] == []


@pytest.mark.parametrize(("reply", "status", "held"), [("n\n", 1, True), ("\n", 1, True), ("y\n", 0, False)])
def test_break_asks_at_a_terminal(reply, status, held, make_client, start):
    client = make_client(n=3)
    client.get_lock("x").acquire(lease=60)
    command = start("break", "x", "--owner", owner_of(client, "x"), terminal=True)
    assert f":{os.getpid()}?" in command.read_until("[y/N] ")
    command.type(reply)
    assert command.end() == status
    assert client.get_lock("x").locked() is held


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (1.26, "1.3 s"), (125, "2 min 5 s"), (7300, "2 h 1 min"), (200_000, "2 d 7 h")]
)
def test_durations_are_shown_in_two_units_at_most(seconds, text):
    assert told(seconds) == text


def test_table_is_aligned_and_its_cells_are_escaped(capsys):
    print_table(["A", "B"], [["\x1b[31m", "[red]x"], ["名", "y"]])
    assert capsys.readouterr().out.splitlines() == ["A         B", "\\x1b[31m  [red]x", "名        y"]


@pytest.mark.parametrize("command", [["ls"], ["show", "x"], ["doctor"]])
def test_without_rich_tables_are_a_plain_sentence_and_json_works(command, three, redsync, monkeypatch):
    three.get_lock("x").acquire()
    monkeypatch.delitem(sys.modules, "redsync.cli.tables")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    done = redsync(*command)
    assert done.status == 69
    assert done.err == f'redsync {command[0]}: needs rich: pip install "redsync-toolkit[cli]"\n'
    assert redsync(*command, "--json").json["nodes"]


def test_ls_says_that_no_lock_matches(nodes, redsync):
    for arguments, pattern in (["ls"], "redsync:*"), (["ls", "a*", "--prefix", "b:"], "b:a*"):
        done = redsync(*arguments)
        assert (done.status, done.out, done.err) == (0, "", f"no locks match {pattern} on the nodes\n")


def test_owner_is_shortened_if_it_has_a_uuid():
    assert short("0b6b4a2e-9ea9-424c-bf14-d67046491a9a:12") == "0b6b4a2e:12"
    assert short("stranger:1") == "stranger:1"
