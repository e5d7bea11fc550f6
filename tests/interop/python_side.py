"""redsync, redlock-py or pottery behind the lines that `programs.py` describes: `python_side.py LIBRARY URL...`.

LIBRARY is `redlock-py`, `pottery`, or one of ours: `spin:LOW:HIGH` or `mutex:LOW:HIGH`, which pause that many ms
between their tries. A worker is a thread, as the owner of a spin lock is one.
"""

import functools
import random
import sys
from concurrent.futures import ThreadPoolExecutor

WAIT = 5.0
"""For how many seconds an acquire tries."""


def redsync(kind, urls):
    """Return the functions that acquire and release a spin lock or mutex of ours."""
    from redsync import Client

    # The nodes are new and never restart. With a guard they would grant nothing at first.
    client = Client(urls, prefix="", restart_guard=0)
    noun, *pauses = kind.split(":")
    low, high = (int(ms) / 1000 for ms in pauses)
    make = client.get_spin_lock if noun == "spin" else client.get_mutex
    make = functools.partial(make, backoff=lambda tries: random.uniform(low, high))

    def acquire(name, lease_ms):
        lock = make(name, lease=lease_ms / 1000)
        return lock.acquire(timeout=WAIT) and lock

    return acquire, lambda lock: lock.release()


def redlock_py(_, urls):
    """Its tries are 200 ms apart, as by default, which gives up after 3."""
    from redlock import Redlock

    locks = Redlock(urls, retry_count=int(WAIT / Redlock.default_retry_delay))
    return locks.lock, locks.unlock


def pottery(_, urls):
    """Its tries are up to 200 ms apart; it puts `redlock:` before a name, so a name here must start with it."""
    from pottery import Redlock
    from redis import Redis

    masters = {Redis.from_url(url) for url in urls}

    def acquire(name, lease_ms):
        lock = Redlock(key=name.removeprefix("redlock:"), masters=masters, auto_release_time=lease_ms / 1000)
        return lock.acquire(timeout=WAIT) and lock

    return acquire, Redlock.release


class Worker:
    """One thread, which executes one line after the other."""

    def __init__(self, number, acquire, release):
        self._number = number
        self._acquire = acquire
        self._release = release
        self._thread = ThreadPoolExecutor(1)
        self._lock = None

    def start(self, *words):
        self._thread.submit(self._execute, *words)

    def _execute(self, verb, name="", lease_ms=0):
        try:
            if verb == "acquire":
                self._lock = self._acquire(name, int(lease_ms))
                reply = "won" if self._lock else "lost"
            else:
                self._release(self._lock)
                reply = "released"
        except Exception as error:  # the driver counts and shows it
            reply = f"failed {type(error).__name__} {error}".replace("\n", " ")
        say(f"{self._number} {reply}")


def say(line):
    sys.stdout.write(line + "\n")  # one call: several threads speak
    sys.stdout.flush()


def main(library, *urls):
    functions = {"redlock-py": redlock_py, "pottery": pottery}.get(library, redsync)(library, urls)
    workers = {}
    say("ready")
    for line in sys.stdin:
        verb, number, *arguments = line.split()
        if number not in workers:
            workers[number] = Worker(number, *functions)
        workers[number].start(verb, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
