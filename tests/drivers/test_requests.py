import threading

import hiredis

from redsync._core.effects import Broadcast, Command, Packed, Tell
from redsync._core.ownership import Owner
from redsync._core.scripts import Script
from redsync._drivers import requests
from redsync._drivers.requests import Mailbox, Owed, Request, Sleeper

SCRIPT = Script("echo", b"return 1", b"0" * 40)
ANNA, BERT = Owner("client", 1), Owner("client", 2)


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


def test_owed_returns_the_requests_that_a_node_must_get_in_order():
    owed = Owed()
    first = request(1, owed_to=0b11, owed_until=9.0)
    second = request(2, key=b"another", owed_to=0b01, owed_until=9.0)
    for made in (first, request(3, owed_to=0b10, owed_until=9.0), request(4), second):
        owed.add(made, 0b01, 1.0)
    assert owed.take(2.0) == [first, second]
    assert owed.take(2.0) == []


def test_owed_forgets_pointless_requests():
    owed = Owed()
    soon, later = request(1, owed_to=1, owed_until=2.0), request(2, key=b"another", owed_to=1, owed_until=9.0)
    owed.add(soon, 1, 1.0)
    owed.add(later, 1, 1.0)
    assert owed.take(2.0) == [later]


def test_owed_forgets_nothing_while_the_node_has_commands_unanswered():
    """It may execute them at any time, so the client can't know which claims have expired."""
    owed = Owed()
    owed.unanswered = True
    made = [request(number, key=b"%d" % number, owed_to=1, owed_until=2.0) for number in range(1, 4)]
    for each in made:
        owed.add(each, 1, 3.0)
    assert owed.take(9.0) == made
    owed.add(made[0], 1, 9.0)
    assert owed.take(9.0) == [], "it was back meanwhile"


def test_owed_keeps_the_same_command_once_at_its_latest_position():
    """A waiter rolls back each of its tries while a node is away."""
    owed = Owed()
    release = request(2, key=b"another", owed_to=1, owed_until=9.0)
    undos = [request(number, owed_to=1, owed_until=9.0 + number) for number in (1, 3, 4)]
    for each in (*undos[:2], release, undos[2], undos[0]):
        owed.add(each, 1, 1.0)
    assert len(owed) == 2
    assert owed.take(1.0) == [release, undos[2]]


def test_owed_drops_expired_requests_at_any_position(monkeypatch):
    monkeypatch.setattr(requests, "_PURGE_FROM", 4)
    owed = Owed()
    lasting = request(1, key=b"lasting", owed_to=1, owed_until=6000.0)
    owed.add(lasting, 1, 0.0)
    for number in range(2, 1000):
        owed.add(request(number, key=b"%d" % number, owed_to=1, owed_until=number + 1.5), 1, float(number))
        assert len(owed) <= 8
    assert lasting in owed.take(999.0)


def test_owed_never_drops_unexpired_requests(monkeypatch):
    monkeypatch.setattr(requests, "_PURGE_FROM", 4)
    monkeypatch.setattr(requests, "_STALE_LIMIT", 3)
    owed = Owed()
    made = [request(number, key=b"%d" % number, owed_to=1, owed_until=600.0) for number in range(100)]
    for each in made:
        owed.add(each, 1, 1.0)
    assert owed.take(1.0) == made


def test_owed_to_a_node_that_hangs_for_long_drops_what_expired_first(monkeypatch):
    monkeypatch.setattr(requests, "_PURGE_FROM", 4)
    monkeypatch.setattr(requests, "_STALE_LIMIT", 3)
    owed = Owed()
    owed.unanswered = True
    lasting = request(0, key=b"lasting", owed_to=1, owed_until=600.0)
    made = [lasting] + [request(n, key=b"%d" % n, owed_to=1, owed_until=100.0 - n) for n in range(1, 16)]
    for each in made:
        owed.add(each, 1, 200.0)
    assert owed.take(200.0)[:4] == [lasting, *made[1:4]]


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
