"""The schedule: pure, never more than allowed, and never too little."""

import pytest

from redsync.testing.harness.nemesis import Fault
from tests.soak.plan import CLIENTS_IN_TROUBLE, PLACE_KEPT, absences_of, faults_of, plan
from tests.soak.troubles import (
    CLIENT_TROUBLES,
    CLIENTS,
    FLUSHES,
    GUARD,
    JOINT_FLUSHES,
    JOINT_TROUBLES,
    MINORITY,
    NODE_TROUBLES,
    NODES,
    PROXIED,
    Part,
)

SEEDS = range(40)
SECONDS = 60.0
BAD = {"kill", "pause", "flush_all", "delay", "drop_requests", "drop_replies", "blackhole", "half_replies"}
BAD_FOR_CLIENTS = {"kill_client", "stop_client"}


def node_of(fault):
    return fault.target[-1]


def troubled(faults, bad, good, after=0.0):
    """Return when each target is in trouble, by the faults: (from, until, target)."""
    since, spans = {}, []
    for fault in faults:
        target = node_of(fault)
        if fault.action in bad:
            since.setdefault(target, fault.at)
        elif fault.action in good and target in since:
            spans.append((since.pop(target), fault.at + after, target))
    assert since == {}, "a target is left in trouble"
    return spans


def most_at_once(spans):
    """Return the largest number of different targets in trouble at one instant."""
    return max(len({target for begins, ends, target in spans if begins <= at < ends}) for at, _, _ in spans)


def test_plan_depends_only_on_its_seed():
    assert plan(1, SECONDS) == plan(1, SECONDS)
    assert plan(1, SECONDS) != plan(2, SECONDS)


def test_plan_troubles_no_more_nodes_than_a_minority():
    for seed in SEEDS:
        # For a client that is cut off from a majority the trouble is its own; the nodes are healthy.
        troubles = [trouble for trouble in plan(seed, SECONDS) if trouble.kind not in CLIENT_TROUBLES]
        faults = faults_of(troubles)
        forgets = [(fault.at, fault.at + GUARD, node_of(fault)) for fault in faults if fault.action == "flush_all"]
        spans = [
            *troubled(faults, {"kill"}, {"restart"}, after=GUARD),
            *troubled([f for f in faults if f.action in ("pause", "resume", "kill")], {"pause"}, {"resume", "kill"}),
            *troubled(faults, BAD - {"kill", "pause", "flush_all"}, {"heal"}),
            *forgets,
        ]
        assert most_at_once(spans) <= MINORITY, seed


def test_plan_troubles_some_clients_at_a_time():
    clients = set()
    for seed in SEEDS:
        faults = [f for f in faults_of(plan(seed, SECONDS)) if "client" in f.action]
        spans = troubled(faults, BAD_FOR_CLIENTS, {"start_client", "continue_client"})
        assert most_at_once(spans) <= CLIENTS_IN_TROUBLE, seed
        clients |= {target for _, _, target in spans}
    assert clients == set(range(CLIENTS))


@pytest.mark.parametrize("seconds", [5.0, 60.0, 300.0])
def test_plan_is_over_in_time(seconds):
    for seed in SEEDS:
        faults = faults_of(plan(seed, seconds))
        assert all(0.0 <= fault.at <= seconds for fault in faults)
        assert all(fault.at <= seconds - PLACE_KEPT for fault in faults if fault.action == "kill_client")


def test_plan_asks_only_running_nodes():
    for seed in SEEDS:
        troubles = plan(seed, SECONDS)
        absences = [absence for trouble in troubles for part in trouble.parts for absence in absences_of(part)]
        assert absences
        for fault in faults_of(troubles):
            if fault.action.startswith("flush"):
                assert not [a for a in absences if a[0] == fault.target[0] and a[1] <= fault.at <= a[2]], seed


def test_plan_cuts_off_only_clients_with_proxies():
    for seed in SEEDS:
        assert {fault.target[0] for fault in faults_of(plan(seed, SECONDS)) if len(fault.target) == 2} <= set(PROXIED)


def test_plan_of_a_minute_has_nearly_every_kind():
    everything = {*NODE_TROUBLES, *FLUSHES, *JOINT_TROUBLES, *JOINT_FLUSHES, *CLIENT_TROUBLES, "SCRIPT FLUSH"}
    seen = set()
    for seed in SEEDS:
        kinds = {trouble.kind for trouble in plan(seed, SECONDS)}
        # The long ones may find no room any more.
        assert len(everything - kinds) <= 3, seed
        seen |= kinds
    assert seen == everything


def test_absences_last_from_the_first_silence_to_the_next_answer():
    faults = [(1.0, "pause"), (2.0, "kill"), (3.0, "restart"), (5.0, "kill"), (6.0, "restart")]
    part = Part(4, tuple(Fault(at, action, (4,)) for at, action in faults), 8.0)
    assert list(absences_of(part)) == [(4, 1.0, 3.0), (4, 5.0, 6.0)]
    assert NODES > 4
