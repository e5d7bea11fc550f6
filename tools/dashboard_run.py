"""The workload for the picture of the dashboard: two minutes of locks, permits and limits, while nodes fail."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server

from redsync import Client, RedsyncError
from redsync.metrics.prometheus import PrometheusMetrics
from redsync.testing import LocalNodes

LEASE = 6.0
KILLED, RESTARTED, STOPPED, RESUMED = 40.0, 65.0, 90.0, 95.0
"""Seconds from the start of the run."""


@contextlib.contextmanager
def run(over: threading.Event) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Run the workload until `over` is set; yield the URLs to scrape, and a name for the address of each node."""
    logging.getLogger("redsync").setLevel(logging.CRITICAL)
    registry = CollectorRegistry()
    with (
        LocalNodes(3) as nodes,
        nodes.client(lease=LEASE, restart_guard=LEASE, listeners=[PrometheusMetrics(registry=registry)]) as client,
    ):
        server, _ = start_http_server(0, addr="127.0.0.1", registry=registry)
        port = _free_port()
        environment = {**os.environ, "REDSYNC_URLS": ",".join(nodes.urls)}
        words = [sys.executable, "-m", "redsync.cli", "exporter", "--listen", f"127.0.0.1:{port}"]
        exporter = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
        threads = [threading.Thread(target=_work, args=(each, client, over)) for each in _workers()]
        threads.append(threading.Thread(target=_fail, args=(nodes, over)))
        try:
            _await(port)
            for thread in threads:
                thread.start()
            urls = [f"http://127.0.0.1:{each}/metrics" for each in (server.server_port, port)]
            yield urls, {f"127.0.0.1:{each}": f"redis-{n}:6379" for n, each in enumerate(nodes.ports, 1)}
        finally:
            over.set()
            for thread in threads:
                thread.join()
            exporter.send_signal(signal.SIGTERM)
            exporter.wait()
            server.shutdown()


def _workers() -> list[Callable[[Client, threading.Event], None]]:
    return [*[_order] * 5, *[_report] * 4, *[_licence] * 5, *[_mail] * 2, _nightly, _batch]


def _work(step: Callable[[Client, threading.Event], None], client: Client, over: threading.Event) -> None:
    while not over.is_set():
        try:
            step(client, over)
        except RedsyncError:
            over.wait(0.1)


def _fail(nodes: LocalNodes, over: threading.Event) -> None:
    steps = [
        (KILLED, nodes.kill, 0),
        (RESTARTED, nodes.restart, 0),
        (STOPPED, nodes.pause, 1),
        (RESUMED, nodes.resume, 1),
    ]
    now = 0.0
    for at, step, node in steps:
        if over.wait(at - now):
            return
        step(node)
        now = at


def _order(client: Client, over: threading.Event) -> None:
    lock = client.get_lock(f"order:{random.randrange(3)}")
    if lock.acquire(timeout=0.03):
        try:
            over.wait(random.uniform(0.005, 0.03))
        finally:
            lock.release()
    over.wait(random.uniform(0.0, 0.05))


def _report(client: Client, over: threading.Event) -> None:
    with client.get_fair_lock("report:2026"):
        over.wait(random.uniform(0.02, 0.08))


def _licence(client: Client, over: threading.Event) -> None:
    with client.get_semaphore("licences", 3):
        over.wait(random.uniform(0.1, 0.5))


def _mail(client: Client, over: threading.Event) -> None:
    limiter = client.get_rate_limiter("mail", 20, 1.0)
    if not limiter.acquire(False):
        over.wait(min(limiter.retry_after(), 0.2))
    over.wait(0.04)


def _nightly(client: Client, over: threading.Event) -> None:
    with client.get_fenced_lock("nightly"):
        over.wait(25.0)


def _batch(client: Client, over: threading.Event) -> None:
    with client.get_lock("batch:7", max_hold=3.0):
        over.wait(random.choice((1.0, 4.0)))
    over.wait(3.0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        threading.Event().wait(0.05)
    raise TimeoutError("the exporter did not start")
