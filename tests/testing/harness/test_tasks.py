"""The drawn tasks: each is possible, and each mixture has the tasks that it exists for."""

import math
import random

import pytest

from redsync.testing.harness.tasks import WORK

LEASE = 2.0


def drawn(work, times=2000):
    rng = random.Random(1)
    return [WORK[work](rng, LEASE) for _ in range(times)]


@pytest.mark.parametrize("work", WORK)
def test_every_task_can_be_done(work):
    for task in drawn(work):
        assert task.timeout >= 0.0
        assert task.seconds >= 0.0
        assert task.rest >= 0.0
        assert 1 <= task.levels <= 3
        assert task.lease is None or 0.1 < task.lease <= LEASE


@pytest.mark.parametrize("work", WORK)
def test_choices_come_from_the_given_source_alone(work):
    assert drawn(work, 50) == drawn(work, 50)


def test_mixture_has_holds_that_outlast_their_belief():
    tasks = drawn("mixed")
    assert any(task.lease is not None and task.seconds > task.lease for task in tasks)
    assert any(task.lease is None and task.seconds > LEASE for task in tasks)
    assert any(task.extends for task in tasks)


def test_counting_never_outlasts_a_lease():
    assert all(task.lease is None and task.seconds < LEASE for task in drawn("counting"))


def test_eager_owners_wait_for_the_rest_of_the_run_or_shortly():
    assert {task.timeout for task in drawn("eager")} == {math.inf, 0.05, 0.3}
