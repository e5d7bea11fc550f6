"""gunicorn: each worker has its own client, created after the fork by a hook in gunicorn/gunicorn.conf.py.

Self-contained: it starts throwaway servers.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import IO

from redsync.testing import LocalNodes

PROJECT = Path(__file__).parent / "gunicorn"


def next_worker(log: IO[str]) -> tuple[str, str]:
    """Return the worker that the hook reports next, and its client."""
    return next(
        found.groups() for line in log if (found := re.search(r"worker (\d+) is client (\S+)", line))
    )


def ask(url: str) -> tuple[str, str]:
    """Return the worker that answers, and its client."""
    with urllib.request.urlopen(url, timeout=10) as reply:
        _, worker, _, client = reply.read().decode().split()
    return worker, client


def main() -> None:
    os.environ["no_proxy"] = "127.0.0.1"  # where gunicorn listens
    with LocalNodes(3) as nodes, socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        gunicorn = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--bind", f"fd://{listener.fileno()}", "shop:app"],
            cwd=PROJECT,
            env={**os.environ, "REDSYNC_URLS": ",".join(nodes.urls), "REDSYNC_RESTART_GUARD": "0"},
            pass_fds=[listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert gunicorn.stderr
        with gunicorn, gunicorn.stderr as log:
            try:
                workers = dict(next_worker(log) for _ in range(2))
                print("workers:", len(workers), "clients:", len(set(workers.values())))
                print("one of them answers:", ask(url) in workers.items())

                victim = next(iter(workers))
                os.kill(int(victim), signal.SIGKILL)
                worker, client = next_worker(log)
                print(
                    "one was killed, and its successor is another client:", client not in workers.values()
                )
                workers[worker] = client
                print("one of them answers:", ask(url) in workers.items() - {(victim, workers[victim])})
            finally:
                gunicorn.terminate()
            print("clients closed:", log.read().count("closed its client"))
        print("gunicorn ended with status", gunicorn.returncode)


if __name__ == "__main__":
    main()
