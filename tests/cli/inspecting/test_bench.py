"""`redsync bench` as a user runs it."""


def test_bench_measures_redsync_and_bare_sockets(redsync, raw):
    done = redsync("bench", "--seconds", "0.2", "--json")
    assert (done.status, done.err) == (0, "")
    found = done.json
    assert found["pairs"] >= 2
    for what in ("floor", "redsync"):
        assert 0 < found[what]["p50"] <= found[what]["p99"]
    assert found["ratio"] > 0
    assert [node["error"] for node in found["nodes"]] == [None] * 3
    assert raw.keys() == [set()] * 5


def test_bench_shows_a_table(redsync):
    done = redsync("bench", "--seconds", "0.1")
    assert done.status == 0
    assert "bare sockets" in done.out
    assert "x as long as bare sockets" in done.out


def test_bench_continues_without_a_node_that_is_down(redsync, nodes):
    nodes.kill(1)
    done = redsync("bench", "--seconds", "0.1", "--json")
    assert done.status == 0
    assert "refused" in done.json["nodes"][1]["error"]
    assert str(nodes.ports[1]) in done.err


def test_bench_without_quorum_ends_with_status_69(redsync, nodes):
    nodes.kill(1)
    nodes.kill(2)
    assert redsync("bench", "--seconds", "0.1").status == 69


def test_bench_of_one_server_listed_twice_ends_with_status_78(redsync, nodes):
    urls = [nodes.urls[0], nodes.urls[0]]
    done = redsync("bench", "--seconds", "0.1", REDSYNC_URLS=",".join(urls))
    assert done.status == 78
    assert "listed more than once" in done.err
