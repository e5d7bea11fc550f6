"""APScheduler: of all machines that run the same schedule, one runs each firing of a job.

```python
from apscheduler.schedulers.background import BackgroundScheduler
from redsync.contrib.apscheduler import RedsyncExecutor

scheduler = BackgroundScheduler(executors={"default": RedsyncExecutor(client)})
scheduler.add_job(report, "cron", hour=3, id="report")
```

A firing is a job's id and the time for which it is scheduled. The first machine that claims it runs it. A claim is a
success of a rate limiter that allows one, so it is never given back: not when the job ends, fails, or takes its machine
along.

So each machine must give a job the same id and the same times: a cron trigger has them, an interval has them with the
same `start_date`, and jitter takes them away.
"""

from __future__ import annotations

import concurrent.futures
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

try:
    from apscheduler.events import EVENT_JOB_ERROR, JobExecutionEvent
    from apscheduler.executors.base import run_job
    from apscheduler.executors.pool import BasePoolExecutor
    from apscheduler.job import Job
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.apscheduler needs `pip install redsync-toolkit[apscheduler]`") from error

from redsync import Client, ConfigurationError, QuorumError
from redsync.contrib.names import shortened

__all__ = ["RedsyncExecutor"]

_GENERATED_ID: Final = re.compile(r"[0-9a-f]{32}")


class RedsyncExecutor(BasePoolExecutor):  # type: ignore[misc]  # APScheduler has no types
    """Runs a firing in a pool of threads, if no other machine has claimed it.

    A firing runs at most once. If its machine dies at work, or too few nodes answer, it does not run; the latter is an
    `EVENT_JOB_ERROR` with the `QuorumError`. Listeners hear nothing of a firing that another machine has claimed.

    Args:
        client: The client whose nodes keep the claims.
        max_workers: The most threads.
        kept: For how many seconds nodes keep a claim: longer than a job's `misfire_grace_time` and the difference of
            clocks together. A node that was restarted grants no claims for that long.
        prefix: What the names of the claims begin with.

    Raises:
        ValueError: `kept` is not a positive number of seconds, or `prefix` is too long.
    """

    def __init__(
        self, client: Client, *, max_workers: int = 10, kept: float = 300.0, prefix: str = "apscheduler:"
    ) -> None:
        client.get_rate_limiter(f"{prefix}x", 1, kept)  # refuses bad values now
        super().__init__(concurrent.futures.ThreadPoolExecutor(max_workers, "redsync-apscheduler"))
        self._client: Final = client
        self._kept: Final = kept
        self._prefix: Final = prefix

    def _do_submit_job(self, job: Job, run_times: Sequence[datetime]) -> None:
        self._check(job)

        def note(future: concurrent.futures.Future[list[JobExecutionEvent]]) -> None:
            if (error := future.exception()) is not None:
                self._run_job_error(job.id, error, error.__traceback__)
            else:
                self._run_job_success(job.id, future.result())

        self._pool.submit(self._run, job, run_times).add_done_callback(note)

    def _check(self, job: Job) -> None:
        if _GENERATED_ID.fullmatch(job.id):
            raise ConfigurationError(f"job {job.name!r} needs an id that is the same on each machine: give `id`")
        if getattr(job.trigger, "jitter", None):
            raise ConfigurationError(f"job {job.id!r}: with jitter each machine has times of its own; leave it out")
        grace = job.misfire_grace_time
        if grace is None or grace >= self._kept:
            raise ConfigurationError(
                f"job {job.id!r}: misfire_grace_time must be less than the {self._kept:g} s for which claims are kept, "
                f"not {grace!r}: a late machine would run it again"
            )

    def _run(self, job: Job, run_times: Sequence[datetime]) -> list[JobExecutionEvent]:
        events: list[JobExecutionEvent] = []
        for run_time in run_times:
            try:
                # Who is too late to run it must not claim it: another machine may be in time.
                if _is_missed(job, run_time) or self._claim(job, run_time):
                    events += run_job(job, job._jobstore_alias, [run_time], self._logger.name)
                else:
                    self._logger.info('Job "%s" (scheduled at %s): another machine runs it', job, run_time)
            except QuorumError as error:
                self._logger.error(  # noqa: TRY400  (the error says it all, and listeners have it)
                    'Job "%s" (scheduled at %s) was not run: %s', job, run_time, error
                )
                store = job._jobstore_alias
                events.append(JobExecutionEvent(EVENT_JOB_ERROR, job.id, store, run_time, exception=error))
        return events

    def _claim(self, job: Job, run_time: datetime) -> bool:
        firing = f"{job.id}:{run_time.astimezone(UTC).isoformat()}"
        return self._client.get_rate_limiter(f"{self._prefix}{shortened(firing)}", 1, self._kept).acquire(False)


def _is_missed(job: Job, run_time: datetime) -> bool:
    grace = job.misfire_grace_time
    return grace is not None and datetime.now(UTC) - run_time > timedelta(seconds=grace)
