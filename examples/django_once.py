"""Django: a command that runs on one machine at a time; a view that handles one request per order at once.

A whole project in one file. Self-contained: it starts throwaway servers. To use your own, set REDSYNC_URLS.
"""

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import django
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection, models, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client as Browser
from django.urls import path
from django.views.decorators.http import require_POST

from redsync import AcquireTimeout, Hold
from redsync.contrib.django import get_client
from redsync.testing import LocalNodes

directory = tempfile.TemporaryDirectory()
settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{directory.name}/shop.sqlite3"}
    },
    INSTALLED_APPS=["redsync.contrib.django"],
    # REDSYNC={"URLS": ["redis://10.0.0.1", ...]}, or the variable REDSYNC_URLS
    ROOT_URLCONF=__name__,
)
django.setup()


class Order(models.Model):
    paid = models.BooleanField(default=False)
    sent = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"


# In a project this is shop/management/commands/send_orders.py; cron starts it on each machine.


class Command(BaseCommand):
    help = "Send all orders that were paid, on one machine at a time."

    def handle(self, **options: object) -> None:
        try:
            with get_client().get_lock("send_orders", timeout=0) as hold:
                self.send(hold)
        except AcquireTimeout:
            self.stderr.write("not run: another machine runs it")

    def send(self, hold: Hold) -> None:
        for order in Order.objects.filter(paid=True, sent=False):
            hold.check()  # raises if the lock was lost: another machine may be sending
            order.sent = True
            order.save()
            self.stdout.write(f"sent order {order.pk}")


# In a project this is shop/views.py.


@transaction.non_atomic_requests  # otherwise the view would release its lock before the commit
@require_POST
def pay(request: HttpRequest, number: int) -> HttpResponse:
    try:
        with get_client().get_lock(f"order:{number}", timeout=2.0) as hold, transaction.atomic():
            order = Order.objects.get(pk=number)
            if order.paid:
                return HttpResponse("already paid", status=409)
            order.paid = True
            order.save()
            hold.check()  # the last chance to roll back
            return HttpResponse("paid")
    except AcquireTimeout:
        return HttpResponse("the order is locked", status=423, headers={"Retry-After": "2"})


urlpatterns = [path("pay/<int:number>", pay)]


# The rest is the demonstration.


def browse(number: int) -> str:
    try:
        reply = Browser().post(f"/pay/{number}")
        return f"{reply.status_code} {reply.content.decode()}"
    finally:
        connection.close()  # Django opens one for each thread


def main() -> None:
    with LocalNodes(3) as nodes, nodes.client() as another_machine:
        os.environ.update(REDSYNC_URLS=",".join(nodes.urls), REDSYNC_RESTART_GUARD="0")
        with connection.schema_editor() as editor:
            editor.create_model(Order)
        for _ in range(2):
            Order.objects.create()

        with ThreadPoolExecutor(2) as browsers:
            print("paid twice at once:", *sorted(browsers.map(browse, [1, 1])), sep="\n  ")
        with another_machine.get_lock("order:2"):
            print("while another machine holds the lock:", browse(2), sep="\n  ")

        with another_machine.get_lock("send_orders"):
            call_command(Command(stderr=sys.stdout))
        call_command(Command())
        call_command(Command())

        connection.close()
        get_client().close()
    directory.cleanup()


if __name__ == "__main__":
    main()
