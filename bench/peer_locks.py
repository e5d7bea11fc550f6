"""Locks of other libraries, each as a pair of functions, and where they are installed.

Several of them contain a module of the same name, or need another version of redis-py than redsync. So `make peers`
installs each in a separate folder, and a process that measures one has only that folder on its path. Each keeps its
defaults, and its own way of waiting. This module imports none of them, nor redsync, before it needs to.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv" / "peers"

LEASE = 10
"""The lease of each library's lock in seconds."""

Take: TypeAlias = Callable[[], Any]
Give: TypeAlias = Callable[[], Any]
Pair: TypeAlias = tuple[Take, Give]
"""A function that acquires and returns whether it succeeded, and one that releases; awaitable for asyncio libraries."""


@dataclass(frozen=True)
class Peer:
    """Another library.

    Attributes:
        requirement: The package for pip or npm; empty for a dependency of redsync.
        maker: Connects to the servers; returns a function that makes the pair for a lock of a given name.
        servers: The number of servers that hold its lock.
        is_async: Set for asyncio libraries.
        is_node: Set for Node.js libraries, which `peer.js` measures.
    """

    requirement: str
    maker: Callable[[list[str]], Callable[[str], Pair]] | None = None
    servers: int = 5
    is_async: bool = False
    is_node: bool = False


def _redis_py(urls: list[str]) -> Callable[[str], Pair]:
    import redis

    client = redis.Redis.from_url(urls[0])

    def make(name: str) -> Pair:
        lock = client.lock(name, timeout=LEASE)
        return lock.acquire, lock.release

    return make


def _python_redis_lock(urls: list[str]) -> Callable[[str], Pair]:
    import redis
    import redis_lock

    client = redis.Redis.from_url(urls[0])

    def make(name: str) -> Pair:
        lock = redis_lock.Lock(client, name, expire=LEASE)
        return lock.acquire, lock.release

    return make


def _redlock_py(urls: list[str]) -> Callable[[str], Pair]:
    from redlock import Redlock

    manager = Redlock([{"host": "127.0.0.1", "port": urlsplit(url).port} for url in urls])
    return _receipts(lambda name: manager.lock(name, LEASE * 1000), manager.unlock)


def _redlock_ng(urls: list[str]) -> Callable[[str], Pair]:
    from redlock import Redlock

    manager = Redlock(urls)
    return _receipts(lambda name: manager.acquire(name, LEASE * 1000), manager.release)


def _redlock(urls: list[str]) -> Callable[[str], Pair]:
    from redlock import RedLockFactory

    factory = RedLockFactory([{"url": url} for url in urls])

    def make(name: str) -> Pair:
        lock = factory.create_lock(name, ttl=LEASE * 1000)
        return lock.acquire, lock.release

    return make


def _pottery(urls: list[str]) -> Callable[[str], Pair]:
    import redis
    from pottery import Redlock

    masters = {redis.Redis.from_url(url) for url in urls}

    def make(name: str) -> Pair:
        lock = Redlock(key=name, masters=masters, auto_release_time=LEASE)
        return lambda: lock.acquire(timeout=1), lock.release

    return make


def _aioredlock(urls: list[str]) -> Callable[[str], Pair]:
    from aioredlock import Aioredlock

    manager = Aioredlock(urls)
    return _receipts(lambda name: manager.lock(name, lock_timeout=LEASE), manager.unlock, is_async=True)


def _receipts(
    lock: Callable[[str], Any], unlock: Callable[[Any], Any], *, is_async: bool = False
) -> Callable[[str], Pair]:
    """Return the maker for a library whose release needs the value that its acquire returned."""

    def make(name: str) -> Pair:
        held: list[Any] = []

        def take() -> bool:
            if receipt := lock(name):
                held.append(receipt)
            return bool(receipt)

        async def take_async() -> bool:
            held.append(await lock(name))
            return True

        return take_async if is_async else take, lambda: unlock(held.pop())

    return make


PEERS = {
    "redis-py Lock": Peer("", _redis_py, servers=1),
    "python-redis-lock": Peer("python-redis-lock==4.0.1", _python_redis_lock, servers=1),
    "redlock-py": Peer("redlock-py==1.0.8", _redlock_py),
    "redlock": Peer("redlock==1.2.0", _redlock),
    "redlock-ng": Peer("redlock-ng==2.0.4", _redlock_ng),
    "pottery": Peer("pottery==3.0.1", _pottery),
    "aioredlock": Peer("aioredlock==0.7.3", _aioredlock, is_async=True),
    "node-redlock": Peer("redlock@4.2.0", is_node=True),
}
"""The other libraries, by their names in the table."""


def folder(name: str) -> Path:
    """Return the folder of a library and its dependencies."""
    return FOLDER / name.replace(" ", "-")


def is_installed(name: str) -> bool:
    """Return whether a library has its folder, or is installed next to redsync."""
    peer = PEERS[name]
    if peer.is_node:
        return (folder(name) / "node_modules").is_dir() and shutil.which("node") is not None
    if not peer.requirement or folder(name).is_dir():
        return True
    try:
        importlib.metadata.distribution(peer.requirement.partition("==")[0])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def command(name: str, module: str, *arguments: str) -> list[str]:
    """Return the command that starts a process of `bench` for another library, or for redsync."""
    peer = PEERS.get(name)
    if peer is not None and peer.is_node:
        return ["node", str(ROOT / "bench" / "peer.js"), module, name, *arguments]
    return [sys.executable, "-m", f"bench.{module}", name, *arguments]


def environment(name: str) -> dict[str, str]:
    """Return the environment of a library's process."""
    path = os.pathsep.join(filter(None, [str(folder(name)), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "NODE_PATH": str(folder(name) / "node_modules")}


def blocking(pair: Pair) -> Pair:
    """Return the pair of an asyncio library as blocking functions, which run an event loop in this thread."""
    loop = asyncio.new_event_loop()

    def plain(function: Callable[[], Awaitable[Any]]) -> Callable[[], Any]:
        async def call() -> Any:
            return await function()

        return lambda: loop.run_until_complete(call())

    take, give = pair
    return plain(take), plain(give)


if __name__ == "__main__":
    # For `make peers`: a line for each library that pip installs.
    for each, known in PEERS.items():
        if known.requirement and not known.is_node:
            print(each, known.requirement)
