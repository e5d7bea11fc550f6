"""A Django project with redsync.contrib.django: its commands, its cache, its check, and gunicorn with two workers."""

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
        BACKEND = "django.core.cache.backends.filebased.FileBasedCache"
        CACHES = {"default": {"BACKEND": BACKEND, "LOCATION": os.path.abspath("cache")}}
        INSTALLED_APPS = ["redsync.contrib.django", "shop", "shop.django"]
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
        from redsync.contrib.django import get_client, get_or_compute

        def compute():
            with Path("computed").open("a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(0.3)
            return "report"

        def report(request, number):
            return HttpResponse(get_or_compute(f"report {number}", compute, patience=20.0))

        def count(request):
            # Not atomic but for the lock.
            with get_client().get_lock("counter", timeout=20.0):
                file = Path("counter")
                number = int(file.read_text() if file.exists() else "0") + 1
                time.sleep(0.005)
                file.write_text(str(number))
            return HttpResponse(number, headers={"Worker": os.getpid()})

        urlpatterns = [path("report/<int:number>", report), path("count", count)]
        """,
    "shop/django.py": "",
    "shop/wsgi.py": "from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n",
    "shop/management/__init__.py": "",
    "shop/management/commands/__init__.py": "",
    "shop/management/commands/send_orders.py": """
        import sys
        from django.core.management.base import BaseCommand
        from redsync.contrib.django import single_run

        class Command(BaseCommand):
            @single_run(min_hold=0.0)
            def handle(self, **options):
                self.hold.check()
                self.stdout.write("sending", ending="\\n")
                self.stdout.flush()
                sys.stdin.readline()
                self.hold.check()
                return "sent"
        """,
    "shop/management/commands/strict.py": """
        from django.core.management.base import BaseCommand
        from redsync.contrib.django import single_run

        class Command(BaseCommand):
            @single_run("command:send_orders", busy_status=75)
            def handle(self, **options):
                return "sent"
        """,
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

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "django", *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


@pytest.fixture
def project(tmp_path, nodes):
    return Project(tmp_path, nodes.urls[:3])


@pytest.fixture
def sending(project):
    """A machine that runs the command until it reads a line."""
    with project.start("send_orders") as process:
        assert process.stdout.readline() == "sending\n"
        yield process
        process.kill()


def test_command_runs_on_one_machine(project, sending):
    status, out, err = project.run("send_orders")
    assert (status, out) == (0, "")
    assert "not run: another machine holds 'command:send_orders'" in err
    assert sending.communicate("continue\n", timeout=20) == ("sent\n", "")
    assert sending.returncode == 0
    assert project.run("strict")[:2] == (0, "sent\n")


@pytest.mark.usefixtures("sending")
def test_command_may_end_with_a_chosen_status(project):
    status, _, err = project.run("strict")
    assert status == 75
    assert "another machine holds" in err


def test_one_dead_node_changes_nothing_and_two_are_a_failure(project, nodes):
    nodes.kill(0)
    assert project.run("strict")[:2] == (0, "sent\n")
    nodes.kill(1)
    status, out, err = project.run("strict")
    assert (status, out) == (69, "")
    assert "CommandError: not run: " in err


def test_lost_lock_is_a_failure(project, sending, make_client):
    make_client(n=3).get_lock("command:send_orders").force_release()
    out, err = sending.communicate("continue\n", timeout=20)
    assert sending.returncode == 124
    assert out == ""
    assert "CommandError" in err
    assert "was lost" in err


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


def test_label_is_redsync_so_that_another_app_may_be_called_django(project):
    status, _, err = project.run("check", "redsync", "django")
    assert (status, err) == (0, "")


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


def test_one_worker_computes_an_entry_and_all_have_it(web, project, nodes):
    with ThreadPoolExecutor(8) as browsers:
        replies = list(browsers.map(web.get, ["/report/1"] * 12))
    assert {reply.text for reply in replies} == {"report"}
    assert len((project.directory / "computed").read_text().split()) == 1
    for killed in (0, 1):
        nodes.kill(killed)
    assert web.get("/report/2").text == "report"  # a cache works without its lock
