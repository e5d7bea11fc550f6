"""cron: two machines have the same line in their crontabs, and one of them runs the job.

    0 3 * * *  redsync lock nightly-report -n -q -E 0 --min-hold 60 -- /usr/bin/report

Self-contained: it starts throwaway servers.
"""

import os
import subprocess
import sys

from redsync.testing import LocalNodes

REDSYNC = [sys.executable, "-m", "redsync.cli"]  # this environment's `redsync`
OPTIONS = ["-n", "-q", "-E", "0", "--min-hold", "60"]


def start(machine: str) -> "subprocess.Popen[str]":
    job = ["echo", f"the report, written on {machine}"]
    return subprocess.Popen(
        [*REDSYNC, "lock", "nightly-report", *OPTIONS, "--", *job], stdout=subprocess.PIPE, text=True
    )


def main() -> None:
    with LocalNodes(3) as nodes, nodes.client() as operator:
        os.environ.update(REDSYNC_URLS=",".join(nodes.urls), REDSYNC_RESTART_GUARD="0")
        lock = operator.get_fenced_lock("nightly-report")

        first = start("machine 1")
        assert first.stdout
        print(first.stdout.readline(), end="")  # it took a few milliseconds

        second = start("machine 2")  # its clock is a little behind
        written, _ = second.communicate()
        print(f"machine 2 wrote {written!r} and ended with status {second.returncode}")

        print("still held on machine 1:", lock.locked())
        first.terminate()  # rather than wait for the end of the minute
        first.communicate()
        print("status of machine 1:", first.returncode)
        print("free again:", not lock.locked())


if __name__ == "__main__":
    main()
