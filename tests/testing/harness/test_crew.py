"""Client processes end with whoever started them, whatever state they are in, and nobody ends unnoticed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redsync.testing.harness.crew import Crew, RunFailedError
from redsync.testing.harness.journal import read
from redsync.testing.harness.orders import Order

ROOT = Path(__file__).parents[3]
NOBODY = [f"redis://127.0.0.1:{port}/0" for port in range(1, 6)]  # a client does without nodes, as long as it must

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
            urls=NOBODY,
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
    while not read(crew.lives[0].journal):  # it may also fail, as it does in a test
        if crew.lives[0].process.poll() is not None:
            break
    return crew


def is_alive(pid):
    """Whether that process is more than an entry that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only there the kernel tells children of their parent's death")
def test_crew_leaves_nobody_behind_when_it_is_killed_itself(tmp_path, eventually):
    script = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(script, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    eventually(lambda: not is_alive(pid))


def test_crew_tells_of_client_that_ended_by_itself(tmp_path, eventually):
    with begin(tmp_path, names=["nonsense:0"]) as crew:
        eventually(lambda: crew.lives[0].process.poll() is not None)
        with pytest.raises(RunFailedError, match="get_nonsense"):
            crew.check()
        with pytest.raises(RunFailedError, match="status 1"):
            crew.kill(0)


def test_crew_notes_when_it_kills_and_leaves_nobody_behind_that_is_stopped(tmp_path):
    with begin(tmp_path) as crew:
        crew.kill(0)
        assert read(crew.lives[0].journal)[-1]["at"] < crew.lives[0].killed_at
        crew.start(0)
        assert [life.journal.name for life in crew.lives] == ["process-0.0.journal", "process-0.1.journal"]
        crew.stop(0)
    assert crew.lives[1].process.returncode == -signal.SIGKILL
