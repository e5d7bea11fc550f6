"""A process whose threads compute: pairs continue, and holds stay held, although threads wait long for the GIL."""

import json
import subprocess
import sys
import textwrap

PROGRAM = """
    import json, sys, threading, time
    from redsync import Client

    over, pairs, longest, errors = False, [0] * 6, [0.0] * 6, []

    def compute():
        while not over:
            sum(range(1000))

    def lock_often(i):
        lock = client.get_lock(f"often:{i}")
        try:
            while not over:
                began = time.monotonic()
                with lock:
                    pairs[i] += 1
                longest[i] = max(longest[i], time.monotonic() - began)
        except Exception as error:
            errors.append(repr(error))

    def hold(i):
        with client.get_lock(f"held:{i}") as held:
            while not over:
                time.sleep(0.05)
            if held.lost:
                errors.append(f"hold {i} was lost")

    with Client(sys.argv[1:], lease=5.0) as client:
        workers = [threading.Thread(target=hold, args=[i]) for i in range(5)]
        workers += [threading.Thread(target=lock_often, args=[i]) for i in range(6)]
        workers += [threading.Thread(target=compute) for _ in range(6)]
        for worker in workers:
            worker.start()
        time.sleep(8.0)
        over = True
        for worker in workers:
            worker.join()
    print(json.dumps([pairs, longest, errors]))
"""


def test_pairs_continue_and_holds_stay_held_beside_threads_that_compute(nodes):
    """Every link that threads share was a queue here: 24 pairs in 12 s, and all holds lost on healthy nodes."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), *nodes.urls]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    pairs, longest, errors = json.loads(done.stdout)
    assert errors == []
    assert min(pairs) > 0
    assert sum(pairs) > 100, "a tenth of what a busy machine makes"
    assert max(longest) < 10
