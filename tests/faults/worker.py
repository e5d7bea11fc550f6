"""One process of the main job: threads that count in files, each count under its file's lock.

Reads a JSON object of settings from its argument, says "ready", reads when to begin and when to end from its standard
input, and writes a JSON object of results to its standard output. Each hold is a list
of name, instant granted, instant until which it was believed, number read, number written (None: nothing was), and
whether the write ended while the hold was believed. Instants are on CLOCK_BOOTTIME, which all processes share.
"""

import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from redsync import Client, LeaseLostError, QuorumError

MARGIN = 0.2  # seconds of validity without which nothing is written


def clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Work:
    """What one thread does and what became of it."""

    def __init__(self, client, settings, chance, ends_at):
        self.client, self.chance = client, chance
        self.names, self.directory = settings["names"], Path(settings["directory"])
        self.ends_at = ends_at
        self.holds = []
        self.outcomes = Counter()

    def run(self):
        while clock() < self.ends_at:
            name = self.chance.choice(self.names)
            told_at = []
            lock = self.client.get_lock(name, on_lost=lambda hold, told_at=told_at: told_at.append(clock()))
            try:
                granted = lock.acquire(timeout=2.0)
            except QuorumError:
                self.outcomes["no quorum"] += 1
                continue
            self.outcomes["granted" if granted else "busy"] += 1
            if granted:
                self.hold(name, lock, told_at)

    def hold(self, name, lock, told_at):
        granted_at = clock()
        # The record of the hold, which is not public: how long it was believed must be known exactly, also afterwards.
        state = lock._state()
        path = self.directory / name
        read = int(path.read_text() or 0)
        # Some work takes longer than the watchdog's period, and than a node is gone.
        long = self.chance.random() < 0.01
        time.sleep(0.9 if long else self.chance.choice([0.0, 0.001, 0.003, 0.01, 0.1 * self.chance.random()]))
        written, written_at = None, 0.0
        if lock.remaining() > MARGIN:
            written = read + 1
            path.write_text(str(written))
            written_at = clock()
        released_at = clock()
        try:
            lock.release()
        except LeaseLostError:
            self.outcomes["lost"] += 1
        believed_until = min([released_at, state.valid_until, *told_at])
        self.holds.append((name, granted_at, believed_until, read, written, written_at <= believed_until))


def main():
    settings = json.loads(sys.argv[1])
    with Client(settings["urls"], lease=settings["lease"]) as client:
        print("ready", flush=True)
        starts_at, ends_at = map(float, input().split())
        chances = [random.Random(f"{settings['seed']} {i}") for i in range(settings["threads"])]
        work = [Work(client, settings, chance, ends_at) for chance in chances]
        time.sleep(max(starts_at - clock(), 0.0))
        with ThreadPoolExecutor(len(work)) as threads:
            for ended in [threads.submit(each.run) for each in work]:
                ended.result()  # raises what it raised
    outcomes = sum((each.outcomes for each in work), Counter())
    print(json.dumps({"holds": [hold for each in work for hold in each.holds], "outcomes": outcomes}))


if __name__ == "__main__":
    main()
