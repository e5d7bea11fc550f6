"""Leader election: one process leads, and another takes over if the leader dies or loses its lock.

Self-contained: it starts throwaway servers. To use your own, set REDSYNC_URLS and start
`leader_election.py NAME` on each machine.
"""

import math
import os
import signal
import subprocess
import sys
from typing import IO

from redsync import Client, FencedLock, Hold, LeaseLostError
from redsync.testing import LocalNodes


def report(line: str) -> None:
    sys.stdout.write(line + "\n")  # in one piece: the candidates of the demonstration share one pipe
    sys.stdout.flush()


def lead(name: str, hold: Hold) -> None:
    """Do the leader's work until it must step down."""
    report(f"{name} leads {hold.fencing_token}")
    while not hold.wait_lost(timeout=0.1):  # the pause between two steps ends at once if the lock is lost
        hold.check()
        # One step, much shorter than the lease. Its writes carry this term's number, hold.fencing_token.


def stand(name: str, lock: FencedLock) -> None:
    """Be a candidate until the process ends."""
    while True:
        try:
            with lock as hold:  # waits while another candidate leads, or too few nodes answer
                lead(name, hold)
        except LeaseLostError:
            report(f"{name} steps down")


def candidate(name: str) -> None:
    # SIGTERM raises SystemExit: the `with` statements end, and the next leader starts at once.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    # `outage_timeout`: a candidate outlives an outage of the nodes, however long.
    with Client.from_env(lease=1.5, outage_timeout=math.inf) as client:
        report(f"{name} is ready")
        stand(name, client.get_fenced_lock("leader"))


# The rest is the demonstration.


def start(name: str, news: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, name], stdout=news)


def expect(lines: IO[str], what: str) -> tuple[str, str]:
    """Return the candidate that reports `what` next, and the rest of its line."""
    name, _, said = lines.readline().rstrip().partition(" ")
    assert said.startswith(what), (name, said)
    return name, said.removeprefix(what)


def main() -> None:
    reading, writing = os.pipe()
    with LocalNodes(3) as nodes, nodes.client() as operator, open(reading) as lines:
        os.environ.update(REDSYNC_URLS=",".join(nodes.urls), REDSYNC_RESTART_GUARD="0")
        candidates = {name: start(name, writing) for name in ("Ada", "Bob", "Eve")}
        os.close(writing)
        try:
            said = sorted(lines.readline().split()[1] for _ in range(4))
            print(f"three candidates, {said.count('leads')} leads")
            leader, others = find_leader(operator, candidates)

            candidates[leader].kill()
            first, term = expect(lines, "leads")
            print("the leader was killed, and another one leads:", first in others)
            others.discard(first)

            candidates[first].terminate()
            second, next_term = expect(lines, "leads")
            print("that one got SIGTERM, and the last one leads:", second in others)
            print("the number of the term has grown:", int(next_term) > int(term))

            operator.get_fenced_lock("leader").force_release()
            print(
                "the lock was force-released:",
                "the leader" if expect(lines, "steps down")[0] == second else "?",
                "steps down",
            )
            print("no other candidate is left, and it leads again:", expect(lines, "leads")[0] == second)
        finally:
            for process in candidates.values():
                process.terminate()
                process.wait()


def find_leader(operator: Client, candidates: dict[str, subprocess.Popen[bytes]]) -> tuple[str, set[str]]:
    """Return the name of the leader, and the names of the others."""
    (holder,) = operator.inspect("leader").holders
    (leader,) = [name for name, process in candidates.items() if process.pid == holder.pid]
    return leader, set(candidates) - {leader}


if __name__ == "__main__":
    candidate(sys.argv[1]) if len(sys.argv) > 1 else main()
