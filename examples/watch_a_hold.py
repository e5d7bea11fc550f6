"""How to react to the loss of a lock: stop the work, and know that its last part was not protected.

A hold is lost when a majority of the nodes forgets it, or can't be reached until its lease ends. There are
three ways to learn of it: a callback, a check (`check`), and the error at the end of `with`. Here an
operator force-releases the lock.
"""

import threading
import time

from redsync import Client, Hold, LeaseLostError
from redsync.testing import LocalNodes


def copy_files(client: Client) -> None:
    stop = threading.Event()

    def on_lost(hold: Hold) -> None:
        # This runs in the thread that notices the loss, often the one that renews all holds. So leave the
        # work to others.
        print(f"on_lost: {hold.name!r} is lost")
        stop.set()

    try:
        with client.get_lock("files", on_lost=on_lost) as hold:
            for number in range(1, 1000):
                hold.check()  # raises LeaseLostError; or look at `hold.lost`, or at your own event
                print(f"copying file {number}")
                stop.wait(0.2)
    except LeaseLostError as error:
        print(f"stopped: {error}")


def main() -> None:
    with LocalNodes(3) as nodes, nodes.client(lease=1.5) as client:
        worker = threading.Thread(target=copy_files, args=(client,))
        worker.start()
        lock = client.get_lock("files")
        while not lock.locked():
            time.sleep(0.01)
        time.sleep(0.3)
        print(f"an operator force-releases the lock: {lock.force_release()}")
        worker.join()


if __name__ == "__main__":
    main()
