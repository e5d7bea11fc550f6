"""A client of an HTTP API that allows ten calls in any second; all workers share the limit.

Self-contained: it starts throwaway servers, and an API that counts. To use your own servers, write instead:

    client = Client(["redis://redis-1:6379", "redis://redis-2:6379", "redis://redis-3:6379"])
"""

import os
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from redsync import Client
from redsync.testing import LocalNodes

RATE, PER = 10, 1.0

ROOM = 0.3
"""Seconds by which the delay from permission to arrival varies; the API counts arrivals."""


class Api(BaseHTTPRequestHandler):
    """The API: it records the time of each call."""

    calls: list[float] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.calls.append(time.monotonic())
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


class Fetcher:
    """Calls the API, within its limit."""

    def __init__(self, client: Client, url: str) -> None:
        self._url = url
        self._limiter = client.get_rate_limiter("api", RATE, PER + ROOM)

    def get(self, path: str) -> bytes:
        self._limiter.acquire()
        # The call may take any time: the limiter restricts how often one begins.
        with urllib.request.urlopen(self._url + path) as reply:
            body: bytes = reply.read()
        return body


def main() -> None:
    os.environ["no_proxy"] = "127.0.0.1"  # where the API is
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with LocalNodes(3) as nodes, nodes.client() as one, nodes.client() as two:
        # Two clients stand for two processes, which share the limit.
        fetchers = [Fetcher(client, f"http://127.0.0.1:{server.server_port}") for client in (one, two)]

        def work(number: int) -> None:
            for page in range(6):
                fetchers[number % 2].get(f"/{number}/{page}")

        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        left = one.get_rate_limiter("api", RATE, PER + ROOM).retry_after()
        print(f"the next call is allowed in {left:.1f} s")
    server.shutdown()
    server.server_close()

    calls = sorted(Api.calls)
    most = max(sum(begin <= call < begin + PER for call in calls) for begin in calls)
    print(f"{len(calls)} calls; at most {most} in any second")


if __name__ == "__main__":
    main()
