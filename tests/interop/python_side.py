"""redsync, redlock-py or pottery behind the lines that `programs.py` describes: `python_side.py LIBRARY URL...`.

LIBRARY is `redlock-py`, `pottery`, or one of ours: `spin`, and `mutex:LOW:HIGH`, which pauses that many ms between its
tries. A worker is a thread, as the owner of a spin lock is one.
"""

import functools
import random
import sys
from concurrent.futures import ThreadPoolExecutor

WAIT = 5.0
"""For how many seconds an acquire tries."""


class Redsync:
    """A spin lock or mutex of ours."""

    def __init__(self, kind, urls):
        from redsync import Client

        # The nodes are new and never restart. With a guard they would grant nothing at first.
        client = Client(urls, prefix="", restart_guard=0)
        self._make = client.get_spin_lock
        if kind != "spin":
            low, high = (int(ms) / 1000 for ms in kind.split(":")[1:])
            self._make = functools.partial(client.get_mutex, backoff=lambda tries: random.uniform(low, high))

    def acquire(self, name, lease_ms):
        lock = self._make(name, lease=lease_ms / 1000)
        return lock if lock.acquire(timeout=WAIT) else None

    def release(self, lock):
        lock.release()


class RedlockPy:
    """Its tries are 200 ms apart, as by default, which gives up after 3."""

    def __init__(self, urls):
        from redlock import Redlock

        self._locks = Redlock(urls, retry_count=int(WAIT / Redlock.default_retry_delay))

    def acquire(self, name, lease_ms):
        return self._locks.lock(name, lease_ms) or None

    def release(self, lock):
        self._locks.unlock(lock)


class Pottery:
    """Its tries are up to 200 ms apart; it puts `redlock:` before a name, so a name here must start with it."""

    def __init__(self, urls):
        import pottery
        from redis import Redis

        self._make = functools.partial(pottery.Redlock, masters={Redis.from_url(url) for url in urls})

    def acquire(self, name, lease_ms):
        lock = self._make(key=name.removeprefix("redlock:"), auto_release_time=lease_ms / 1000)
        return lock if lock.acquire(timeout=WAIT) else None

    def release(self, lock):
        lock.release()


class Worker:
    """One thread, which executes one line after the other."""

    def __init__(self, number, library):
        self._number = number
        self._library = library
        self._thread = ThreadPoolExecutor(1)
        self._lock = None

    def start(self, verb, *arguments):
        self._thread.submit(self._execute, verb, *arguments)

    def _execute(self, verb, name="", lease_ms=0):
        try:
            if verb == "acquire":
                self._lock = self._library.acquire(name, int(lease_ms))
                reply = "lost" if self._lock is None else "won"
            else:
                self._library.release(self._lock)
                reply = "released"
        except Exception as error:  # the driver counts and shows it
            reply = f"failed {type(error).__name__} {error}".replace("\n", " ")
        say(f"{self._number} {reply}")


def say(line):
    sys.stdout.write(line + "\n")  # one call: several threads speak
    sys.stdout.flush()


def main(library, *urls):
    makers = {"redlock-py": RedlockPy, "pottery": Pottery}
    side = makers[library](urls) if library in makers else Redsync(library, urls)
    workers = {}
    say("ready")
    for line in sys.stdin:
        verb, number, *arguments = line.split()
        if number not in workers:
            workers[number] = Worker(number, side)
        workers[number].start(verb, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
