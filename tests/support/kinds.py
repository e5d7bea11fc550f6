"""All kinds of locks that clients make, for tests of their common promises; both flavours make them alike."""

import pytest

from redsync import _kinds


def _multi(client, name, timeout=None, **options):
    locks = client.get_lock(name, **options), client.get_mutex(f"{name} too", **options)
    return client.get_multi_lock(*locks, timeout=timeout)


LOCKS = {
    **{
        kind.word: lambda client, name="x", kind=kind, **options: kind.maker(client)(name, **options)
        for kind in _kinds.LOCKS
    },
    "read": lambda client, name="x", **options: client.get_read_write_lock(name, **options).read_lock,
    "write": lambda client, name="x", **options: client.get_read_write_lock(name, **options).write_lock,
    "multi": lambda client, name="x", **options: _multi(client, name, **options),
}
"""Everything with the interface of a lock: held by one owner at a time, or by several readers."""

KINDS = {**LOCKS, "semaphore": lambda client: client.get_semaphore("x", 1)}
"""Everything that `with` acquires and releases."""

FACADES = ["lock", "mutex", "multi"]
"""A kind for each way to hold: by the thread or task, by the object, and several as one."""


def family(kind):
    """Return the kind whose layout nodes use for its claims: kinds of one family exclude each other."""
    # The first of a multi-lock is a lock.
    return {"multi": "lock", "read": "read-write", "write": "read-write"}.get(kind) or _kinds.KINDS[kind].like


def waits_in_line(kind):
    """Return whether its waiters have places in the nodes' queues."""
    return kind not in _kinds.KINDS or _kinds.KINDS[kind].waits != "pauses"


def another(kind):
    """Return the kind that another owner asks for where this one is held: readers keep only writers out."""
    return KINDS["write" if kind == "read" else kind]


def _in_both_flavours(kinds, often):
    """Run a test for each kind and flavour; those that are not `often` run only in sweeps."""
    cases = [(kind, flavour) for kind in kinds for flavour in ("threads", "asyncio")]
    sweep = pytest.mark.sweep
    params = [pytest.param(*case, marks=[] if often(*case) else sweep) for case in cases]
    return pytest.mark.parametrize(("kind", "flavour"), params, indirect=["flavour"])


def each_kind_of(kinds):
    """Run a test of what scripts and protocols of a kind promise: all with threads, one of each facade with asyncio."""
    return _in_both_flavours(kinds, lambda kind, flavour: flavour == "threads" or kind in FACADES)


each_kind = each_kind_of(LOCKS)

each_facade = _in_both_flavours(LOCKS, lambda kind, _: kind in FACADES)
"""For the promises of the objects that users hold, whatever the kind."""

each_kind_once = pytest.mark.parametrize("kind", LOCKS)
"""For threads only."""

each_entered = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in {*FACADES, "semaphore"} else pytest.mark.sweep) for kind in KINDS]
)
"""For how `with` treats its body: one of each facade, and the others in sweeps."""
