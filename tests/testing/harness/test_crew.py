"""Client processes end with the process that started them, in any state, and none ends unnoticed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redsync.testing.harness.crew import Crew, RunFailedError
from redsync.testing.harness.journal import now_ns, read
from redsync.testing.harness.orders import Order

ROOT = Path(__file__).parents[3]
NO_NODE = [f"redis://127.0.0.1:{port}/0" for port in range(1, 6)]  # a client runs without nodes if it must

PARENT = """
import sys, time
from pathlib import Path
sys.path.insert(0, "")
from tests.testing.harness.test_crew import begin
crew = begin(Path(sys.argv[1]))
crew.stop(0)
print(crew.lives[0].process.pid, flush=True)
time.sleep(60)
"""


def begin(directory, names=("lock:0",)):
    def make_order(client, owners_before, journal):
        return Order(
            urls=NO_NODE,
            names=names,
            directory=str(directory),
            journal=str(journal),
            first=owners_before,
            owners=1,
            seed="seed",
        )

    crew = Crew(directory, make_order)
    crew.start(0)
    crew.go()
    while not read(crew.lives[0].journal):  # it may also fail, as in one test
        if crew.lives[0].process.poll() is not None:
            break
    return crew


def is_alive(pid):
    """Return whether that process is alive, and not just a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals children when their parent dies")
def test_killed_crew_leaves_no_process_behind(tmp_path, eventually):
    script = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(script, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    eventually(lambda: not is_alive(pid))


def test_crew_reports_client_that_ended_by_itself(tmp_path, eventually):
    with begin(tmp_path, names=["nonsense:0"]) as crew:
        eventually(lambda: crew.lives[0].process.poll() is not None)
        with pytest.raises(RunFailedError, match="get_nonsense"):
            crew.check()
        with pytest.raises(RunFailedError, match="status 1"):
            crew.kill(0)


def test_crew_records_kills_and_leaves_no_stopped_process_behind(tmp_path):
    with begin(tmp_path) as crew:
        before = now_ns()
        crew.kill(0)
        # It was alive until then: it may have written its latest line after the recorded instant.
        killed = crew.lives[0]
        assert before <= killed.killed_at <= killed.ended_at
        assert read(killed.journal)[-1]["at"] < killed.ended_at
        assert killed.process.returncode == -signal.SIGKILL
        crew.start(0)
        assert [life.journal.name for life in crew.lives] == ["process-0.0.journal", "process-0.1.journal"]
        crew.stop(0)
    assert crew.lives[1].process.returncode == -signal.SIGKILL
