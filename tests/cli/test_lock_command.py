"""`redsync lock` as a user runs it: exit statuses, kinds of locks, the command's environment, and the start-up."""

import os
import re
import subprocess

import pytest

from tests.support.sweeps import swept

# Exit statuses


@pytest.mark.parametrize(
    ("program", "status"),
    [("exit 3", 3), ("kill $$", 143), *swept(("exit 0", 0), ("exit 75", 75), ("kill -KILL $$", 137))],
)
def test_status_is_the_status_of_the_command(run_lock, program, status):
    assert run_lock("x", "--", "sh", "-c", program) == (status, "", "")


@pytest.mark.parametrize(
    ("arguments", "status"), [(["-w", "0.2", "-E", "9"], 9), *swept((["-n"], 75), (["-w", "0"], 75))]
)
def test_busy_lock_ends_with_75_or_the_chosen_status(run_lock, client, arguments, status):
    with client.get_fenced_lock("x"):
        assert run_lock("x", *arguments, "--", "true") == (status, "", "redsync lock: 'x' is held by others\n")
        assert run_lock("x", "-q", *arguments, "--", "true") == (status, "", "")


@pytest.mark.parametrize("arguments", [["-n"], ["-n", "-q"], *swept(["-w", "0.3"])])
def test_lack_of_quorum_ends_with_69_and_its_reason(run_lock, nodes, arguments):
    for i in range(3):
        nodes.kill(i)
    status, out, err = run_lock("x", *arguments, "--", "echo", "ran")
    assert (status, out) == (69, "")
    assert re.search("Connection refused.*; `redsync doctor` says more$", err.splitlines()[-1])
    assert len(err.splitlines()) == 1 or "-q" not in arguments, "an error is one line"


def test_quiet_lock_does_not_mention_an_end_that_was_asked_for(run_lock):
    assert run_lock("x", "-q", "--max-hold", "0.2", "--", "sleep", "20") == (124, "", "")


def test_same_node_twice_ends_with_78(run_lock, nodes):
    assert run_lock("x", "--url", nodes.urls[0], "--url", nodes.urls[0], "--", "true")[0] == 78


def test_name_of_another_kind_ends_with_78(run_lock, client):
    with client.get_read_write_lock("x").read_lock:
        status, _, err = run_lock("x", "-n", "--", "true")
    assert status == 78
    assert "'x'" in err


@pytest.mark.parametrize(
    ("command", "status", "why"),
    [
        ("no\nsuch", 127, "can't run 'no\\nsuch': No such file or directory"),
        *swept(("/etc/passwd", 126, "Permission denied"), ("/etc", 126, "Permission denied")),
    ],
)
def test_lock_is_released_if_the_command_can_not_be_run(run_lock, client, command, status, why):
    ended, out, err = run_lock("x", "--", command)
    assert (ended, out) == (status, "")
    assert err.startswith("redsync lock: ")
    assert err.endswith(f"{why}\n")
    assert not client.get_fenced_lock("x").locked()


# The command's environment and streams


def test_command_finds_name_owner_and_token_in_its_environment(run_lock, client):
    show = ["sh", "-c", 'echo "$REDSYNC_LOCK_NAME|$REDSYNC_OWNER|$REDSYNC_FENCING_TOKEN"']
    name, owner, token = run_lock("a lock", "--", *show)[1].strip().split("|")
    assert name == "a lock"
    assert len(owner.split(":")[0]) == 36
    with client.get_fenced_lock("a lock") as hold:
        assert hold.fencing_token > int(token) > 0


def test_standard_input_goes_to_the_command(lock_command):
    process = lock_command("x", "--", "cat", stdin=subprocess.PIPE)
    assert process.communicate("one\ntwo\n", timeout=30)[0] == "one\ntwo\n"
    assert process.returncode == 0


def test_arguments_reach_the_command_unchanged(run_lock):
    assert run_lock("x", "--", "printf", "%s|", "-v", "--", "$HOME", "a b")[1] == "-v|--|$HOME|a b|"


def test_script_without_interpreter_runs_in_a_shell(run_lock, tmp_path):
    (script := tmp_path / "job").write_text('printf "%s|" "$0" "$@"')
    script.chmod(0o700)
    status, out, err = run_lock("x", "--", "job", "a b", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert (status, out, err) == (0, f"{script}|a b|", "")


def test_name_may_be_bytes(run_lock, client):
    with client.get_fenced_lock(b"a\xffb"):
        assert run_lock(b"a\xffb", "-n", "--", "true")[0] == 75
    status, out, _ = run_lock(b"a\xffb", "-c", 'printf %s "$REDSYNC_LOCK_NAME" | od -An -tx1')
    assert (status, out.split()) == (0, ["61", "ff", "62"])


# Kinds of locks


each_kind = pytest.mark.parametrize(
    ("kind", "token", "held"),
    [
        ([], r"\d{16}", lambda client: client.get_fenced_lock("x")),
        (["--fair"], "none", lambda client: client.get_fair_lock("x")),
        (["-s"], "none", lambda client: client.get_read_write_lock("x").write_lock),
        (["-x"], "none", lambda client: client.get_read_write_lock("x").read_lock),
        (["--permits", "1"], "none", lambda client: client.get_semaphore("x", 1)),
    ],
    ids=["fenced", "fair", "read", "write", "permits"],
)


@each_kind
def test_lock_excludes_and_is_released(run_lock, client, kind, token, held):
    show = 'echo "${REDSYNC_OWNER:+owner} ${REDSYNC_FENCING_TOKEN-none}"'
    with held(client):
        assert run_lock("x", "-n", *kind, "--", "true")[0] == 75
    status, out, err = run_lock("x", "-n", *kind, "-c", show, REDSYNC_FENCING_TOKEN="7")
    assert (status, err) == (0, "")
    assert re.fullmatch(f"owner {token}\n", out)
    with held(client):
        pass


def test_readers_share(run_lock, client):
    with client.get_read_write_lock("x").read_lock:
        assert run_lock("x", "-n", "-s", "--", "true")[0] == 0


def test_semaphore_admits_as_many_as_its_permits(run_lock, client):
    semaphore = client.get_semaphore("x", 2)
    with semaphore:
        assert run_lock("x", "-n", "--permits", "2", "--", "true")[0] == 0
        with semaphore:
            assert run_lock("x", "-n", "--permits", "2", "--", "true")[0] == 75


# Waiting and holding


@each_kind
def test_waiter_says_that_it_waits_and_runs_its_command(lock_command, client, eventually, *, kind, token, held):
    with held(client):
        process = lock_command("x", "-v", *kind, "--", "echo", "ran")
        # On a machine that pauses, lines about late nodes come first.
        assert "redsync lock: waiting for 'x'\n" in iter(process.stderr.readline, "")
        # From now on nodes hand the lock over, for the rest of a place in the queue.
        eventually(lambda: client.inspect("x").waiters)
    status, out, err = process.finish()
    assert (status, out) == (0, "ran\n")
    assert "redsync lock: acquired 'x' after " in err
    assert ("fencing token" in err) is (token != "none")


def test_min_hold_keeps_the_lock_after_a_short_command(lock_command, client, eventually):
    process = lock_command("x", "--min-hold", "60", "-c", "echo done; exit 4")
    process.read_until("done\n")
    assert not client.get_fenced_lock("x").acquire(timeout=0.3)
    process.terminate()
    assert process.finish().status == 4
    assert client.get_fenced_lock("x").acquire(timeout=20)


def test_options_override_prefix_and_urls_of_the_environment(run_lock, nodes, client):
    urls = [word for url in nodes.urls for word in ("--url", url)]
    with client.get_fenced_lock("x"):
        elsewhere = {"REDSYNC_URLS": "redis://127.0.0.1:1", "REDSYNC_PREFIX": "redsync:"}
        assert run_lock("x", *urls, "-n", "--", "true", **elsewhere)[0] == 75
        assert run_lock("x", *urls, "--prefix", "p:", "-n", "--", "true", **elsewhere)[0] == 0


# The start-up


def test_inherited_descriptors_may_be_many_and_reach_the_command(lock_command, tmp_path):
    # `select` allows 1,024.
    many = [os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT) for _ in range(1_100)]
    try:
        process = lock_command("x", "-c", f"echo there >/dev/fd/{many[-1]}", pass_fds=many)
    finally:
        for number in many:
            os.close(number)
    assert process.finish() == (0, "", "")
    assert (tmp_path / "out").read_text() == "there\n"
