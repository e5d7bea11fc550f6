"""A process whose wall clock a test sets: it holds a lock, and answers each input line with a line of JSON."""

import json
import sys
import time

from redsync import Client


def clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main():
    urls, lease = json.loads(sys.argv[1])
    with Client(urls, lease=lease, restart_guard=0) as client, client.get_lock("held") as hold:
        print(json.dumps(client.id), flush=True)
        for line in sys.stdin:
            match line.split():
                case ["look"]:
                    answer = [time.time(), clock(), hold.remaining(), hold.lost]
                case ["wait", name, timeout]:
                    started_at = clock()
                    answer = [client.get_lock(name).acquire(timeout=float(timeout)), clock() - started_at]
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
