"""gunicorn with two workers that serve an application of a test."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx


@contextmanager
def gunicorn(application, directory, environment):
    """Serve it until the end of the `with`; yield a client whose requests may each reach another worker."""
    options = ["--workers", "2", "--threads", "4", "--bind", "127.0.0.1:0", "--no-control-socket"]
    command = [sys.executable, "-m", "gunicorn", *options, application]
    with subprocess.Popen(command, cwd=directory, env=environment, stderr=subprocess.PIPE, text=True) as server:
        line = next(line for line in server.stderr if "Listening at: " in line)
        url = line.partition("Listening at: ")[2].split()[0]
        with httpx.Client(base_url=url, timeout=30, limits=httpx.Limits(max_keepalive_connections=0)) as web:
            yield web
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
    assert server.returncode == 0
