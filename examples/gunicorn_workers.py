"""gunicorn: each worker has a client of its own, made after the fork by a hook, see gunicorn/gunicorn.conf.py.

Runs by itself, on throwaway servers.
"""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from redsync.testing import LocalNodes

PROJECT = Path(__file__).parent / "gunicorn"


def ask(url: str) -> tuple[str, str]:
    """Return which process answered, and with which client."""
    with urllib.request.urlopen(url, timeout=10) as reply:
        _, pid, _, client = reply.read().decode().replace(",", "").split()
    return pid, client


def main() -> None:
    with LocalNodes(3) as nodes, socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(4) as pool:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        gunicorn = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gunicorn",
                "--bind",
                f"fd://{listener.fileno()}",
                "--log-level",
                "critical",
                "shop:app",
            ],
            cwd=PROJECT,
            env={**os.environ, "REDSYNC_URLS": ",".join(nodes.urls), "REDSYNC_RESTART_GUARD": "0"},
            pass_fds=[listener.fileno()],
        )
        try:
            workers: dict[str, str] = {}
            while len(workers) < 2:  # whichever worker is quicker answers
                workers.update(pool.map(ask, [url] * 4))
            print("workers:", len(workers), "clients:", len(set(workers.values())))

            os.kill(int(next(iter(workers))), signal.SIGKILL)
            while len(workers) < 3:
                workers.update(pool.map(ask, [url] * 4))
            print("one was killed, and its successor has another client:", len(set(workers.values())) == 3)
        finally:
            gunicorn.terminate()
            print("gunicorn ended with status", gunicorn.wait())


if __name__ == "__main__":
    main()
