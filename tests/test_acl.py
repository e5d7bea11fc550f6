"""The rules for users in docs/operate/settings.md suffice for everything, and each command in them is needed."""

import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from redsync import AsyncClient, Client, LeaseLostError
from redsync._core.scripts import Script
from redsync.cli import main
from redsync.testing import LocalNodes
from tests.support.kinds import LOCKS, another, waits_in_line

ROOT = Path(__file__).parents[1]
SETTINGS, *USERS = re.findall(
    r"^```conf\n(.*?)\n```$", (ROOT / "docs/operate/settings.md").read_text(), re.MULTILINE | re.DOTALL
)
ALL, LOOK = (user.split()[2:] for user in USERS)
CALL = re.compile(rb"redis\.p?call\(\s*'(\w+)'")
LEASE = 3.0


def commands_of(rule):
    return {word[1:] for word in rule if word.startswith("+")}


def called_by(scripts):
    return {name.decode() for script in scripts for name in CALL.findall(script.source)}


class Guarded:
    """Nodes with users that have given rules."""

    def __init__(self, nodes):
        self.admins = [redis.Redis.from_url(url) for url in nodes.urls]
        self._urls = nodes.urls

    def urls(self, user="app"):
        return [url.replace("//", f"//{user}:secret@") for url in self._urls]

    @property
    def knows_channels(self):
        """True if rules can name channels; the page says what to do otherwise."""
        major, minor, *_ = self.admins[0].info("server")["redis_version"].split(".")
        return (int(major), int(minor)) >= (6, 2)

    def allow(self, rule, user="app"):
        if not self.knows_channels:
            rule = [word for word in rule if word[0] != "&" and word != "resetchannels"]
        for admin in self.admins:
            admin.execute_command("ACL", "SETUSER", user, "reset", *rule)
            admin.execute_command("ACL", "LOG", "RESET")
            admin.config_resetstat()

    def refused(self):
        return {(entry["reason"], entry["object"]) for admin in self.admins for entry in admin.acl_log()}

    def executed(self):
        """Return the executed commands, and those whose subcommands the nodes count as a whole."""
        stats = [admin.info("commandstats") for admin in self.admins]
        return {name.removeprefix("cmdstat_") for stat in stats for name, each in stat.items() if each["calls"]}

    def client(self, **options):
        # A guard that ends at once: with 0, no client would ask for birth records.
        return Client(self.urls(), **{"lease": LEASE, "restart_guard": LEASE, "node_timeout": 2.0, **options})

    def command(self, *arguments, user="app"):
        """Run a command of the command line; return its status and output."""
        urls = [word for url in self.urls(user) for word in ("--url", url)]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = main([*arguments, *urls])
        return status, said.getvalue()

    def lock_command(self, *arguments):
        """Run `redsync lock`, which starts a program, in a new process."""
        urls = [word for url in self.urls() for word in ("--url", url)]
        command = [sys.executable, "-m", "redsync.cli", "lock", *urls, *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def servers(server_path):
    """Servers with the settings of the page."""
    config = dict(line.split(maxsplit=1) for line in SETTINGS.splitlines())
    with LocalNodes(3, server=server_path, config=config) as nodes:
        yield nodes


@pytest.fixture
def guarded(servers, monkeypatch):
    servers.reset()
    monkeypatch.setenv("REDSYNC_LEASE", str(LEASE))
    monkeypatch.setenv("REDSYNC_RESTART_GUARD", str(LEASE))
    guarded = Guarded(servers)
    yield guarded
    for admin in guarded.admins:
        admin.execute_command("ACL", "DELUSER", "app", "look")
        admin.close()


def in_other_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def use_lock(one, two, kind, eventually):
    """Do everything that a kind of lock can do."""
    mine, yours = LOCKS[kind](one, kind), another(kind)(two, kind)
    assert mine.acquire(timeout=20)
    assert not yours.acquire(timeout=0.3)
    waiter = in_other_thread(lambda: yours.acquire(timeout=20) and yours.release())
    mine.extend()
    assert mine.locked()
    mine.release()
    waiter.join()
    assert mine.acquire(timeout=20)
    eventually(lambda: len(one.inspect(kind).holders) == 1)
    assert LOCKS[kind](two, kind).force_release()
    with pytest.raises(LeaseLostError):
        mine.release()


def use_semaphore(one, two, guarded, eventually):
    mine, yours = one.get_semaphore("sem", 2), two.get_semaphore("sem", 2)
    permit = mine.acquire(timeout=5, n=2)
    assert yours.acquire(timeout=0.3) is None
    waiter = in_other_thread(lambda: yours.acquire(timeout=20).release())
    eventually(lambda: one.inspect("sem").waiters)
    eventually(lambda: all(admin.exists("redsync:sem") for admin in guarded.admins))
    guarded.admins[0].delete("redsync:sem", "redsync_slots:{redsync:sem}")
    permit.extend()  # and repairs it where it was forgotten
    assert len(mine.holders()) == 1
    assert mine.available() == 0
    mine.resize(3)
    mine.release(2)
    waiter.join()
    mine.acquire(timeout=5, lease=0.05)
    eventually(lambda: mine.available() == 3)


def use_others(one, two, guarded, eventually):
    limiter = one.get_rate_limiter("rate", 2, 60.0, restart_guard=0.001)
    assert limiter.acquire(n=2, timeout=20)
    assert not limiter.acquire(False)
    assert limiter.retry_after() > 0
    latch = one.get_count_down_latch("latch")
    assert latch.try_set_count(1)
    waiter = in_other_thread(two.get_count_down_latch("latch").wait)
    eventually(lambda: any(admin.exists("redsync_latch_waiters:{redsync:latch}") for admin in guarded.admins))
    latch.count_down()
    waiter.join()
    assert latch.count() == 0
    latch.delete()


async def use_async(urls):
    async with AsyncClient(urls, lease=LEASE, restart_guard=LEASE, node_timeout=2.0) as client:
        lock = client.get_fair_lock("tasks")
        await lock.acquire(timeout=20)
        assert not await asyncio.create_task(client.get_fair_lock("tasks").acquire(timeout=0.3))
        await lock.release()


def lose_connections(client, guarded, eventually):
    """Make a client reconnect: it ends its lost connections."""

    def ended():
        stats = [admin.info("commandstats") for admin in guarded.admins]
        return [stat.get("cmdstat_client|kill", stat.get("cmdstat_client", {"calls": 0}))["calls"] for stat in stats]

    before = ended()
    for admin in guarded.admins:
        admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    eventually(lambda: all(now >= then + 2 for now, then in zip(ended(), before, strict=True)))
    eventually(lambda: [node.state for node in client.nodes()] == ["up"] * 3)


def use_commands(guarded, one, eventually):
    one.get_count_down_latch("shown").try_set_count(1)
    with one.get_lock("shown"):
        for command in (["ls"], ["show", "shown"], ["doctor", "--json"]):
            # 1: the doctor may complain about newly started servers.
            status, said = guarded.command(*command)
            assert status == 0 or (command[0] == "doctor" and status == 1), said
            if command[0] == "doctor":
                assert all(node["error"] is None and node["role"] == "master" for node in json.loads(said)["nodes"])
    for admin in guarded.admins:
        admin.script_flush()
    lock = one.get_lock("broken")
    lock.acquire(timeout=20)
    eventually(lambda: all(admin.exists("redsync:broken") for admin in guarded.admins))
    status, said = guarded.command("show", "broken", "--json")
    assert status == 0, said
    owner = json.loads(said)["nodes"][0]["holders"][0]["owner"]
    status, said = guarded.command("break", "broken", "--owner", owner, "--yes")
    assert (status, said) == (0, "released on 3 of 3 nodes\n")
    with pytest.raises(LeaseLostError):
        lock.release()
    done = guarded.lock_command("job", "-w", "20", "--", "echo", "done")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_rule_suffices_for_everything_and_all_of_it_is_used(guarded, eventually):
    guarded.allow(ALL)
    with guarded.client() as one, guarded.client() as two:
        eventually(lambda: {node.state for client in (one, two) for node in client.nodes()} == {"up"})
        for kind in LOCKS:
            use_lock(one, two, kind, eventually)
        use_semaphore(one, two, guarded, eventually)
        use_others(one, two, guarded, eventually)
        use_commands(guarded, one, eventually)
        lose_connections(one, guarded, eventually)
    asyncio.run(use_async(guarded.urls()))
    executed = guarded.executed()
    assert guarded.refused() == set()
    # An executed command would have been refused without the word. Before Redis 7 subcommands count as a whole.
    assert {word for word in commands_of(ALL) if not {word, word.split("|")[0]} & executed} == set()


def test_rules_have_every_command_that_their_scripts_call():
    all_of_ours = {"ping", "info", "evalsha", "eval", "script|exists", "script|load", "subscribe", "scan", "dbsize"}
    assert commands_of(ALL) == called_by(Script.shipped()) | all_of_ours | {"client|id", "client|kill"}
    ours = {"ping", "info", "time", "get", "evalsha", "eval", "scan", "dbsize"}
    assert commands_of(LOOK) == called_by([Script.load("name_inspect")]) | ours


@pytest.mark.parametrize("kind", [kind for kind in LOCKS if not waits_in_line(kind)])
def test_lock_that_polls_needs_no_subscription(guarded, make_worker, kind):
    """Its page recommends it when the nodes' ACL forbids SUBSCRIBE."""
    guarded.allow([word for word in ALL if word != "+subscribe"])
    with guarded.client() as client:
        lock = LOCKS[kind](client, timeout=20)
        with lock as hold:
            assert not make_worker().do(lock.acquire, timeout=0.3)
            waiting = make_worker().start(LOCKS[kind](client).acquire, timeout=20)
            hold.release()
        assert waiting.result(20)
    assert guarded.refused() == {("command", "subscribe")}


def test_additions_for_other_databases_and_prefixes_suffice(guarded):
    places = [word.replace("redsync:*", "billing:*") if word == "~redsync:*" else word for word in ALL]
    guarded.allow([*places, "~redsync:client:*", "+select"])
    urls = [url.removesuffix("/0") + "/3" for url in guarded.urls()]
    with Client(urls, prefix="billing:", lease=LEASE, restart_guard=LEASE) as client:
        with client.get_fenced_lock("x") as hold:
            hold.extend()
        assert client.get_semaphore("s", 2).acquire(timeout=20)
    assert guarded.refused() == set()
    assert {admin.info("keyspace")["db3"]["keys"] > 0 for admin in guarded.admins} == {True}
    assert "db0" not in guarded.admins[0].info("keyspace")


def test_read_only_user_can_inspect_and_change_nothing(guarded):
    guarded.allow(ALL)
    guarded.allow(LOOK, "look")
    with guarded.client() as client, client.get_lock("x") as hold:
        for command, text in ((["show", "x"], hold.owner), (["ls"], "3/3")):
            status, said = guarded.command(*command, user="look")
            assert status == 0
            assert text in said
        status, said = guarded.command("doctor", "--json", user="look")
        assert status in (0, 1)  # it may complain about newly started servers
        assert "does not run our scripts" not in said
        assert guarded.refused() == set()
        assert guarded.command("break", "x", "--owner", hold.owner, "--yes", user="look")[0] != 0
        assert guarded.refused()
        hold.check()
        assert len(client.inspect("x").holders) == 1
