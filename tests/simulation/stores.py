"""Functions on the store of a virtual node, for tests and for servers that replicate or move keys."""

from redsync.testing.simulator.commands import find_command
from redsync.testing.simulator.store import NEVER, Entry, Reply, Store, Value, copy_of


def execute(store: Store, name: bytes, *words: bytes) -> Reply:
    """Execute one command at the present instant.

    Raises:
        CommandError: The node refuses it.
        UnknownCommandError: Virtual nodes lack it.
    """
    store.read_clock()
    return find_command(name)(store, *words)


def snapshot(store: Store) -> dict[bytes, tuple[Value, int | None]]:
    """Return a copy of all keys: each with its value, and for how many more ms it lasts (None: forever)."""
    store.read_clock()
    return {
        key: (copy_of(entry.value), None if entry.expires == NEVER else entry.expires - store.now_ms)
        for key in sorted(store._entries)
        if (entry := store.find(key)) is not None
    }


def differs(store: Store, entries: dict[bytes, Entry]) -> bool:
    """Return whether the present state of a store differs from that of a copy."""
    if len(entries) != len(store._entries):
        return True
    for key, entry in store._entries.items():
        before = entries.get(key)
        if before is not entry and (before is None or before.expires != entry.expires or before.value != entry.value):
            return True
    return False


def adopt(store: Store, key: bytes, entry: Entry, now_ms: int) -> None:
    """Take over a key of another store, whose clock showed `now_ms`; the rest of its lifetime is the same."""
    store.read_clock()
    expires = entry.expires if entry.expires == NEVER else entry.expires - now_ms + store.now_ms
    store.put(key, copy_of(entry.value), expires)
