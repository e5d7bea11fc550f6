"""A Django project with redsync.contrib.django: its check, and gunicorn with two workers."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.gunicorn import gunicorn

pytestmark = [pytest.mark.framework, pytest.mark.sweep]

PROJECT = {
    "shop/__init__.py": "",
    "shop/settings.py": """
        import json, os
        ALLOWED_HOSTS = ["*"]
        INSTALLED_APPS = ["redsync.contrib.django", "shop"]
        REDSYNC = json.loads(os.environ["SHOP_REDSYNC"])
        ROOT_URLCONF = "shop.urls"
        SECRET_KEY = "shop"
        USE_TZ = True
        """,
    "shop/urls.py": """
        import os, time
        from pathlib import Path
        from django.http import HttpResponse
        from django.urls import path
        from redsync.contrib.django import get_client

        def count(request):
            # Not atomic but for the lock.
            with get_client().get_lock("counter", timeout=20.0):
                file = Path("counter")
                number = int(file.read_text() if file.exists() else "0") + 1
                time.sleep(0.005)
                file.write_text(str(number))
            return HttpResponse(number, headers={"Worker": os.getpid()})

        urlpatterns = [path("count", count)]
        """,
    "shop/wsgi.py": "from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n",
}


def unindented(text):
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return "\n".join(line[indent:] for line in lines) + "\n"


class Project:
    """A project on disk, whose processes use three nodes."""

    def __init__(self, directory, urls):
        self.directory = directory
        self.redsync = {"URLS": urls, "RESTART_GUARD": 0}
        for name, text in PROJECT.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(unindented(text))

    @property
    def environment(self):
        paths = os.pathsep.join([str(self.directory), str(Path(__file__).parents[2])])
        names = {"PYTHONPATH": paths, "DJANGO_SETTINGS_MODULE": "shop.settings"}
        return {**os.environ, **names, "SHOP_REDSYNC": json.dumps(self.redsync)}

    def run(self, *arguments):
        command = [sys.executable, "-m", "django", *arguments]
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def project(tmp_path, nodes):
    return Project(tmp_path, nodes.urls[:3])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"URLS": ["redis://127.0.0.1:1"], "LEASE": -3}, "REDSYNC: "),
        ({}, "REDSYNC_URLS is not set"),
    ],
)
def test_bad_setting_is_an_error_at_the_start_of_the_project(project, setting, said, monkeypatch):
    monkeypatch.delenv("REDSYNC_URLS", raising=False)
    project.redsync = setting
    status, _, err = project.run("check")
    assert status == 1
    assert "redsync.E001" in err
    assert said in err


def test_good_settings_pass_the_check_without_any_node(project):
    project.redsync["URLS"] = "redis://127.0.0.1:1"
    assert project.run("check")[0] == 0


@pytest.fixture
def web(project):
    """An HTTP client of gunicorn with two workers."""
    with gunicorn("shop.wsgi", project.directory, project.environment) as web:
        yield web


def test_workers_of_gunicorn_exclude_each_other_while_a_node_dies(web, nodes):
    with ThreadPoolExecutor(8) as browsers:
        requests = [browsers.submit(web.get, "/count") for _ in range(40)]
        nodes.kill(0)
        requests += [browsers.submit(web.get, "/count") for _ in range(40)]
        replies = [request.result() for request in requests]
    assert [reply.status_code for reply in replies] == [200] * 80
    assert sorted(int(reply.text) for reply in replies) == list(range(1, 81))
    assert len({reply.headers["Worker"] for reply in replies}) == 2
