"""Uncontended acquire and release in one thread: with all nodes up, one down, one hung; and with fencing tokens."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from bench.floor import BareLock
from bench.measure import Figure, Sample, await_that, compare, interleave, ratio, say, time_pairs, time_pairs_for
from redsync import Client, Lock
from redsync.testing import LocalNodes

_WARM_UP = 300
_FIRST = 0.5
_ILL = (1, 3)
"""The indexes of the sides that use failing nodes, in the order of `_against_healthy`."""


class _Worlds(NamedTuple):
    """Five nodes that fail, their client, and the locks: ours on healthy and failing nodes, the floor on both."""

    ill: LocalNodes
    sick: Client
    locks: list[Lock | BareLock]


def run(*, quick: bool) -> list[Figure]:
    """Measure a pair on five healthy nodes."""
    rounds = 16 if quick else 60
    with LocalNodes(5) as nodes, nodes.client() as client, BareLock(nodes.ports, "pairs") as floor:
        lock = client.get_lock("pairs")
        ours, bare = interleave(_sides([lock, floor], 300), rounds)
    return [
        compare("pairs", "p50", "us", _p50(ours), _p50(bare), at_most=1.6),
        compare("pairs", "p99", "us", _p99(ours), _p99(bare)),
        compare("pairs", "client CPU", "us", [s.cpu for s in ours], [s.cpu for s in bare], at_most=1.9),
    ]


def run_fenced(*, quick: bool) -> list[Figure]:
    """Measure a pair of a fenced lock against a pair of a plain lock, the floor here."""
    rounds = 16 if quick else 60
    with LocalNodes(5) as nodes, nodes.client() as client:
        fenced, plain = interleave(_sides([client.get_fenced_lock("fenced"), client.get_lock("plain")], 300), rounds)
    return [
        compare("fenced", "pair p50 (floor: plain lock)", "us", _p50(fenced), _p50(plain), at_most=1.15),
        compare("fenced", "pair p99 (floor: plain lock)", "us", _p99(fenced), _p99(plain)),
        compare("fenced", "client CPU (floor: plain lock)", "us", [s.cpu for s in fenced], [s.cpu for s in plain]),
    ]


@contextmanager
def _two_worlds() -> Iterator[_Worlds]:
    """Start five nodes that stay healthy and five that fail, with a client and a bare lock for each five."""
    with (
        LocalNodes(5) as well,
        LocalNodes(5) as ill,
        well.client() as sound,
        ill.client() as sick,
        BareLock(well.ports, "pairs") as floor_well,
        BareLock(ill.ports, "pairs") as floor_ill,
    ):
        yield _Worlds(ill, sick, [sound.get_lock("pairs"), sick.get_lock("pairs"), floor_well, floor_ill])


def run_down(*, quick: bool) -> list[Figure]:
    """Measure a pair while one of five nodes is dead, next to five healthy ones."""
    with _two_worlds() as worlds:
        sides = _sides(worlds.locks, 200)
        # The node to which both sides write first.
        worlds.ill.kill(0)
        _await_state(worlds.sick, "down")
        samples = interleave(sides, 8 if quick else 40)
    return _against_healthy("down", "1 node down", samples)


def run_hung(*, quick: bool) -> list[Figure]:
    """Measure a pair while one of five nodes is stopped, next to five healthy ones."""
    with _two_worlds() as worlds:
        sides = _sides(worlds.locks, 200)
        first = _first_moment(worlds, 1 if quick else 5)
        worlds.ill.pause(0)
        for lock in worlds.locks:
            time_pairs_for(0.3, lock.acquire, lock.release)
        _await_state(worlds.sick, "suspect")
        # If not quick, this is long enough for the client to drop the connection and fail to open others.
        samples = interleave(sides, 8 if quick else 70)
    return _against_healthy("hung", "1 node hung", samples) + first


def _sides(locks: Sequence[Lock | BareLock], pairs: int) -> list[partial[Sample]]:
    for lock in locks:
        time_pairs(lock.acquire, lock.release, _WARM_UP)
    return [partial(time_pairs, lock.acquire, lock.release, pairs) for lock in locks]


def _first_moment(worlds: _Worlds, times: int) -> list[Figure]:
    """Measure pairs from a node's stop until the client knows of it, several times."""
    samples: list[list[Sample]] = [[] for _ in worlds.locks]
    for _ in range(times):
        for side, lock in enumerate(worlds.locks):
            # Stop and resume the node for each side, so that each has its own first moment.
            falls_ill = side in _ILL
            if falls_ill:
                worlds.ill.pause(0)
            samples[side].append(time_pairs_for(_FIRST, lock.acquire, lock.release))
            if falls_ill:
                worlds.ill.resume(0)
                # Let the node execute what it was sent meanwhile.
                time_pairs(lock.acquire, lock.release, 50)
                _await_state(worlds.sick, "up")
    return _against_healthy("hung", f"first {_FIRST:g} s", samples, judge=False)


def _against_healthy(bench: str, what: str, samples: Sequence[Sequence[Sample]], *, judge: bool = True) -> list[Figure]:
    """Return the figures of failing nodes, against the floor and against the same side on healthy nodes.

    `samples` has four sides: ours on healthy and on failing nodes, then the floor on both.
    """
    ours_well, ours_ill, bare_well, bare_ill = samples
    figures = []
    for label, pick in (("p50", _p50), ("p99", _p99)):
        figures.append(compare(bench, f"{what}: {label}", "us", pick(ours_ill), pick(bare_ill)))
        ours = ratio(pick(ours_ill), pick(ours_well))
        floor = ratio(pick(bare_ill), pick(bare_well))
        figures.append(
            Figure(
                bench,
                f"{what}: {label} / own healthy {label}",
                "x",
                ours,
                floor,
                target="redsync <= 1.2" if judge else "",
                met=ours <= 1.2 if judge else None,
            )
        )
    if judge:
        cpu = [[sample.cpu for sample in side] for side in (ours_ill, bare_ill)]
        figures.append(compare(bench, f"{what}: client CPU", "us", cpu[0], cpu[1]))
        say(f"    ... healthy p50 next to it: {statistics.median(_p50(ours_well)):.0f} us")
    return figures


def _await_state(client: Client, state: str) -> None:
    await_that(lambda: client.nodes()[0].state == state, f"the client calls node 0 {state}")


def _p50(samples: Sequence[Sample]) -> list[float]:
    return [sample.p50 for sample in samples]


def _p99(samples: Sequence[Sample]) -> list[float]:
    return [sample.p99 for sample in samples]
