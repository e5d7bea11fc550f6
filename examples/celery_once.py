"""Celery: a task that is delivered twice does its work once.

A broker delivers at least once: again after a worker is lost, after a task takes longer than the visibility
timeout, or after an unsure sender repeats the message. The lock separates two deliveries; the second one
finds the record of the finished work, which the first one wrote under the lock.

Self-contained: it starts throwaway servers and a worker. To use your own servers, set BROKER_URL and
REDSYNC_URLS, and start `celery --app celery_once worker`.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from celery import Celery

from redsync.contrib.celery import OnceTask
from redsync.testing import LocalNodes

BROKER_URL = os.environ.get("BROKER_URL", "redis://")
app = Celery("celery_once", broker=BROKER_URL, backend=BROKER_URL)


@app.task(bind=True, base=OnceTask, once="charge:{order}", once_countdown=0.5, acks_late=True)
def charge(self: OnceTask, order: int) -> str:
    if is_charged(order):
        return "charged already"
    time.sleep(0.5)  # stands for a request to a bank
    self.hold.check()
    note_charged(order)
    return "charged"


# The record: a table with a unique key, in the shop's database.


def shop() -> sqlite3.Connection:
    return sqlite3.connect(os.environ["SHOP"], timeout=10.0)


def is_charged(order: int) -> bool:
    with closing(shop()) as connection:
        return connection.execute("SELECT 1 FROM charged WHERE number = ?", [order]).fetchone() is not None


def note_charged(order: int) -> None:
    with closing(shop()) as connection, connection:
        connection.execute("INSERT INTO charged VALUES (?)", [order])


# The rest is the demonstration.


def main() -> None:
    with LocalNodes(3) as nodes, LocalNodes(1) as broker, tempfile.TemporaryDirectory() as directory:
        os.environ.update(
            BROKER_URL=broker.urls[0],
            REDSYNC_URLS=",".join(nodes.urls),
            REDSYNC_RESTART_GUARD="0",
            SHOP=f"{directory}/shop.sqlite3",
        )
        app.conf.update(broker_url=broker.urls[0], result_backend=broker.urls[0])
        with closing(shop()) as connection:
            connection.execute("CREATE TABLE charged (number INTEGER PRIMARY KEY)")

        command = [sys.executable, "-m", "celery", "--app", "celery_once", "worker"]
        options = ["--concurrency", "2", "--without-mingle", "--without-gossip", "--loglevel", "WARNING"]
        with (
            open(f"{directory}/log", "w+") as log,
            subprocess.Popen(
                [*command, *options], cwd=Path(__file__).parent, stdout=log, stderr=log
            ) as worker,
        ):
            try:
                deliveries = [charge.delay(7), charge.delay(7)]
                print(
                    "two deliveries:",
                    *sorted(delivery.get(timeout=30) for delivery in deliveries),
                    sep="\n  ",
                )
                print("one more, later:", charge.delay(7).get(timeout=30), sep="\n  ")
            except BaseException:
                log.seek(0)
                print(log.read())
                raise
            finally:
                worker.terminate()
        print("the worker ended with status", worker.returncode)
        app.close()


if __name__ == "__main__":
    main()
