"""Traces: exact spans of a scripted history on real nodes, their parents, and ends that are reported late."""

import asyncio
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from redsync import AsyncClient, HoldLost
from redsync._core.observing import AcquireEnded, AcquireRecord, HoldEnded
from redsync.exceptions import QuorumError
from redsync.metrics.traces import OpenTelemetryTraces
from tests.aio_support import run
from tests.support.forks import in_child
from tests.support.locks import flush


@pytest.fixture
def provider():
    provider = TracerProvider()
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(provider):
    """Return the ended spans so far, and forget them."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def spans():
        ended = exporter.get_finished_spans()
        exporter.clear()
        return ended

    return spans


@pytest.fixture
def traces(provider):
    return OpenTelemetryTraces(tracer_provider=provider)


@pytest.fixture
def tracer(provider):
    return provider.get_tracer("application")


def steps(span):
    return [event.name for event in span.events]


@pytest.mark.usefixtures("all_nodes_met")
def test_acquire_and_hold_are_a_span_each(make_client, traces, spans):
    lock = make_client(listeners=[traces], lease=20.0).get_fenced_lock("order:4711")
    with lock as hold:
        [acquired] = spans()
    [held] = spans()
    assert (acquired.name, held.name) == ("acquire fenced_lock", "hold fenced_lock")
    assert acquired.kind is SpanKind.CLIENT
    whose = {"redsync.kind": "fenced_lock", "redsync.name": "order:4711"}
    assert dict(acquired.attributes) == {**whose, "redsync.outcome": "won", "redsync.rounds": 1}
    assert dict(held.attributes) == {**whose, "redsync.lease": 20.0, "redsync.fencing_token": hold.fencing_token}
    [voted] = acquired.events
    assert voted.name == "round"
    assert voted.attributes["redsync.granted"] >= 3
    assert voted.attributes["redsync.refused"] == voted.attributes["redsync.failed"] == 0
    assert acquired.start_time <= voted.timestamp <= acquired.end_time == held.start_time <= held.end_time
    assert acquired.status.status_code is held.status.status_code is StatusCode.UNSET
    [link] = held.links
    assert link.context.span_id == acquired.context.span_id


@pytest.mark.usefixtures("all_nodes_met")
def test_waiter_is_queued_and_handed_over(make_client, traces, spans, other, eventually):
    client = make_client(listeners=[traces])
    lock, records = client.get_fair_lock("x"), client.runner.session.records

    def waits():
        lock.acquire()
        assert not other.do(lock.acquire, False)
        waiter = other.start(lock.acquire)
        eventually(lambda: any("queued" in record.counts for record in list(records.values())))
        lock.release()
        assert waiter.result(20)
        other.do(lock.release)
        _, busy, waited = [span for span in spans() if span.name == "acquire fair_lock"]
        assert busy.attributes["redsync.outcome"] == "busy"
        assert busy.status.status_code is StatusCode.UNSET
        assert waited.attributes["redsync.outcome"] == "won"
        assert {"round", "queued"} <= set(steps(waited))
        return "handed over" in steps(waited)

    # If a busy machine delays the nodes' messages, the waiter asks once more, and wins that round.
    eventually(waits)


def test_no_quorum_is_an_error(make_client, nodes, traces, spans):
    client = make_client(listeners=[traces], n=3)
    nodes.kill(0)
    nodes.kill(1)
    with pytest.raises(QuorumError):
        client.get_lock("x").acquire(False)
    [failed] = spans()
    assert failed.attributes["redsync.outcome"] == "no_quorum"
    assert failed.attributes["error.type"] == "QuorumError"
    assert failed.status.status_code is StatusCode.ERROR


def test_lost_hold_states_the_reason(make_client, raw, traces, spans, eventually):
    lock = make_client(listeners=[traces], lease=3.0).get_lock("x")
    lock.acquire()
    spans()
    flush(raw)
    ended = []
    eventually(lambda: ended.extend(spans()) or ended)
    [held] = ended
    assert steps(held) == ["lost"]
    assert held.events[0].attributes["redsync.reason"] == "taken"
    assert held.status.status_code is StatusCode.ERROR
    assert "nodes" in held.status.description


def test_reentry_is_an_acquire_but_not_a_second_hold(make_client, traces, spans):
    lock = make_client(listeners=[traces]).get_lock("x")
    with lock, lock:
        first, second = spans()
        assert first.name == second.name == "acquire lock"
        assert second.attributes["redsync.rounds"] == 0
    assert [span.name for span in spans()] == ["hold lock"]


def test_each_thread_has_its_own_context(make_client, traces, tracer, spans):
    client = make_client(listeners=[traces])

    def work(number):
        with tracer.start_as_current_span(f"job {number}") as job, client.get_lock(f"x{number}"):
            return job.get_span_context().span_id

    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(work, range(8)))
    check_parents(spans(), jobs)


def test_each_task_has_its_own_context(nodes, traces, tracer, spans):
    async def main():
        async with AsyncClient(nodes.urls, restart_guard=0.0, listeners=[traces]) as client:

            async def work(number):
                with tracer.start_as_current_span(f"job {number}") as job:
                    async with client.get_lock(f"x{number}"):
                        return job.get_span_context().span_id

            return await asyncio.gather(*map(work, range(8)))

    check_parents(jobs=run(main), ended=spans())


def check_parents(ended, jobs):
    found = {(span.name, span.attributes["redsync.name"]): span for span in ended if "redsync.name" in span.attributes}
    for number, job in enumerate(jobs):
        for what in ("acquire lock", "hold lock"):
            assert found[what, f"x{number}"].parent.span_id == job


def test_hold_that_another_thread_releases_keeps_its_parent(make_client, traces, tracer, spans, other):
    client = make_client(listeners=[traces])
    with tracer.start_as_current_span("job") as job:
        permit = client.get_semaphore("x", 3).acquire()
    with tracer.start_as_current_span("elsewhere"):
        other.do(copy_context().run, permit.release)
    [held] = [span for span in spans() if span.name == "hold semaphore"]
    assert held.parent.span_id == job.get_span_context().span_id


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_ends_no_span_of_its_parent(nodes, traces, spans):
    with nodes.client(listeners=[traces]) as client, client.get_lock("x"):
        spans()

        def use():
            with client.get_lock("y"):
                pass
            return f"{[span.name for span in spans()]} {len(traces._open)}"

        assert in_child(use) == "['acquire lock', 'hold lock'] 0"
        assert spans() == ()
    assert [span.name for span in spans()] == ["hold lock"]


class Told:
    """A client's ear and clock, for what real nodes seldom do."""

    def __init__(self, traces):
        self.now = 100.0
        self.subscription = traces.listen(lambda: self.now)

    def won(self, hold, name="x", rounds=1):
        record = AcquireRecord(name, "lock", wanted=1, limit=None, started=self.now)
        record.counts = {"round": rounds} if rounds else {}
        self.subscription.hear(AcquireEnded(record, "won", hold))


@pytest.fixture
def told(traces):
    return Told(traces)


def hold():
    class Hold(SimpleNamespace):
        __hash__ = object.__hash__

    return Hold(lease=30.0, fencing_token=None, lost=None, live=True)


def test_end_reported_before_its_acquire_ends_the_hold(told, spans):
    early = hold()
    early.lost = "its lease ended"
    told.subscription.hear(HoldLost("x", "owner", early.lost, early))
    assert spans() == ()
    told.won(early)
    acquired, held = spans()
    assert steps(held) == ["lost"]
    assert held.events[0].attributes["redsync.reason"] == "lease_ended"
    assert acquired.name == "acquire lock"


def test_names_in_bytes_are_shown(told, spans):
    told.won(hold(), name=b"\xff:1")
    assert spans()[0].attributes["redsync.name"] == "\\xff:1"


def test_release_reported_before_its_acquire_ends_the_hold(told, traces, spans):
    early = hold()
    early.live = False
    told.subscription.hear(HoldEnded(early))
    told.won(early)
    assert [span.name for span in spans()] == ["acquire lock", "hold lock"]
    assert not traces._open


def test_end_reported_twice_ends_one_span(told, traces, spans):
    twice = hold()
    told.won(twice)
    told.subscription.hear(HoldEnded(twice))
    told.subscription.hear(HoldEnded(twice))
    assert [span.name for span in spans()] == ["acquire lock", "hold lock"]
    assert not traces._open


def test_spans_of_holds_whose_end_no_client_reports_do_not_pile_up(told, traces):
    """Such as those of an event loop that was closed before its client."""
    dropped = hold()
    told.won(dropped)
    assert traces._open
    del dropped
    gc.collect()
    assert not traces._open
