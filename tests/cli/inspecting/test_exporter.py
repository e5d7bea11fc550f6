"""`redsync exporter`: scrapes of a scripted history, with exact values, and of real nodes."""

import re
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redsync.cli import exporter
from redsync.cli.exporter import KEPT, Kept
from redsync.exceptions import LeaseLostError
from tests.support.nursery import ROOT


def parsed(text):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


class Seen:
    """A collector whose looks at the nodes are those that a test gives."""

    def __init__(self):
        self.view, self.registry = {}, CollectorRegistry()
        self.registry.register(Kept(lambda: self.view))

    def note(self, *entries, errors=(None, None, None), more=False):
        nodes = [{"node": f"n{number}", "error": error} for number, error in enumerate(errors)]
        self.view = {"quorum": 2, "nodes": nodes, "names": list(entries), "more": more}

    def values(self, name):
        values = parsed(generate_latest(self.registry).decode())
        return {key[1:]: value for key, value in values.items() if key[0] == name}


def entry(name, *owners, kind="lock", held=None, waiting=0, permits=None, mode=None):
    holders = [{"owner": owner, "mode": mode, "quorum": True, "held_since": None} for owner in owners]
    held = len(owners) if held is None else held
    return {"name": name, "kind": kind, "holders": holders, "held": held, "waiting": waiting, "permits": permits}


def test_look_gives_exact_values():
    seen = Seen()
    seen.note(entry("order:1", "c", waiting=1), entry("order:2", "b"))
    assert seen.values("redsync_kept_holds") == {("lock", "order"): 2}
    seen.note(entry("order:2", "b"), entry("cache:9", "d", kind="read-write lock", mode="write"))
    order, cache = ("lock", "order"), ("write lock", "cache")
    assert seen.values("redsync_kept_holds") == {order: 1, cache: 1}
    assert seen.values("redsync_kept_waiting") == {order: 0, cache: 0}
    assert seen.values("redsync_kept_hold_age_seconds") == {}
    assert seen.values("redsync_kept_names") == {(): 2}
    assert seen.values("redsync_kept_names_complete") == {(): 1}


def test_age_of_a_hold_comes_from_the_record_of_its_client(monkeypatch):
    monkeypatch.setattr(exporter.time, "time", lambda: 1e9)
    seen, order = Seen(), entry("order:1", "a", "b")
    seen.note(order)
    for since, age in [(1e9 - 60.0, 60), (1e9 + 6.0, 0)]:
        order["holders"][0]["held_since"] = since
        assert seen.values("redsync_kept_hold_age_seconds") == {("lock", "order"): age}


def test_labels_stay_few_whatever_nodes_store():
    seen = Seen()
    names = [f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}:{n}" for n in range(10_000)]
    seen.note(*(entry(name, "a", kind=name) for name in names), more=True)
    holds = seen.values("redsync_kept_holds")
    assert (len(holds), sum(holds.values())) == (201, 10_000)
    assert seen.values("redsync_kept_names_complete") == {(): 0}


def scrape(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return parsed(answer.read().decode())


@pytest.fixture
def serving(start):
    command = start("exporter", "--listen", "127.0.0.1:0")
    url = re.search(r"http://127\.0\.0\.1:\d+/metrics", command.stderr.readline())[0]
    return command, url


@pytest.fixture
def waiter(make_client, other):
    """Let another thread wait for a lock; return its attempt."""

    def wait(name):
        lock = make_client(n=3).get_lock(name)
        return other.start(lambda: lock.acquire(timeout=30) and lock.release())

    return wait


def test_scrape_has_the_state_of_real_nodes(serving, three, waiter, nodes, eventually):
    command, url = serving
    lock = three.get_lock("order:17")
    lock.acquire()
    three.get_semaphore("pool:3", permits=4).acquire()
    attempt = waiter("order:17")
    eventually(lambda: scrape(url).get(("redsync_kept_waiting", "lock", "order")) == 1, within=20)
    seen = scrape(url)
    assert seen["redsync_kept_holds", "lock", "order"] == 1
    assert seen["redsync_kept_holds", "semaphore", "pool"] == 1
    assert seen["redsync_kept_permits", "semaphore", "pool"] == 4
    assert {name for name, *_ in seen} <= KEPT.keys()
    nodes.kill(0)
    nodes.kill(1)
    eventually(lambda: scrape(url)["redsync_kept_look_quorum",] == 0, within=20)
    assert ("redsync_kept_holds", "lock", "order") not in scrape(url)
    nodes.restart(0)
    nodes.restart(1)
    eventually(lambda: scrape(url)["redsync_kept_look_quorum",] == 1, within=20)
    with suppress(LeaseLostError):  # if it is connected again to the nodes that have forgotten the claim
        lock.release()
    attempt.result(30)
    command.terminate()
    assert command.end() == 0


def test_exporter_ends_at_once_if_its_port_is_taken(redsync):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = redsync("exporter", "--listen", f"127.0.0.1:{port}")
    assert done.status == 69
    assert f"can't listen on 127.0.0.1 port {port}" in done.err


def test_exporter_needs_no_rich():
    program = "import redsync.cli.exporter, sys; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_page_lists_the_metrics():
    page = (ROOT / "docs/cli/inspect.md").read_text()
    assert [name for name in KEPT if f"`{name}`" not in page] == []
