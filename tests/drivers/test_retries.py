import math

import pytest
from redsync._drivers.retries import Retries, is_refused

from redsync._core.effects import Command, Tell
from redsync._core.ownership import Owner
from redsync._core.scripts import Script
from redsync._drivers.requests import Request

UNDO = Script("undo", b"return 1", b"0" * 40)
ANNA = Owner("client", 1)


def request(number, claim=b"anna", *, until=1000.0):
    made = Request(Tell(Command(UNDO, (b"key",), (claim, number)), ANNA, 1, until), None)
    assert made.make(number)
    return made


def several(count):
    return [request(number, b"%d" % number) for number in range(count)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BUSY Redis is busy running a script", True),
        ("MISCONF Redis is configured to save RDB snapshots", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("OOM command not allowed when used memory > 'maxmemory'", True),
        ("ERR Error running script (call to f_0): @user_script:9: -MISCONF Redis is configured", True),
        ("NOSCRIPT No matching script", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("ERR unknown command 'EVALSHA'", False),
        ("ERR Error running script (call to f_0): @user_script:9: WRONGTYPE Operation against a key", False),
    ],
)
def test_is_refused_tells_which_errors_may_pass(text, expected):
    assert is_refused(text) is expected


def test_retries_pause_longer_and_longer_while_the_node_refuses():
    retries, now, pauses = Retries(), 0.0, []
    undo = request(1)
    for _ in range(12):
        retries.add(undo, now)
        pauses.append(retries.at - now)
        now = retries.at
        assert retries.due(now, []) == [undo]
        retries.remove([undo])
        assert retries.at == math.inf, "it is in flight"
        assert retries.under_way
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, *[0.5] * 6])


def test_retries_send_one_first_and_the_others_once_it_is_executed():
    retries = Retries()
    made = several(700)
    for each in made:
        retries.add(each, 0.0)
    sizes = []
    while retries.under_way:
        batch = retries.due(1.0, [])
        sizes.append(len(batch))
        retries.remove(batch)
        for each in batch:
            retries.settle(each, 1.0)
    assert sizes == [1, 8, 64, 512, 115]
    assert retries.at == math.inf


def test_retries_try_another_request_each_time():
    """A request that a node never executes delays no other."""
    retries = Retries()
    made = several(3)
    for each in made:
        retries.add(each, 0.0)
    tried = []
    for now in range(1, 4):
        (batch,) = retries.due(now, [])
        tried.append(batch)
        retries.remove([batch])
        retries.add(batch, now)
    assert tried == made


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_retries_keep_the_latest_request_for_a_claim_even_if_it_was_refused_first(order):
    retries = Retries()
    for number in order:
        retries.add(request(number), 0.0)
    (due,) = retries.due(1.0, [])
    assert due.number == 2


def test_retries_wait_while_a_later_command_for_the_claim_is_in_flight():
    retries = Retries()
    undo, other, later = request(1), request(2, b"bert"), request(3)
    retries.add(undo, 0.0)
    retries.add(other, 0.0)
    assert retries.due(1.0, [later]) == [other]
    retries.remove([other])
    retries.settle(other, 1.0)
    assert retries.due(1.0, [later]) == []
    assert 1.0 < retries.at < 1.1
    retries.settle(later, 1.05)
    assert not retries.under_way, "an executed command settles earlier ones"


def test_retries_keep_a_refused_command_when_an_earlier_one_is_executed():
    """The earlier one was sent again, because the node had forgotten its script."""
    retries = Retries()
    renewal, undo = request(1), request(2)
    retries.add(undo, 0.0)
    retries.settle(renewal, 0.0)
    assert retries.due(1.0, []) == [undo]
    retries.remove([undo])
    retries.settle(renewal, 1.0)
    assert retries.under_way, "it is in flight"
    retries.settle(undo, 1.0)
    assert not retries.under_way


def test_retries_drop_pointless_requests():
    retries = Retries()
    retries.add(request(1, b"anna", until=5.0), 0.0)
    lasting = request(3, b"cleo")
    retries.add(lasting, 0.0)
    assert retries.due(5.0, []) == [lasting]
    retries.remove([lasting])
    retries.settle(lasting, 5.0)
    assert not retries.under_way


def test_retries_are_idle_when_all_requests_are_pointless():
    retries = Retries()
    retries.add(request(1, until=5.0), 0.0)
    assert retries.due(5.0, []) == []
    assert retries.at == math.inf
    assert not retries.under_way
