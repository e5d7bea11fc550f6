"""`bench startup`: the commands that it measures import modules that exist."""

import os
import subprocess
import sys

import pytest

from bench import startup


@pytest.mark.parametrize("what", startup.WITHIN)
def test_startup_names_modules_that_exist(what):
    statement, _ = startup.WITHIN[what]
    environment = {name: value for name, value in os.environ.items() if name != "REDSYNC_URLS"}
    subprocess.run([sys.executable, "-c", statement], env=environment, check=True)
