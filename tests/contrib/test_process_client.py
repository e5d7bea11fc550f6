"""One client for each process: created once, closed at the end, and usable after a fork."""

import os
import threading

import pytest

from redsync import Client, ConfigurationError
from redsync.contrib import process_client
from redsync.contrib.process_client import ProcessClient, make_client
from tests.support.traced import at_each_line

ANYWHERE = "redis://127.0.0.1:1"


def test_client_is_created_once_even_if_many_threads_ask_first():
    made = []

    def make():
        made.append(Client([ANYWHERE]))
        return made[-1]

    client = ProcessClient(make)
    barrier = threading.Barrier(8)

    def ask():
        barrier.wait()
        client.get()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    client.close()
    assert made[0].runner.closed
    assert client.get() is made[1]
    process_client.close_all()
    assert made[1].runner.closed


def test_all_are_closed_although_others_are_made_meanwhile():
    client, later = ProcessClient(lambda: Client([ANYWHERE])), []
    made = client.get()
    with at_each_line(lambda: later.append(ProcessClient(lambda: pytest.fail("made")))):
        process_client.close_all()
    assert made.runner.closed


def test_close_before_the_first_use_does_nothing():
    ProcessClient(lambda: pytest.fail("made")).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_may_ask_although_another_thread_asked_during_the_fork():
    asked, go_on = threading.Event(), threading.Event()

    def make():
        asked.set()
        assert go_on.wait(20)
        return Client([ANYWHERE])

    client = ProcessClient(make)
    thread = threading.Thread(target=client.get)
    thread.start()
    assert asked.wait(20)
    child = os.fork()
    if not child:
        go_on.set()
        os._exit(not isinstance(client.get(), Client))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on.set()
    thread.join()
    client.close()


def test_settings_become_options(monkeypatch):
    monkeypatch.setenv("REDSYNC_LEASE", "7.0")
    given = {"URLS": [ANYWHERE], "PREFIX": "shop:"}
    with make_client("REDSYNC", given, str.upper) as client:
        assert [node.address for node in client.nodes()] == ["127.0.0.1:1"]
        assert client.prefix == b"shop:"
        assert client.runner.session.timing.lease == 7.0
    with make_client("redsync", {"urls": ANYWHERE}, str.lower):
        pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([ANYWHERE], r"REDSYNC must be a dictionary such as {'URLS': \[...\]}, not a value of type list"),
        ("redis://:secret@x", r"REDSYNC must be a dictionary such as {'URLS': \[...\]}, not a value of type str"),
        ({"urls": [ANYWHERE]}, r"REDSYNC\['urls'\] is not a setting; the settings are DRIFT_FACTOR, LEASE, .*, URLS"),
        ({"NODES": [ANYWHERE]}, r"REDSYNC\['NODES'\] is not a setting"),
        ({"URLS": ANYWHERE, "LEASE": 0}, "REDSYNC: .*lease"),
        ({"URLS": ANYWHERE, "LEASE": "x"}, "REDSYNC: .*"),
        ({}, "REDSYNC: REDSYNC_URLS is not set"),
    ],
)
def test_error_of_a_bad_setting_names_it(given, said, monkeypatch):
    monkeypatch.delenv("REDSYNC_URLS", raising=False)
    with pytest.raises(ConfigurationError, match=said):
        make_client("REDSYNC", given, str.upper)
