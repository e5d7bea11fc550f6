"""pytest: tests that need the same resource run one at a time, across all xdist workers and machines.

```python
pytest_plugins = ["redsync.contrib.pytest"]  # in the topmost conftest.py; also set redsync_urls


@pytest.mark.exclusive("printer", timeout=600)
def test_prints(): ...
```

The lock is acquired before the setup of the test's fixtures, and released after the teardown of its function-scoped
fixtures. A failure of the lock is an error of the test's setup or teardown, and the run continues. Fixtures of a wider
scope outlive the test: the lock does not protect a resource that such a fixture changes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import pytest

from redsync import Client, ConfigurationError, Hold, Lock, MultiLock
from redsync.contrib.shared import ProcessClient, make_client

__all__ = ["exclusive"]

TIMEOUT: Final = 3600.0
"""Seconds to wait for a resource by default: others may have many tests that need it."""

_CLIENT: Final = pytest.StashKey[ProcessClient]()
_HOLD: Final = pytest.StashKey[AbstractContextManager[Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting."""
    parser.addini("redsync_urls", "the nodes for exclusive tests (default: REDSYNC_URLS)", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and a client that is created when the first test needs it."""
    line = "exclusive(*names, timeout=3600): run the test while no other process has any of these resources"
    config.addinivalue_line("markers", line)
    given: Mapping[str, Any] = {"urls": urls} if (urls := config.getini("redsync_urls")) else {}
    config.stash[_CLIENT] = ProcessClient(lambda: _make(given))


def _make(given: Mapping[str, Any]) -> Client:
    try:
        return make_client("redsync_urls", given, str.lower)
    except ConfigurationError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the client."""
    config.stash[_CLIENT].close()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check the markers before the first test runs, and the setting if there are any.

    Raises:
        pytest.UsageError: A marker has no names or a bad timeout, or the setting is bad.
    """
    marked = [item for item in session.items if _wanted(item)[0]]
    if marked:
        session.config.stash[_CLIENT].get()


def _wanted(item: pytest.Item) -> tuple[list[str], float]:
    """Return the resources that a test needs, and the seconds to wait for them."""
    names: set[str] = set()
    timeout = 0.0
    for marker in item.iter_markers("exclusive"):
        options = {"timeout": TIMEOUT, **marker.kwargs}
        waits = options.pop("timeout")
        if not marker.args or options or not all(isinstance(name, str) and name for name in marker.args):
            raise pytest.UsageError(f"{item.nodeid}: exclusive takes names and timeout, such as exclusive('printer')")
        if isinstance(waits, bool) or not isinstance(waits, (int, float)) or not waits >= 0:
            raise pytest.UsageError(f"{item.nodeid}: exclusive's timeout must be a number of seconds, not {waits!r}")
        names.update(marker.args)
        timeout = max(timeout, waits)
    return sorted(names), timeout


def _lock(client: Client, names: list[str], timeout: float) -> Lock | MultiLock:
    locks = [client.get_lock(f"pytest:{name}", timeout=timeout) for name in names]
    return locks[0] if len(locks) == 1 else client.get_multi_lock(*locks, timeout=timeout)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Acquire a test's resources before its fixtures."""
    names, timeout = _wanted(item)
    if names:
        lock = _lock(item.config.stash[_CLIENT].get(), names, timeout)
        lock.__enter__()
        item.stash[_HOLD] = lock


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Release a test's resources after its fixtures; a loss is an error of the teardown."""
    try:
        yield
    finally:
        if (lock := item.stash.get(_HOLD, None)) is not None:
            del item.stash[_HOLD]
            lock.__exit__(None, None, None)


@pytest.fixture
def exclusive(pytestconfig: pytest.Config) -> Callable[..., AbstractContextManager[Hold]]:
    """Return a function that returns a resource's lock, for a part of a test.

    `with` waits until no other process has the resource, and raises `AcquireTimeout` after `timeout` seconds.
    """
    client = pytestconfig.stash[_CLIENT]

    def exclusive(name: str, timeout: float = TIMEOUT) -> AbstractContextManager[Hold]:
        return client.get().get_lock(f"pytest:{name}", timeout=timeout)

    return exclusive
