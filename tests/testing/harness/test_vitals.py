"""A process notices its stalls, and the leftovers of a client."""

import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from redsync.testing.harness.blocking import run
from redsync.testing.harness.journal import Journal, now_ns, read
from redsync.testing.harness.verdicts import stalls_of
from redsync.testing.harness.vitals import Complaints, leftovers, open_sockets

ROOT = Path(__file__).parents[3]

STANDSTILL = """
import os, re, signal, sys, time
from pathlib import Path
from redsync.testing.harness.blocking import run
from redsync.testing.harness.journal import Journal
from redsync.testing.harness.vitals import Pulse
with Pulse(Journal(Path(sys.argv[1]))):
    time.sleep(0.1)
    if sys.argv[2] == "stop":
        print("ready", flush=True)
        sys.stdin.readline()
    else:
        began = time.process_time()
        while time.process_time() < began + 0.4:
            re.match("(a+)+$", "a" * 24 + "b")  # no other thread runs meanwhile
    time.sleep(0.1)
"""


def test_pulse_records_stall_when_process_is_stopped(tmp_path, eventually):
    path = tmp_path / "x.journal"
    script = [sys.executable, "-c", STANDSTILL, str(path), "stop"]
    with subprocess.Popen(script, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        stopped_at = now_ns()
        eventually(lambda: now_ns() > stopped_at + 5e8)
        process.send_signal(signal.SIGCONT)
    assert max(stall.until - stall.since for stall in stalls_of(read(path))) >= 5e8


def test_pulse_records_the_processor_time_of_the_process(tmp_path):
    path = tmp_path / "x.journal"
    subprocess.run([sys.executable, "-c", STANDSTILL, str(path), "busy"], cwd=ROOT, check=True)
    assert max(line["cpu"] for line in read(path)) > 2e8


def test_complaints_are_recorded_with_their_traceback(tmp_path):
    logger, path = logging.getLogger("redsync.test"), tmp_path / "x.journal"
    handler = Complaints(Journal(path))
    logger.addHandler(handler)
    try:
        logger.error("nothing of interest")
        try:
            raise KeyError("planted")
        except KeyError:
            logger.exception("it failed")
    finally:
        logger.removeHandler(handler)
    (line,) = read(path)
    assert "it failed" in line["text"]
    assert "KeyError: 'planted'" in line["text"]


def test_socket_that_stays_open_is_a_leftover():
    async def sleep(seconds):
        """Return at once: nothing here is about to end."""

    before = open_sockets()
    with socket.socket():
        _, left = run(leftovers(before, sleep, timeout=0.05))
        assert left == 1
    _, left = run(leftovers(before, sleep, timeout=0.05))
    assert left == 0
