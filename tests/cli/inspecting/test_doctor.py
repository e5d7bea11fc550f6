"""`redsync doctor`: its findings on real nodes, its output, and its exit status."""

import re

import pytest
import redis

from redsync._core.client_records import ClientRecord
from redsync._core.keys import client_key
from redsync._core.memory import NEWBORN, Birth
from redsync.cli.doctor import HEADINGS, _row
from redsync.cli.doctor_checks import Heard, Report, check_deployment, findings_about
from redsync.testing import LocalNodes
from tests.cli.command_process import Terminal
from tests.support.trouble import add_guest


def problems(done):
    """Return the texts of all problems: the deployment's under "", each node's under its number."""
    found = {"": [each["text"] for each in done.json["findings"] if each["problem"]]}
    for number, node in enumerate(done.json["nodes"]):
        found[number] = [each["text"] for each in node["findings"] if each["problem"]]
    return {where: texts for where, texts in found.items() if texts}


def notes(done):
    return [each["text"] for node in done.json["nodes"] for each in node["findings"] if not each["problem"]]


@pytest.fixture
def guarded(raw):
    """An environment in which nothing needs attention."""
    for node in raw[:3]:
        node.config_set("appendonly", "yes")
    yield {"REDSYNC_RESTART_GUARD": "0"}
    for node in raw[:3]:
        node.config_set("appendonly", "no")


def test_doctor_finds_nothing_if_all_is_well(redsync, guarded):
    done = redsync("doctor", "--json", **guarded)
    assert (done.status, problems(done)) == (0, {}), done.out
    for node in done.json["nodes"]:
        assert node["error"] is None
        assert node["role"] == "master"
        assert node["persistence"] == "append-only file"
        assert node["eviction"] == "noeviction"
        assert node["version"].split()[0] in ("redis", "valkey")
        assert node["uptime"] >= 0
        assert abs(node["clock_offset"]) < 1
        assert 0 < node["latency"] < 1
    assert "nothing needs attention" in redsync("doctor", **guarded).out


def test_doctor_finds_nodes_that_are_down_and_a_lack_of_quorum(redsync, guarded, nodes):
    nodes.kill(1)
    done = redsync("doctor", "--json", **guarded)
    assert (done.status, list(problems(done))) == (1, [1])
    assert "does not answer" in problems(done)[1][0]
    nodes.kill(2)
    done = redsync("doctor", "--json", **guarded)
    assert done.status == 69
    assert "only 1 of 3 nodes answer" in problems(done)[""][0]
    assert redsync("doctor", **guarded).out.count("no answer") == 2
    nodes.restart(1)
    nodes.restart(2)


def test_doctor_finds_one_server_listed_twice(redsync, guarded, nodes):
    urls = [*nodes.urls[:2], nodes.urls[0].replace("127.0.0.1", "localhost")]
    done = redsync("doctor", "--json", **guarded, REDSYNC_URLS=",".join(urls))
    assert done.status == 1
    assert "one server, listed 2 times" in problems(done)[""][0]


def test_doctor_takes_nodes_on_this_machine_for_a_trial(redsync):
    done = redsync("doctor", "--json", REDSYNC_RESTART_GUARD="0")
    assert (done.status, problems(done)) == (0, {})
    assert "forgets all holds" in notes(done)[0]
    assert redsync("doctor", REDSYNC_RESTART_GUARD="0").out.count("each node: forgets all holds") == 1
    assert [each["text"] for each in done.json["findings"]] == ["all nodes run on this machine, and fail with it"]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"REDSYNC_RESTART_GUARD": "nan"}, "restart_guard must be a number of seconds, from 0 to a year, not nan"),
        ({"REDSYNC_RESTART_GUARD": "5", "REDSYNC_LEASE": "30"}, "restart_guard=5 is shorter than the lease of 30 s"),
        ({"REDSYNC_RESTART_GUARD": "soon"}, "REDSYNC_RESTART_GUARD must be a number of seconds"),
        ({"REDSYNC_LEASE": "-3"}, "a lease is a positive number of seconds, not -3"),
    ],
)
def test_times_that_no_client_accepts_end_with_status_78(redsync, times, said):
    done = redsync("doctor", "--json", **times)
    assert (done.status, done.out) == (78, "")
    assert said in done.err


def test_guard_may_be_shorter_than_a_lease_that_programs_set(redsync):
    for lease in ({}, {"REDSYNC_LEASE": ""}):
        assert redsync("doctor", "--json", REDSYNC_RESTART_GUARD="2", **lease).json["restart_guard"] == 2


@pytest.fixture
def guest(server_path):
    """Return the URL of a node for a user with these rights."""
    with LocalNodes(1, server=server_path) as one, redis.Redis(port=one.ports[0]) as admin:
        admin.set(client_key("x"), ClientRecord("web-1", 1, "web", 0.0).pack(), ex=60)

        def guest(*rules):
            add_guest(admin, rules)
            return one.urls[0].replace("redis://", "redis://guest:right@")

        yield guest


def test_doctor_says_what_it_is_not_allowed_to_read(guest, redsync):
    url = guest("+@all", "-info", "-config", "-time", "-pttl")
    done = redsync("doctor", "--json", "--url", url)
    assert "right" not in done.out + done.err
    (node,) = done.json["nodes"]
    assert node["version"] == node["role"] == node["persistence"] == "not allowed"
    assert node["uptime"] is node["clock_offset"] is node["eviction"] is None
    assert "not allowed" in redsync("doctor", "--url", url).out


def test_doctor_finds_a_user_who_may_run_no_scripts(guest, redsync):
    done = redsync("doctor", "--json", "--url", guest("+@all", "-@scripting"))
    assert done.status == 1
    assert any("does not run our scripts" in text for text in problems(done)[0])


# Findings that servers on one machine can't produce.

INFO = {"redis_version": "7.2.4", "role": "master", "aof_enabled": 1, "uptime_in_seconds": 10**6, "run_id": "a"}
INFO |= {"maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    ("change", "fields", "said", "is_problem"),
    [
        ({"redis_version": "5.0.14"}, {}, "too old", True),
        ({"cluster_enabled": 1}, {}, "cluster", True),
        ({"maxmemory": 100, "used_memory": 95}, {}, "95% of maxmemory", True),
        ({"aof_last_write_status": "err"}, {}, "append-only file failed", True),
        ({"rdb_last_bgsave_status": "err"}, {}, "snapshot failed", True),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 100}, {}, "evicts keys (allkeys-lru)", True),
        ({"maxmemory_policy": None}, {}, "does not tell its eviction policy", False),
        ({"role": "slave"}, {}, "is a replica: it refuses writes", True),
        ({"uptime_in_seconds": 30}, {}, "started less than 30 s ago: takes no part in new grants", True),
        # Servers report their uptime in whole seconds, and it may be 1 s too high.
        ({"uptime_in_seconds": 31}, {}, "", None),
        ({}, {"birth": Birth(NEWBORN, 0, b"a", 4.0)}, "was emptied less than 30 s ago", True),
        ({}, {"latency": 0.2}, "200 ms", True),
        ({}, {"latency": 0.1}, "100 ms", False),
        ({"connected_slaves": 1}, {}, "has replicas: a promoted replica may lack", False),
        ({"connected_slaves": 2}, {"replicas": 0}, "its votes wait for no replica", True),
        ({"connected_slaves": 2}, {"replicas": 2}, "", None),
        ({"connected_slaves": 1}, {"replicas": 2}, "1 of its 2 replicas are in sync; each vote needs 1", True),
        ({"connected_slaves": 3}, {"replicas": 4}, "3 of its 4 replicas are in sync; each vote needs 2", False),
        ({"connected_slaves": 3}, {"replicas": 2}, "has 3 replicas, but replicas=2: two masters might", True),
    ],
)
def test_node_with_a_fault_has_one_finding(change, fields, said, is_problem):
    found = findings_about(Report("a", info=INFO | change, guard=30.0, **fields))
    assert [finding.is_problem for finding in found] == ([is_problem] if said else [])
    assert all(said in finding.text for finding in found)


def test_deviating_clock_is_found():
    reports = [Report(name, info=INFO | {"run_id": name}, offset=offset) for name, offset in [("a", 0.1), ("b", 0.0)]]
    reports.append(Report("c", info=INFO | {"run_id": "c"}, offset=-7.0))
    assert check_deployment(reports) == []
    assert [len(report.findings) for report in reports] == [0, 0, 1]
    assert "7.0 s behind" in reports[2].findings[0].text


def test_refused_info_is_one_note_and_its_facts_are_not_allowed():
    refusing, silent = Report("a"), Report("a", info=INFO | {"maxmemory_policy": None})
    assert [finding.text.split(":")[0] for finding in findings_about(refusing)] == ["refuses INFO"]
    column = HEADINGS.index("EVICTION")
    assert [_row(report)[column] for report in (silent, refusing)] == ["-", "not allowed"]


@pytest.mark.parametrize(("count", "is_problem"), [(2, True), (4, False)])
def test_even_number_of_nodes_is_a_finding(count, is_problem):
    (finding,) = check_deployment([Report(str(number)) for number in range(count)])
    assert finding.is_problem is is_problem
    assert f"{count} nodes" in finding.text


@pytest.mark.parametrize(
    ("addresses", "is_problem"), [(["a:1", "b:1", "c:1"], True), (["a:1"], False), (["127.0.0.1:1"] * 3, False)]
)
def test_nodes_that_forget_without_a_guard_are_a_problem_in_a_serious_deployment(addresses, is_problem):
    reports = [Report(address, info={"aof_enabled": 0}) for address in addresses]
    check_deployment(reports)
    for report in reports:
        (finding,) = report.findings
        assert "forgets all holds" in finding.text
        assert finding.is_problem is is_problem


@pytest.mark.parametrize(
    ("addresses", "texts"),
    [
        (["a:1", "b:1", "c:1"], []),
        (["a:1", "a:2", "b:1"], [("2 of 3 nodes run on a, and fail with it", True)]),
        (["a:1", "a:2", "b:1", "c:1", "d:1"], [("2 of 5 nodes run on a, and fail with it", False)]),
        (["127.0.0.1:1", "localhost:2", "/run/redis"], [("all nodes run on this machine, and fail with it", False)]),
        (["127.0.0.1:1"], []),
    ],
)
def test_nodes_that_share_a_machine_are_a_finding(addresses, texts):
    found = check_deployment([Report(address) for address in addresses])
    assert [(finding.text, finding.is_problem) for finding in found] == texts


def test_doctor_shows_nodes_side_by_side_on_a_narrow_terminal(start, nodes):
    command = start("doctor", terminal=Terminal(columns=80))
    text = re.sub(r"\x1b\[\d*m", "", command.read_until("LATENCY"))
    assert [line.split()[0] for line in text.splitlines()] == [
        *("NODE", "STATE", "VERSION", "ROLE", "PERSISTENCE", "EVICTION", "UP", "CLOCK", "LATENCY")
    ]
    assert text.split()[1:4] == [f"127.0.0.1:{port}" for port in nodes.ports[:3]]
    command.read_until("nothing needs attention")
    assert command.end() == 0


# Clients that still use a server that was replaced.


def heard(host, seconds=60.0, **fields):
    return Heard(ClientRecord(host, 7, "program", 1.0, **fields), seconds)


def hearing(node, uptime=1000, birth=None, **kept):
    """Return the report of a node that keeps these clients' records for that many more seconds."""
    clients = {client: heard(f"web-{client}", seconds) for client, seconds in kept.items()}
    return Report(node, info=INFO | {"uptime_in_seconds": uptime, "run_id": node}, birth=birth, clients=clients)


def unheard(*reports):
    check_deployment(reports)
    return {report.node: each.text for report in reports for each in report.findings if "record of" in each.text}


def test_node_that_a_client_does_not_reach_is_found():
    """Its address may have been another server's when the client connected: then one node votes twice."""
    found = unheard(hearing("a", x=60, y=50), hearing("b", x=59, y=50), hearing("c", y=50))
    assert found == {"c": "has no fresh record of 1 of 2 clients that other nodes know: web-x:7"}


def test_node_with_old_records_of_clients_is_found():
    found = unheard(hearing("a", v=60, w=60, x=60, y=60), hearing("b", v=5, w=5, x=5, y=5))
    assert found == {
        "b": "has no fresh record of 4 of 4 clients that other nodes know: web-v:7, web-w:7, web-x:7 and others"
    }


def test_ended_client_is_not_reported_as_missing():
    assert unheard(hearing("a", x=39), hearing("b"), hearing("c", x=10)) == {}


@pytest.mark.parametrize("young", [{"uptime": 60}, {"birth": Birth(NEWBORN, 0, b"c", 60.0)}])
def test_no_client_is_reported_as_missing_on_a_node_that_has_just_forgotten(young):
    assert unheard(hearing("a", x=60), hearing("b", x=60), hearing("c", **young)) == {}


# Lists of nodes.


def findings_of(*clients):
    """Return the findings about clients, whose records are on each node."""
    kept = dict(enumerate(clients))
    reports = [Report(f"n{i}:1", info={"uptime_in_seconds": 1000}, clients=kept) for i in range(3)]
    return [each for each in check_deployment(reports) if "clients" in each.text]


@pytest.mark.parametrize(
    ("lists", "said", "is_problem"),
    [
        *((lists, "", None) for lists in [(), ("abc",), ("abc", "abc", "cba")]),
        (("abc", ""), "", None),  # clients of an earlier version do not record theirs
        *((lists, "differ by one node", False) for lists in [("abc", "abcd"), ("abcd", "abc", "abc"), ("a", "ab")]),
        *((lists, "differ by 2 nodes", True) for lists in [("abc", "abd"), ("abc", "abcde")]),
        (("abc", "abcd", "xyz"), "differ by 7 nodes", True),
    ],
)
def test_lists_of_nodes_whose_majorities_may_share_no_node_are_a_problem(lists, said, is_problem):
    found = findings_of(*(heard("host", nodes=tuple(nodes)) for nodes in lists))
    assert [each.is_problem for each in found] == ([is_problem] if said else [])
    assert all(said in each.text for each in found)


def test_doctor_warns_of_clients_with_different_layouts():
    (finding,) = findings_of(*(heard(f"host-{layout}", layout=layout) for layout in (1, 2)))
    assert finding.text == "clients use different layouts of keys: host-1:7 uses 1, host-2:7 uses 2"


def test_doctor_reads_the_lists_of_real_clients(redsync, guarded, nodes, make_client, all_nodes_met):
    for urls in (nodes.urls[:3], nodes.urls[:2]):
        make_client(urls)
    done = redsync("doctor", "--json", **guarded)
    assert any("clients' lists differ by one node" in each["text"] for each in done.json["findings"])
