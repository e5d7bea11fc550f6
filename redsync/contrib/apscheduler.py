"""APScheduler: one of the machines that share a schedule runs each firing of a job.

```python
from apscheduler.schedulers.background import BackgroundScheduler
from redsync.contrib.apscheduler import RedsyncExecutor

scheduler = BackgroundScheduler(executors={"default": RedsyncExecutor(client)})
scheduler.add_job(report, "cron", hour=3, id="report")
```

A firing is a job's id and scheduled time. The first machine that claims a firing runs it. A claim is an acquisition of
a rate limiter that allows one, so it is never released: not when the job ends or fails, or its machine dies.

So each machine must give a job the same id and the same times. A cron trigger does, an interval does with the same
`start_date`; a trigger with jitter does not.
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

from redsync import Client, ConfigurationError, QuorumError, RatePermit
from redsync.contrib.shared import check_client, shortened

__all__ = ["RedsyncExecutor"]

_GENERATED_ID: Final = re.compile(r"[0-9a-f]{32}")


class RedsyncExecutor(BasePoolExecutor):  # type: ignore[misc]  # APScheduler has no types
    """Runs a firing in a pool of threads, unless another machine has claimed it.

    A firing runs at most once. It does not finish if its machine dies, and does not run if too few nodes answer; then
    listeners get an `EVENT_JOB_ERROR` with the `QuorumError`. They get no event for a firing that another machine has
    claimed.

    Args:
        client: The client whose nodes keep the claims.
        max_workers: The most threads in the pool.
        kept: Seconds for which nodes keep a claim; more than a job's `misfire_grace_time` plus the difference of the
            machines' clocks. A restarted node grants no claims for that long.
        prefix: The prefix of the claims' names.

    Raises:
        ValueError: `kept` is not a positive number of seconds, or `prefix` is too long.
        TypeError: `client` is not a `Client`.
    """

    def __init__(
        self, client: Client, *, max_workers: int = 10, kept: float = 300.0, prefix: str = "apscheduler:"
    ) -> None:
        check_client(client)
        client.get_rate_limiter(f"{prefix}x", 1, kept)  # raises on bad values now
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
            raise ConfigurationError(f"job {job.name!r} needs an id that is the same on all machines: set `id`")
        # A combination of triggers has a list of them.
        if any(getattr(each, "jitter", None) for each in (job.trigger, *getattr(job.trigger, "triggers", ()))):
            raise ConfigurationError(f"job {job.id!r}: with jitter each machine has different times; remove it")
        grace = job.misfire_grace_time
        if grace is None or grace >= self._kept:
            raise ConfigurationError(
                f"job {job.id!r}: misfire_grace_time must be less than the {self._kept:g} s for which claims are kept, "
                f"not {grace!r}: a late machine would run the firing again"
            )

    def _run(self, job: Job, run_times: Sequence[datetime]) -> list[JobExecutionEvent]:
        events: list[JobExecutionEvent] = []
        for run_time in run_times:
            try:
                # A machine that is too late to run it must not claim it: another one may be in time.
                missed = _is_missed(job, run_time)
                claim = None if missed else self._claim(job, run_time)
                if claim is not None and _is_missed(job, run_time):
                    claim.cancel()
                if missed or claim is not None:
                    events += run_job(job, job._jobstore_alias, [run_time], self._logger.name)
                else:
                    self._logger.info('Job "%s" (scheduled at %s): another machine runs it', job, run_time)
            except QuorumError as error:
                self._logger.error(  # noqa: TRY400  (the message is enough, and listeners get the error)
                    'Job "%s" (scheduled at %s) was not run: %s', job, run_time, error
                )
                store = job._jobstore_alias
                events.append(JobExecutionEvent(EVENT_JOB_ERROR, job.id, store, run_time, exception=error))
        return events

    def _claim(self, job: Job, run_time: datetime) -> RatePermit | None:
        firing = f"{job.id}:{run_time.astimezone(UTC).isoformat()}"
        return self._client.get_rate_limiter(f"{self._prefix}{shortened(firing)}", 1, self._kept).acquire_permit(False)


def _is_missed(job: Job, run_time: datetime) -> bool:
    grace = job.misfire_grace_time
    return grace is not None and datetime.now(UTC) - run_time > timedelta(seconds=grace)
