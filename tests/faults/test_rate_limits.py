"""The rate limit over processes and node failures: every window of all their successes, wherever it begins."""

import json
import subprocess
import sys
import textwrap
import time

import pytest

SECONDS = 6.0

PROGRAM = """
    import json, sys, threading, time
    from redsync import Client, QuorumError

    rate, per, threads, seconds, *urls = json.loads(sys.argv[1])
    client = Client(urls, restart_guard=0.1, node_timeout=0.1)
    limiter = client.get_rate_limiter("x", rate, per)
    instants = []
    print("ready", flush=True)
    until = time.monotonic() + seconds

    def work():
        while (left := until - time.monotonic()) > 0:
            try:
                if limiter.acquire(timeout=left):
                    # One clock for all processes of a machine.
                    instants.append(time.monotonic())
            except QuorumError:
                pass

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    client.close()
    print(json.dumps(instants))
"""


def start(urls, rate, per, threads):
    settings = json.dumps([rate, per, threads, SECONDS, *urls])
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("rate", "per", "least"), [(5, 0.5, 0.5), (100, 1.0, 0.8), (1_000, 1.0, 0.5)], ids=["10/s", "100/s", "1000/s"]
)
@pytest.mark.sweep
def test_no_window_has_more_successes_than_the_rate_while_nodes_come_and_go(nodes, rate, per, least):
    # Servers that have just started grant nothing before a window has passed.
    time.sleep(per * 1.01 + 0.4 + 1.0)
    workers = [start(nodes.urls, rate, per, threads=4) for _ in range(2)]
    time.sleep(1.0)
    nodes.kill(0)
    time.sleep(0.7)
    nodes.restart(0)
    time.sleep(0.3 + 2 * per)
    nodes.pause(1)
    time.sleep(0.4)
    nodes.resume(1)
    instants = []
    for worker in workers:
        text, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0
        instants += json.loads(text)
    instants.sort()
    narrowest = min(later - sooner for sooner, later in zip(instants, instants[rate:], strict=False))
    print(len(instants), "successes; the narrowest", rate + 1, "in", narrowest, "s")
    assert narrowest >= per
    assert len(instants) >= least * rate / per * (SECONDS - 2), "and it is made use of"
