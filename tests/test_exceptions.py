"""The error tree: base classes, attributes, messages, and errors that travel between processes."""

import copy
import pickle

import pytest

import redsync
from redsync import (
    AcquireTimeout,
    Choice,
    ClientClosedError,
    ConfigurationError,
    KeyTypeError,
    LeaseLostError,
    NotOwnedError,
    OverReleaseError,
    QuorumError,
    RedsyncError,
    ReentrantCallError,
    UpgradeError,
    Vote,
    exceptions,
)

VOTES = (
    Vote("10.0.0.1:6379", Choice.GRANTED, "1"),
    Vote("10.0.0.2:6379", Choice.REFUSED, "[29000, b'c:1']"),
    Vote("10.0.0.3:6379", Choice.FAILED, "no answer within 0.25 s"),
)

ERRORS = [
    RedsyncError("something"),
    AcquireTimeout("x", 2.5),
    AcquireTimeout(b"\xff", 0.0),
    NotOwnedError("x", "lock 'x' is not held by this thread"),
    LeaseLostError("x", "the hold of lock 'x' was lost", VOTES),
    UpgradeError("x", "lock 'x': a reader can't become a writer"),
    QuorumError("x", "lock 'x': 3 of 5 nodes failed", VOTES),
    QuorumError(b"x", "no node was asked"),
    OverReleaseError("4 permits released, 3 acquired"),
    KeyTypeError("x", "the key of lock 'x' holds a value of another type", list(VOTES)),
    ConfigurationError("no nodes were given"),
    ClientClosedError(),
    ReentrantCallError(),
    ClientClosedError("this client was closed meanwhile"),
]


def spell(error):
    return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (RedsyncError, [Exception]),
        (AcquireTimeout, [RedsyncError, TimeoutError]),
        (NotOwnedError, [RedsyncError, RuntimeError]),
        (LeaseLostError, [NotOwnedError, RedsyncError, RuntimeError]),
        (QuorumError, [RedsyncError, ConnectionError]),
        (UpgradeError, [RedsyncError, RuntimeError]),
        (OverReleaseError, [RedsyncError, ValueError]),
        (KeyTypeError, [RedsyncError, TypeError]),
        (ConfigurationError, [RedsyncError, ValueError]),
        (ClientClosedError, [RedsyncError, RuntimeError]),
        (ReentrantCallError, [RedsyncError, RuntimeError]),
    ],
)
def test_error_has_the_bases_of_the_contract(error, bases):
    assert all(issubclass(error, base) for base in bases)
    builtin = {TimeoutError, RuntimeError, ConnectionError, ValueError, TypeError} - set(bases)
    assert not any(issubclass(error, base) for base in builtin), "no code catches it by accident"


def test_all_errors_are_known():
    found = {name for name, value in vars(exceptions).items() if isinstance(value, type) and name[0] != "_"}
    assert set(exceptions.__all__) == {name for name in found if issubclass(getattr(exceptions, name), Exception)}
    assert {type(error).__name__ for error in ERRORS} == set(exceptions.__all__)
    assert set(exceptions.__all__) <= set(redsync.__all__)


def test_votes_are_in_the_order_of_the_nodes_and_empty_if_none_was_asked():
    assert QuorumError("x", "sentence", list(VOTES)).votes == VOTES
    assert AcquireTimeout("x", 2.5).votes == NotOwnedError("x", "sentence").votes == ()
    assert str(LeaseLostError("x", "a whole sentence")) == "a whole sentence"
    assert "create a new Client" in str(ClientClosedError())


def test_error_shows_each_nodes_vote():
    assert str(QuorumError("x", "lock 'x': 2 of 3 nodes failed", VOTES)) == (
        "lock 'x': 2 of 3 nodes failed [10.0.0.1:6379 granted: 1; 10.0.0.2:6379 refused: [29000, b'c:1']; "
        "10.0.0.3:6379 failed: no answer within 0.25 s]"
    )


@pytest.mark.parametrize(("timeout", "text"), [(2.5, "2.5 s"), (0.0, "0 s"), (1e-06, "1e-06 s")])
def test_acquire_timeout_names_the_lock_and_the_time(timeout, text):
    error = AcquireTimeout("report:7", timeout)
    assert (error.name, error.timeout) == ("report:7", timeout)
    assert "'report:7'" in str(error)
    assert text in str(error)


@pytest.mark.parametrize("error", ERRORS, ids=spell)
def test_error_arrives_as_it_left_with_its_notes(error):
    error = copy.copy(error)
    error.add_note("while the report was written")
    pickled = [pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in (copy.copy(error), copy.deepcopy(error), *map(pickle.loads, pickled)):
        assert type(other) is type(error)
        assert (str(other), repr(other), other.args) == (str(error), repr(error), error.args)
        assert other.__notes__ == ["while the report was written"]
        for attribute in ("name", "sentence", "votes", "timeout", "holder"):
            assert getattr(other, attribute, None) == getattr(error, attribute, None)


@pytest.mark.parametrize("error", [AcquireTimeout("x", 2.5), QuorumError("x", "a sentence", VOTES)])
def test_error_has_no_errno_or_filename(error):
    """Its bases are OSErrors: handlers check `errno` and `filename`, which are numbers and paths."""
    assert isinstance(error, OSError)
    assert (error.errno, error.strerror, error.filename, error.filename2) == (None, None, None, None)
