"""APScheduler: two machines have the same schedule, and one of them runs each firing of a job.

Self-contained: it starts throwaway servers; two schedulers in one process stand for two machines.
"""

import threading
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.background import BackgroundScheduler

from redsync import Client
from redsync.contrib.apscheduler import RedsyncExecutor
from redsync.testing import LocalNodes

FIRINGS = 5


def make_scheduler(client: Client) -> BackgroundScheduler:
    return BackgroundScheduler(executors={"default": RedsyncExecutor(client)}, timezone=UTC)


# The rest is the demonstration.


def main() -> None:
    ran: list[str] = []
    done = threading.Event()

    def report(machine: str) -> None:
        ran.append(machine)
        if len(ran) >= FIRINGS:
            done.set()

    with LocalNodes(3) as nodes, nodes.client() as one, nodes.client() as two:
        begin = datetime.now(UTC) + timedelta(seconds=1)
        schedulers = {"one": make_scheduler(one), "two": make_scheduler(two)}
        for machine, scheduler in schedulers.items():
            end = begin + timedelta(seconds=0.2 * FIRINGS - 0.1)
            every = {"seconds": 0.2, "start_date": begin, "end_date": end}
            # On a busy machine firings may be late: then each still runs.
            late = {"misfire_grace_time": 60, "coalesce": False, "max_instances": FIRINGS}
            scheduler.add_job(report, "interval", **every, **late, id="report", args=[machine])
            scheduler.start()
        done.wait(30)
        for scheduler in schedulers.values():
            scheduler.shutdown()
    print(f"{FIRINGS} firings on two machines, {len(ran)} runs")


if __name__ == "__main__":
    main()
