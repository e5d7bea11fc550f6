import threading

import hiredis

from redsync._core.effects import Broadcast, Command, Packed, Tell
from redsync._core.ownership import Owner
from redsync._core.scripts import Script
from redsync._drivers import requests
from redsync._drivers.requests import Mailbox, Request, Sleeper

SCRIPT = Script("echo", b"return 1", b"0" * 40)
ANNA = Owner("client", 1)


def request(number=1, owner=ANNA, key=b"key", **options):
    made = Request(Tell(Command(SCRIPT, (key,), (b"word", 7)), owner, **options), None)
    made.number = number
    assert made.make()
    return made


def words_of(data):
    reader = hiredis.Reader()
    reader.feed(data)
    return reader.gets()


def test_request_is_made_into_one_command():
    assert words_of(request().data) == [b"EVALSHA", b"0" * 40, b"1", b"key", b"word", b"7"]


def test_request_without_a_command_is_not_made():
    made = Request(Broadcast(lambda: None, None, bool, 1.0), None)
    assert not made.make()
    assert made.data == b""


def test_request_gets_its_arguments_at_the_instant_of_making():
    words = [b"early"]
    made = Request(Broadcast(lambda: Command(SCRIPT, (b"key",), tuple(words)), None, bool, 1.0), None)
    words[0] = b"late"
    assert made.make()
    assert words_of(made.data)[-1] == b"late"


def test_repeated_command_is_packed_once(monkeypatch):
    command, other = (Command(SCRIPT, (b"key",), (word,), Packed()) for word in (b"same", b"other"))
    made, calls = [], []
    monkeypatch.setattr(requests, "pack", lambda *words: calls.append(words[-1]) or b" ".join(words))
    for each in (command, command, other, command):
        request = Request(Broadcast(lambda each=each: each, None, bool, 1.0), None)
        assert request.make()
        assert request.data.endswith(each.args[0])
        made.append(request.data)
    assert calls == [b"same", b"other"]
    assert made[0] is made[1]


def test_request_is_guarded_only_if_it_asks_for_a_new_claim():
    ask = Broadcast(Command(SCRIPT, (b"key",), ()), ANNA, bool, 1.0, guard=30.0)
    assert Request(ask, None).guard == 30.0
    assert Request(ask._replace(guard=0.0), None).guard == 0.0
    assert request().guard == 0.0


def test_mailbox_is_done_once_enough_nodes_have_signalled():
    mailbox = Mailbox()
    mailbox.needed = 2
    mailbox.signal(0b001)
    mailbox.signal(0b001)
    assert not mailbox.done
    mailbox.signal(0b100)
    assert mailbox.done
    assert mailbox.signals == 0b101


def test_mailbox_keeps_which_nodes_signalled_with_which_mark():
    mailbox, another = Mailbox(), Mailbox()
    mailbox.signal(0b001, b"7")
    mailbox.signal(0b010)
    mailbox.signal(0b100, b"7")
    mailbox.signal(0b100, b"8")
    assert mailbox.marks == {b"0": 0b010, b"7": 0b101, b"8": 0b100}
    assert mailbox.signals == 0b111, "each node counts once"
    assert another.marks == {}


def test_wake_opens_the_gate_once():
    sleeper = Sleeper()
    sleeper.wake()
    gate = sleeper.gate = threading.Lock()
    gate.acquire()
    sleeper.wake()
    sleeper.wake()
    assert not gate.locked()
