"""The check of Django's settings by redsync.contrib.django; `examples/django_once.py` uses its client."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.framework, pytest.mark.sweep]


@pytest.fixture
def check(tmp_path):
    """Return a function that checks a project with this value of REDSYNC; it returns the status and the errors."""

    def check(value):
        settings = f'INSTALLED_APPS = ["redsync.contrib.django"]\nSECRET_KEY = "shop"\nREDSYNC = {value!r}\n'
        (tmp_path / "settings.py").write_text(settings)
        paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-m", "django", "check"],
            env={**os.environ, "PYTHONPATH": paths, "DJANGO_SETTINGS_MODULE": "settings"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr

    return check


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"URLS": ["redis://127.0.0.1:1"], "LEASE": -3}, "REDSYNC: "),
        ({}, "REDSYNC_URLS is not set"),
    ],
)
def test_bad_setting_is_an_error_at_the_start_of_the_project(check, setting, said, monkeypatch):
    monkeypatch.delenv("REDSYNC_URLS", raising=False)
    status, err = check(setting)
    assert status == 1
    assert "redsync.E001" in err
    assert said in err


def test_good_settings_pass_the_check_without_any_node(check):
    assert check({"URLS": "redis://127.0.0.1:1"})[0] == 0
