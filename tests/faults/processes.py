"""Programs of several processes, run by `test_processes.py`: `python processes.py PROGRAM SETTINGS`.

SETTINGS is a JSON object with the nodes' `urls`. A program reports by lines of JSON, each written at once and as a
whole, so its children may report as well. It continues when a line arrives.
"""

import json
import os
import signal
import sys
import time
import traceback

from redsync import Client, NotOwnedError
from redsync._drivers.environment import clock


def tell(**facts):
    os.write(1, f"{json.dumps(facts)}\n".encode())


def make_client(settings, **options):
    return Client(settings["urls"], restart_guard=0, **options)


def fork(function, *args):
    """Return the id of a child that calls a function and ends without finalizers; its status reports the outcome."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.alarm(60)  # a hung child must not outlive the test
        function(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# A family.


def family(settings):
    """A parent that always holds a lock has children, which use the client and end in many ways."""
    client = make_client(settings, lease=1.2)
    lock, mutex = client.get_lock("parent's"), client.get_mutex("parent's too")

    def introduce(who):
        tell(who=who, pid=os.getpid(), id=client.id)

    def is_refused(call):
        try:
            call()
        except NotOwnedError as error:
            return type(error) is NotOwnedError

    def child():
        introduce("child")
        client.get_lock("the first").acquire(timeout=20)  # connects
        for each, of in ((lock, hold), (mutex, held)):
            assert (each.owned(), each.hold_count(), each.remaining(), of.remaining()) == (False, 0, 0.0, 0.0)
            assert not each.acquire(False)
            assert is_refused(each.release)
        with client.get_lock("child's") as own:
            assert own.owner.startswith(client.id)
            assert status_of(fork(grandchild)) == 0
            own.check()

    def grandchild():
        introduce("grandchild")
        assert not client.get_lock("child's").acquire(blocking=False)
        assert client.get_lock("grandchild's").acquire(timeout=20)
        client.close()

    def leave():
        child()
        sys.exit(7)

    with lock as hold, mutex as held:
        introduce("parent")
        sys.stdin.readline()
        statuses = [status_of(fork(child))]
        pid = os.fork()
        if not pid:
            leave()  # by the interpreter's complete exit
        statuses.append(status_of(pid))
        until = hold.remaining() + clock()
        while hold.remaining() + clock() < until + 0.05:
            hold.check()
            held.check()
            time.sleep(0.01)
        tell(who="parent", statuses=statuses)
        sys.stdin.readline()
    client.close()


# A daemon.


def daemon(settings):
    """A child closes all descriptors that it finds, as daemons do, opens its own files, and uses the client."""
    client = make_client(settings)

    def serve():
        os.closerange(3, 1024)
        files = [os.open(os.devnull, os.O_WRONLY) for _ in range(16)]
        with client.get_lock("daemon's"):
            tell(states=[node.state for node in client.nodes()])
        client.close()
        for file in files:
            os.close(file)  # fails if the client has closed it

    tell(status=status_of(fork(serve)))
    client.close()


def main():
    signal.alarm(115)  # if the tests are killed, no process stays forever
    {"family": family, "daemon": daemon}[sys.argv[1]](json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
