"""`redsync top` as a user sees it on a terminal."""

import io
import os

import pytest
from rich.console import Console

from redsync.cli.listing import page


def view(*holders, errors=(None, None, None), waiting=0):
    nodes = [{"node": f"node {number}", "error": error} for number, error in enumerate(errors)]
    entry = {"name": "x", "kind": "lock", "holders": list(holders), "waiting": waiting, "permits": None, "latch": None}
    return {"quorum": 2, "nodes": nodes, "names": [entry], "more": False}


def hold(owner, *, quorum=True):
    process = {"host": "h", "pid": 1, "remaining": 9.0, "nodes": 2, "hold_count": 1, "held_since": None}
    return {"owner": owner, "mode": None, "quorum": quorum, **process}


def test_top_shows_who_holds_what_until_ctrl_c(three, start):
    three.get_lock("x").acquire()
    command = start("top", "--interval", "0.05", terminal=True)
    command.read_until("\x1b[?1049h")
    assert "1 name, 1 held, 0 waiting" in command.read_until("3 of 3 nodes answer")
    command.read_until("LIFE LEFT")
    assert f":{os.getpid()}" in command.read_until("3/3")
    three.get_lock("x").release()
    command.read_until("0 names, 0 held")
    command.read_until("no holders, no waiters")
    command.interrupt()
    command.read_until("\x1b[?25h\x1b[?1049l")
    assert command.end() == 0


def test_top_restores_the_terminal_when_it_is_terminated(nodes, start):
    command = start("top", "--interval", "30", terminal=True)
    command.read_until("(Ctrl-C: quit)")
    command.terminate()
    command.read_until("\x1b[?25h\x1b[?1049l")
    assert command.end() == 143


def shown(seen, width=80, height=24, clock=1e9):
    out = Console(file=io.StringIO(), width=width, height=height)
    out.print(page(seen, clock, height))
    return out.file.getvalue().splitlines()


def test_page_fits_the_terminal():
    crowded = view()
    crowded["names"] = [{**crowded["names"][0], "name": f"name {number}", "waiting": number} for number in range(50)]
    lines = shown(crowded, 60, 10)
    assert max(map(len, lines)) <= 60
    assert lines[4].startswith("name 49"), "what most wait for comes first"
    assert len(lines) == 15, "rich shows the first ten"


def test_page_says_that_there_are_more_names():
    lines = shown({**view(hold("a")), "more": True})
    assert "1+ name, 1 held" in lines[0]
    assert "there are more names than these 1: give a pattern, or raise --limit" in lines


def test_heading_of_the_page_shows_the_state_of_each_node():
    troubles = ("Connection refused", "Timeout reading from socket", None)
    lines = shown(view(hold("a"), errors=troubles), width=120)
    assert lines[1] == "1 of 3 nodes answer: node 0 no answer  node 1 no answer  node 2 up"
    assert lines[2:4] == ["  node 0: Connection refused", "  node 1: Timeout reading from socket"]
    assert lines[-1] == "too few nodes answer to know what is held"
    refused = shown(view(errors=("WRONGPASS invalid username-password pair", None, None)))
    assert refused[1] == "2 of 3 nodes answer: node 0 access denied  node 1 up  node 2 up"


@pytest.mark.parametrize(("since", "told"), [(None, "-"), (1e9 - 600, "10 min 0 s"), (1e9 + 5, "0.0 s")])
def test_page_shows_the_age_of_a_hold_if_the_nodes_keep_it(since, told):
    """5 s later: the holder's clock is ahead of ours."""
    assert f"  {told} " in shown(view({**hold("a"), "held_since": since}))[4]
