"""Celery: a task that at most one worker runs at a time for the same arguments.

```python
from redsync.contrib.celery import OnceTask

app.conf.redsync = {"urls": ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]}


@app.task(bind=True, base=OnceTask, once="charge:{order}", acks_late=True)
def charge(self, order): ...
```

1. A broker delivers a task at least once. The lock separates two deliveries at the same time; only a record of finished
   work, written under the lock, stops a later one.
2. A delivery that finds the lock held does not wait: the worker sends it again with a delay, and is free meanwhile.
   This does not count as a retry of the task. With `once_busy="skip"` the delivery is dropped instead.
3. A retry of the task itself releases the lock, and acquires it again.
4. When a worker is lost, its lock is free after the lease; the delivery that the broker repeats (`acks_late`) runs
   then. This delivery must not be dropped, so `once_busy="skip"` and `acks_late` exclude each other.
"""

from __future__ import annotations

import inspect
import weakref
from contextvars import ContextVar
from typing import Any, ClassVar, Final

try:
    from celery import Celery, Task
    from celery.exceptions import Ignore, ImproperlyConfigured, Retry
    from celery.signals import worker_init
    from celery.utils.log import get_task_logger
    from kombu.utils.json import dumps, loads
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.celery needs `pip install redsync-toolkit[celery]`") from error

from redsync import AcquireTimeout, Client, ConfigurationError, Hold, QuorumError
from redsync.contrib.shared import NameTemplate, ProcessClient, check_options, check_seconds, shortened

__all__ = ["OnceTask", "get_client"]

log: Final = get_task_logger("redsync.celery")

_hold: Final[ContextVar[Hold]] = ContextVar("redsync_hold")
"""The hold of the innermost task. Outside a worker, Celery has one request for all threads: it can't keep a hold."""

_clients: Final[weakref.WeakKeyDictionary[Celery, ProcessClient]] = weakref.WeakKeyDictionary()


def get_client(app: Celery) -> Client:
    """Return the client of this process, made at its first use from the application's setting `redsync`.

    Raises:
        ConfigurationError: The setting and the environment have no URLs, or a bad value.
    """
    return _client_of(app).get()


def _client_of(app: Celery) -> ProcessClient:
    known = weakref.proxy(app)
    return _clients.setdefault(app, ProcessClient("redsync", lambda: known.conf.get("redsync", {})))


class OnceTask(Task):  # type: ignore[misc]  # Celery has no types
    """Base class (`base=OnceTask`) of a task that at most one worker runs at a time for the same arguments.

    In the task, `self.hold` is the hold: call `self.hold.check()` before an action that must not happen twice. A task
    that loses its lock fails with `LeaseLostError`. A task called directly, or eagerly, raises `AcquireTimeout` if
    others hold the lock.

    Attributes:
        once: The lock's name; `{order}` in it stands for the task's argument `order`. If empty, the name consists of
            the task's name and all its arguments as JSON, with sorted keys. An argument in the name for which JSON has
            no form raises TypeError.
        once_busy: The treatment of a delivery that finds the lock held: "retry" or "skip".
        once_countdown: Seconds until the delivery is sent again, if others hold the lock or too few nodes answer. With
            "skip", the task raises `QuorumError` if too few nodes answer.
        once_options: Options of `Client.get_lock`, such as `{"max_hold": 600.0}`.
    """

    abstract = True

    once: ClassVar[str] = ""
    once_busy: ClassVar[str] = "retry"
    once_countdown: ClassVar[float] = 1.0
    once_options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the attributes; Celery calls this when it creates the task.

        Raises:
            ImproperlyConfigured: An attribute is invalid.
        """
        super().on_bound(app)
        if said := cls._wrong():
            raise ImproperlyConfigured(f"task {cls.name}: {said}")

    @classmethod
    def _wrong(cls) -> str:
        """Return what is wrong with the attributes; nothing if they are right."""
        if cls.once_busy not in ("retry", "skip"):
            return f"once_busy must be 'retry' or 'skip', not {cls.once_busy!r}"
        try:
            check_seconds("once_countdown", cls.once_countdown)
        except ValueError as error:
            return str(error)
        try:
            check_options(timeout=0.0, **cls.once_options)
        except KeyError as error:  # Python 3.11's TypeError where an exception is being handled.
            return f"once_options: got multiple values for {error}"
        except (TypeError, ValueError) as error:
            return f"once_options: {error}"
        if cls.once_busy == "skip" and cls.acks_late:
            return (
                "acks_late and once_busy='skip' exclude each other: the broker repeats the delivery of a lost worker, "
                "and skipping it would lose the work"
            )
        if cls.once:
            try:
                unknown = sorted(NameTemplate(cls.once).fields - inspect.signature(cls.run).parameters.keys())
            except (TypeError, ValueError) as error:
                return f"once: {error}"
            if unknown:
                return f"once: the task has no argument {', '.join(unknown)}"
        return ""

    @property
    def hold(self) -> Hold:
        """The hold, while the task runs."""
        return _hold.get()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task under the lock; the worker calls this."""
        lock = get_client(self.app).get_lock(self._name(args, kwargs), timeout=0.0, **self.once_options)
        acquired = False
        try:
            with lock as hold:
                acquired = True
                outer = _hold.set(hold)
                try:
                    return super().__call__(*args, **kwargs)
                finally:
                    _hold.reset(outer)
        except (AcquireTimeout, QuorumError) as error:
            # A call within the task's own body sees the request of the delivery.
            outside = _hold.get(None)
            nested = outside is not None and (outside.lost or outside.remaining() > 0)
            if acquired or nested or self.request.called_directly or self.request.is_eager:
                raise
            self._put_off(error)

    def _name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        bound = inspect.signature(self.run).bind(*args, **kwargs)
        bound.apply_defaults()
        template = NameTemplate(self.once) if self.once else None
        named = {key: value for key, value in bound.arguments.items() if template is None or key in template.fields}
        # As a worker gets them: JSON makes keys text, which changes their order, and lists of tuples.
        delivered = loads(dumps(named))  # type: ignore[no-untyped-call]  # of kombu
        if template is not None:
            return template.fill(delivered)
        arguments = dumps(delivered, sort_keys=True)  # type: ignore[no-untyped-call]
        return f"{self.name}:{shortened(arguments)}"

    def _put_off(self, error: AcquireTimeout | QuorumError) -> None:
        if self.once_busy == "skip":
            if isinstance(error, QuorumError):
                raise error
            log.info("skipped: %s", error)
            raise Ignore
        countdown = float(self.once_countdown)  # Celery adds it to a date, which refuses a Decimal.
        log.info("to be delivered again in %g s: %s", countdown, error)
        request = self.request
        again = self.signature_from_request(
            request, request.args, request.kwargs, countdown=countdown, retries=request.retries
        )
        again.apply_async()
        raise Retry(exc=error, when=countdown, sig=again) from None


def _check_setting(sender: Any, **_: Any) -> None:
    """Stop a worker that has a `OnceTask` but no valid setting. This asks no node."""
    if not any(isinstance(task, OnceTask) for task in sender.app.tasks.values()):
        return
    try:
        _client_of(sender.app).check()
    except ConfigurationError as error:
        # Celery would log any other error, and continue.
        raise SystemExit(f"the setting of redsync.contrib.celery is wrong: {error}") from error


worker_init.connect(_check_setting)
