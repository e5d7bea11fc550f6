"""The shared part of the modules for frameworks: clients of processes, names, errors, header fields."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from redsync import AcquireTimeout, ConfigurationError, LeaseLostError, QuorumError
from redsync.contrib.shared import NameTemplate, ProcessClient, RequestName, explained, too_many

ANYWHERE = "redis://127.0.0.1:1"


class Counting(ProcessClient):
    """Records the clients that it makes."""

    def __init__(self):
        super().__init__("redsync", lambda: {"urls": ANYWHERE})
        self.all = []

    def make(self):
        self.all.append(super().make())
        return self.all[-1]


def test_threads_that_ask_first_get_the_same_client_and_no_other_stays_open():
    client, barrier = Counting(), threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: barrier.wait() >= 0 and client.get(), range(8)))
    assert len(set(got)) == 1
    assert [each for each in client.all if not each.runner.closed] == [got[0]]
    client.close()
    assert got[0].runner.closed
    assert client.get() is client.all[-1]
    assert not client.all[-1].runner.closed
    client.close()


def test_settings_become_options(monkeypatch):
    monkeypatch.setenv("REDSYNC_LEASE", "7.0")
    with ProcessClient("REDSYNC", lambda: {"URLS": [ANYWHERE], "PREFIX": "shop:"}).make() as client:
        assert [node.address for node in client.nodes()] == ["127.0.0.1:1"]
        assert client.prefix == b"shop:"
        assert client.runner.session.timing.lease == 7.0
    with ProcessClient("redsync", lambda: {"urls": ANYWHERE}).make():
        pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([ANYWHERE], r"REDSYNC must be a dictionary such as {'urls': \[...\]}, not a value of type list"),
        ("redis://:secret@x", r"REDSYNC must be a dictionary such as {'urls': \[...\]}, not a value of type str"),
        ({"URLS": [ANYWHERE], "LEESE": 1}, "REDSYNC: .*unexpected keyword argument 'leese'"),
        ({"NODES": [ANYWHERE]}, "REDSYNC: "),
        ({"URLS": ANYWHERE, "LEASE": 0}, "REDSYNC: .*lease"),
        ({"URLS": ANYWHERE, "LEASE": "x"}, "REDSYNC: .*"),
        ({}, "REDSYNC: REDSYNC_URLS is not set"),
    ],
)
def test_error_of_a_bad_setting_names_it(given, said, monkeypatch):
    monkeypatch.delenv("REDSYNC_URLS", raising=False)
    with pytest.raises(ConfigurationError, match=said):
        ProcessClient("REDSYNC", lambda: given).check()


# Names built from a framework's data.


def test_name_is_filled_in_from_the_request():
    template = NameTemplate("order:{number}:{client}")
    assert template.fields == {"number", "client"}
    assert template.fill({"number": 7, "client": "::1", "more": 1}) == "order:7:::1"
    assert NameTemplate("plain").fill({}) == "plain"
    assert NameTemplate("{{x}}").fill({}) == "{x}"


def test_error_of_a_missing_value_names_it():
    with pytest.raises(LookupError, match=r"'order:\{number\}' needs number, but there is only client, id$"):
        NameTemplate("order:{number}").fill({"id": 1, "client": 2})
    with pytest.raises(LookupError, match=r"but there is only nothing$"):
        NameTemplate("order:{number}").fill({})


def test_name_that_values_make_too_long_is_replaced_by_its_hash():
    template = NameTemplate("{a}")
    assert template.fill({"a": "ä" * 256}) == "ä" * 256
    assert len(template.fill({"a": "ä" * 257})) == len(template.fill({"a": "\ud800" * 200})) == 64


@pytest.mark.parametrize("text", ["", "{}", "{0}", "{a.b}", "{a[0]}", "x{", "x}"])
def test_bad_template_is_refused(text):
    with pytest.raises(ValueError, match="name"):
        NameTemplate(text)


@pytest.mark.parametrize("given", [7, None, b"ada"])
def test_key_that_is_no_text_is_named(given):
    with pytest.raises(
        TypeError, match=rf"'pay:\{{key\}}': key= must return text, not a value of type {type(given).__name__}"
    ):
        RequestName("pay:{key}", lambda: given).of({}, None)


# Errors of locks.


def test_only_errors_of_the_lock_itself_are_explained():
    for error in (AcquireTimeout("x", 0.5), LeaseLostError("x", "lost"), QuorumError("x", "down")):
        with pytest.raises(RuntimeError, match="instead") as caught, explained("x", lambda _: RuntimeError("instead")):
            raise error
        assert caught.value.__cause__ is error
        with explained("x", lambda _: None):
            raise error
        with pytest.raises(type(error)), explained("y", lambda _: None):
            raise error


def test_seconds_are_rounded_up_to_at_least_one():
    assert too_many(12.1) == (429, "too many requests", {"Retry-After": "13"})
    assert too_many(0.0).fields == {"Retry-After": "1"}
