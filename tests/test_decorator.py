"""`@client.locked(...)`: functions that run under a lock named by their arguments."""

import inspect
from enum import Enum
from functools import partial

import pytest

from redsync import AcquireTimeout, Client, LeaseLostError, QuorumError
from tests.support.locks import flush


class User:
    def __init__(self, number):
        self.id = number


REPORT = Enum("Kind", {"REPORT": "report"}, type=str).REPORT


def test_function_runs_under_the_lock_of_its_arguments(client, other):
    @client.locked("report:{user_id}")
    def report(user_id, kind="short"):
        assert client.get_lock(f"report:{user_id}").owned()
        assert other.do(client.get_lock("report:8").acquire, False)
        other.do(client.get_lock("report:8").release)
        return user_id, kind

    assert report(7) == (7, "short")
    assert report(user_id=7, kind="long") == (7, "long")
    assert not client.get_lock("report:7").locked()


@pytest.mark.parametrize(
    ("template", "given", "name"),
    [
        ("{user!r:>4}", [7], "   7"),
        ("{user:{width}}", [7], "  7"),
        ("{user:0{width}.{width}f}", [7], "7.000"),
        ("{user!s:.{width}}", [7], "7"),
        ("{user.real.imag}:{width:x}", [7], "0:3"),
        ("{{{user}}}", [7], "{7}"),
        ("{{tag}}", [7], "{tag}"),
        ("a:{user.id}:{args[0][1]}:{width:03d}", [User(5), ["left", "right"]], "a:5:right:003"),
        ("{args[1]}:{options[key]}", [7, 8, 9], "9:word"),
        ("only one", [7], "only one"),
        # A member of an enum of strings is its value, as for `get_lock`.
        ("{user}:{user:>8}:{user.name}:{user.value}", [REPORT], "report:  report:REPORT:report"),
        ("{user}", [REPORT], REPORT),
        # A value is not a template.
        ("x:{user}", ["{width}{user.real}{"], "x:{width}{user.real}{"),
    ],
)
def test_name_is_the_result_of_str_format(client, template, given, name):
    @client.locked(template)
    def work(user, *args, width=3, **options):
        return client.get_lock(name).owned()

    assert work(*given, key="word")


def test_method_is_locked_by_attributes_of_its_object_or_class(client):
    class Account:
        number = 12

        @classmethod
        @client.locked("{cls.__module__}.{cls.__name__}")
        def audit(cls):
            return client.get_lock(f"{__name__}.Account").owned()

        @client.locked("{self.__class__.__qualname__}:{self.number}")
        def pay(self):
            return client.get_lock(f"{Account.__qualname__}:12").owned()

    assert Account.audit()
    assert Account().pay()


def test_function_keeps_its_name_and_signature(client):
    def work(number: int, kind: str = "short") -> str:
        """Work."""

    locked = client.locked("x:{number}")(work)
    assert locked.__name__ == "work"
    assert locked.__doc__ == "Work."
    assert inspect.signature(locked) == inspect.signature(work)
    for arguments in ([], [1, 2, 3]):
        with pytest.raises(TypeError):
            locked(*arguments)


def test_call_waits_forever_by_default(client, other, eventually):
    @client.locked("x")
    def work():
        return "done"

    with client.get_lock("x"):
        waiter = other.start(work)
        eventually(lambda: client.inspect("x").waiters)
    assert waiter.result(20) == "done"


def test_call_that_finds_it_busy_raises_or_is_skipped_or_goes_to_another_function(client, other):
    def instead(*args, **kwargs):
        assert not client.get_lock("x:1").owned()
        return "instead", args, kwargs

    def work(number, kind="short"):
        return "done"

    skipping = client.locked("x:{number}", timeout=0, on_busy="skip")(work)
    replacing = client.locked("x:{number}", timeout=0, on_busy=instead)(work)
    assert skipping(1) == replacing(1) == "done"
    other.do(client.get_lock("x:1").acquire)
    assert skipping(1) is None
    assert replacing(1, kind="long") == ("instead", (1,), {"kind": "long"})
    with pytest.raises(AcquireTimeout, match="'x:1'"):
        client.locked("x:{number}", timeout=0)(work)(1)

    class Later:
        async def __call__(self, *args, **kwargs): ...

    for later in Later(), Later().__call__, partial(partial(Later(), 1), kind=2):
        for decorator in (client.locked("x", on_busy=later), client.get_rate_limiter("y", 1, 1)(on_busy=later)):
            with pytest.raises(TypeError, match="call__ is a coroutine function: use the AsyncClient"):
                decorator(work)
    assert skipping(2) == "done"


@pytest.mark.parametrize("on_busy", ["skip", lambda: "instead"])
def test_errors_of_the_function_are_its_own(client, on_busy):
    @client.locked("x", timeout=0, on_busy=on_busy)
    def work():
        raise AcquireTimeout("another", 1.0)

    with pytest.raises(AcquireTimeout, match="another"):
        work()


def test_missing_quorum_is_never_mistaken_for_busy():
    def work():
        pytest.fail("ran without the lock")

    with Client([f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]) as client:
        for on_busy in ("raise", "skip", lambda: "instead"):
            with pytest.raises(QuorumError):
                client.locked("x", timeout=0, on_busy=on_busy)(work)()


def test_options_are_those_of_get_lock_and_a_loss_is_raised_at_the_end(client, raw):
    lost = []

    @client.locked("x", lease=5, on_lost=lost.append, max_hold=3)
    def work(last):
        assert client.get_lock("x").remaining() <= 3
        assert all(node.pttl("redsync:x") <= 5000 for node in raw)
        if last:
            flush(raw)

    work(False)
    assert lost == []
    with pytest.raises(LeaseLostError):
        work(True)


INVALID = {
    r"not? .*parameter of the function \(it has: user\)": [
        *("x:{usr}", "x:{usr.id}", "x:{usr[0]}", "x:{user:{usr}}", "x:{}", "x:{0}", "x:{0[x]}", "x:{user:{}}"),
    ],
    r"is not a template for str\.format: .* \(double each literal brace\)": [
        *("x:{", "x:}", "x:{user", "x:{user!x}", "x:{user!s:d}", "{user:{user:{user}}}", "{user[}"),
    ],
    # These would lead to the variables of modules and frames.
    r"reads the attribute '\w+', which is not public: use a parameter or a property": [
        *("{user._id}", "{user.__dict__}", "{user:{user.__doc__}}", "{user.friends[0].__init__.__globals__[SECRET]}"),
        *("{user.gi_frame.f_globals}", "{user.cr_frame.f_locals}", "{user.ag_frame}", "{user.tb_frame.f_builtins}"),
        *("{user.f_back}", "{user.f_code}", "{user.f_globals}", "{user.f_locals}", "{user.f_builtins}"),
        *("{user.ag_code}", "{user.cr_code}", "{user.gi_code}"),
    ],
    "1 to 512 bytes": ["", "x" * 512 + "{user}"],
}

REFUSED = [
    *((name, {}, ValueError, reason) for reason, names in INVALID.items() for name in names),
    *(("x", {"on_busy": on_busy}, ValueError, "on_busy") for on_busy in ("ignore", None, 1, True)),
    *(("x", {"timeout": timeout}, ValueError, "timeout") for timeout in (-2, float("nan"))),
    ("x", {"lease": -1}, ValueError, "lease"),
    ("x", {"unknown": 1}, TypeError, "unknown"),
    (b"x", {}, TypeError, "must be a string, not b'x'"),
]


@pytest.mark.parametrize(("name", "options", "error", "reason"), REFUSED, ids=str)
def test_decorator_is_refused_when_no_call_could_get_its_lock(client, name, options, error, reason):
    def work(user):
        pytest.fail("ran")

    with pytest.raises(error, match=reason):
        client.locked(name, **options)(work)
