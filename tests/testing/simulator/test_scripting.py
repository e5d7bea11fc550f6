"""Scripts on a virtual node: the values that cross the borders between client, script and node."""

import sys

import hiredis
import pytest

from redsync.testing.simulator import scripting
from redsync.testing.simulator.store import Store, UnknownCommandError

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


def plain(reply):
    """Return a reply with its errors as text."""
    if isinstance(reply, list):
        return [plain(item) for item in reply]
    return f"error: {reply}" if isinstance(reply, hiredis.ReplyError) else reply


# Replies to a client.


@pytest.mark.parametrize(
    ("source", "reply"),
    [
        ("return 7", 7),
        ("return 3.99", 3),
        ("return -3.99", -3),
        ("return -0.5", 0),
        ("return 2^53", 2**53),
        ("return 'a\\0\\255'", b"a\x00\xff"),
        ("return true", 1),
        ("return false", None),
        ("return nil", None),
        ("return", None),
        ("return {}", []),
        ("return {1.9, true, false, 'x', {2, {}}, nil, 3}", [1, 1, None, b"x", [2, []]]),
        ("return {ok = 'fine'}", b"fine"),
        ("return redis.status_reply('fine')", b"fine"),
        ("return {err = 'BAD day'}", "error: BAD day"),
        ("return redis.error_reply('BAD day')", "error: BAD day"),
        ("return redis.error_reply('-BAD day')", "error: BAD day"),
        ("return {1, redis.error_reply('BAD day')}", [1, "error: BAD day"]),
        ("return redis.call('set', 'k', 'v')", b"OK"),
        ("return {redis.call('type', 'k')}", [b"none"]),
    ],
)
def test_reply_is_what_a_client_gets(run, source, reply):
    got = plain(run(source))
    assert got == reply
    assert type(got) is type(reply)


def test_keys_and_arguments_arrive_as_text(run):
    source = "return {#KEYS, KEYS[1], KEYS[2], #ARGV, ARGV[1], type(ARGV[2]), ARGV[2], tostring(ARGV[3])}"
    reply = run(source, (b"k\x00", b"l"), (b"\xff", -5))
    assert reply == [2, b"k\x00", b"l", 2, b"\xff", b"string", b"-5", b"nil"]


def test_script_takes_thousands_of_words(run):
    assert run("return #KEYS + #ARGV", (b"k",) * 1000, (1,) * 3000) == 4000


# Values for a script.


@pytest.mark.parametrize(
    ("source", "reply"),
    [
        ("return {type(redis.call('get', 'none')), redis.call('get', 'none') == false}", [b"boolean", 1]),
        ("return type(redis.call('hget', 'h', 'f'))", b"string"),
        ("return type(redis.call('hlen', 'h'))", b"number"),
        ("return redis.call('type', 'h').ok", b"hash"),
        ("return redis.call('set', 's', 'v', 'nx', 'px', 5).ok", b"OK"),
        ("redis.call('set', 's', 1) return redis.call('set', 's', 2, 'nx') == false", 1),
        ("return #redis.call('hgetall', 'none')", 0),
        ("return redis.call('hgetall', 'h')[2]", b"1"),
        ("return redis.call('HKEYS', 'h')[1]", b"f"),
        ("redis.call('set', 's', 0.1) return redis.call('get', 's')", b"0.1"),
        ("redis.call('set', 's', 1700000000000) return redis.call('get', 's')", b"1700000000000"),
        ("redis.call('hset', 'h', 7, 8) return redis.call('hget', 'h', '7')", b"8"),
        ("return string.format('%.0f', 1700000000000.0)", b"1700000000000"),
        ("return {tonumber('12') + '3', tostring(1e14), math.floor(-1.5)}", [15, b"1e+14", -2]),
    ],
)
def test_script_gets_the_node_s_values(run, do, source, reply):
    do("hset", "h", "f", 1)
    assert run(source) == reply


def test_pcall_gives_the_error_as_a_table(run, do):
    do("set", "k", "v")
    assert run("local reply = redis.pcall('hget', 'k', 'f') return {type(reply), reply.err}") == [
        b"table",
        WRONG_TYPE.encode(),
    ]


def test_failing_call_ends_the_script_and_keeps_its_writes(run, do):
    do("set", "k", "v")
    reply = run("redis.call('set', 'a', 1)\nlocal gone = redis.call('hget', 'k', 'f')\nredis.call('set', 'b', 1)")
    assert plain(reply) == f"error: {WRONG_TYPE} script: on @user_script:2."
    assert do("exists", "a", "b") == 1


def test_mistake_in_a_script_is_an_error_with_its_line(run):
    reply = plain(run("local none\nreturn none.field"))
    assert reply.startswith("error: ERR user_script:2: attempt to index local 'none'")
    assert reply.endswith("script: on @user_script:2.")


@pytest.mark.parametrize("argument", ["nil", "{}", "true"])
def test_command_takes_strings_and_numbers_only(run, argument):
    reply = plain(run(f"return redis.pcall('get', {argument})"))
    assert reply == "error: ERR Command arguments must be strings or integers"


@pytest.mark.parametrize("call", ["call", "pcall"])
def test_command_that_virtual_nodes_lack_is_an_exception(run, call):
    with pytest.raises(UnknownCommandError, match="'blpop'"):
        run(f"return redis.{call}('blpop', 'k', 0)")
    assert run("return 1") == 1


@pytest.mark.parametrize("call", ["call", "pcall"])
def test_exception_of_the_simulation_comes_through_the_script(run, clock, call):
    def fail(_channel, _message):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(f"return redis.{call}('publish', 'c', 'm')", on=Store(clock, fail))


# One script, one instant, one store.


def test_time_stands_still_during_a_script(run, clock):
    def publish(_channel, _message):
        clock.advance_ms(1_000)
        return 1

    source = (
        "redis.call('set', 'k', 'v', 'px', 10) local before = redis.call('time') redis.call('publish', 'c', 'm') "
        "local after = redis.call('time') return {redis.call('pttl', 'k'), before[1] == after[1]}"
    )
    store = Store(clock, publish)
    assert run(source, on=store) == [10, 1]
    assert run("return redis.call('exists', 'k')", on=store) == 0


def test_script_acts_on_the_store_that_it_was_given(run, clock):
    stores = [Store(clock) for _ in range(3)]
    for number, store in enumerate(stores):
        run("redis.call('set', 'k', ARGV[1])", (), (number,), on=store)
    assert [store.snapshot()[b"k"][0] for store in stores] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("leak = 1", "Attempt to modify a readonly table"),
        ("type = 1", "Attempt to modify a readonly table"),
        ("string.leak = 1", "Attempt to modify a readonly table"),
        ("redis.call = 1", "Attempt to modify a readonly table"),
        ("function leak() end", "Attempt to modify a readonly table"),
        ("return leak", "Script attempted to access nonexistent global variable 'leak'"),
        ("return os.time()", "Script attempted to access nonexistent global variable 'os'"),
        ("return python.eval", "Script attempted to access nonexistent global variable 'python'"),
    ],
)
def test_script_leaves_no_globals(run, source, problem):
    assert problem in plain(run(source))


def test_keys_of_one_run_are_not_those_of_the_next(run):
    source = "KEYS[#KEYS + 1] = 'more' return #KEYS"
    assert run(source, (b"k",)) == 2
    assert run(source, (b"k",)) == 2


def test_script_inside_a_script_is_refused(run, clock):
    store = Store(clock, lambda _channel, _message: run("return 1"))
    with pytest.raises(AssertionError, match="atomic"):
        run("return redis.call('publish', 'c', 'm')", on=store)
    assert run("return 1") == 1


# The shipped scripts, briefly: test_differential.py has all of them.


def test_missing_lupa_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lupa.lua51", None)
    with pytest.raises(ImportError, match=r'pip install "redsync-toolkit\[simulator\]"'):
        scripting._Interpreter()
