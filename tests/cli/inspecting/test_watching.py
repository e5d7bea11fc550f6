"""`redsync watch` and `top` as a user sees them: events in a pipe, a page on a terminal."""

import json
import os

import pytest

from redsync.cli.top import Ages, page
from redsync.cli.watching import changes, settled
from tests.cli.commands import Terminal


def read_event(command, wanted):
    while True:
        event = json.loads(command.read_until("\n"))
        if event["event"] == wanted:
            return event


def test_watch_reports_holds_that_begin_and_end(three, start):
    command = start("watch", "--json", "--interval", "0.05")
    lock = three.get_lock("x")
    lock.acquire()
    event = read_event(command, "acquired")
    assert (event["name"], event["kind"], event["pid"]) == ("x", "lock", os.getpid())
    lock.release()
    event = read_event(command, "released")
    assert event["name"] == "x"
    command.interrupt()
    assert command.end() == 0


def test_watch_reports_nodes_that_fail_and_come_back(nodes, start):
    command = start("watch", "--interval", "0.05")
    nodes.kill(1)
    assert f"127.0.0.1:{nodes.ports[1]}" in command.read_until("node down") + command.read_until("\n")
    nodes.restart(1)
    command.read_until("node up")
    command.interrupt()
    assert command.end() == 0


def test_watch_reports_waiters(three, make_client, other, start):
    lock = three.get_lock("x")
    lock.acquire()
    command = start("watch", "x", "--json", "--interval", "0.05")
    read_event(command, "acquired")
    waiting = make_client(n=3).get_lock("x")
    attempt = other.start(lambda: waiting.acquire(timeout=30) and waiting.release())
    assert read_event(command, "waiting")["count"] == 1
    lock.release()
    attempt.result(20)
    assert read_event(command, "waiting")["count"] == 0


def view(*holders, errors=(None, None, None), waiting=0):
    nodes = [{"node": f"node {number}", "error": error} for number, error in enumerate(errors)]
    entry = {"name": "x", "kind": "lock", "holders": list(holders), "waiting": waiting, "permits": None, "latch": None}
    return {"nodes": nodes, "names": [entry], "more": False}


def hold(owner, *, quorum=True):
    process = {"host": "h", "pid": 1, "remaining": 9.0, "nodes": 2, "hold_count": 1}
    return {"owner": owner, "mode": None, "quorum": quorum, **process}


def test_change_of_holder_is_a_release_and_an_acquisition():
    events = [(event["event"], event["owner"]) for event in changes(view(hold("a")), view(hold("b")))]
    assert events == [("released", "a"), ("acquired", "b")]


def test_claim_without_quorum_is_not_a_hold():
    assert list(changes(view(), view(hold("a", quorum=False)))) == []


def test_nothing_is_released_while_too_few_nodes_answer():
    silent = settled(view(hold("a")), view(errors=("down", "down", None)))
    assert [event["event"] for event in changes(view(hold("a")), silent)] == ["node down", "node down"]
    assert [event["event"] for event in changes(silent, view(hold("a")))] == ["node up", "node up"]


def test_top_shows_who_holds_what_until_q(three, start):
    three.get_lock("x").acquire()
    command = start("top", "--interval", "0.05", terminal=True)
    command.read_until("\x1b[?1049h")
    assert "1 name, 1 held, 0 waiting" in command.read_until("3 of 3 nodes answer")
    command.read_until("LIFE")
    assert f":{os.getpid()}" in command.read_until("3/3")
    three.get_lock("x").release()
    command.read_until("0 names, 0 held")
    command.read_until("no holders, no waiters")
    command.type("q")
    command.read_until("\x1b[?1049l")
    assert command.end() == 0


@pytest.mark.parametrize(("end", "status"), [("interrupt", 0), ("terminate", 143)])
def test_top_restores_the_terminal_at_ctrl_c_and_when_it_is_terminated(nodes, start, end, status):
    command = start("top", "--interval", "30", terminal=True)
    command.read_until("(q: quit)")
    getattr(command, end)()
    command.read_until("\x1b[?25h\x1b[?1049l")
    assert command.end() == status


def test_top_shows_nodes_that_are_down(nodes, start):
    command = start("top", "--interval", "0.05", terminal=True)
    command.read_until("3 of 3 nodes answer")
    nodes.kill(0)
    command.read_until("2 of 3 nodes answer")
    command.read_until(f"  127.0.0.1:{nodes.ports[0]}: ")
    command.type("q")
    assert command.end() == 0


def test_top_without_terminal_is_wrong_usage(redsync):
    done = redsync("top")
    assert done.status == 64
    assert "terminal" in done.err


def test_top_writes_json_for_programs(three, start):
    three.get_lock("x").acquire()
    command = start("top", "--json", "--interval", "0.05")
    seen = json.loads(command.read_until("\n"))
    assert [entry["name"] for entry in seen["names"]] == ["x"]
    command.interrupt()
    assert command.end() == 0


def shown(seen, width=80, height=24):
    ages = Ages()
    ages.note(seen, 0.0)
    return [line.text for line in page(seen, ages, 0.0, width, height)]


def test_page_fits_the_terminal():
    crowded = view()
    crowded["names"] = [{**crowded["names"][0], "name": f"name {number}", "waiting": number} for number in range(50)]
    lines = shown(crowded, 40, 10)
    assert len(lines) == 10
    assert max(map(len, lines)) <= 40
    assert lines[4].startswith("name 49"), "what most wait for comes first"
    assert lines[-1] == "... and 45 lines more"


@pytest.mark.parametrize(("width", "last"), [(80, "WAIT"), (90, "SERVED/S")])
def test_narrow_page_leaves_columns_out_before_it_cuts_them(width, last):
    (heading,) = [line for line in shown(view(hold("a")), width) if line.startswith("NAME")]
    assert heading.split()[-1] == last


def test_page_says_that_there_are_more_names():
    lines = shown({**view(hold("a")), "more": True})
    assert "1+ name, 1 held" in lines[0]
    assert "there are more names than these 1: give a pattern, or raise --limit" in lines


def test_watch_and_top_query_no_more_names_than_their_limit(raw, start):
    for name in ("a", "b"):
        raw[0].set(f"redsync:{name}", "me", px=60_000)
    top = start("top", "--json", "--limit", "1", "--interval", "0.05")
    seen = json.loads(top.read_until("\n"))
    assert (len(seen["names"]), seen["more"]) == (1, True)
    watching = start("watch", "--limit", "1", "--interval", "0.05")
    assert watching.stderr.readline().startswith("there are more names than these 1: ")
    for command in (top, watching):
        command.interrupt()
        assert command.end() == 0


def test_heading_of_the_page_shows_the_state_of_each_node():
    troubles = ("Connection refused", "Timeout reading from socket", None)
    lines = shown(view(hold("a"), errors=troubles), width=120)
    assert lines[1] == "1 of 3 nodes answer: node 0 down  node 1 silent  node 2 up"
    assert lines[2:4] == ["  node 0: Connection refused", "  node 1: Timeout reading from socket"]
    assert lines[-1] == "too few nodes answer to know what is held"
    refused = shown(view(errors=("WRONGPASS invalid username-password pair", None, None)))
    assert refused[1] == "2 of 3 nodes answer: node 0 access denied  node 1 up  node 2 up"


def test_page_keeps_its_columns_if_names_are_long():
    long = view({**hold("a"), "host": "h" * 40})
    long["names"][0]["name"] = "n" * 100
    heading, row = shown(long, 90)[-2:]
    assert heading.split() == ["NAME", "KIND", "HELD", "BY", "FOR", "LIFE", "NODES", "WAIT", "LONGEST", "SERVED/S"]
    assert row.startswith("nnnn")
    assert row.split()[-5:] == ["s", "2/3", "-", "-", "-"]


def test_page_shows_how_long_a_hold_has_been_seen():
    ages, key = Ages(), ("x", "a", "")
    ages.note(view(), 0.0)
    assert ages.told(key, 0.0) == "-"
    ages.note(view(hold("a")), 10.0)
    assert ages.told(key, 12.5) == "2.5 s"
    ages.note(view(hold("b")), 20.0)
    assert ages.told(key, 20.0) == "-"
    later = Ages()
    later.note(view(hold("a")), 0.0)
    assert later.told(key, 2.5) == "> 2.5 s", "it was there before we looked"


def test_page_shows_the_age_of_a_hold_if_the_nodes_keep_it():
    ages, key = Ages(), ("x", "a", "")
    ages.note(view({**hold("a"), "held_since": 1e9}), 50.0, 1e9 + 600)
    assert ages.told(key, 50.0) == "10 min 0 s"
    assert ages.told(key, 60.0) == "10 min 10 s"
    ages.note(view({**hold("a"), "held_since": 1e9 + 700}), 61.0, 1e9 + 611)
    assert ages.told(key, 61.0) == "0.0 s", "the holder's clock is ahead of ours"


def queue(*waiters):
    seen = view(hold("a"), waiting=len(waiters))
    seen["names"][0]["waiters"] = list(waiters)
    return seen


def test_page_shows_how_long_the_first_waiter_has_waited_and_how_many_are_served():
    ages = Ages()
    ages.note(queue("b", "c"), 0.0)
    assert (ages.waited("x", 3.0), ages.served("x", 3.0)) == ("> 3.0 s", "-")
    ages.note(queue("c", "d", "e"), 4.0)
    assert (ages.waited("x", 4.0), ages.served("x", 4.0)) == ("> 4.0 s", "0.2")
    ages.note(queue("e", "f"), 8.0)
    assert (ages.waited("x", 9.0), ages.served("x", 8.0)) == ("5.0 s", "0.4")
    (row,) = [line.text for line in page(queue("e", "f"), ages, 8.0, 120, 24) if line.text.startswith("x ")]
    assert row.split()[-4:] == ["2", "4.0", "s", "0.4"]
    ages.note({**view(), "names": []}, 12.0)
    assert (ages.waited("x", 12.0), ages.served("x", 12.0)) == ("-", "0.5")
    ages.note({**view(), "names": []}, 30.0)
    assert ages.served("x", 30.0) == "-"


def test_several_holders_of_a_name_have_one_queue():
    ages, seen = Ages(), view(hold("a"), hold("b"), waiting=3)
    ages.note(seen, 0.0)
    first, second = [line.text for line in page(seen, ages, 0.0, 120, 24) if line.text.startswith("x ")]
    assert (first.split()[-3], second.split()[-3]) == ("3", "-")


@pytest.mark.parametrize(("plain", "styled"), [("", True), ("1", False)])
def test_top_is_coloured_unless_no_color_is_set(nodes, start, plain, styled):
    more = {"NO_COLOR": plain} if plain else {}
    command = start("top", "--interval", "30", terminal=Terminal(columns=80), **more)
    assert ("\x1b[7m" in command.read_until("no holders")) is styled
    command.type("q")
    assert command.end() == 0


@pytest.mark.parametrize("interval", ["0", "-1", "soon", "nan"])
def test_invalid_interval_is_wrong_usage(redsync, interval):
    done = redsync("watch", f"--interval={interval}")
    assert done.status == 64
    assert "positive number of seconds" in done.err
