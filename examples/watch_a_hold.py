"""What to do when a lock is lost while the work goes on: stop it, and know that it was not protected to the end.

A hold is lost when a majority of the nodes forgets it, or can't be reached until its lease ends. There are three ways
to hear of it: a callback, a look (`check`), and the error at the end of `with`. Here the lock is taken away by force.
"""

import threading
import time

from redsync import Client, Hold, LeaseLostError
from redsync.testing import LocalNodes


def copy_files(client: Client) -> None:
    stop = threading.Event()

    def on_lost(hold: Hold) -> None:
        # In whatever thread notices: be quick, leave the work to others.
        print(f"told: {hold.name!r} is lost")
        stop.set()

    try:
        with client.get_lock("files", on_lost=on_lost) as hold:
            for number in range(1, 1000):
                hold.check()  # raises LeaseLostError; or look at `hold.lost`, or at an event of your own
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
        print(f"an operator takes the lock away: {lock.force_release()}")
        worker.join()


if __name__ == "__main__":
    main()
