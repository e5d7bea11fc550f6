"""Owners that end while they hold: ended threads, dropped objects, and interpreters."""

import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from redsync import Client, HoldOrphaned, Mutex, NotOwnedError
from tests.support.injection import Interruption
from tests.support.leftovers import claims
from tests.support.sweeps import swept


@pytest.fixture
def client(make_client, events):
    """A client with a lease of a minute: a lock that is free earlier was released."""
    return make_client(lease=60.0, listeners=[events.append])


@pytest.fixture
def keys(raw):
    """Return a function that returns all keys on the nodes except records."""
    return lambda: {key for node in raw for key in claims(node)}


def run_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


# Threads.


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
def test_locks_of_an_ended_thread_are_released_at_once_with_warnings(client, keys, events, warnings, eventually):
    """No matter how often it has acquired them."""
    owners = []

    def hold():
        with client.get_lock("y") as other:
            owners.append(other.owner)
            for name in ("a", "b"):
                assert client.get_lock(name).acquire()
                assert client.get_lock(name).acquire()

    run_thread(hold)
    eventually(lambda: not keys())
    assert len(client.runner.session.holds) == 0
    assert client.get_lock("a").acquire(False)
    eventually(lambda: len(events) == 2)
    assert sorted(events) == [HoldOrphaned("a", owners[0]), HoldOrphaned("b", owners[0])]
    for name, (level, text) in zip(("'a'", "'b'"), sorted(warnings()), strict=True):
        assert level == "WARNING"
        assert name in text
        assert owners[0] in text
        assert "ended without releasing it" in text


def test_hold_that_was_handed_on_ends_with_the_thread_that_owned_it(client, keys, eventually):
    """Another owner may have the lock by now: the receiver of the hold must not believe that it is valid."""
    holds = []

    def hold():
        holds.append(client.get_lock("x").__enter__())

    run_thread(hold)
    eventually(lambda: not keys())
    (handed_on,) = holds
    assert handed_on.remaining() == 0.0
    for use in (handed_on.check, handed_on.extend, handed_on.release):
        with pytest.raises(NotOwnedError):
            use()
    assert not handed_on.lost
    assert handed_on.wait_lost(0.1) is False


# Interpreters.


def run_program(nodes, program, expected=0):
    source = (
        f"import multiprocessing, os, sys, threading, time\nfrom redsync import Client\nURLS = {nodes.urls!r}\n"
        + textwrap.dedent(program)
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("1 / 0", 1)])
def test_ending_interpreter_releases_the_holds_of_all_its_threads(nodes, keys, end, code):
    program = f"""
        client = Client(URLS, lease=60, restart_guard=0)
        held = threading.Event()

        def hold():
            client.get_lock("y").acquire()
            held.set()
            time.sleep(60)

        threading.Thread(target=hold, daemon=True).start()
        held.wait(10)
        client.get_lock("x").acquire()
        mutex = client.get_mutex("z")
        mutex.acquire()
        {end}
    """
    done = run_program(nodes, program, code)
    assert keys() == set()
    assert ("Traceback" in done.stderr) == (code == 1), done.stderr


@pytest.mark.parametrize("method", ["fork", *swept("spawn", "forkserver")])
def test_multiprocessing_child_releases_its_own_holds_only(nodes, raw, keys, method, tmp_path):
    """It ends by os._exit, so the interpreter's own exit functions do not run."""
    path = tmp_path / "program.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing
            from redsync import Client

            client = Client({nodes.urls!r}, lease=60, restart_guard=0)

            def work():
                client.get_lock("child").acquire()
                mutex = client.get_mutex("child's")
                mutex.acquire()
                globals()["kept"] = mutex

            if __name__ == "__main__":
                client.get_lock("parent").acquire()
                child = multiprocessing.get_context({method!r}).Process(target=work)
                child.start()
                child.join(30)
                print(child.exitcode, flush=True)
                input()
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "0\n"
        assert keys() == {"redsync:parent"}
        _, errors = process.communicate("\n", timeout=30)
        assert errors == ""
        assert keys() == set()
    finally:
        process.kill()
        process.communicate()


def test_closed_or_dropped_client_does_no_harm_at_exit(nodes):
    program = """
        import gc
        closed = Client(URLS, restart_guard=0)
        closed.get_lock("x").acquire()
        closed.close()
        forgotten = Client(URLS, restart_guard=0)
        forgotten.get_lock("y").acquire()
        del forgotten
        gc.collect()
    """
    assert run_program(nodes, program).stderr == ""


# Finalizers that are interrupted: Python only reports their errors.


@pytest.mark.parametrize("what", ["mutex", "client"])
def test_interrupted_finalizer_leaves_nothing_renewed_for_ever(nodes, keys, monkeypatch, eventually, what):
    """The maintenance finds out by itself that nothing refers to the object any more."""
    client = Client(nodes.urls, lease=1.0, restart_guard=0.0)
    runner, struck = client.runner, []
    # pytest's own keeps the error, and so the object.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)

    def strike(*_):
        struck.append(what)
        raise Interruption

    if what == "mutex":
        with monkeypatch.context() as patch:
            mutex = client.get_mutex("x")
            assert mutex.acquire()
            patch.setattr(Mutex, "__del__", strike)
            del mutex
            gc.collect()
    else:
        assert client.get_lock("x").acquire()
        client._finalizer.detach()
        weakref.finalize(client, strike)
        del client
        gc.collect()
    assert struck == [what]
    eventually(lambda: not keys())
    runner.close()
