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

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Final

import pytest

from redsync import ConfigurationError, Hold, MultiLock
from redsync.contrib.shared import ProcessClient

__all__ = ["exclusive"]

TIMEOUT: Final = 3600.0
"""Seconds to wait for a resource by default: others may have many tests that need it."""

_CLIENT: Final = pytest.StashKey[ProcessClient]()
_LOCK: Final = pytest.StashKey[MultiLock]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting."""
    parser.addini("redsync_urls", "the nodes for exclusive tests (default: REDSYNC_URLS)", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and a client that is created when the first test needs it."""
    line = "exclusive(*names, timeout=3600): run the test while no other process has any of these resources"
    config.addinivalue_line("markers", line)
    urls = config.getini("redsync_urls")
    config.stash[_CLIENT] = ProcessClient("redsync_urls", lambda: {"urls": urls} if urls else {})


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the client."""
    config.stash[_CLIENT].close()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check the markers before the first test runs, and the setting if there are any.

    Raises:
        pytest.UsageError: A marker has no names or a bad timeout, or the setting is bad.
    """
    if [item for item in session.items if _wanted(item)[0]]:
        try:
            session.config.stash[_CLIENT].check()
        except ConfigurationError as error:
            raise pytest.UsageError(str(error)) from error


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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Acquire a test's resources before its fixtures."""
    names, timeout = _wanted(item)
    if names:
        client = item.config.stash[_CLIENT].get()
        lock = client.get_multi_lock(*(client.get_lock(f"pytest:{name}") for name in names), timeout=timeout)
        lock.__enter__()
        item.stash[_LOCK] = lock


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Release a test's resources after its fixtures; a loss is an error of the teardown."""
    try:
        yield
    finally:
        if (lock := item.stash.get(_LOCK, None)) is not None:
            del item.stash[_LOCK]
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
